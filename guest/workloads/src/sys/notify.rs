//! System calls of the workloads that watch files: inotify(7) and what their fixtures need. Read
//! [`add_watch`] first.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

/// inotify_init1(2) with `IN_NONBLOCK | IN_CLOEXEC`.
#[inline]
pub(crate) fn instance() -> Result<OwnedFd, Errno> {
    rustix::fs::inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
}

/// inotify_add_watch(2): the watch descriptor.
#[inline]
pub(crate) fn add_watch(instance: BorrowedFd<'_>, path: &CStr, mask: WatchFlags) -> Result<i32, Errno> {
    rustix::fs::inotify::add_watch(instance, path, mask)
}

/// inotify_rm_watch(2).
#[inline]
pub(crate) fn remove_watch(instance: BorrowedFd<'_>, watch: i32) -> Result<(), Errno> {
    rustix::fs::inotify::remove_watch(instance, watch)
}

/// read(2).
pub(crate) fn read(file: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::read(file, bytes)
}

/// ioctl(2) with `FIONREAD`: the bytes of all events in the queue (inotify(7)).
pub(crate) fn queued_bytes(instance: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::io::ioctl_fionread(instance)
}

/// An eventfd(2) whose count is 0.
pub(crate) fn event() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
}

/// memfd_create(2): a file that forked processes share.
pub(crate) fn memory_file(name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)
}

/// ppoll(2) without end, until `one` or `other` can be read; whether `other` can.
pub(crate) fn wait_for_either(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut files =
        [PollFd::from_borrowed_fd(one, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
    match rustix::event::poll(&mut files, None) {
        Ok(_) | Err(Errno::INTR) => Ok(!files[1].revents().is_empty()),
        Err(errno) => Err(errno),
    }
}

/// ppoll(2) for `seconds`, until `file` can be read; whether it can.
pub(crate) fn wait_for(file: BorrowedFd<'_>, seconds: i64) -> Result<bool, Errno> {
    let mut files = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut files, Some(&limit))? > 0)
}

/// sched_setscheduler(2) of this thread to `SCHED_BATCH`: when it wakes up, it waits for its turn and
/// interrupts nobody (sched(7)).
pub(crate) fn wait_for_turns() -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a whole `sched_param`, which the call reads.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(super::last_errno()),
    }
}

/// openat(2) with `O_CREAT | O_EXCL | O_WRONLY`, mode 0666.
#[inline]
pub(crate) fn create_new(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o666))
}

/// openat(2) with `O_RDONLY`.
#[inline]
pub(crate) fn open_to_read(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// openat(2) with `O_RDWR`.
pub(crate) fn open_to_write(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// openat(2) with `O_PATH`, which looks the path up and opens nothing.
#[inline]
pub(crate) fn open_path(path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(rustix::fs::CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// mknodat(2) of a regular, empty file, mode 0666: one call, and no descriptor to close.
pub(crate) fn make_file(at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    rustix::fs::mknodat(at, name, FileType::RegularFile, Mode::from_raw_mode(0o666), 0)
}

/// linkat(2) of two names in one folder.
pub(crate) fn link(at: BorrowedFd<'_>, old: &CStr, new: &CStr) -> Result<(), Errno> {
    rustix::fs::linkat(at, old, at, new, AtFlags::empty())
}

/// newfstatat(2), not following a symbolic link.
pub(crate) fn stat(at: BorrowedFd<'_>, name: &CStr) -> Result<Stat, Errno> {
    rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// pwrite64(2).
#[inline]
pub(crate) fn write_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::pwrite(file, bytes, offset)
}

/// pread64(2).
pub(crate) fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::pread(file, bytes, offset)
}

/// getdents64(2): calls `each` with name and type of every entry but `.` and `..`.
pub(crate) fn entries(folder: BorrowedFd<'_>, mut each: impl FnMut(&CStr, FileType)) -> Result<(), Errno> {
    let mut bytes = vec![MaybeUninit::<u8>::uninit(); 32 << 10];
    let mut entries = RawDir::new(folder, &mut bytes);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            each(entry.file_name(), entry.file_type());
        }
    }
    Ok(())
}
