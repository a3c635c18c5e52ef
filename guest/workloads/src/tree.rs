//! Many files in folders, made and removed in a given order; what `create` and `unlink` share.
//! Read [`Tree`] first; its names and buffers exist before anything is timed.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use crate::round::{failed, open_root};
use crate::{Domain, ParameterInfo, ProductLimit, RoundContext, WorkloadError, sys};

/// Digits of a name, where fs_mark puts the time in microseconds.
const DIGITS: usize = 16;
/// Random letters of a name.
const LETTERS: usize = 24;
/// Name and NUL.
const NAME_BYTES: usize = DIGITS + LETTERS + 1;
/// Microseconds since 1970 that the first name carries; later names count up from it.
const FIRST_STAMP: u64 = 1_700_000_000_000_000;

/// Parameters that describe a tree.
pub(crate) const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo {
        name: "dirs",
        summary: "folders side by side",
        unit: "folders",
        domain: Domain::Integer { default: 10, min: 1, max: 10_000 },
        scenarios: &[],
    },
    ParameterInfo {
        name: "files",
        summary: "files in each folder",
        unit: "files",
        domain: Domain::Integer { default: 1_000, min: 1, max: 1_000_000 },
        scenarios: &[],
    },
    ParameterInfo {
        name: "size",
        summary: "bytes written to each file",
        unit: "bytes",
        domain: Domain::Integer { default: 0, min: 0, max: 1 << 30 },
        scenarios: &[],
    },
    ParameterInfo {
        name: "write_size",
        summary: "bytes of one write call; the last one of a file writes what is left",
        unit: "bytes",
        domain: Domain::Integer { default: 16_384, min: 1, max: 16 << 20 },
        scenarios: &[],
    },
    ParameterInfo {
        name: "sync",
        summary: "what follows the writes of a file",
        unit: "",
        domain: Domain::Choice { default: "none", choices: &["none", "fsync"] },
        scenarios: &[],
    },
    ParameterInfo {
        name: "order",
        summary: "one file in each folder in turn, or one folder after the other",
        unit: "",
        domain: Domain::Choice { default: "round-robin", choices: &["round-robin", "per-directory"] },
        scenarios: &[],
    },
];

/// Bounds on those parameters together.
pub(crate) const LIMITS: &[ProductLimit] = &[ProductLimit {
    parameters: &["dirs", "files"],
    max: 4_000_000,
    reason: "the names of all files are kept in memory, 41 bytes each",
}];

/// Folders that are open, and the files that belong into them.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    dirs: Vec<Dir>,
    files_per_dir: u64,
    round_robin: bool,
    names: Names,
    size: u64,
    block: Vec<u8>,
    fsync: bool,
}

#[derive(Debug)]
struct Dir {
    name: CString,
    handle: OwnedFd,
}

/// What a walk found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Tree {
    /// Makes the folders of the tree that the round's parameters describe, and names its files.
    pub(crate) fn prepare(round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let (dir_count, files_per_dir) = (round.integer("dirs")?, round.integer("files")?);
        let (size, write_size) = (round.integer("size")?, round.integer("write_size")?);
        let root = round.mount_point().to_owned();
        sys::allow_open_files(dir_count).map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", &root, errno))?;
        let mut rng = round.rng();
        let names = Names::draw(&mut rng, (dir_count * files_per_dir) as usize);
        let mut block = vec![0; size.min(write_size) as usize];
        rng.fill_bytes(&mut block);
        let parent = open_root(&root)?;
        let mut dirs = Vec::with_capacity(dir_count as usize);
        for number in 0..dir_count {
            let text = format!("d{number:04}");
            let path = root.join(&text);
            let name = CString::new(text).unwrap_or_default();
            sys::mkdir(parent.as_fd(), &name).map_err(|errno| failed("mkdirat", &path, errno))?;
            let handle =
                sys::open_dir(parent.as_fd(), &name).map_err(|errno| failed("openat", &path, errno))?;
            dirs.push(Dir { name, handle });
        }
        round.count("mkdirat", dir_count, dir_count);
        let round_robin = round.choice("order")? == "round-robin";
        let fsync = round.choice("sync")? == "fsync";
        Ok(Self { root, dirs, files_per_dir, round_robin, names, size, block, fsync })
    }

    /// Number of files.
    pub(crate) fn file_count(&self) -> u64 {
        self.names.count() as u64
    }

    /// Number of folders.
    pub(crate) fn dir_count(&self) -> u64 {
        self.dirs.len() as u64
    }

    /// Bytes that all files must have together.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.file_count() * self.size
    }

    /// Claims the system calls of [`Self::create`].
    pub(crate) fn count_creation(&self, round: &mut RoundContext) {
        let files = self.file_count();
        let writes = match self.block.len() as u64 {
            0 => 0,
            write_size => files * self.size.div_ceil(write_size),
        };
        for (call, count) in [
            ("openat", files),
            ("write", writes),
            ("fsync", if self.fsync { files } else { 0 }),
            ("close", files),
        ] {
            if count > 0 {
                round.count(call, count, count);
            }
        }
    }

    /// Creates and writes every file. Timed: nothing here but system calls and their arguments.
    pub(crate) fn create(&self) -> Result<(), WorkloadError> {
        self.visit(|dir, name| {
            let file = sys::create(dir, name).map_err(|errno| ("openat", errno))?;
            let mut left = self.size;
            while left > 0 {
                let piece = &self.block[..left.min(self.block.len() as u64) as usize];
                let written = sys::write(file.as_fd(), piece).map_err(|errno| ("write", errno))?;
                if written == 0 {
                    return Err(("write", Errno::NOSPC));
                }
                left -= written as u64;
            }
            if self.fsync {
                sys::fsync(file.as_fd()).map_err(|errno| ("fsync", errno))?;
            }
            sys::close(file).map_err(|errno| ("close", errno))
        })
    }

    /// Removes every file, in the order of creation. Timed.
    pub(crate) fn unlink(&self) -> Result<(), WorkloadError> {
        self.visit(|dir, name| sys::unlink(dir, name).map_err(|errno| ("unlinkat", errno)))
    }

    /// Closes the folders, which can then be removed.
    pub(crate) fn close(self) -> Result<ClosedTree, WorkloadError> {
        let parent = open_root(&self.root)?;
        let dirs = self.dirs.into_iter().map(|dir| dir.name).collect();
        Ok(ClosedTree { root: self.root, parent, dirs })
    }

    /// What is really there, by reading every folder.
    pub(crate) fn census(&self) -> Result<Census, WorkloadError> {
        let mut census = Census::default();
        for dir in &self.dirs {
            let path = self.root.join(&*dir.name.to_string_lossy());
            let lost = |call, error: &std::io::Error| {
                failed(call, &path, Errno::from_io_error(error).unwrap_or(Errno::IO))
            };
            for entry in std::fs::read_dir(&path).map_err(|error| lost("getdents", &error))? {
                let entry = entry.map_err(|error| lost("getdents", &error))?;
                let metadata = entry.metadata().map_err(|error| lost("statx", &error))?;
                census.files += u64::from(metadata.is_file());
                census.bytes += metadata.len();
            }
        }
        Ok(census)
    }

    /// Calls `each` for every file in the tree's order.
    #[inline(always)]
    fn visit(
        &self,
        mut each: impl FnMut(BorrowedFd<'_>, &CStr) -> Result<(), (&'static str, Errno)>,
    ) -> Result<(), WorkloadError> {
        let (outer, inner) = if self.round_robin { (self.files_per_dir, 1) } else { (1, self.files_per_dir) };
        let mut number = 0;
        for _ in 0..outer {
            for dir in &self.dirs {
                for _ in 0..inner {
                    let name = self.names.get(number);
                    each(dir.handle.as_fd(), name)
                        .map_err(|(call, errno)| self.failed(call, dir, name, errno))?;
                    number += 1;
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn failed(&self, call: &'static str, dir: &Dir, name: &CStr, errno: Errno) -> WorkloadError {
        failed(call, &self.root.join(&*dir.name.to_string_lossy()).join(&*name.to_string_lossy()), errno)
    }
}

/// The folders of a [`Tree`] whose files are gone.
#[derive(Debug)]
pub(crate) struct ClosedTree {
    root: PathBuf,
    parent: OwnedFd,
    dirs: Vec<CString>,
}

impl ClosedTree {
    /// Removes every folder. Timed.
    pub(crate) fn rmdir(&self) -> Result<(), WorkloadError> {
        for name in &self.dirs {
            sys::rmdir(self.parent.as_fd(), name).map_err(|errno| {
                failed("unlinkat(AT_REMOVEDIR)", &self.root.join(&*name.to_string_lossy()), errno)
            })?;
        }
        Ok(())
    }

    /// How many folders are still there, by reading the one they were in.
    pub(crate) fn remaining(&self) -> Result<u64, WorkloadError> {
        let lost = |error: std::io::Error| {
            failed("getdents", &self.root, Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        let mut count = 0;
        for entry in std::fs::read_dir(&self.root).map_err(lost)? {
            let name = entry.map_err(lost)?.file_name();
            count += u64::from(self.dirs.iter().any(|dir| dir.as_bytes() == name.as_encoded_bytes()));
        }
        Ok(count)
    }
}

/// Names of 40 bytes and a NUL each, in one buffer.
#[derive(Debug)]
struct Names(Vec<u8>);

impl Names {
    fn draw(rng: &mut impl Rng, count: usize) -> Self {
        const ALPHABET: &[u8; 36] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        let mut bytes = Vec::with_capacity(count * NAME_BYTES);
        for number in 0..count as u64 {
            let mut stamp = FIRST_STAMP + number;
            let mut digits = [b'0'; DIGITS];
            for digit in digits.iter_mut().rev() {
                *digit += (stamp % 10) as u8;
                stamp /= 10;
            }
            bytes.extend_from_slice(&digits);
            // The high bits choose the letter; the bias of 36 in 2^32 is far below notice.
            bytes.extend((0..LETTERS).map(|_| ALPHABET[((u64::from(rng.next_u32()) * 36) >> 32) as usize]));
            bytes.push(0);
        }
        Self(bytes)
    }

    fn count(&self) -> usize {
        self.0.len() / NAME_BYTES
    }

    #[inline]
    fn get(&self, number: usize) -> &CStr {
        let bytes = &self.0[number * NAME_BYTES..][..NAME_BYTES];
        // SAFETY: `draw` wrote 40 digits and letters and then a NUL at every multiple of 41.
        unsafe { sys::c_str(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn names_have_forty_bytes_are_distinct_and_come_from_the_seed() {
        let draw = |seed| Names::draw(&mut ChaCha8Rng::seed_from_u64(seed), 500);
        let names = draw(1);
        let distinct: BTreeSet<&CStr> = (0..names.count()).map(|number| names.get(number)).collect();
        assert_eq!((names.count(), distinct.len()), (500, 500));
        for name in distinct {
            let (digits, letters) = name.to_bytes().split_at(DIGITS);
            assert!(digits.iter().all(u8::is_ascii_digit), "{name:?}");
            assert_eq!(letters.len(), LETTERS);
            assert!(
                letters.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()),
                "{name:?}"
            );
        }
        assert_eq!(draw(1).0, names.0);
        assert_ne!(draw(2).0, names.0);
    }
}
