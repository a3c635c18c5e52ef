//! The process of one round, from both ends: a crash in it is an error here and no dead PID 1.
//! Read [`run`] for the parent's side, then [`main`] for the child's.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use kdelta_wire::{Round, RoundRequest};
use kdelta_workloads::Mounting;
use rustix::process::WaitOptions;

use crate::error::{InitError, failed};
use crate::filesystem;

/// Argument that makes this program the process of a round.
pub(crate) const COMMAND: &str = "round";

/// Runs `request` in a fresh process.
pub(crate) fn run(request: &RoundRequest) -> Result<Round, InitError> {
    let text =
        serde_json::to_vec(request).map_err(|source| InitError::Json { what: "round request", source })?;
    let mut command = Command::new("/proc/self/exe");
    // No `current_dir`, here and for mkfs: with it the standard library forks and needs a socket
    // pair, which kernels without networking lack; without it, it uses posix_spawn(3).
    command.arg0("kdelta-init").arg(COMMAND).env_clear();
    finish(command, &text)
}

/// Starts `command`, gives it `input`, and reads the round it prints.
fn finish(mut command: Command, input: &[u8]) -> Result<Round, InitError> {
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
    let result = child.wait_with_output().map_err(failed("wait for the round's process"))?;
    if !result.status.success() {
        let output = String::from_utf8_lossy(&result.stderr).trim().to_owned();
        let command = "the round's process".to_owned();
        return Err(InitError::Program { command, outcome: outcome(result.status), output });
    }
    serde_json::from_slice(&result.stdout)
        .map_err(|source| InitError::Json { what: "a round's answer", source })
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
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        finish(command, b"{}")
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
    fn a_round_is_read_from_standard_output() {
        let round = Round {
            scenario: "a".into(),
            round: 3,
            warmup: false,
            parameters: Default::default(),
            phases: Vec::new(),
            checks: Vec::new(),
            census: Default::default(),
        };
        let json = serde_json::to_string(&round).expect("json");
        assert_eq!(shell(&format!("cat >/dev/null; echo '{json}'")).expect("a round"), round);
    }
}
