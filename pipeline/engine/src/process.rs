//! Runs other programs: contained, cancellable, and with an error that quotes what they said.
//! Read [`Program`] first.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::cancel::Cancel;
use crate::sys;

/// How often a waiting caller looks for a cancellation.
const POLL: Duration = Duration::from_millis(50);
/// Lines of output that an error quotes.
const QUOTED_LINES: usize = 20;

/// A program about to run. Its environment has `LC_ALL=C`, so that its messages can be read.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    arguments: Vec<OsString>,
    folder: Option<Utf8PathBuf>,
    environment: Vec<(String, String)>,
    removed: Vec<String>,
    deadline: Option<Duration>,
}

/// What a finished program printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text, without the final newline.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }
}

/// Why a program did not do its work.
#[derive(Debug)]
pub enum ProcessError {
    /// It could not be started.
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It ended with an error.
    Failed {
        /// Program and arguments.
        command: String,
        /// `exit status: 1` or a signal.
        status: String,
        /// The end of what it printed.
        said: String,
    },
    /// It took too long.
    Deadline {
        /// Program and arguments.
        command: String,
        /// What it was given.
        after: Duration,
    },
    /// The user asked to stop.
    Cancelled,
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { program, source } if source.kind() == io::ErrorKind::NotFound => {
                write!(f, "{program} is not installed; `kdelta doctor` names the package")
            }
            Self::Start { program, source } => write!(f, "cannot start {program}: {source}"),
            Self::Failed { command, status, said } => write!(f, "`{command}` ended with {status}:\n{said}"),
            Self::Deadline { command, after } => {
                write!(f, "`{command}` did not end within {} s", after.as_secs())
            }
            Self::Cancelled => f.write_str("stopped on request"),
        }
    }
}

impl std::error::Error for ProcessError {}

impl Program {
    /// `name`, found on the `PATH`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            arguments: Vec::new(),
            folder: None,
            environment: vec![("LC_ALL".into(), "C".into())],
            removed: Vec::new(),
            deadline: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Runs in `folder`.
    #[must_use]
    pub fn dir(mut self, folder: impl Into<Utf8PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn env_remove(mut self, name: impl Into<String>) -> Self {
        self.removed.push(name.into());
        self
    }

    /// Kills it after `limit`.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// Program and arguments as one line, for messages.
    #[must_use]
    pub fn command_line(&self) -> String {
        let mut line = self.name.clone();
        for argument in &self.arguments {
            line.push(' ');
            line.push_str(&argument.to_string_lossy());
        }
        line
    }

    /// Runs to the end and returns what was printed.
    ///
    /// # Errors
    /// When it cannot start, fails, takes too long, or the user asks to stop.
    pub fn output(&self, cancel: &Cancel) -> Result<Output, ProcessError> {
        let expression = self.expression(None).stdout_capture().stderr_capture();
        let handle = expression.start().map_err(|source| self.start_error(source))?;
        let output = self.wait(&handle, cancel, || {})?;
        let output = Output { stdout: output.stdout.clone(), stderr: output.stderr.clone() };
        Ok(output)
    }

    /// Runs to the end with all output going to the file `log`; `tick` is called every 50 ms.
    /// `lock` stays open in the child and in all that it starts.
    ///
    /// # Errors
    /// As [`Self::output`]; the quoted text is the end of the log.
    pub fn logged(
        &self,
        log: &Utf8Path,
        lock: Option<&File>,
        cancel: &Cancel,
        tick: impl FnMut(),
    ) -> Result<(), ProcessError> {
        let out = File::create(log).map_err(|source| self.start_error(source))?;
        let expression = self.expression(lock).stderr_to_stdout().stdout_file(out);
        let handle = expression.start().map_err(|source| self.start_error(source))?;
        match self.wait(&handle, cancel, tick) {
            Err(ProcessError::Failed { command, status, .. }) => {
                let text = std::fs::read(log).unwrap_or_default();
                Err(ProcessError::Failed { command, status, said: last_lines(&text) })
            }
            other => other.map(|_| ()),
        }
    }

    /// Starts it with all output going to the file `log`, and returns at once.
    ///
    /// # Errors
    /// When it cannot start.
    pub fn start(&self, log: &Utf8Path) -> Result<Running, ProcessError> {
        let out = File::create(log).map_err(|source| self.start_error(source))?;
        let expression = self.expression(None).stderr_to_stdout().stdout_file(out);
        let handle = expression.start().map_err(|source| self.start_error(source))?;
        Ok(Running { handle, name: self.name.clone() })
    }

    fn expression(&self, lock: Option<&File>) -> duct::Expression {
        let mut expression = duct::cmd(&self.name, &self.arguments).stdin_null().unchecked();
        if let Some(folder) = &self.folder {
            expression = expression.dir(folder);
        }
        for (name, value) in &self.environment {
            expression = expression.env(name, value);
        }
        for name in &self.removed {
            expression = expression.env_remove(name);
        }
        let lock = lock.map(std::os::fd::AsRawFd::as_raw_fd);
        expression.before_spawn(move |command| {
            sys::contain(command, lock.as_ref());
            Ok(())
        })
    }

    fn wait<'h>(
        &self,
        handle: &'h duct::Handle,
        cancel: &Cancel,
        mut tick: impl FnMut(),
    ) -> Result<&'h std::process::Output, ProcessError> {
        let started = Instant::now();
        loop {
            match handle.wait_timeout(POLL) {
                Ok(Some(output)) if output.status.success() => return Ok(output),
                Ok(Some(output)) => {
                    let said = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
                    return Err(ProcessError::Failed {
                        command: self.command_line(),
                        status: output.status.to_string(),
                        said: last_lines(said),
                    });
                }
                Ok(None) => tick(),
                Err(source) => return Err(self.start_error(source)),
            }
            let late = self.deadline.filter(|limit| started.elapsed() > *limit);
            if cancel.is_requested() || late.is_some() {
                handle.pids().into_iter().for_each(sys::kill_group);
                let _ = handle.wait();
                return Err(match late {
                    Some(after) => ProcessError::Deadline { command: self.command_line(), after },
                    None => ProcessError::Cancelled,
                });
            }
        }
    }

    fn start_error(&self, source: io::Error) -> ProcessError {
        ProcessError::Start { program: self.name.clone(), source }
    }
}

/// A program that was started and is killed, with its whole group, when this is dropped.
#[derive(Debug)]
pub struct Running {
    handle: duct::Handle,
    name: String,
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.handle.pids().first().copied()
    }

    /// Waits at most `limit` for its end; `Some` holds whether it ended with success, and how.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn wait(&self, limit: Duration) -> Result<Option<(bool, String)>, ProcessError> {
        let output = self.handle.wait_timeout(limit);
        let output = output.map_err(|source| ProcessError::Start { program: self.name.clone(), source })?;
        Ok(output.map(|output| (output.status.success(), output.status.to_string())))
    }

    /// Kills it and everything in its group, and reaps it.
    pub fn kill(&self) {
        if let Ok(None) = self.handle.try_wait() {
            self.handle.pids().into_iter().for_each(sys::kill_group);
        }
        let _ = self.handle.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of what a program said.
pub fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("sh").arg("-c").arg(script)
    }

    #[test]
    fn a_failing_program_is_quoted() {
        let error = shell("echo what went wrong >&2; exit 3").output(&Cancel::default()).expect_err("fails");
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("what went wrong"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named_with_the_next_step() {
        let error = Program::new("kdelta-no-such-program").output(&Cancel::default()).expect_err("missing");
        assert!(error.to_string().contains("kdelta-no-such-program is not installed"), "{error}");
    }

    #[test]
    fn a_deadline_kills_the_whole_group() {
        let started = Instant::now();
        let error =
            shell("sleep 60 & sleep 60").deadline(Duration::from_millis(200)).output(&Cancel::default());
        assert!(matches!(error, Err(ProcessError::Deadline { .. })));
        assert!(started.elapsed() < Duration::from_secs(30), "the background child held the pipe open");
    }

    #[test]
    fn a_cancelled_program_says_so() {
        let cancel = Cancel::default();
        cancel.request();
        assert!(matches!(shell("sleep 60").output(&cancel), Err(ProcessError::Cancelled)));
    }
}
