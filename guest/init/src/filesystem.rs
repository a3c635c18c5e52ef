//! The filesystem under test: made, mounted and unmounted for every round. Read [`make`], then
//! [`mount`].

use std::ffi::CString;
use std::path::Path;
use std::process::{Command, Stdio};

use kdelta_wire::{FilesystemJob, FilesystemKind};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::child::outcome;
use crate::disks::Disks;
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

/// Runs mkfs, if the filesystem has one, and returns what it printed; that of a log of its own
/// comes first.
pub(crate) fn make(job: &FilesystemJob, disks: &Disks) -> Result<String, InitError> {
    let mut output = String::new();
    for words in mkfs_commands(job, disks) {
        output.push_str(&run(&words)?);
    }
    Ok(output)
}

/// The commands that make the filesystem, in their order.
fn mkfs_commands(job: &FilesystemJob, disks: &Disks) -> Vec<Vec<String>> {
    let (Some(program), Some(disk)) = (job.kind.mkfs(), &disks.test) else { return Vec::new() };
    let mut commands = Vec::new();
    let mut words = vec![program.to_owned()];
    words.extend(job.mkfs.iter().cloned());
    if let (Some(log), Some(device)) = (&job.log, &disks.log) {
        let kib = log.bytes / 1024;
        match job.kind {
            FilesystemKind::Xfs => {
                words.extend(["-l".to_owned(), format!("logdev={device},size={kib}k")]);
            }
            // With a unit, mke2fs takes the size for bytes and not for blocks (mke2fs(8)).
            FilesystemKind::Ext4 => {
                let own = [program.to_owned()].into_iter().chain(log.mkfs.iter().cloned());
                commands.push(own.chain([device.clone(), format!("{kib}k")]).collect());
                words.extend(["-J".to_owned(), format!("device={device}")]);
            }
            FilesystemKind::Tmpfs | FilesystemKind::Btrfs => {}
        }
    }
    words.push(disk.clone());
    commands.push(words);
    commands
}

fn run(words: &[String]) -> Result<String, InitError> {
    let line = words.join(" ");
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let result = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(failed(format!("run {line}")))?;
    let mut output = as_shown(&String::from_utf8_lossy(&result.stdout));
    output.push_str(&as_shown(&String::from_utf8_lossy(&result.stderr)));
    if result.status.success() {
        Ok(output)
    } else {
        Err(InitError::Program { command: line, outcome: outcome(result.status), output })
    }
}

/// What a terminal would show at the end: mke2fs counts, and takes each number back with backspaces.
fn as_shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{8}' if shown.ends_with('\n') => {}
            '\u{8}' => drop(shown.pop()),
            letter => shown.push(letter),
        }
    }
    shown
}

/// Mounts the filesystem and returns its line of `/proc/mounts`.
pub(crate) fn mount(job: &FilesystemJob, disks: &Disks) -> Result<String, InitError> {
    let kind = job.kind.name();
    let source = disks.test.as_deref().filter(|_| job.kind.needs_disk()).unwrap_or(kind);
    let options = mount_options(job, disks);
    let (flags, data) = split_options(&options);
    let action = format!(
        "mount {source} on {MOUNT_POINT} as {kind} with `{}` (the console may say more)",
        options.join(",")
    );
    let data = CString::new(data).map_err(|_| InitError::Job(format!("{action}: an option contains NUL")))?;
    std::fs::create_dir_all(MOUNT_POINT).map_err(failed(format!("mkdir {MOUNT_POINT}")))?;
    rustix::mount::mount(source, MOUNT_POINT, kind, flags, data.as_c_str()).map_err(failed(action))?;
    let mounts = std::fs::read_to_string("/proc/mounts").map_err(failed("read /proc/mounts"))?;
    let ours = mounts.lines().rev().find(|line| line.split(' ').nth(1) == Some(MOUNT_POINT));
    Ok(ours.unwrap_or_default().to_owned())
}

/// The job's options, and where the log is: XFS must be told, ext4 finds its journal by itself.
fn mount_options(job: &FilesystemJob, disks: &Disks) -> Vec<String> {
    let mut options = job.mount.clone();
    if let (FilesystemKind::Xfs, Some(device)) = (job.kind, &disks.log) {
        options.push(format!("logdev={device}"));
    }
    options
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
    let disks = Disks::wait_for(&job).map_err(std::io::Error::other)?;
    unmount(path)?;
    match mount(&job.filesystem, &disks) {
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
    use kdelta_wire::LogJob;

    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    fn lines(kind: FilesystemKind, mkfs: &[&str], log: Option<&[&str]>) -> (Vec<String>, Vec<String>) {
        let disks = Disks { test: Some("/dev/ram0".to_owned()), log: log.map(|_| "/dev/ram1".to_owned()) };
        let log = log.map(|mkfs| LogJob { bytes: 64 << 20, mkfs: words(mkfs) });
        let job = FilesystemJob { kind, mkfs: words(mkfs), mount: words(&["noatime"]), log };
        let commands = mkfs_commands(&job, &disks).iter().map(|words| words.join(" ")).collect();
        (commands, mount_options(&job, &disks))
    }

    #[test]
    fn a_filesystem_is_made_on_one_disk_and_its_log_on_another() {
        use FilesystemKind::{Ext4, Tmpfs, Xfs};
        assert_eq!(lines(Tmpfs, &[], None).0, [""; 0]);
        assert_eq!(
            lines(Xfs, &["-f", "-n", "parent=1"], None),
            (words(&["/usr/sbin/mkfs.xfs -f -n parent=1 /dev/ram0"]), words(&["noatime"]))
        );
        assert_eq!(
            lines(Xfs, &["-f"], Some(&[])),
            (
                words(&["/usr/sbin/mkfs.xfs -f -l logdev=/dev/ram1,size=65536k /dev/ram0"]),
                words(&["noatime", "logdev=/dev/ram1"])
            )
        );
        assert_eq!(
            lines(Ext4, &["-F", "-b", "4096"], Some(&["-F", "-b", "4096", "-O", "journal_dev"])),
            (
                words(&[
                    "/usr/sbin/mkfs.ext4 -F -b 4096 -O journal_dev /dev/ram1 65536k",
                    "/usr/sbin/mkfs.ext4 -F -b 4096 -J device=/dev/ram1 /dev/ram0"
                ]),
                words(&["noatime"])
            )
        );
    }

    #[test]
    fn a_mkfs_that_fails_says_which_and_what_it_printed() {
        let error = run(&words(&["/bin/sh", "-c", "echo a disk; echo too small >&2; exit 1"]));
        let error = error.expect_err("a failure").to_string();
        assert!(error.ends_with("exit 1 ended with status 1: a disk\ntoo small\n"), "{error}");
        assert_eq!(run(&words(&["/bin/echo", "made"])).expect("output"), "made\n");
    }

    #[test]
    fn numbers_that_were_taken_back_are_not_shown() {
        let text = "Writing inode tables: 0/4\u{8}\u{8}\u{8}   \u{8}\u{8}\u{8}done \n\u{8}\u{8}Done\n";
        assert_eq!(as_shown(text), "Writing inode tables: done \nDone\n");
        assert_eq!(as_shown("\u{8}"), "");
    }

    #[test]
    fn flags_are_told_from_the_filesystems_own_options() {
        let options = ["noatime", "logbsize=32k", "rw", "nodev", "size=1g"].map(str::to_owned);
        let (flags, data) = split_options(&options);
        assert_eq!(flags, MountFlags::NOATIME | MountFlags::NODEV);
        assert_eq!(data, "logbsize=32k,size=1g");
        assert_eq!(split_options(&[]), (MountFlags::empty(), String::new()));
    }
}
