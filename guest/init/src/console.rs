//! The console, where the host reads how far the guest is. Read [`Console::say`] first.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::error::{InitError, failed};

/// Where lines for the host go.
pub(crate) struct Console(Option<File>);

impl Console {
    /// Standard error, until the device nodes are there.
    pub(crate) fn inherited() -> Self {
        Self(rustix::stdio::stderr().try_clone_to_owned().ok().map(File::from))
    }

    /// `/dev/console`.
    pub(crate) fn open() -> Result<Self, InitError> {
        let path = "/dev/console";
        let console = OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(path);
        Ok(Self(Some(console.map_err(failed(format!("open {path}")))?)))
    }

    /// Writes one line and waits until the device has taken it, so that no interrupt of it is
    /// left for what comes next. A console that fails must not stop the measurement.
    pub(crate) fn say(&mut self, line: &str) {
        if let Some(console) = &mut self.0 {
            let _ = console.write_all(format!("{line}\n").as_bytes());
            let _ = rustix::termios::tcdrain(console.as_fd());
        }
    }
}
