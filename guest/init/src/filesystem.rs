//! The filesystem under test: made, mounted and unmounted for every round. Read [`make`], then
//! [`mount`].

use std::ffi::CString;
use std::path::Path;
use std::process::{Command, Stdio};

use kdelta_wire::Job;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::child::outcome;
use crate::error::{InitError, failed};
use crate::setup;

/// Where the filesystem under test is mounted.
pub(crate) const MOUNT_POINT: &str = "/mnt/test";

/// Options of mount(8) that are flags of mount(2); all others are the filesystem's.
const FLAGS: &[(&str, MountFlags)] = &[
    ("dirsync", MountFlags::DIRSYNC),
    ("lazytime", MountFlags::LAZYTIME),
    ("noatime", MountFlags::NOATIME),
    ("nodev", MountFlags::NODEV),
    ("nodiratime", MountFlags::NODIRATIME),
    ("noexec", MountFlags::NOEXEC),
    ("nosuid", MountFlags::NOSUID),
    ("relatime", MountFlags::RELATIME),
    ("ro", MountFlags::RDONLY),
    ("strictatime", MountFlags::STRICTATIME),
    ("sync", MountFlags::SYNCHRONOUS),
    // Negations of flags that are not set to begin with.
    ("defaults", MountFlags::empty()),
    ("rw", MountFlags::empty()),
];

/// Runs mkfs, if the filesystem has one, and returns what it printed.
pub(crate) fn make(job: &Job) -> Result<String, InitError> {
    let (Some(program), Some(device)) = (job.filesystem.kind.mkfs(), job.disk.device()) else {
        return Ok(String::new());
    };
    let words: Vec<&str> =
        [program].into_iter().chain(job.filesystem.mkfs.iter().map(String::as_str)).chain([device]).collect();
    let line = words.join(" ");
    let mut command = Command::new(program);
    command.args(&words[1..]);
    let result = command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(failed(format!("run {line}")))?;
    let mut output = String::from_utf8_lossy(&result.stdout).into_owned();
    output.push_str(&String::from_utf8_lossy(&result.stderr));
    if result.status.success() {
        Ok(output)
    } else {
        Err(InitError::Program { command: line, outcome: outcome(result.status), output })
    }
}

/// Mounts the filesystem and returns its line of `/proc/mounts`.
pub(crate) fn mount(job: &Job) -> Result<String, InitError> {
    let kind = job.filesystem.kind.name();
    let source = if job.filesystem.kind.needs_disk() { job.disk.device().unwrap_or(kind) } else { kind };
    let (flags, data) = split_options(&job.filesystem.mount);
    let action = format!(
        "mount {source} on {MOUNT_POINT} as {kind} with `{}` (the console may say more)",
        job.filesystem.mount.join(",")
    );
    let data = CString::new(data).map_err(|_| InitError::Job(format!("{action}: an option contains NUL")))?;
    std::fs::create_dir_all(MOUNT_POINT).map_err(failed(format!("mkdir {MOUNT_POINT}")))?;
    rustix::mount::mount(source, MOUNT_POINT, kind, flags, data.as_c_str()).map_err(failed(action))?;
    let mounts = std::fs::read_to_string("/proc/mounts").map_err(failed("read /proc/mounts"))?;
    let ours = mounts.lines().rev().find(|line| line.split(' ').nth(1) == Some(MOUNT_POINT));
    Ok(ours.unwrap_or_default().to_owned())
}

/// Unmounts the filesystem unless the round has done so.
pub(crate) fn unmount_if_mounted() -> Result<(), InitError> {
    match rustix::mount::unmount(MOUNT_POINT, UnmountFlags::empty()) {
        // umount(2): EINVAL is "not a mount point".
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(failed(format!("unmount {MOUNT_POINT}"))(errno)),
    }
}

/// Unmounts `path`, for the round's process.
pub(crate) fn unmount(path: &Path) -> std::io::Result<()> {
    Ok(rustix::mount::unmount(path, UnmountFlags::empty())?)
}

/// Unmounts `path` and mounts the job's filesystem there again, for the round's process.
pub(crate) fn remount(path: &Path) -> std::io::Result<()> {
    let job = setup::read_job().map_err(std::io::Error::other)?;
    unmount(path)?;
    match mount(&job) {
        Ok(_) => Ok(()),
        Err(InitError::Call { source, .. }) => Err(source),
        Err(error) => Err(std::io::Error::other(error)),
    }
}

/// Flags of mount(2), and the rest joined by commas.
fn split_options(options: &[String]) -> (MountFlags, String) {
    let mut flags = MountFlags::empty();
    let mut data: Vec<&str> = Vec::new();
    for option in options {
        match FLAGS.iter().find(|(name, _)| name == option) {
            Some((_, flag)) => flags |= *flag,
            None => data.push(option),
        }
    }
    (flags, data.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_told_from_the_filesystems_own_options() {
        let options = ["noatime", "logbsize=32k", "rw", "nodev", "size=1g"].map(str::to_owned);
        let (flags, data) = split_options(&options);
        assert_eq!(flags, MountFlags::NOATIME | MountFlags::NODEV);
        assert_eq!(data, "logbsize=32k,size=1g");
        assert_eq!(split_options(&[]), (MountFlags::empty(), String::new()));
    }
}
