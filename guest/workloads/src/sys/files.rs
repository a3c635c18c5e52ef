//! System calls on trees of files: by path where fs_mark does so, reading folders, attributes of
//! entries. Read [`Attributes`] first.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::last_errno;

/// mkdir(2) by path, mode 0777.
#[inline]
pub(crate) fn mkdir_path(path: &CStr) -> Result<(), Errno> {
    // SAFETY: `path` is a C string, and the call keeps no pointer to it.
    match unsafe { libc::mkdir(path.as_ptr(), 0o777) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// openat(2) by path with `O_CREAT | O_RDWR | O_TRUNC`, mode 0666.
#[inline]
pub(crate) fn create_path(path: &CStr) -> Result<OwnedFd, Errno> {
    super::create(rustix::fs::CWD, path)
}

/// openat(2) by path with `O_RDONLY`.
#[inline]
pub(crate) fn open_path(path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(rustix::fs::CWD, path, OFlags::RDONLY, Mode::empty())
}

/// linkat(2) within one folder.
#[inline]
pub(crate) fn link(at: BorrowedFd<'_>, name: &CStr, new: &CStr) -> Result<(), Errno> {
    rustix::fs::linkat(at, name, at, new, AtFlags::empty())
}

/// sync(2).
pub(crate) fn sync() {
    rustix::fs::sync();
}

/// Blocks of a filesystem, as statfs(2) has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) blocks: u64,
    pub(crate) available: u64,
    pub(crate) block_bytes: u64,
}

/// statfs(2) by path.
pub(crate) fn space(path: &CStr) -> Result<Space, Errno> {
    let found = rustix::fs::statfs(path)?;
    let block_bytes = found.f_bsize.unsigned_abs();
    Ok(Space { blocks: found.f_blocks, available: found.f_bavail, block_bytes })
}

/// What statx(2) says about one entry after the other, into the same place.
#[derive(Debug)]
pub(crate) struct Attributes(Box<libc::statx>);

impl Attributes {
    /// Nothing yet.
    pub(crate) fn none() -> Self {
        // SAFETY: every field is a number or an array of numbers, for which zero is a value.
        Self(Box::new(unsafe { MaybeUninit::<libc::statx>::zeroed().assume_init() }))
    }

    /// statx(2) of the entry `name`, which is not followed.
    #[inline]
    pub(crate) fn of(&mut self, at: BorrowedFd<'_>, name: &CStr) -> Result<&libc::statx, Errno> {
        // A call that is not really made must not leave those of the entry before.
        self.0.stx_mode = 0;
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
        // SAFETY: `name` is a C string, and the pointer is to a whole `statx` that the call fills.
        let result = unsafe {
            libc::statx(at.as_raw_fd(), name.as_ptr(), flags, libc::STATX_BASIC_STATS, &raw mut *self.0)
        };
        match result {
            0 => Ok(&self.0),
            _ => Err(last_errno()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::round::{c_path, open_root};

    #[test]
    fn attributes_are_those_of_the_entry_asked_for() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("file"), "12345").expect("a file");
        let root = open_root(folder.path()).expect("a folder");
        let mut attributes = Attributes::none();
        let found = attributes.of(root.as_fd(), c"file").expect("a file");
        assert_eq!((u32::from(found.stx_mode) & libc::S_IFMT, found.stx_size), (libc::S_IFREG, 5));
        assert_eq!(attributes.of(root.as_fd(), c"none").map(|found| found.stx_mode), Err(Errno::NOENT));
    }

    #[test]
    fn a_filesystem_has_blocks_and_a_folder_is_made_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let space = space(&c_path(folder.path()).expect("a path")).expect("a filesystem");
        assert!(space.blocks >= space.available && space.block_bytes > 0, "{space:?}");
        let path = c_path(&folder.path().join("sub")).expect("a path");
        assert_eq!((mkdir_path(&path), mkdir_path(&path)), (Ok(()), Err(Errno::EXIST)));
    }
}
