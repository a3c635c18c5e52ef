//! Which device node is which disk. Drivers number disks in the order in which they answer, so a
//! disk is known by its serial number. Read [`Disks::wait_for`] first.

use std::path::Path;
use std::time::{Duration, Instant};

use kdelta_wire::{DISK_SERIAL, DiskKind, Job, LOG_SERIAL};

use crate::error::InitError;

/// Guest time for a driver to find its disks; NVMe under TCG needs a fraction of a second.
const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Where the kernel lists block devices.
const BLOCK_DEVICES: &str = "/sys/block";

/// Device nodes of a job's disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disks {
    /// The disk under test.
    pub(crate) test: Option<String>,
    /// The disk of an external log.
    pub(crate) log: Option<String>,
}

impl Disks {
    /// Waits until the disks of `job` are there.
    pub(crate) fn wait_for(job: &Job) -> Result<Self, InitError> {
        if job.disk == DiskKind::None {
            return Ok(Self::default());
        }
        let test = wait(job.disk, DISK_SERIAL)?;
        let log = job.filesystem.log.as_ref().map(|_| wait(job.disk, LOG_SERIAL)).transpose()?;
        Ok(Self { test: Some(test), log })
    }
}

fn wait(kind: DiskKind, serial: &'static str) -> Result<String, InitError> {
    let start = Instant::now();
    loop {
        if let Some(node) = find(kind, serial, Path::new(BLOCK_DEVICES))
            && Path::new(&node).exists()
        {
            return Ok(node);
        }
        if start.elapsed() > DEADLINE {
            return Err(InitError::NoDisk { kind, serial, seconds: DEADLINE.as_secs() });
        }
        std::thread::sleep(POLL);
    }
}

/// The node of the disk with `serial`, which a RAM disk does not have: those are numbered.
fn find(kind: DiskKind, serial: &str, devices: &Path) -> Option<String> {
    // virtio-blk tells it of the disk, NVMe of the controller, padded with spaces.
    let file = match kind {
        DiskKind::None => return None,
        DiskKind::Ram if serial == DISK_SERIAL => return Some("/dev/ram0".to_owned()),
        DiskKind::Ram => return Some("/dev/ram1".to_owned()),
        DiskKind::Nvme => "device/serial",
        DiskKind::VirtioBlk => "serial",
    };
    let named = |entry: &std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join(file)).is_ok_and(|text| text.trim() == serial)
            // The half of a multipath disk that has no node.
            && !std::fs::read_to_string(entry.path().join("hidden")).is_ok_and(|text| text.trim() == "1")
    };
    let disk = std::fs::read_dir(devices).ok()?.flatten().find(named)?;
    Some(format!("/dev/{}", disk.file_name().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_told_apart_by_serial_number_whatever_their_order() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let device = |name: &str, file: &str, serial: &str, hidden: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.join(file).parent().expect("a parent")).expect("a folder");
            std::fs::write(path.join(file), serial).expect("a serial number");
            std::fs::write(path.join("hidden"), hidden).expect("a flag");
        };
        device("nvme0n1", "device/serial", "kdelta-log          \n", "0\n");
        device("nvme0c0n1", "device/serial", "kdelta-log          \n", "1\n");
        device("nvme1n1", "device/serial", "kdelta              \n", "0\n");
        device("vda", "serial", "kdelta-log", "0\n");
        device("vdb", "serial", "kdelta", "0\n");
        std::fs::create_dir(folder.path().join("loop0")).expect("a disk without a number");
        for (kind, test, log) in [
            (DiskKind::Nvme, "/dev/nvme1n1", "/dev/nvme0n1"),
            (DiskKind::VirtioBlk, "/dev/vdb", "/dev/vda"),
            (DiskKind::Ram, "/dev/ram0", "/dev/ram1"),
        ] {
            assert_eq!(find(kind, DISK_SERIAL, folder.path()).as_deref(), Some(test));
            assert_eq!(find(kind, LOG_SERIAL, folder.path()).as_deref(), Some(log));
        }
        assert_eq!(find(DiskKind::Nvme, "another", folder.path()), None);
        assert_eq!(find(DiskKind::None, DISK_SERIAL, folder.path()), None);
    }
}
