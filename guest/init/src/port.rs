//! Sending the frames to the host, after everything else. Read [`send`] first.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kdelta_wire::{Frame, RESULT_PORT};
use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

use crate::error::{InitError, failed};

/// Where the kernel lists virtio ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// Second serial line, for kernels without virtio.
const SERIAL: &str = "/dev/ttyS1";

/// Writes `frames` to the result port, or to the second serial line where there is none.
pub(crate) fn send(frames: &[Frame]) -> Result<(), InitError> {
    let mut bytes = Vec::new();
    for frame in frames {
        let frame =
            kdelta_wire::encode(frame).map_err(|source| InitError::Json { what: "a frame", source })?;
        bytes.extend(frame);
    }
    match find_port(Path::new(PORTS)) {
        // A blocking write to a port returns when the host has taken the bytes.
        Some(port) => {
            let action = format!("write {} bytes to {}", bytes.len(), port.display());
            open(&port).and_then(|mut port| port.write_all(&bytes)).map_err(failed(action))
        }
        None => write_serial(&bytes).map_err(|error| InitError::NoPort(RESULT_PORT, error)),
    }
}

/// Device node of the port whose name is [`RESULT_PORT`].
fn find_port(ports: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(ports).ok()?;
    let named = |entry: &std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == RESULT_PORT)
    };
    let port = entries.flatten().find(named)?;
    Some(Path::new("/dev").join(port.file_name()))
}

fn write_serial(bytes: &[u8]) -> std::io::Result<()> {
    let mut line = open(Path::new(SERIAL))?;
    let mut settings = tcgetattr(&line)?;
    settings.make_raw();
    tcsetattr(&line, OptionalActions::Now, &settings)?;
    line.write_all(bytes)?;
    Ok(tcdrain(line.as_fd())?)
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(find_port(folder.path()), None);
        for (port, name) in [("vport0p1", "org.other"), ("vport0p2", RESULT_PORT)] {
            std::fs::create_dir(folder.path().join(port)).expect("a folder");
            std::fs::write(folder.path().join(port).join("name"), format!("{name}\n")).expect("a name");
        }
        std::fs::create_dir(folder.path().join("vport0p0")).expect("a port without a name");
        assert_eq!(find_port(folder.path()), Some(PathBuf::from("/dev/vport0p2")));
        assert_eq!(find_port(Path::new("/nonexistent")), None);
    }
}
