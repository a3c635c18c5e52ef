//! One round of one scenario: what a workload is given, how its timed parts are measured and how
//! its claims are checked. Read [`run`] first, then [`RoundContext::phase`].

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kdelta_wire::{
    Check, Clock, FilesystemKind, OpCount, ParameterValue, Parameters, Phase, Round, RoundRequest, Worker,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rustix::io::Errno;
use thiserror::Error;

use crate::budget::{self, Budget};
use crate::counters::Meter;
use crate::latency::Latencies;
use crate::parallel::{self, Crew, Post, Share};
use crate::{ParameterError, ScenarioInfo, UnknownWorkload, clock, find, resolve, sys};

/// Dirty pages below which nothing is left to write: 1 MiB of 4 KiB pages (rule M7).
const QUIET_PAGES: u64 = 256;
const WRITEBACK_DEADLINE: Duration = Duration::from_secs(60);
const WRITEBACK_POLL: Duration = Duration::from_millis(10);
/// For XFS to write inodes back in the background, which it does after a few seconds.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

/// Name of the check that caches were dropped.
pub(crate) const COLD: &str = "cold cache";
/// Name of the check that what was dropped came from the device again.
pub(crate) const READ: &str = "read from the device";

/// What may be done with the mount under test; the guest's init has these, a host has none.
#[derive(Clone, Copy, Debug)]
pub struct Mounting {
    /// Unmounts the filesystem at a path.
    pub unmount: fn(&Path) -> std::io::Result<()>,
    /// Unmounts the filesystem at a path and mounts it again with the same options.
    pub remount: fn(&Path) -> std::io::Result<()>,
}

/// Why a round could not be finished.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// No such workload.
    #[error(transparent)]
    Workload(#[from] UnknownWorkload),
    /// Bad parameter values.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The workload does not run on this filesystem.
    #[error("{workload} does not run on {filesystem}: {reason}")]
    Filesystem {
        /// Workload and scenario.
        workload: String,
        /// The filesystem asked for.
        filesystem: FilesystemKind,
        /// Why not.
        reason: &'static str,
    },
    /// Something that the workload needs is not there.
    #[error("{what} is not available here: {next}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// What to do about it.
        next: &'static str,
    },
    /// A thread or process of the workload failed.
    #[error("worker {number}: {message}")]
    Worker {
        /// Its number, from 0.
        number: usize,
        /// What happened to it.
        message: String,
    },
    /// The filesystem has no attributes of this namespace.
    #[error(
        "the filesystem refuses the attribute {name}; tmpfs has user attributes since linux 6.6 only: set the parameter `namespace` to trusted"
    )]
    NoAttributes {
        /// Full name of the attribute.
        name: String,
    },
    /// A system call failed.
    #[error("{call} on {path} failed: {} (errno {errno})", std::io::Error::from_raw_os_error(*.errno).kind())]
    Call {
        /// Name of the call.
        call: &'static str,
        /// What it was called on.
        path: String,
        /// errno(3).
        errno: i32,
    },
    /// A workload asks for a parameter that it does not declare with that type.
    #[error("the workload reads `{0}`, which it does not declare so; this is a mistake in kdelta")]
    Undeclared(String),
}

/// An error for `call` on `path`.
#[cold]
pub(crate) fn failed(call: &'static str, path: &Path, errno: Errno) -> WorkloadError {
    WorkloadError::Call { call, path: path.display().to_string(), errno: errno.raw_os_error() }
}

/// Runs the round that `request` describes, in this process. With `mounting`, and if the request
/// allows it, [`RoundContext::quiesce`] unmounts the filesystem and `RoundContext::remount` works.
///
/// # Errors
/// When the request is not valid, or a system call fails that the workload needs. A check that
/// fails is no error: it is part of the round.
pub fn run(request: &RoundRequest, mounting: Option<Mounting>) -> Result<Round, WorkloadError> {
    let selection = find(&request.scenario.workload)?;
    let info = selection.workload.info();
    if let Some(reason) = info.refusal(selection.scenario, request.filesystem) {
        let (workload, filesystem) = (selection.name(), request.filesystem);
        return Err(WorkloadError::Filesystem { workload, filesystem, reason });
    }
    let parameters = resolve(info, selection.scenario, &request.scenario.parameters)?;
    let mut context = RoundContext::new(request.clone(), selection.scenario, parameters, mounting)?;
    selection.workload.round(&mut context)?;
    Ok(context.finish())
}

/// What a workload is given, and where it leaves what it found.
#[derive(Debug)]
pub struct RoundContext {
    request: RoundRequest,
    scenario: &'static ScenarioInfo,
    parameters: Parameters,
    mount_point: PathBuf,
    mounting: Option<Mounting>,
    meter: Meter,
    phases: Vec<Phase>,
    checks: Vec<Check>,
    census: BTreeMap<String, OpCount>,
}

impl RoundContext {
    fn new(
        request: RoundRequest,
        scenario: &'static ScenarioInfo,
        parameters: Parameters,
        mounting: Option<Mounting>,
    ) -> Result<Self, WorkloadError> {
        let mount_point = PathBuf::from(&request.mount_point);
        let mut context = Self {
            meter: Meter::open(&mount_point)?,
            mount_point,
            mounting: mounting.filter(|_| request.may_unmount),
            scenario,
            parameters,
            phases: Vec::with_capacity(8),
            checks: Vec::new(),
            census: BTreeMap::new(),
            request,
        };
        if let Some(cpu) = context.request.cpu {
            let actual =
                sys::pin(cpu).map_err(|errno| failed("sched_setaffinity", Path::new("self"), errno))?;
            context.check("affinity", cpu, actual);
        }
        // The first read pays for finding the vDSO and for page faults.
        context.meter.before()?;
        let _ = clock::now(context.request.clock);
        Ok(context)
    }

    /// Name of the scenario to run, one of the workload's own.
    #[must_use]
    pub fn scenario(&self) -> &'static str {
        self.scenario.name
    }

    /// Where the filesystem under test is mounted.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Which filesystem it is.
    #[must_use]
    pub fn filesystem(&self) -> FilesystemKind {
        self.request.filesystem
    }

    /// The integer parameter `name`.
    ///
    /// # Errors
    /// When the workload does not declare it for this scenario.
    pub fn integer(&self, name: &str) -> Result<u64, WorkloadError> {
        match self.parameters.get(name) {
            Some(&ParameterValue::Integer(value)) => Ok(value),
            _ => Err(WorkloadError::Undeclared(name.to_owned())),
        }
    }

    /// The choice parameter `name`.
    ///
    /// # Errors
    /// When the workload does not declare it for this scenario.
    pub fn choice(&self, name: &str) -> Result<&str, WorkloadError> {
        match self.parameters.get(name) {
            Some(ParameterValue::Text(value)) => Ok(value),
            _ => Err(WorkloadError::Undeclared(name.to_owned())),
        }
    }

    /// A random generator that depends on the seed, the scenario's id and the round's number, and
    /// on nothing else. It starts anew with every call.
    #[must_use]
    pub fn rng(&self) -> ChaCha8Rng {
        let mut seed = [0_u8; 32];
        seed[..8].copy_from_slice(&self.request.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&self.request.round.to_le_bytes());
        seed[16..24].copy_from_slice(&fnv1a(self.request.scenario.id.as_bytes()).to_le_bytes());
        ChaCha8Rng::from_seed(seed)
    }

    /// The clock that ticks are read from, for times of single operations.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.request.clock
    }

    /// CPU that the round is pinned to, if it is.
    pub(crate) fn cpu(&self) -> Option<usize> {
        self.request.cpu
    }

    /// How long a loop goes on, from the parameters `operations` and `seconds`.
    ///
    /// # Errors
    /// When the workload does not declare them for this scenario.
    pub(crate) fn budget(&self) -> Result<Budget, WorkloadError> {
        let (operations, seconds) = (self.integer(budget::OPERATIONS)?, self.integer(budget::SECONDS)?);
        Ok(Budget::new(operations, seconds, self.request.clock))
    }

    /// Runs `body` and records what it cost as the phase `name` of `ops` operations.
    ///
    /// The clock is the innermost reading on both sides; the others enclose it.
    ///
    /// # Errors
    /// Those of `body`, which then leaves no phase, and a counter that cannot be read.
    pub fn phase<T>(
        &mut self,
        name: &'static str,
        ops: u64,
        body: impl FnOnce() -> Result<T, WorkloadError>,
    ) -> Result<T, WorkloadError> {
        self.counted_phase(name, || Ok((ops, body()?)))
    }

    /// As [`Self::phase`] where only `body` knows how many operations there were.
    ///
    /// # Errors
    /// Those of `body`, which then leaves no phase, and a counter that cannot be read.
    pub fn counted_phase<T>(
        &mut self,
        name: &'static str,
        body: impl FnOnce() -> Result<(u64, T), WorkloadError>,
    ) -> Result<T, WorkloadError> {
        let clock = self.request.clock;
        let before = self.meter.before()?;
        let start = clock::now(clock);
        let outcome = body();
        let end = clock::now(clock);
        let after = self.meter.after()?;
        let (ops, value) = outcome?;
        let elapsed = end.saturating_sub(start);
        self.phases.push(Phase { name: name.to_owned(), ops, elapsed, ..after.since(&before) });
        Ok(value)
    }

    /// Records the phase `name`, which one thread or process per element of `members` does
    /// together; returns the numbers that each handed back. Workers are on CPUs one after the
    /// other, beginning with the round's, and wait at a gate until all are there. Each must have
    /// got to its CPU, which is checked.
    ///
    /// # Errors
    /// The first worker's, and a counter that cannot be read.
    pub(crate) fn parallel<M: Send>(
        &mut self,
        name: &'static str,
        crew: Crew,
        members: &mut [M],
        body: impl Fn(&mut M, &Post) -> Result<Share, WorkloadError> + Sync,
    ) -> Result<Vec<Vec<u64>>, WorkloadError> {
        let posts = parallel::posts(self.request.cpu, members.len());
        self.parallel_at(name, crew, &posts, members, body)
    }

    /// As [`Self::parallel`], with the CPU of each worker.
    pub(crate) fn parallel_at<M: Send>(
        &mut self,
        name: &'static str,
        crew: Crew,
        posts: &[Option<usize>],
        members: &mut [M],
        body: impl Fn(&mut M, &Post) -> Result<Share, WorkloadError> + Sync,
    ) -> Result<Vec<Vec<u64>>, WorkloadError> {
        let clock = self.request.clock;
        let count = members.len();
        let timed = |open: &mut dyn FnMut() -> Result<(), WorkloadError>| self.phase(name, 0, open);
        let outcome = parallel::crew(crew, clock, posts, members, body, timed)?;
        if let Some(phase) = self.phases.last_mut() {
            phase.ops = outcome.workers.iter().map(|worker| worker.ops).sum();
            if crew != Crew::Threads {
                // Children that have not been waited for are in no counter of the parent.
                phase.cpu_ns += outcome.workers.iter().map(|worker| worker.cpu_ns).sum::<u64>();
                phase.user_ns += outcome.usage.user_ns;
                phase.system_ns += outcome.usage.system_ns;
                phase.voluntary_switches += outcome.usage.voluntary_switches;
                phase.involuntary_switches += outcome.usage.involuntary_switches;
                phase.minor_faults += outcome.usage.minor_faults;
                phase.major_faults += outcome.usage.major_faults;
            }
            phase.workers = outcome.workers;
        }
        self.check("workers on their CPU", count, outcome.in_place);
        Ok(outcome.values)
    }

    /// CPUs for `count` workers that a phase starts itself.
    pub(crate) fn posts(&self, count: usize) -> Vec<Option<usize>> {
        parallel::posts(self.request.cpu, count)
    }

    /// Adds workers to the latest phase, whose body has started and awaited them, and checks that
    /// `in_place` of them got to their CPUs.
    pub(crate) fn add_workers(&mut self, workers: Vec<Worker>, in_place: usize) {
        self.check("workers on their CPU", workers.len(), in_place);
        if let Some(phase) = self.phases.last_mut() {
            phase.cpu_ns += workers.iter().map(|worker| worker.cpu_ns).sum::<u64>();
            phase.workers = workers;
        }
    }

    /// The latest phase called `phase`.
    pub(crate) fn latest(&self, phase: &str) -> Option<&Phase> {
        self.phases.iter().rev().find(|known| known.name == phase)
    }

    /// Replaces the elapsed ticks of the latest phase called `phase` by those of its operations
    /// alone, where steps that are no operations lie between them. Every other counter remains that
    /// of the whole phase.
    pub(crate) fn time_operations(&mut self, phase: &str, ticks: u64) {
        if let Some(phase) = self.phases.iter_mut().rev().find(|known| known.name == phase) {
            phase.elapsed = ticks;
        }
    }

    /// Adds a number that the workload measured in the latest phase called `phase`.
    pub fn measure(&mut self, phase: &str, name: &str, value: f64) {
        if let Some(phase) = self.phases.iter_mut().rev().find(|known| known.name == phase) {
            phase.measures.insert(name.to_owned(), value);
        }
    }

    /// Adds `p50`, `p99`, `p999` and `max` of `latencies` to the latest phase called `phase`.
    pub(crate) fn measure_latencies(&mut self, phase: &str, latencies: &Latencies) {
        for (name, ticks) in latencies.summary().into_iter().flatten() {
            self.measure(phase, name, ticks as f64);
        }
    }

    /// Checks that `actual` reads the same as `expected`.
    pub fn check(&mut self, name: &str, expected: impl Display, actual: impl Display) {
        let (expected, actual) = (expected.to_string(), actual.to_string());
        let passed = expected == actual;
        self.checks.push(Check { name: name.to_owned(), expected, actual, passed });
    }

    /// Adds to the census of operation `op`.
    pub fn count(&mut self, op: &str, attempted: u64, succeeded: u64) {
        let count = self.census.entry(op.to_owned()).or_default();
        count.attempted += attempted;
        count.succeeded += succeeded;
    }

    /// As [`Self::check`] for a condition: what must hold, what was found, and whether it held.
    pub fn check_that(&mut self, name: &str, must: impl Display, found: impl Display, passed: bool) {
        let (expected, actual) = (must.to_string(), found.to_string());
        self.checks.push(Check { name: name.to_owned(), expected, actual, passed });
    }

    /// Waits until everything written so far is on the device and less than 1 MiB is dirty or
    /// under writeback, so that it does not run during the next phase (rule M7).
    ///
    /// # Errors
    /// When syncfs(2) fails, or writeback does not end within 60 s.
    pub fn sync(&mut self) -> Result<(), WorkloadError> {
        let root = open_root(&self.mount_point)?;
        sys::syncfs(root.as_fd()).map_err(|errno| failed("syncfs", &self.mount_point, errno))?;
        let start = std::time::Instant::now();
        while self.meter.dirty_pages()? > QUIET_PAGES {
            // On a busy host others write all the time; only a guest is ours alone.
            if !self.request.may_unmount {
                break;
            }
            if start.elapsed() > WRITEBACK_DEADLINE {
                return Err(failed("wait for writeback", &self.mount_point, Errno::TIMEDOUT));
            }
            std::thread::sleep(WRITEBACK_POLL);
        }
        Ok(())
    }

    /// Syncs, drops the page cache, dentries and inodes, and checks as `COLD` that nine
    /// tenths of `inodes` are gone from memory (rule M8).
    ///
    /// In a guest, the filesystem is frozen and thawed before: what is dirty in the log and not yet
    /// in its place cannot be dropped, and syncfs(2) leaves it so.
    ///
    /// # Errors
    /// When syncing or freezing fails or `/proc/sys/vm/drop_caches` cannot be written, which needs root.
    pub fn drop_caches(&mut self, inodes: u64) -> Result<(), WorkloadError> {
        self.sync()?;
        let filesystem = self.request.filesystem;
        let before = inodes_in_memory(filesystem)?;
        if self.mounting.is_some() && filesystem.needs_disk() {
            let root = open_root(&self.mount_point)?;
            sys::ioctls::freeze_and_thaw(root.as_fd())
                .map_err(|errno| failed("ioctl(FIFREEZE)", &self.mount_point, errno))?;
        }
        let wanted = inodes * 9 / 10;
        let start = std::time::Instant::now();
        let path = Path::new("/proc/sys/vm/drop_caches");
        let dropped = loop {
            std::fs::write(path, "3\n").map_err(|error| lost("write", path, &error))?;
            let dropped = before.saturating_sub(inodes_in_memory(filesystem)?);
            if dropped >= wanted || start.elapsed() > DROP_DEADLINE {
                break dropped;
            }
            std::thread::sleep(WRITEBACK_POLL);
        };
        self.check_dropped(wanted, dropped);
        Ok(())
    }

    /// Leaves nothing of the filesystem in memory, as well as can be, and checks so as [`COLD`]: drops
    /// the caches, or in a guest on btrfs mounts it again. Close every file before it.
    ///
    /// Dropping caches leaves all tree nodes of btrfs in memory: an extent buffer holds a reference of
    /// its own to each of its pages, which `mapping_evict_folio` of `mm/truncate.c` takes for use.
    ///
    /// # Errors
    /// As [`Self::drop_caches`] and [`Self::remount`].
    pub(crate) fn make_cold(&mut self, inodes: u64) -> Result<(), WorkloadError> {
        let filesystem = self.request.filesystem;
        if filesystem != FilesystemKind::Btrfs || self.mounting.is_none() {
            return self.drop_caches(inodes);
        }
        self.sync()?;
        let before = inodes_in_memory(filesystem)?;
        self.remount()?;
        self.check_dropped(inodes * 9 / 10, before.saturating_sub(inodes_in_memory(filesystem)?));
        Ok(())
    }

    /// The check [`COLD`].
    pub(crate) fn check_dropped(&mut self, wanted: u64, dropped: u64) {
        self.check_that(COLD, format!("at least {wanted} inodes dropped"), dropped, dropped >= wanted);
    }

    /// Checks as [`READ`] that the device was read since it had read `kib`, of [`Self::kib_read`]
    /// (rule M8).
    ///
    /// # Errors
    /// When `/proc/vmstat` cannot be read.
    pub(crate) fn check_read(&mut self, kib: u64) -> Result<(), WorkloadError> {
        let read = self.kib_read()?.saturating_sub(kib);
        self.check_that(READ, "more than 0 KiB", format!("{read} KiB"), read > 0);
        Ok(())
    }

    /// KiB that the machine has read from block devices since it booted (`pgpgin`).
    ///
    /// # Errors
    /// When `/proc/vmstat` cannot be read.
    pub(crate) fn kib_read(&mut self) -> Result<u64, WorkloadError> {
        self.meter.kib_read()
    }

    /// Records the phase `quiesce`: the work left over from `ops` earlier operations, which
    /// syncfs(2) and, where this round may, unmounting wait for. Close every file before it.
    ///
    /// # Errors
    /// When syncing or unmounting fails.
    pub fn quiesce(&mut self, ops: u64) -> Result<(), WorkloadError> {
        let mount_point = self.mount_point.clone();
        let mounting = self.mounting;
        self.phase("quiesce", ops, || {
            let root = open_root(&mount_point)?;
            sys::syncfs(root.as_fd()).map_err(|errno| failed("syncfs", &mount_point, errno))?;
            sys::close(root).map_err(|errno| failed("close", &mount_point, errno))?;
            if let Some(Mounting { unmount, .. }) = mounting {
                unmount(&mount_point).map_err(|error| lost("umount", &mount_point, &error))?;
            }
            Ok(())
        })
    }

    /// Unmounts the filesystem and mounts it again, so that nothing of it is left in memory. Close
    /// every file before it.
    ///
    /// # Errors
    /// When this round may not do so, or unmounting or mounting fails.
    pub(crate) fn remount(&mut self) -> Result<(), WorkloadError> {
        let Some(Mounting { remount, .. }) = self.mounting else {
            let what = format!("unmounting {}", self.mount_point.display());
            return Err(WorkloadError::Unavailable { what, next: "run this scenario in a guest" });
        };
        remount(&self.mount_point).map_err(|error| lost("mount", &self.mount_point, &error))
    }

    /// A context for the test of a workload's parts.
    #[cfg(test)]
    pub(crate) fn for_test(
        request: RoundRequest,
        scenario: &'static ScenarioInfo,
        parameters: Parameters,
    ) -> Self {
        Self::new(request, scenario, parameters, None).expect("a context")
    }

    pub(crate) fn finish(self) -> Round {
        let RoundRequest { scenario, round, .. } = self.request;
        Round {
            warmup: round < scenario.warmup,
            scenario: scenario.id,
            round,
            parameters: self.parameters,
            phases: self.phases,
            checks: self.checks,
            census: self.census,
            trace: None,
        }
    }
}

/// `path` for a system call.
pub(crate) fn c_path(path: &Path) -> Result<CString, WorkloadError> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| failed("open", path, Errno::INVAL))
}

/// The folder `path`, open.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, WorkloadError> {
    sys::open_dir(rustix::fs::CWD, &c_path(path)?).map_err(|errno| failed("open", path, errno))
}

/// [`failed`] for an error of the standard library.
#[cold]
pub(crate) fn lost(call: &'static str, path: &Path, error: &std::io::Error) -> WorkloadError {
    failed(call, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Inodes that the kernel holds: those of XFS, which keeps them after the rest of the kernel let them
/// go (`vnodes` of `fs/xfs/xfs_stats.c`), or all (`nr_inodes` less `nr_free_inodes`,
/// kernel `Documentation/admin-guide/sysctl/fs.rst`).
fn inodes_in_memory(filesystem: FilesystemKind) -> Result<u64, WorkloadError> {
    if filesystem == FilesystemKind::Xfs
        && let Ok(text) = std::fs::read_to_string("/sys/fs/xfs/stats/stats")
        && let Some(line) = text.lines().find_map(|line| line.strip_prefix("vnodes "))
        && let Some(active) = line.split(' ').next().and_then(|word| word.parse().ok())
    {
        return Ok(active);
    }
    let path = Path::new("/proc/sys/fs/inode-nr");
    let text = std::fs::read_to_string(path).map_err(|error| lost("read", path, &error))?;
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(all), Some(free)) => Ok(all.saturating_sub(free)),
        _ => Err(failed("read", path, Errno::PROTO)),
    }
}

/// FNV-1a, 64 bits (RFC 9923): the same value for the same bytes in every build.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
pub(crate) mod tests {
    use kdelta_wire::ScenarioJob;
    use rand_chacha::rand_core::Rng;

    use super::*;

    /// A request to run `workload` in `folder` with integer and text `parameters`.
    pub(crate) fn request(
        workload: &str,
        folder: &Path,
        parameters: &[(&str, crate::Setting)],
    ) -> RoundRequest {
        let parameters =
            parameters.iter().map(|(name, setting)| ((*name).to_owned(), setting.value())).collect();
        let scenario = ScenarioJob {
            id: "test".into(),
            workload: workload.into(),
            parameters,
            warmup: 1,
            rounds: 1,
            strace: Vec::new(),
        };
        RoundRequest {
            scenario,
            round: 0,
            seed: 7,
            clock: Clock::Nanoseconds,
            cpu: None,
            filesystem: FilesystemKind::Tmpfs,
            mount_point: folder.display().to_string(),
            may_unmount: false,
        }
    }

    fn context(edit: impl FnOnce(&mut RoundRequest)) -> RoundContext {
        let mut request = request("xattr/flistxattr", &std::env::temp_dir(), &[]);
        edit(&mut request);
        let scenario = find(&request.scenario.workload).expect("known").scenario;
        RoundContext::new(request, scenario, Parameters::new(), None).expect("a context")
    }

    /// Every check of `round` passed and every operation succeeded.
    pub(crate) fn assert_sound(round: &Round) {
        assert!(!round.checks.is_empty() && round.checks.iter().all(|check| check.passed), "{round:?}");
        assert!(round.census.values().all(|count| count.attempted == count.succeeded), "{round:?}");
        assert!(round.phases.iter().all(|phase| phase.ops > 0 && phase.elapsed > 0), "{round:?}");
    }

    #[test]
    fn a_wrong_value_fails_its_check() {
        let mut context = context(|_| {});
        context.check("size", 4096, 4095);
        context.check("same", 1, "1");
        let round = context.finish();
        assert_eq!(round.checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_phase_that_fails_leaves_no_numbers() {
        let mut context = context(|_| {});
        let result =
            context.phase("fails", 1, || Err::<(), _>(failed("open", Path::new("/x"), Errno::NOSPC)));
        assert_eq!(
            result.expect_err("the body's error").to_string(),
            "open on /x failed: no storage space (errno 28)"
        );
        assert!(context.finish().phases.is_empty());
    }

    #[test]
    fn the_generator_depends_on_seed_round_and_id_only() {
        let draw = |seed, round, id: &str| {
            let id = id.to_owned();
            let edit = |request: &mut RoundRequest| {
                (request.seed, request.round, request.scenario.id) = (seed, round, id);
            };
            context(edit).rng().next_u64()
        };
        assert_eq!(draw(1, 2, "a"), draw(1, 2, "a"));
        let all = [draw(1, 2, "a"), draw(2, 2, "a"), draw(1, 3, "a"), draw(1, 2, "b")];
        assert!(all.iter().enumerate().all(|(at, value)| !all[..at].contains(value)), "{all:?}");
    }

    #[test]
    fn affinity_is_verified() {
        // Any CPU may be forbidden to this test; the one it is on is not.
        let cpu = rustix::thread::sched_getcpu();
        let round = context(|request| request.cpu = Some(cpu)).finish();
        assert_eq!((round.checks[0].name.as_str(), round.checks[0].passed), ("affinity", true));
    }

    #[test]
    fn a_filesystem_a_workload_cannot_use_is_refused_and_so_is_a_folder_that_is_not_there() {
        let mut request = request("create/sane", Path::new("/nonexistent"), &[]);
        let error = run(&request, None).expect_err("no such folder");
        assert_eq!(error, failed("open", Path::new("/nonexistent"), Errno::NOENT));
        request.scenario.workload = "create/insane".into();
        assert!(matches!(run(&request, None), Err(WorkloadError::Workload(_))));
    }
}
