//! Many files in folders, made and removed in a given order by one process or by several, each in a
//! top folder of its own. Read [`Tree`] first, then [`timed`]; names and buffers exist before
//! anything is timed.

mod branch;
pub(crate) mod parameters;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rand_chacha::rand_core::Rng;

use crate::entries::{Removal, Survey, explore};
use crate::names::Names;
use crate::parallel::{Crew, Post, Share};
use crate::round::{failed, open_root};
use crate::{RoundContext, WorkloadError, sys};

pub(crate) use branch::Branch;
use branch::Plan;
use parameters::{DIRS, FILES, ORDER, SIZE, SYNC, THREADS, WRITE_SIZE, integer};

/// Folders, and the files that belong into them.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    branches: Vec<Branch>,
}

impl Tree {
    /// Makes the folders that the round's parameters describe, and draws `names_each` names for every
    /// file. A parameter that the scenario does not take has its default.
    pub(crate) fn prepare(round: &mut RoundContext, names_each: u64) -> Result<Self, WorkloadError> {
        let [threads, dirs, files, size, write_size] =
            [THREADS, DIRS, FILES, SIZE, WRITE_SIZE].map(|parameter| integer(round, &parameter));
        let root = round.mount_point().to_owned();
        sys::allow_open_files(threads * (dirs + 1))
            .map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", &root, errno))?;
        let mut rng = round.rng();
        let mut block = vec![0; size.min(write_size) as usize];
        rng.fill_bytes(&mut block);
        let round_robin = round.choice(ORDER.name).unwrap_or("round-robin") == "round-robin";
        let plan = Plan {
            files,
            step: if round_robin { 1 } else { files.div_ceil(dirs) },
            size,
            block: block.into(),
            fsync: round.choice(SYNC.name) == Ok("fsync"),
        };
        let parent = open_root(&root)?;
        let mut branches = Vec::with_capacity(threads as usize);
        for number in 0..threads {
            let (name, path) = make(&parent, &root, &format!("t{number:02}"))?;
            let top = open_root(&path)?;
            let made_dirs: Result<Vec<CString>, WorkloadError> =
                (0..dirs).map(|dir| make(&top, &path, &format!("d{dir:04}")).map(|(name, _)| name)).collect();
            let count = (files * names_each) as usize;
            let names = Names::draw(&mut rng, number * count as u64, count);
            let (dirs, plan) = (made_dirs?, plan.clone());
            branches.push(Branch { name, path, top: None, dirs, handles: Vec::new(), names, plan });
        }
        round.count("mkdirat", threads * (dirs + 1), threads * (dirs + 1));
        let mut tree = Self { root, branches };
        tree.open()?;
        Ok(tree)
    }

    /// Opens every folder.
    pub(crate) fn open(&mut self) -> Result<(), WorkloadError> {
        for branch in &mut self.branches {
            let top = open_root(&branch.path)?;
            for name in &branch.dirs {
                let handle = sys::open_dir(top.as_fd(), name)
                    .map_err(|errno| failed("openat", &branch.path, errno))?;
                branch.handles.push(handle);
            }
            branch.top = Some(top);
        }
        Ok(())
    }

    /// Closes every folder but the top ones, so that they can be removed.
    pub(crate) fn close_folders(&mut self) {
        self.branches.iter_mut().for_each(|branch| branch.handles.clear());
    }

    /// Closes every folder, so that none is kept in memory.
    pub(crate) fn close(&mut self) {
        self.close_folders();
        self.branches.iter_mut().for_each(|branch| branch.top = None);
    }

    pub(crate) fn branches(&self) -> Vec<&Branch> {
        self.branches.iter().collect()
    }

    /// Number of files.
    pub(crate) fn file_count(&self) -> u64 {
        self.branches.iter().map(|branch| branch.plan.files).sum()
    }

    /// Number of folders in the top folders.
    pub(crate) fn dir_count(&self) -> u64 {
        self.branches.iter().map(|branch| branch.dirs.len() as u64).sum()
    }

    /// Number of top folders.
    pub(crate) fn top_count(&self) -> u64 {
        self.branches.len() as u64
    }

    /// Bytes that all files must have together.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.branches.iter().map(|branch| branch.plan.files * branch.plan.size).sum()
    }

    /// How the files must lie in the folders of each branch, as [`spread`] puts it.
    pub(crate) fn planned_spread(&self) -> String {
        let Some(Branch { plan, dirs, .. }) = self.branches.first() else { return String::new() };
        let (files, step, dirs) = (plan.files, plan.step, dirs.len() as u64);
        let used = files.div_ceil(step).min(dirs);
        let (fewest, most) = match step {
            1 => (files / used, files.div_ceil(used)),
            step => (files - (used - 1) * step, step.min(files)),
        };
        spread(used * self.top_count(), fewest, most)
    }

    /// Creates every file, untimed, and claims it.
    pub(crate) fn fill(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        for branch in &self.branches {
            branch.create()?;
        }
        self.count_creation(round);
        Ok(())
    }

    /// Claims the system calls of [`Branch::create`].
    pub(crate) fn count_creation(&self, round: &mut RoundContext) {
        let Some(Branch { plan, .. }) = self.branches.first() else { return };
        let files = self.file_count();
        let writes = match plan.block.len() as u64 {
            0 => 0,
            write_size => files * plan.size.div_ceil(write_size),
        };
        for (call, count) in
            [("openat", files), ("write", writes), ("fsync", u64::from(plan.fsync) * files), ("close", files)]
        {
            if count > 0 {
                round.count(call, count, count);
            }
        }
    }

    /// What is really there, by reading every folder; claims the calls.
    pub(crate) fn survey(&self, round: &mut RoundContext) -> Result<Survey, WorkloadError> {
        let mut survey = Survey::new();
        let mut opened = 0;
        for branch in &self.branches {
            opened += explore(&branch.path, &mut survey)?;
        }
        round.count("openat", opened, opened);
        round.count("statx", survey.looked_at, survey.looked_at);
        round.count("close", opened, opened);
        Ok(survey)
    }

    /// Removes the top folders, and checks that nothing was left in them.
    pub(crate) fn finish_removal(self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let left = self.survey(round)?;
        let root = open_root(&self.root)?;
        let mut removal = Removal::default();
        for Branch { name, path, .. } in &self.branches {
            removal
                .note(sys::rmdir(root.as_fd(), name))
                .map_err(|(call, errno)| failed(call, path, errno))?;
        }
        round.count("unlinkat", removal.tried, removal.removed);
        round.check(LEFT, "0 files, 0 folders", format!("{} files, {} folders", left.files, left.dirs));
        Ok(())
    }
}

/// Name of the check of [`Tree::finish_removal`].
pub(crate) const LEFT: &str = "left behind";

/// `3 folders, 6 to 7 files in each`.
pub(crate) fn spread(used: u64, fewest: u64, most: u64) -> String {
    format!("{used} folders with {fewest} to {most} files")
}

/// Makes a folder; its name and path.
fn make(parent: &OwnedFd, path: &Path, name: &str) -> Result<(CString, PathBuf), WorkloadError> {
    let path = path.join(name);
    let name = CString::new(name).unwrap_or_default();
    sys::mkdir(parent.as_fd(), &name).map_err(|errno| failed("mkdirat", &path, errno))?;
    Ok((name, path))
}

/// Times `body` as the phase `name`: in this process for one member, otherwise in one process for
/// each, which all begin together; returns the numbers that each handed back.
pub(crate) fn timed<M: Send>(
    round: &mut RoundContext,
    name: &'static str,
    members: &mut [M],
    body: impl Fn(&mut M) -> Result<Share, WorkloadError> + Sync,
) -> Result<Vec<Vec<u64>>, WorkloadError> {
    if let [only] = members {
        let values = round.counted_phase(name, || body(only).map(|share| (share.ops, share.values)))?;
        return Ok(vec![values]);
    }
    round.parallel(name, Crew::Processes, members, |member, _: &Post| body(member))
}
