//! The process of one round, from both ends: a crash in it is an error here and no dead PID 1.
//! Read [`run`] for the parent's side, then [`main`] for the child's.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kdelta_wire::{Round, RoundRequest, STRACE};
use kdelta_workloads::Mounting;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::error::{InitError, failed};
use crate::filesystem;

/// Argument that makes this program the process of a round.
pub(crate) const COMMAND: &str = "round";
/// Where the kernel found this program; `/proc/self/exe` of strace(1) is strace.
const INIT: &str = "/init";
/// Where strace(1) writes.
const TRACE: &str = "/tmp/strace";

/// Runs `request` in a fresh process, under strace(1) if the scenario says so. With a `limit`,
/// neither a round that takes longer than that nor processes that a failed round leaves stay alive.
pub(crate) fn run(request: &RoundRequest, limit: Option<Duration>) -> Result<Round, InitError> {
    let text =
        serde_json::to_vec(request).map_err(|source| InitError::Json { what: "round request", source })?;
    let traced = !request.scenario.strace.is_empty();
    let mut command = Command::new(if traced { STRACE } else { "/proc/self/exe" });
    if traced {
        command.args(&request.scenario.strace).args(["-o", TRACE, INIT]);
    } else {
        command.arg0("kdelta-init");
    }
    // No `current_dir`, here and for mkfs: with it the standard library forks and needs a socket
    // pair, which kernels without networking lack; without it, it uses posix_spawn(3).
    command.arg(COMMAND).env_clear();
    let round = finish(command, &text, limit)?;
    if !traced {
        return Ok(round);
    }
    let trace = std::fs::read_to_string(TRACE).map_err(failed(format!("read {TRACE}")))?;
    Ok(Round { trace: Some(trace), ..round })
}

/// Starts `command`, gives it `input`, and reads the round it prints.
fn finish(mut command: Command, input: &[u8], limit: Option<Duration>) -> Result<Round, InitError> {
    if limit.is_some() {
        command.process_group(0);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed("start the round's process"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that died early closed the pipe; how it ended says more than EPIPE.
        let _ = stdin.write_all(input);
    }
    let watch = limit.map(|limit| Watch::start(child.id(), limit));
    let result = child.wait_with_output();
    if let Some(watch) = watch {
        watch.end()?;
    }
    let result = result.map_err(failed("wait for the round's process"))?;
    if !result.status.success() {
        let output = String::from_utf8_lossy(&result.stderr).trim().to_owned();
        let command = "the round's process".to_owned();
        return Err(InitError::Program { command, outcome: outcome(result.status), output });
    }
    serde_json::from_slice(&result.stdout)
        .map_err(|source| InitError::Json { what: "a round's answer", source })
}

/// Ends a process group that runs for too long.
struct Watch {
    group: u32,
    limit: Duration,
    /// Dropped when the group's leader has ended.
    alive: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watch {
    fn start(group: u32, limit: Duration) -> Self {
        let (alive, ended): (Sender<()>, Receiver<()>) = channel();
        let thread = std::thread::spawn(move || {
            let late = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if late {
                kill_group(group);
            }
            late
        });
        Self { group, limit, alive, thread }
    }

    /// The leader has ended: so must those it started. An error when it was killed for being late.
    fn end(self) -> Result<(), InitError> {
        drop(self.alive);
        let late = self.thread.join().unwrap_or(false);
        kill_group(self.group);
        if late { Err(InitError::Late { seconds: self.limit.as_secs() }) } else { Ok(()) }
    }
}

/// Sends SIGKILL to every process of a group; one that is gone is fine.
fn kill_group(leader: u32) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// The round's process: a request on standard input, a round on standard output.
pub(crate) fn main() -> ExitCode {
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn answer() -> Result<(), String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| format!("read the request: {error}"))?;
    let request: RoundRequest =
        serde_json::from_str(&text).map_err(|error| format!("read the request: {error}"))?;
    let mounting = Mounting { unmount: filesystem::unmount, remount: filesystem::remount };
    let round = kdelta_workloads::run(&request, Some(mounting)).map_err(|error| error.to_string())?;
    let text = serde_json::to_vec(&round).map_err(|error| format!("write the round: {error}"))?;
    std::io::stdout().write_all(&text).map_err(|error| format!("write the round: {error}"))
}

/// Reaps processes whose parents are gone, as PID 1 must.
pub(crate) fn reap_orphans() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Waits until no child is left, after a round that left some in the middle of their work.
pub(crate) fn outlive_children() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::empty()) {}
}

/// How a process ended, as a predicate.
pub(crate) fn outcome(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Round, InitError> {
        shell_within(script, None)
    }

    fn shell_within(script: &str, limit: Option<Duration>) -> Result<Round, InitError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        finish(command, b"{}", limit)
    }

    #[test]
    fn a_round_that_fails_crashes_or_lies_is_an_error_that_says_so() {
        for (script, message) in [
            ("echo no space >&2; exit 1", "the round's process ended with status 1: no space"),
            ("kill -SEGV $$", "the round's process was killed by signal 11: "),
            ("echo '{'", "a round's answer: EOF while parsing an object"),
        ] {
            let error = shell(script).expect_err("an error").to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_round_that_takes_too_long_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("pids");
        let script = format!("sleep 1000 & echo $! >{}; wait", file.display());
        let error = shell_within(&script, Some(Duration::from_secs(1))).expect_err("killed");
        assert_eq!(error.to_string(), "the round ran for more than 1 s and was killed");
        let pid = std::fs::read_to_string(&file).expect("the pid of what it started");
        // Nobody here reaps it, but it runs no more. A signal takes effect when its process runs next.
        let ended = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            state.is_err() || state.is_ok_and(|text| text.contains(") Z "))
        };
        while !ended() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_round_is_read_from_standard_output() {
        let round = Round {
            scenario: "a".into(),
            round: 3,
            warmup: false,
            parameters: Default::default(),
            phases: Vec::new(),
            checks: Vec::new(),
            census: Default::default(),
            trace: None,
        };
        let json = serde_json::to_string(&round).expect("json");
        assert_eq!(shell(&format!("cat >/dev/null; echo '{json}'")).expect("a round"), round);
    }
}
