//! System calls that make, rename and describe names in folders. All take an open folder and a path
//! that is relative to it; read [`creat`] first.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// openat(2) with the flags of creat(2), mode 0666.
#[inline]
pub(crate) fn creat(at: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
    rustix::fs::openat(at, path, flags, Mode::from_raw_mode(0o666))
}

/// openat(2) with `O_CREAT | O_EXCL | O_WRONLY`, mode 0666: the file must not be there.
#[inline]
pub(crate) fn create_new(at: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    rustix::fs::openat(at, path, flags, Mode::from_raw_mode(0o666))
}

/// openat(2) with `O_WRONLY`.
#[inline]
pub(crate) fn open_for_writing(at: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, OFlags::WRONLY, Mode::empty())
}

/// openat(2) with `O_RDONLY`.
#[inline]
pub(crate) fn open_for_reading(at: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, OFlags::RDONLY, Mode::empty())
}

/// mknodat(2) of a character device with number 0, mode 0444: the one device that takes no
/// privilege since Linux 5.8 (`vfs_mknod` in `fs/namei.c`).
#[inline]
pub(crate) fn mknod(at: BorrowedFd<'_>, path: &CStr) -> Result<(), Errno> {
    rustix::fs::mknodat(at, path, FileType::CharacterDevice, Mode::from_raw_mode(0o444), 0)
}

/// symlinkat(2).
#[inline]
pub(crate) fn symlink(target: &CStr, at: BorrowedFd<'_>, path: &CStr) -> Result<(), Errno> {
    rustix::fs::symlinkat(target, at, path)
}

/// linkat(2) within one folder's tree; a symbolic link is linked itself.
#[inline]
pub(crate) fn link(at: BorrowedFd<'_>, old: &CStr, new: &CStr) -> Result<(), Errno> {
    rustix::fs::linkat(at, old, at, new, AtFlags::empty())
}

/// renameat(2) within one folder's tree.
#[inline]
pub(crate) fn rename(at: BorrowedFd<'_>, old: &CStr, new: &CStr) -> Result<(), Errno> {
    rustix::fs::renameat(at, old, at, new)
}

/// statx(2) of type, size, links, inode number and blocks, following no symbolic link.
pub(crate) fn stat(at: BorrowedFd<'_>, path: &CStr) -> Result<Statx, Errno> {
    rustix::fs::statx(at, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
}

/// statx(2) of an open file.
pub(crate) fn stat_open(file: BorrowedFd<'_>) -> Result<Statx, Errno> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}
