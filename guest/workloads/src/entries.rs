//! Reading whole trees of folders the way ls, find and rm do, without allocation on the way. Read
//! [`walk`] first; what is done with each entry is a [`Visit`].

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use crate::round::{c_path, failed};
use crate::sys::files::Attributes;
use crate::{WorkloadError, sys};

/// Bytes read from a folder at a time, as the C library's readdir(3) does.
const BUFFER_BYTES: usize = 32 << 10;
/// Folders in each other that can be read: a top folder, and those in it.
const DEPTH: usize = 2;

/// A system call's name and its error.
pub(crate) type Failure = (&'static str, Errno);

/// What is done with the entries of a tree.
pub(crate) trait Visit {
    /// The entry `name` of the folder `dir`; if it is a folder, its own entries come next.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<(), Failure>;

    /// All entries of the folder `name` in `dir` have been visited.
    fn left(&mut self, _dir: BorrowedFd<'_>, _name: &CStr) -> Result<(), Failure> {
        Ok(())
    }
}

/// Memory for a [`walk`].
#[derive(Debug)]
pub(crate) struct Buffers(Vec<Vec<MaybeUninit<u8>>>);

impl Buffers {
    /// Enough for a top folder and those in it, touched once.
    pub(crate) fn new() -> Self {
        Self((0..DEPTH).map(|_| vec![MaybeUninit::new(1); BUFFER_BYTES]).collect())
    }
}

/// Opens the folder at `path` and visits everything in it and below; how many folders were opened.
pub(crate) fn walk(path: &CStr, buffers: &mut Buffers, visitor: &mut impl Visit) -> Result<u64, Failure> {
    let top = sys::open_dir(rustix::fs::CWD, path).map_err(|errno| ("openat", errno))?;
    let opened = visit(&top, &mut buffers.0, visitor)?;
    sys::close(top).map_err(|errno| ("close", errno))?;
    Ok(opened + 1)
}

fn visit(
    dir: &OwnedFd,
    buffers: &mut [Vec<MaybeUninit<u8>>],
    visitor: &mut impl Visit,
) -> Result<u64, Failure> {
    let Some((buffer, deeper)) = buffers.split_first_mut() else {
        return Err(("openat", Errno::LOOP));
    };
    let mut opened = 0;
    let mut entries = RawDir::new(dir.as_fd(), buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|errno| ("getdents64", errno))?;
        let (name, kind) = (entry.file_name(), entry.file_type());
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        visitor.entry(dir.as_fd(), name, kind)?;
        if kind == FileType::Directory {
            let folder = sys::open_dir(dir.as_fd(), name).map_err(|errno| ("openat", errno))?;
            opened += 1 + visit(&folder, deeper, visitor)?;
            sys::close(folder).map_err(|errno| ("close", errno))?;
            visitor.left(dir.as_fd(), name)?;
        }
    }
    Ok(opened)
}

/// What `ls -R` learns: names and types, which getdents64(2) has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) files: u64,
    pub(crate) dirs: u64,
}

impl Visit for Listing {
    #[inline]
    fn entry(&mut self, _: BorrowedFd<'_>, _: &CStr, kind: FileType) -> Result<(), Failure> {
        self.files += u64::from(kind == FileType::RegularFile);
        self.dirs += u64::from(kind == FileType::Directory);
        Ok(())
    }
}

/// What `find` learns that has to look at every inode.
#[derive(Debug)]
pub(crate) struct Survey {
    attributes: Attributes,
    /// statx(2) calls.
    pub(crate) looked_at: u64,
    /// Regular files.
    pub(crate) files: u64,
    /// Folders below the top.
    pub(crate) dirs: u64,
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Link counts of the files.
    pub(crate) links: u64,
    /// Folders with a file in them, and the fewest and most files in one.
    pub(crate) used: u64,
    pub(crate) fewest: u64,
    pub(crate) most: u64,
    /// Files in the folder that is being visited.
    here: u64,
}

impl Survey {
    pub(crate) fn new() -> Self {
        Self {
            attributes: Attributes::none(),
            looked_at: 0,
            files: 0,
            dirs: 0,
            bytes: 0,
            links: 0,
            used: 0,
            fewest: u64::MAX,
            most: 0,
            here: 0,
        }
    }
}

impl Visit for Survey {
    #[inline]
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, _: FileType) -> Result<(), Failure> {
        let found = self.attributes.of(dir, name).map_err(|errno| ("statx", errno))?;
        self.looked_at += 1;
        match u32::from(found.stx_mode) & libc::S_IFMT {
            libc::S_IFREG => {
                self.files += 1;
                self.here += 1;
                self.bytes += found.stx_size;
                self.links += u64::from(found.stx_nlink);
            }
            libc::S_IFDIR => {
                self.dirs += 1;
                self.here = 0;
            }
            _ => {}
        }
        Ok(())
    }

    #[inline]
    fn left(&mut self, _: BorrowedFd<'_>, _: &CStr) -> Result<(), Failure> {
        if self.here > 0 {
            self.used += 1;
            self.fewest = self.fewest.min(self.here);
            self.most = self.most.max(self.here);
        }
        Ok(())
    }
}

/// What `rm -r` does: removes what it finds, and a folder when nothing is left in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    /// unlinkat(2) calls.
    pub(crate) tried: u64,
    /// Those that succeeded.
    pub(crate) removed: u64,
}

impl Removal {
    /// Counts a removal; a folder that still has something in it, and a name that is not there, are
    /// no errors here but a check's business.
    #[inline]
    pub(crate) fn note(&mut self, result: Result<(), Errno>) -> Result<(), Failure> {
        self.tried += 1;
        match result {
            Ok(()) => self.removed += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => {}
            Err(errno) => return Err(("unlinkat", errno)),
        }
        Ok(())
    }
}

impl Visit for Removal {
    #[inline]
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<(), Failure> {
        if kind == FileType::Directory { Ok(()) } else { self.note(sys::unlink(dir, name)) }
    }

    #[inline]
    fn left(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Failure> {
        self.note(sys::rmdir(dir, name))
    }
}

/// [`walk`] with memory of its own and an error that names `path`; for what is not timed.
pub(crate) fn explore(path: &Path, visitor: &mut impl Visit) -> Result<u64, WorkloadError> {
    walk(&c_path(path)?, &mut Buffers::new(), visitor).map_err(|(call, errno)| failed(call, path, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        // Thousands of files take seconds on a disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, file).expect("a file");
        }
        folder
    }

    #[test]
    fn everything_is_listed_surveyed_and_removed() {
        let folder = tree(&["a/1", "a/2", "a/3", "b/1", "top"]);
        std::fs::create_dir(folder.path().join("empty")).expect("a folder");
        std::fs::hard_link(folder.path().join("a/1"), folder.path().join("b/2")).expect("a link");
        let mut listing = Listing::default();
        assert_eq!(explore(folder.path(), &mut listing).expect("reads"), 4);
        assert_eq!(listing, Listing { files: 6, dirs: 3 });
        let mut survey = Survey::new();
        explore(folder.path(), &mut survey).expect("reads");
        assert_eq!((survey.files, survey.dirs, survey.bytes, survey.links), (6, 3, 18, 8));
        assert_eq!((survey.used, survey.fewest, survey.most), (2, 2, 3));
        let mut removal = Removal::default();
        explore(folder.path(), &mut removal).expect("removes");
        assert_eq!(removal, Removal { tried: 9, removed: 9 });
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_folder_of_more_entries_than_a_buffer_holds_is_removed_whole() {
        let names: Vec<String> = (0..2000).map(|number| format!("d/{number:050}")).collect();
        let folder = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut removal = Removal::default();
        explore(folder.path(), &mut removal).expect("removes");
        assert_eq!(removal, Removal { tried: 2001, removed: 2001 });
    }

    #[test]
    fn folders_that_are_too_deep_or_not_there_are_errors() {
        let folder = tree(&["a/b/c/d"]);
        let error = explore(folder.path(), &mut Listing::default()).expect_err("too deep");
        assert_eq!(error, failed("openat", folder.path(), Errno::LOOP));
        let none = folder.path().join("none");
        let error = explore(&none, &mut Listing::default()).expect_err("not there");
        assert_eq!(error, failed("openat", &none, Errno::NOENT));
    }
}
