//! Making small changes durable, one by one. Read [`Fsync`] first; each scenario is one of its
//! members' loops.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use kdelta_wire::{Clock, FilesystemKind};
use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use crate::budget::{OPERATIONS, SECONDS_PARAMETER};
use crate::draw::below;
use crate::latency::Latencies;
use crate::parallel::{Crew, Share};
use crate::round::{failed, open_root};
use crate::sys::{namespace, space};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, ProductLimit, Proof, Refusal,
    RoundContext, ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, budget::Budget, clock,
    inventory, sys,
};

const UNCHANGED: &str = "unchanged";
const CREATE_RENAME: &str = "create-rename";
const APPEND: &str = "append";
const PHASE: &str = "sync";
/// What filesystems write at least of a file that changed.
const BLOCK_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// Writes of each worker whose bytes are read back, from the last on.
const SAMPLE: usize = 256;

/// A percentile of one of the two syncs.
macro_rules! percentile {
    ($name:literal, $what:literal, $scenarios:expr) => {
        MeasureInfo {
            name: $name,
            phase: PHASE,
            summary: $what,
            unit: "ticks",
            better: Better::Lower,
            scenarios: $scenarios,
        }
    };
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "fsync",
    title: "fsync of small changes",
    summary: "Threads with files of their own write a little and wait for it to be durable, over and over; each \
              fsync is timed by itself.",
    source: "three shapes of fsync regressions that were reported to the lists of filesystems: fsync of a file \
             without changes, fsync of a name that was renamed away and made again, and `dd oflag=sync`",
    scenarios: &[
        ScenarioInfo {
            name: UNCHANGED,
            summary: "a write somewhere in one of many preallocated files, fsync, and fsync again with nothing \
                      changed between",
            default: true,
        },
        ScenarioInfo {
            name: CREATE_RENAME,
            summary: "a new file written and fsynced, then renamed over the one before, so that the next one is \
                      made under a name that was renamed away",
            default: false,
        },
        ScenarioInfo {
            name: APPEND,
            summary: "a write at the end of a growing file, fdatasync",
            default: false,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "workers",
            summary: "threads",
            unit: "threads",
            domain: Domain::Integer { default: 1, min: 1, max: 256 },
            scenarios: &[],
        },
        ParameterInfo {
            name: OPERATIONS,
            summary: "writes of each thread, each followed by its fsync",
            unit: "operations",
            domain: Domain::Integer { default: 1_000, min: 1, max: 10_000_000 },
            scenarios: &[],
        },
        SECONDS_PARAMETER,
        ParameterInfo {
            name: "write_bytes",
            summary: "bytes of one write",
            unit: "bytes",
            domain: Domain::Integer { default: 4096, min: 8, max: 16 << 20 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "files",
            summary: "files of each thread",
            unit: "files",
            domain: Domain::Integer { default: 16, min: 1, max: 65_536 },
            scenarios: &[UNCHANGED],
        },
        ParameterInfo {
            name: "file_bytes",
            summary: "bytes that are allocated to each file beforehand",
            unit: "bytes",
            domain: Domain::Integer { default: 4 << 20, min: 4096, max: 1 << 40 },
            scenarios: &[UNCHANGED],
        },
    ],
    limits: &[ProductLimit {
        parameters: &["workers", "files"],
        max: 65_536,
        reason: "every file is open during the round",
    }],
    phases: &[PhaseInfo {
        name: PHASE,
        operation: "one write with what makes it durable; `unchanged` syncs twice, `create-rename` also opens, \
                    closes and renames",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        percentile!("p50", "median fsync or fdatasync after a write", &[]),
        percentile!("p99", "99th percentile of the same", &[]),
        percentile!("p999", "99.9th percentile of the same", &[]),
        percentile!("max", "longest of the same; comparable only between equal numbers of operations", &[]),
        percentile!("mean", "mean of the same", &[]),
        percentile!("again_p50", "median fsync with nothing changed since the one before", &[UNCHANGED]),
        percentile!("again_p99", "99th percentile of the same", &[UNCHANGED]),
        percentile!("again_p999", "99.9th percentile of the same", &[UNCHANGED]),
        percentile!("again_max", "longest of the same", &[UNCHANGED]),
        percentile!("again_mean", "mean of the same", &[UNCHANGED]),
        MeasureInfo {
            name: "per_second",
            phase: PHASE,
            summary: "operations of all threads together in a second of the clock",
            unit: "1/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "written_per_fsync",
            phase: PHASE,
            summary: "bytes that reached the device for each write, data and log; absent where the device does not \
                      count (brd)",
            unit: "bytes",
            better: Better::Lower,
            scenarios: &[],
        },
        MeasureInfo {
            name: "log_per_fsync",
            phase: PHASE,
            summary: "the same less the blocks of data themselves: log and other metadata",
            unit: "bytes",
            better: Better::Lower,
            scenarios: &[],
        },
    ],
    checks: &[
        CheckInfo {
            name: "writes",
            summary: "every write returned its whole length",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: APPEND, inject: "write:retval=7:when=3" },
        },
        CheckInfo {
            name: "content",
            summary: "the last places written (up to 256 of each thread) hold the number of the write that was last \
                      there",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: UNCHANGED, inject: "pwrite64:retval=4096:when=20" },
        },
        CheckInfo {
            name: "names",
            summary: "of each thread's files one is left, under the name that all were renamed to",
            scenarios: &[CREATE_RENAME],
            filesystems: &[],
            proof: Proof::Injection { scenario: CREATE_RENAME, inject: "renameat:retval=0:when=20" },
        },
        CheckInfo {
            name: "size",
            summary: "the file has grown by all that was written",
            scenarios: &[APPEND],
            filesystems: &[],
            proof: Proof::Injection { scenario: APPEND, inject: "write:retval=4096:when=3" },
        },
        CheckInfo {
            name: "clean",
            summary: "no page of the files is dirty afterwards, by cachestat(2), which linux has since 6.5: before it \
                      the check says so and passes. In `create-rename` it proves less: ext4 writes a file back by \
                      itself when it is renamed over another (auto_da_alloc)",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: UNCHANGED, inject: "fsync:retval=0" },
        },
    ],
    refusals: &[Refusal {
        filesystems: &[FilesystemKind::Tmpfs],
        scenarios: &[],
        reason: "tmpfs has nowhere to make anything durable: its fsync does nothing",
    }],
    scale: OPERATIONS,
    presets: &[
        Preset {
            name: "source",
            summary: "4 threads, 1024 files of 64 MiB, 60 s",
            values: &[
                ("workers", Setting::Integer(4)),
                ("files", Setting::Integer(256)),
                ("file_bytes", Setting::Integer(64 << 20)),
                (OPERATIONS, Setting::Integer(1_000_000)),
                ("seconds", Setting::Integer(60)),
            ],
        },
        Preset {
            name: "guest",
            summary: "2 threads with 16 files of 4 MiB each, 1,000 operations each",
            values: &[
                ("workers", Setting::Integer(2)),
                ("files", Setting::Integer(16)),
                ("file_bytes", Setting::Integer(4 << 20)),
                (OPERATIONS, Setting::Integer(1_000)),
            ],
        },
        Preset {
            name: "quick",
            summary: "20 operations from each of 2 threads, for a first look",
            values: &[
                ("workers", Setting::Integer(2)),
                ("files", Setting::Integer(3)),
                ("file_bytes", Setting::Integer(65_536)),
                (OPERATIONS, Setting::Integer(20)),
            ],
        },
    ],
};

/// The workload `fsync`.
pub(crate) struct Fsync;

impl Workload for Fsync {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        match round.scenario() {
            UNCHANGED => unchanged(round),
            CREATE_RENAME => create_rename(round),
            APPEND => append(round),
            other => Err(WorkloadError::Undeclared(other.to_owned())),
        }
    }
}

/// What every thread has.
struct Member {
    path: PathBuf,
    /// Its folder, or its files.
    handles: Vec<OwnedFd>,
    budget: Budget,
    block: Vec<u8>,
    /// Times of the sync after a write.
    syncs: Latencies,
    /// Writes that returned their whole length.
    whole: u64,
}

impl Member {
    /// One for each worker, without handles; `path` tells where its files are.
    fn all(round: &RoundContext) -> Result<Vec<Self>, WorkloadError> {
        let (workers, operations) = (round.integer("workers")?, round.integer(OPERATIONS)?);
        let budget = round.budget()?;
        let mut block = vec![0; round.integer("write_bytes")? as usize];
        round.rng().fill_bytes(&mut block);
        let member = |number| Self {
            path: round.mount_point().join(format!("w{number}")),
            handles: Vec::new(),
            budget,
            block: block.clone(),
            syncs: Latencies::with_capacity(operations as usize),
            whole: 0,
        };
        Ok((0..workers).map(member).collect())
    }

    /// Puts the number of the next write into it, so that reading tells which write was last.
    #[inline]
    fn stamp(&mut self) {
        self.block[..8].copy_from_slice(&self.budget.turns().to_le_bytes());
    }

    #[inline]
    fn wrote(&mut self, length: usize) {
        self.whole += u64::from(length == self.block.len());
    }

    fn failed(&self, call: &'static str, errno: Errno) -> WorkloadError {
        failed(call, &self.path, errno)
    }

    fn share(&self) -> Share {
        Share { ops: self.budget.turns(), values: Vec::new() }
    }
}

/// Calls `sync` and returns how long it took.
#[inline(always)]
fn timed(clock: Clock, sync: impl FnOnce() -> Result<(), Errno>) -> Result<u64, Errno> {
    let start = clock::now(clock);
    sync()?;
    Ok(clock::now(clock).saturating_sub(start))
}

/// A thread of [`UNCHANGED`].
struct Rewriter {
    member: Member,
    /// File and offset of each write.
    targets: Vec<(u32, u64)>,
    again: Latencies,
}

fn unchanged(round: &mut RoundContext) -> Result<(), WorkloadError> {
    let (files, file_bytes) = (round.integer("files")?, round.integer("file_bytes")?);
    let operations = round.integer(OPERATIONS)?;
    let mut rewriters = Vec::new();
    let root = open_root(round.mount_point())?;
    // Asked before anything is taken: filling the disk would hurt whoever else uses it.
    let stat = space::statfs(root.as_fd()).map_err(|errno| failed("fstatfs", round.mount_point(), errno))?;
    let wanted = files as f64 * file_bytes as f64 * round.integer("workers")? as f64;
    let room = wanted <= stat.f_bavail as f64 * stat.f_bsize as f64;
    for (number, mut member) in Member::all(round)?.into_iter().enumerate() {
        if !room {
            return Err(no_room(&member, Errno::NOSPC));
        }
        sys::allow_open_files(files * round.integer("workers")?)
            .map_err(|errno| member.failed("setrlimit(RLIMIT_NOFILE)", errno))?;
        for file in 0..files {
            let name = CString::new(format!("w{number}-{file}")).unwrap_or_default();
            let file = sys::create(root.as_fd(), &name).map_err(|errno| member.failed("openat", errno))?;
            space::fallocate(file.as_fd(), 0, file_bytes).map_err(|errno| no_room(&member, errno))?;
            member.handles.push(file);
        }
        let places = (file_bytes / member.block.len() as u64).max(1);
        let mut rng = round.rng();
        rng.set_stream(1 + number as u64);
        let place = |_| {
            let file = below(&mut rng, files) as u32;
            (file, below(&mut rng, places) * member.block.len() as u64)
        };
        let targets = (0..operations).map(place).collect();
        rewriters.push(Rewriter { member, targets, again: Latencies::with_capacity(operations as usize) });
    }
    round.sync()?;
    let clock = round.clock();
    round.parallel(PHASE, Crew::Threads, &mut rewriters, |rewriter, _| {
        let Rewriter { member, targets, again } = rewriter;
        while {
            member.stamp();
            member.budget.next()
        } {
            let (file, offset) = targets[(member.budget.turns() - 1) as usize];
            let file = member.handles[file as usize].as_fd();
            let written = space::write_at(file, &member.block, offset)
                .map_err(|errno| failed("pwrite64", &member.path, errno))?;
            let sync = || timed(clock, || sys::fsync(file));
            let first = sync().map_err(|errno| failed("fsync", &member.path, errno))?;
            let second = sync().map_err(|errno| failed("fsync", &member.path, errno))?;
            member.wrote(written);
            member.syncs.push(first);
            again.push(second);
        }
        Ok(member.share())
    })?;
    let turns: u64 = rewriters.iter().map(|rewriter| rewriter.member.budget.turns()).sum();
    round.count("pwrite64", turns, turns);
    round.count("fsync", 2 * turns, 2 * turns);
    let mut all = Latencies::with_capacity(turns as usize);
    for rewriter in &rewriters {
        all.extend(rewriter.again.ticks().iter().copied());
    }
    measure(round, "again_", &all);
    let mut content = Sample::default();
    for Rewriter { member, targets, .. } in &rewriters {
        let turns = member.budget.turns() as usize;
        let written = targets[..turns].iter().enumerate().rev().map(|(turn, &(file, offset))| {
            (member.handles[file as usize].as_fd(), u64::from(file), offset, turn as u64)
        });
        content.look(&member.path, written)?;
    }
    let members: Vec<&Member> = rewriters.iter().map(|rewriter| &rewriter.member).collect();
    finish(round, &members, content)
}

fn no_room(member: &Member, errno: Errno) -> WorkloadError {
    if errno == Errno::NOSPC {
        let what = "room for the files on this filesystem".to_owned();
        return WorkloadError::Unavailable {
            what,
            next: "lower `files` or `file_bytes`, or take a larger disk",
        };
    }
    member.failed("fallocate", errno)
}

fn create_rename(round: &mut RoundContext) -> Result<(), WorkloadError> {
    let mut members = Member::all(round)?;
    let root = open_root(round.mount_point())?;
    for (number, member) in members.iter_mut().enumerate() {
        let name = CString::new(format!("w{number}")).unwrap_or_default();
        sys::mkdir(root.as_fd(), &name).map_err(|errno| failed("mkdirat", &member.path, errno))?;
        let dir =
            sys::open_dir(root.as_fd(), &name).map_err(|errno| failed("openat", &member.path, errno))?;
        member.handles.push(dir);
    }
    round.sync()?;
    let clock = round.clock();
    round.parallel(PHASE, Crew::Threads, &mut members, |member, _| {
        while {
            member.stamp();
            member.budget.next()
        } {
            let folder = member.handles[0].as_fd();
            let lost = |call| move |errno| (call, errno);
            let turn = || {
                let file = namespace::create_new(folder, c"new").map_err(lost("openat"))?;
                let written = sys::write(file.as_fd(), &member.block).map_err(lost("write"))?;
                let ticks = timed(clock, || sys::fsync(file.as_fd())).map_err(lost("fsync"))?;
                sys::close(file).map_err(lost("close"))?;
                namespace::rename(folder, c"new", c"kept").map_err(lost("renameat"))?;
                Ok((written, ticks))
            };
            let (written, ticks) = turn().map_err(|(call, errno)| member.failed(call, errno))?;
            member.wrote(written);
            member.syncs.push(ticks);
        }
        Ok(member.share())
    })?;
    let turns: u64 = members.iter().map(|member| member.budget.turns()).sum();
    for call in ["openat", "write", "fsync", "close", "renameat"] {
        round.count(call, turns, turns);
    }
    let (mut content, mut names) = (Sample::default(), 0);
    for member in &mut members {
        let found = inventory::take(round, &member.path)?;
        let folder = member.handles[0].as_fd();
        if let Ok(kept) = namespace::open_for_reading(folder, c"kept") {
            names += u64::from(found.files == 1);
            content.look(&member.path, [(kept.as_fd(), 0, 0, member.budget.turns() - 1)])?;
            member.handles = vec![kept];
        }
    }
    round.check("names", members.len(), names);
    finish(round, &members.iter().collect::<Vec<_>>(), content)
}

fn append(round: &mut RoundContext) -> Result<(), WorkloadError> {
    let mut members = Member::all(round)?;
    let root = open_root(round.mount_point())?;
    for (number, member) in members.iter_mut().enumerate() {
        let name = CString::new(format!("w{number}")).unwrap_or_default();
        let file = sys::create(root.as_fd(), &name).map_err(|errno| failed("openat", &member.path, errno))?;
        member.handles.push(file);
    }
    round.sync()?;
    let clock = round.clock();
    round.parallel(PHASE, Crew::Threads, &mut members, |member, _| {
        while {
            member.stamp();
            member.budget.next()
        } {
            let file = member.handles[0].as_fd();
            let written =
                sys::write(file, &member.block).map_err(|errno| failed("write", &member.path, errno))?;
            let ticks = timed(clock, || space::fdatasync(file))
                .map_err(|errno| failed("fdatasync", &member.path, errno))?;
            member.wrote(written);
            member.syncs.push(ticks);
        }
        Ok(member.share())
    })?;
    let turns: u64 = members.iter().map(|member| member.budget.turns()).sum();
    round.count("write", turns, turns);
    round.count("fdatasync", turns, turns);
    let (mut content, mut bytes) = (Sample::default(), 0);
    for member in &members {
        let file = member.handles[0].as_fd();
        let (turns, length) = (member.budget.turns(), member.block.len() as u64);
        bytes += namespace::stat_open(file).map_err(|errno| member.failed("statx", errno))?.stx_size;
        content.look(&member.path, (0..turns).rev().map(|turn| (file, 0, turn * length, turn)))?;
    }
    round.check("size", turns * round.integer("write_bytes")?, bytes);
    finish(round, &members.iter().collect::<Vec<_>>(), content)
}

/// Places that were read back.
#[derive(Debug, Default)]
struct Sample {
    read: u64,
    right: u64,
}

impl Sample {
    /// Reads up to [`SAMPLE`] places that were written: handle and number of the file, offset, and the
    /// number of the write, the last one first.
    fn look<'a>(
        &mut self,
        path: &Path,
        written: impl IntoIterator<Item = (std::os::fd::BorrowedFd<'a>, u64, u64, u64)>,
    ) -> Result<(), WorkloadError> {
        let mut seen = HashSet::new();
        for (handle, file, offset, turn) in written {
            if seen.len() == SAMPLE {
                break;
            }
            if seen.insert((file, offset)) {
                let mut stamp = [0xff; 8];
                let length = space::read_at(handle, &mut stamp, offset)
                    .map_err(|errno| failed("pread64", path, errno))?;
                self.read += 1;
                self.right += u64::from(length == stamp.len() && u64::from_le_bytes(stamp) == turn);
            }
        }
        Ok(())
    }
}

/// What all scenarios report and check alike.
fn finish(round: &mut RoundContext, members: &[&Member], content: Sample) -> Result<(), WorkloadError> {
    let mut all = Latencies::with_capacity(members.iter().map(|member| member.budget.turns() as usize).sum());
    for member in members {
        all.extend(member.syncs.ticks().iter().copied());
    }
    measure(round, "", &all);
    let block = round.integer("write_bytes")?.next_multiple_of(BLOCK_BYTES);
    let recorded = round.latest(PHASE).map(|phase| (phase.ops as f64, phase.elapsed, phase.io));
    if let Some((ops, elapsed, io)) = recorded {
        round.measure(PHASE, "per_second", ops * 1e9 / elapsed as f64);
        if let Some(io) = io.filter(|io| io.written_sectors > 0) {
            let written = (io.written_sectors * SECTOR_BYTES) as f64 / ops;
            round.measure(PHASE, "written_per_fsync", written);
            round.measure(PHASE, "log_per_fsync", written - block as f64);
        }
    }
    let turns: u64 = members.iter().map(|member| member.budget.turns()).sum();
    round.check("writes", turns, members.iter().map(|member| member.whole).sum::<u64>());
    // Only reads of counters in /proc are left out of the audit by the name of the call.
    round.count("pread64", content.read, content.read);
    round.check("content", content.read, content.right);
    let mut dirty = 0;
    for member in members {
        for file in &member.handles {
            match space::cached(file.as_fd()) {
                Ok(cached) => dirty += cached.dirty + cached.writeback,
                Err(Errno::NOSYS) => {
                    round.check_that("clean", "0 dirty pages", "not known before linux 6.5", true);
                    return Ok(());
                }
                Err(errno) => return Err(member.failed("cachestat", errno)),
            }
        }
    }
    round.check_that("clean", "0 dirty pages", dirty, dirty == 0);
    Ok(())
}

/// Adds percentiles and mean of `latencies` under names that begin with `prefix`.
fn measure(round: &mut RoundContext, prefix: &str, latencies: &Latencies) {
    for (name, ticks) in latencies.summary().into_iter().flatten() {
        round.measure(PHASE, &format!("{prefix}{name}"), ticks as f64);
    }
    let ticks = latencies.ticks();
    if !ticks.is_empty() {
        let mean = ticks.iter().sum::<u64>() as f64 / ticks.len() as f64;
        round.measure(PHASE, &format!("{prefix}mean"), mean);
    }
}

#[cfg(test)]
mod tests {
    use kdelta_wire::Round;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    /// On a filesystem that can sync, which that of temporary files may not be.
    fn play(scenario: &str, more: &[(&str, Setting)]) -> Result<Round, WorkloadError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut parameters = INFO.preset("quick").expect("a preset").values.to_vec();
        let name = format!("fsync/{scenario}");
        let scenario = INFO.scenario(scenario).expect("known");
        parameters.retain(|(name, _)| INFO.parameters_of(scenario).any(|known| known.name == *name));
        parameters.extend(more);
        let mut request = request(&name, folder.path(), &parameters);
        request.filesystem = FilesystemKind::Ext4;
        run(&request, None)
    }

    #[test]
    fn every_scenario_writes_syncs_and_finds_its_last_writes() {
        for scenario in INFO.scenarios {
            let round = play(scenario.name, &[]).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
            assert_sound(&round);
            let phase = &round.phases[0];
            assert_eq!((phase.ops, phase.workers.len()), (40, 2));
            assert!(phase.measures["p50"] > 0.0 && phase.measures["max"] >= phase.measures["p99"]);
            assert_eq!(phase.measures.contains_key("again_p50"), scenario.name == UNCHANGED);
            let syncs = if scenario.name == APPEND { "fdatasync" } else { "fsync" };
            let each = if scenario.name == UNCHANGED { 80 } else { 40 };
            assert_eq!(round.census[syncs].succeeded, each);
            let declared: Vec<&str> = INFO.checks_of(scenario).map(|check| check.name).collect();
            for name in declared {
                assert!(round.checks.iter().any(|check| check.name == name), "{}: {name}", scenario.name);
            }
        }
    }

    #[test]
    fn a_loop_can_end_by_time() {
        let more = [
            (OPERATIONS, Setting::Integer(1_000_000)),
            ("seconds", Setting::Integer(1)),
            ("write_bytes", Setting::Integer(8)),
        ];
        let round = play(APPEND, &more).expect("runs");
        assert_sound(&round);
        assert!(round.phases[0].ops < 2_000_000);
        assert!(round.phases[0].elapsed >= 1_000_000_000);
    }

    #[test]
    fn tmpfs_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = run(&request("fsync/append", folder.path(), &[]), None).expect_err("refused");
        assert!(error.to_string().contains("nowhere to make anything durable"), "{error}");
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_what_to_do() {
        let error = play(UNCHANGED, &[("file_bytes", Setting::Integer(1 << 40))]);
        match error.expect_err("does not fit") {
            WorkloadError::Unavailable { next, .. } => assert!(next.contains("file_bytes")),
            // A filesystem with a limit on the size of a file.
            error => assert!(error.to_string().contains("fallocate"), "{error}"),
        }
    }
}
