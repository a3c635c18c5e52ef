//! What is really in a folder, by reading it. Read [`take`] first.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use crate::round::{failed, open_root};
use crate::sys::namespace;
use crate::{RoundContext, WorkloadError, sys};

/// Bytes for entries of one getdents64(2).
const ENTRY_BYTES: usize = 64 << 10;

/// Names in a folder and below it, the folder itself not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    pub(crate) folders: u64,
    /// Names of regular files; two names may be one file.
    pub(crate) files: u64,
    pub(crate) symlinks: u64,
    /// Names of character devices.
    pub(crate) devices: u64,
    /// Names of anything else.
    pub(crate) others: u64,
    /// Inodes that the names other than folders stand for.
    pub(crate) inodes: u64,
    /// Bytes in those of them that are regular files.
    pub(crate) bytes: u64,
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folders, files, symlinks, devices, others, inodes, bytes } = self;
        write!(f, "{folders} folders, {files} files, {symlinks} symlinks, {devices} devices, ")?;
        write!(f, "{others} others, {inodes} inodes, {bytes} bytes")
    }
}

impl AddAssign for Inventory {
    fn add_assign(&mut self, other: Self) {
        self.folders += other.folders;
        self.files += other.files;
        self.symlinks += other.symlinks;
        self.devices += other.devices;
        self.others += other.others;
        self.inodes += other.inodes;
        self.bytes += other.bytes;
    }
}

/// Looks at every name below `folder`, and claims the system calls of doing so.
pub(crate) fn take(round: &mut RoundContext, folder: &Path) -> Result<Inventory, WorkloadError> {
    let root = open_root(folder)?;
    let mut inventory = Inventory::default();
    let mut inodes = HashSet::new();
    let (mut opened, mut examined) = (1, 0);
    let mut waiting = vec![CString::from(c".")];
    while let Some(path) = waiting.pop() {
        let lost = |call, errno| failed(call, &folder.join(&*path.to_string_lossy()), errno);
        let dir = sys::open_dir(root.as_fd(), &path).map_err(|errno| lost("openat", errno))?;
        opened += 1;
        each_entry(dir.as_fd(), |name, _| {
            let entry = namespace::stat(dir.as_fd(), name)?;
            examined += 1;
            let kind = FileType::from_raw_mode(entry.stx_mode.into());
            if kind == FileType::Directory {
                inventory.folders += 1;
                let below = [path.to_bytes(), b"/", name.to_bytes()].concat();
                waiting.push(CString::new(below).unwrap_or_default());
                return Ok(());
            }
            *match kind {
                FileType::RegularFile => &mut inventory.files,
                FileType::Symlink => &mut inventory.symlinks,
                FileType::CharacterDevice => &mut inventory.devices,
                _ => &mut inventory.others,
            } += 1;
            if inodes.insert(entry.stx_ino) {
                inventory.inodes += 1;
                inventory.bytes += if kind == FileType::RegularFile { entry.stx_size } else { 0 };
            }
            Ok(())
        })
        .map_err(|errno| lost("getdents64 or statx", errno))?;
        sys::close(dir).map_err(|errno| lost("close", errno))?;
    }
    drop(root);
    round.count("openat", opened, opened);
    round.count("close", opened, opened);
    round.count("statx", examined, examined);
    Ok(inventory)
}

/// Calls `each` with the name and the kind of every entry of `dir`, just opened, but `.` and `..`; a
/// filesystem may not know the kind.
pub(crate) fn each_entry(
    dir: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr, FileType) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut buffer = vec![MaybeUninit::uninit(); ENTRY_BYTES];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            each(name, entry.file_type())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::round::tests::request;
    use crate::{find, round::WorkloadError};

    #[test]
    fn names_inodes_and_bytes_are_counted_at_every_depth() -> Result<(), WorkloadError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path();
        std::fs::create_dir_all(path.join("a/b")).expect("folders");
        std::fs::write(path.join("a/b/file"), "12345").expect("a file");
        std::fs::hard_link(path.join("a/b/file"), path.join("again")).expect("a link");
        symlink("nowhere", path.join("a/symlink")).expect("a symlink");
        namespace::mknod(open_root(path)?.as_fd(), c"device").expect("a device");
        let request = request("unlink/hot", path, &[]);
        let scenario = find("unlink/hot").expect("known").scenario;
        let mut round = RoundContext::for_test(request, scenario, Default::default());
        let expected =
            Inventory { folders: 2, files: 2, symlinks: 1, devices: 1, others: 0, inodes: 3, bytes: 5 };
        assert_eq!(take(&mut round, path)?, expected);
        let census = round.finish().census;
        assert_eq!((census["openat"].attempted, census["statx"].attempted), (4, 6));
        Ok(())
    }
}
