//! What one process does with its part of a tree. Read [`Branch`] first; its loops hold system calls
//! and their arguments only.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::entries::{Failure, Removal};
use crate::names::Names;
use crate::round::{c_path, failed};
use crate::{WorkloadError, sys};

/// One process's part of a [`super::Tree`]: a top folder, folders in it that are open, and names.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(super) name: CString,
    pub(super) path: PathBuf,
    /// The top folder, open.
    pub(super) top: Option<OwnedFd>,
    pub(super) dirs: Vec<CString>,
    /// The folders, open; none while the branch is closed.
    pub(super) handles: Vec<OwnedFd>,
    pub(super) names: Names,
    pub(super) plan: Plan,
}

/// What all branches have in common.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) files: u64,
    /// Files in a row that go into one folder.
    pub(super) step: u64,
    pub(super) size: u64,
    pub(super) block: Arc<[u8]>,
    pub(super) fsync: bool,
}

impl Branch {
    /// The top folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates and writes every file; how many. Timed: nothing here but system calls and their
    /// arguments.
    pub(crate) fn create(&self) -> Result<u64, WorkloadError> {
        let Plan { size, block, fsync, .. } = &self.plan;
        self.visit(0, |dir, name, _| {
            let file = sys::create(dir, name).map_err(|errno| ("openat", errno))?;
            let mut left = *size;
            while left > 0 {
                let piece = &block[..left.min(block.len() as u64) as usize];
                let written = sys::write(file.as_fd(), piece).map_err(|errno| ("write", errno))?;
                if written == 0 {
                    return Err(("write", Errno::NOSPC));
                }
                // A file that is not whole fails a check, whatever the calls claim.
                left = left.saturating_sub(written as u64);
            }
            if *fsync {
                sys::fsync(file.as_fd()).map_err(|errno| ("fsync", errno))?;
            }
            sys::close(file).map_err(|errno| ("close", errno))
        })
    }

    /// Gives every file its second name, in the same folder; how many.
    pub(crate) fn link(&self) -> Result<u64, WorkloadError> {
        self.visit(0, |dir, name, number| {
            let second = self.names.get(number + self.plan.files as usize);
            sys::files::link(dir, name, second).map_err(|errno| ("linkat", errno))
        })
    }

    /// Removes the first or the second name of every file, in the order of creation. Timed.
    pub(crate) fn unlink(&self, second: bool) -> Result<Removal, WorkloadError> {
        let first = if second { self.plan.files as usize } else { 0 };
        let mut removal = Removal::default();
        self.visit(first, |dir, name, _| removal.note(sys::unlink(dir, name)))?;
        Ok(removal)
    }

    /// Removes every folder but the top one. Timed.
    pub(crate) fn rmdir(&self) -> Result<Removal, WorkloadError> {
        let mut removal = Removal::default();
        let Some(top) = &self.top else { return Err(failed("unlinkat", &self.path, Errno::BADF)) };
        for name in &self.dirs {
            removal
                .note(sys::rmdir(top.as_fd(), name))
                .map_err(|(call, errno)| failed(call, &self.path.join(&*name.to_string_lossy()), errno))?;
        }
        Ok(removal)
    }

    /// The folders, open.
    pub(crate) fn handles(&self) -> &[OwnedFd] {
        &self.handles
    }

    /// Paths of every `step`th file, beginning with the first.
    pub(crate) fn sample(&self, step: usize) -> impl Iterator<Item = Result<CString, WorkloadError>> {
        (0..self.plan.files as usize).step_by(step).map(move |number| {
            let dir = (number as u64 / self.plan.step) as usize % self.dirs.len();
            let folder = self.path.join(&*self.dirs[dir].to_string_lossy());
            c_path(&folder.join(&*self.names.get(number).to_string_lossy()))
        })
    }

    /// Calls `each` for one name of every file in the plan's order, beginning with name `first`; how
    /// many calls.
    #[inline(always)]
    fn visit(
        &self,
        first: usize,
        mut each: impl FnMut(BorrowedFd<'_>, &CStr, usize) -> Result<(), Failure>,
    ) -> Result<u64, WorkloadError> {
        let mut number = first;
        let (mut dir, mut in_dir) = (0, self.plan.step);
        for _ in 0..self.plan.files {
            let name = self.names.get(number);
            let done = match self.handles.get(dir) {
                Some(handle) => each(handle.as_fd(), name, number),
                None => Err(("openat", Errno::BADF)),
            };
            done.map_err(|(call, errno)| self.failed(call, dir, name, errno))?;
            number += 1;
            in_dir -= 1;
            if in_dir == 0 {
                in_dir = self.plan.step;
                dir = if dir + 1 == self.dirs.len() { 0 } else { dir + 1 };
            }
        }
        Ok((number - first) as u64)
    }

    #[cold]
    fn failed(&self, call: &'static str, dir: usize, name: &CStr, errno: Errno) -> WorkloadError {
        let folder = self.dirs.get(dir).map(|dir| self.path.join(&*dir.to_string_lossy()));
        failed(call, &folder.unwrap_or_default().join(&*name.to_string_lossy()), errno)
    }
}
