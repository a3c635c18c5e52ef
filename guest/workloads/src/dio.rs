//! Random writes of 4 KiB past the page cache into one file, by threads or through io_uring. Read
//! [`Dio`] first, then `Job`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use kdelta_wire::Clock;
use rand_chacha::rand_core::Rng;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::budget::{self, Budget, TICKS_PER_SECOND};
use crate::latency::Latencies;
use crate::parallel::{Crew, Share};
use crate::pattern::Pattern;
use crate::round::{c_path, failed};
use crate::seconds::{self, Seconds};
use crate::sys::pages::{Aligned, Mapping};
use crate::sys::ring::WriteRing;
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterError, ParameterInfo, PhaseInfo, Preset, ProductLimit,
    Proof, RoundContext, ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock, sys,
};

/// Bytes of one write.
const BLOCK: usize = 4096;
const PWRITE: &str = "pwrite";
const IO_URING: &str = "io-uring";
const WRITES: &str = "writes";
const SHORT: &str = "short writes";
const CONTENT: &str = "blocks with the right content";
/// Stamp of a block that was written in the timed part, plus its number.
const WRITTEN: u64 = 1 << 62;
/// Random places of one worker; a loop that is longer goes through them again.
const PLACES: u64 = 1 << 16;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "dio",
    title: "direct writes to one file",
    summary: "Threads write 4 KiB at random places of one file with O_DIRECT; the file was allocated and written \
              before. On tmpfs, which takes the flag since linux 6.6, the data still goes through memory only.",
    source: "kdelta's catalogue (W16): the shape of fio's randwrite jobs with direct=1 on a shared file",
    scenarios: &[
        ScenarioInfo { name: PWRITE, summary: "each thread has one pwrite(2) under way", default: true },
        ScenarioInfo {
            name: IO_URING,
            summary: "each thread has a ring and `depth` writes under way, and sleeps until one is done",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: budget::OPERATIONS,
            summary: "writes of each worker",
            unit: "writes",
            domain: Domain::Integer { default: 16_384, min: 1, max: 1 << 26 },
            scenarios: &[],
        },
        budget::SECONDS_PARAMETER,
        ParameterInfo {
            name: "drop",
            summary: "with `seconds`, what the first of them did is in no percentile or rate",
            unit: "seconds",
            domain: Domain::Integer { default: 0, min: 0, max: 3599 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "workers",
            summary: "threads",
            unit: "threads",
            domain: Domain::Integer { default: 1, min: 1, max: 256 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "file_mib",
            summary: "size of the file",
            unit: "MiB",
            domain: Domain::Integer { default: 64, min: 1, max: 65_536 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "depth",
            summary: "writes under way in each ring",
            unit: "writes",
            domain: Domain::Integer { default: 64, min: 1, max: 4096 },
            scenarios: &[IO_URING],
        },
    ],
    limits: &[ProductLimit {
        parameters: &[budget::OPERATIONS, "workers"],
        max: 1 << 28,
        reason: "the time of each write is kept in memory, 8 bytes each",
    }],
    phases: &[PhaseInfo { name: WRITES, operation: "one write of 4 KiB", primary: true, scenarios: &[] }],
    measures: &[
        rate("iops", "writes of all workers together in a second, or in 10^9 instructions"),
        rate("slowest_second", "writes in the second with the fewest; missing in runs shorter than a second"),
        rate("fastest_second", "writes in the second with the most; missing in runs shorter than a second"),
        latency("p50", "median time of a write"),
        latency("p99", "time that 99 % of writes do not exceed"),
        latency("p999", "time that 99.9 % of writes do not exceed"),
        latency("max", "longest time of a write"),
        MeasureInfo {
            name: "cached_bytes",
            phase: WRITES,
            summary: "bytes of the file in the page cache afterwards, which O_DIRECT leaves at 0 unless the filesystem \
                      wrote through the cache after all",
            unit: "bytes",
            better: Better::Neither,
            scenarios: &[],
        },
    ],
    checks: &[
        CheckInfo {
            name: SHORT,
            summary: "no write did less than 4 KiB",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: PWRITE, inject: "pwrite64:retval=512:when=20" },
        },
        CheckInfo {
            name: CONTENT,
            summary: "every block that was written to reads back as written then, every other one as written before",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: PWRITE, inject: "pwrite64:retval=4096" },
        },
    ],
    refusals: &[],
    scale: budget::OPERATIONS,
    presets: &[
        Preset {
            name: "source",
            summary: "60 s on 1 GiB, the first 5 s dropped; `workers` to be swept over 1, 2, 4, 8 and 32 with fewer \
                      `operations` each",
            values: &[
                (budget::OPERATIONS, Setting::Integer(1 << 24)),
                (budget::SECONDS, Setting::Integer(60)),
                ("drop", Setting::Integer(5)),
                ("workers", Setting::Integer(1)),
                ("file_mib", Setting::Integer(1024)),
                ("depth", Setting::Integer(64)),
            ],
        },
        Preset {
            name: "guest",
            summary: "2 threads with 16,384 writes each on 32 MiB",
            values: &[
                (budget::OPERATIONS, Setting::Integer(16_384)),
                (budget::SECONDS, Setting::Integer(0)),
                ("drop", Setting::Integer(0)),
                ("workers", Setting::Integer(2)),
                ("file_mib", Setting::Integer(32)),
                ("depth", Setting::Integer(64)),
            ],
        },
        Preset {
            name: "quick",
            summary: "2 threads with 100 writes each on 2 MiB, for a first look",
            values: &[
                (budget::OPERATIONS, Setting::Integer(100)),
                ("workers", Setting::Integer(2)),
                ("file_mib", Setting::Integer(2)),
                ("depth", Setting::Integer(16)),
            ],
        },
    ],
};

const fn latency(name: &'static str, summary: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: WRITES, summary, unit: "ticks", better: Better::Lower, scenarios: &[] }
}

const fn rate(name: &'static str, summary: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: WRITES, summary, unit: "writes/s", better: Better::Higher, scenarios: &[] }
}

/// The workload `dio`.
pub(crate) struct Dio;

impl Workload for Dio {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let dropped = dropped_ticks(round)?;
        let target = Target::prepare(round)?;
        let (budget, clock, path) = (round.budget()?, round.clock(), target.path.clone());
        let mut jobs = Job::all(round, &target)?;
        round.sync()?;
        target.forget_cache()?;
        let done = round.parallel(WRITES, Crew::Threads, &mut jobs, |job, _| {
            job.run(budget, clock, dropped).map_err(|errno| {
                failed(if job.ring.is_some() { "io_uring" } else { "pwrite64" }, &path, errno)
            })
        })?;
        round.measure(WRITES, "cached_bytes", target.cached_bytes()? as f64);
        measure(round, &mut jobs);
        let ops: u64 = jobs.iter().map(|job| job.done).sum();
        let short = ops - jobs.iter().map(|job| job.good).sum::<u64>();
        round.check(SHORT, 0, short);
        if round.scenario() == IO_URING {
            let enters = done.iter().flatten().sum();
            round.count("io_uring_enter", enters, enters);
        } else {
            round.count("pwrite64", ops, ops - short);
        }
        target.prove(round, &jobs)
    }
}

/// Ticks at the start of a run by time that are left out.
fn dropped_ticks(round: &RoundContext) -> Result<u64, WorkloadError> {
    let (seconds, dropped) = (round.integer(budget::SECONDS)?, round.integer("drop")?);
    if seconds == 0 {
        return Ok(0);
    }
    if dropped >= seconds {
        let allowed = Domain::Integer { default: 0, min: 0, max: seconds - 1 };
        let error = ParameterError::OutOfRange { name: "drop", value: dropped, allowed, unit: "seconds" };
        return Err(error.into());
    }
    Ok(dropped * TICKS_PER_SECOND)
}

/// Rates and percentiles of all workers together.
fn measure(round: &mut RoundContext, jobs: &mut [Job]) {
    let window = jobs
        .iter()
        .map(|job| job.end)
        .max()
        .unwrap_or(0)
        .saturating_sub(jobs.iter().map(|job| job.keep_from).min().unwrap_or(0));
    if window > 0 {
        // Of all workers over the time of all: rates of single workers, added up, would be of more
        // time than there was whenever they do not start and end together.
        let kept: u64 = jobs.iter().map(|job| job.kept).sum();
        round.measure(WRITES, "iops", kept as f64 * TICKS_PER_SECOND as f64 / window as f64);
    }
    let mut all = Latencies::with_capacity(jobs.iter().map(|job| job.kept as usize).sum());
    for job in jobs.iter_mut() {
        all.extend(std::mem::replace(&mut job.latencies, Latencies::with_capacity(0)).into_ticks());
    }
    round.measure_latencies(WRITES, &all);
    let series = seconds::whole(jobs.iter().map(|job| &job.seconds));
    if let (Some(slowest), Some(fastest)) = (series.iter().min(), series.iter().max()) {
        round.measure(WRITES, "slowest_second", *slowest as f64);
        round.measure(WRITES, "fastest_second", *fastest as f64);
    }
}

/// The file.
struct Target {
    path: PathBuf,
    pattern: Pattern,
    blocks: u64,
    /// Through the page cache, to prepare and to look.
    file: OwnedFd,
}

impl Target {
    /// Allocates and writes the file.
    fn prepare(round: &RoundContext) -> Result<Self, WorkloadError> {
        let path = round.mount_point().join("dio");
        let bytes = round.integer("file_mib")? << 20;
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&c_path(&path)?, flags, Mode::from_raw_mode(0o666))
            .map_err(|errno| failed("openat", &path, errno))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(|errno| failed("fallocate", &path, errno))?;
        let (pattern, blocks) = (Pattern::new(0xd1, BLOCK), bytes / BLOCK as u64);
        pattern.fill(file.as_fd(), &path, blocks, |number| number)?;
        sys::fsync(file.as_fd()).map_err(|errno| failed("fsync", &path, errno))?;
        Ok(Self { path, pattern, blocks, file })
    }

    /// Takes the file out of the page cache, as far as the filesystem can.
    fn forget_cache(&self) -> Result<(), WorkloadError> {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)
            .map_err(|errno| failed("fadvise64", &self.path, errno))
    }

    fn cached_bytes(&self) -> Result<u64, WorkloadError> {
        let lost = |call| move |errno| failed(call, &self.path, errno);
        let length = self.blocks as usize * BLOCK;
        let mapping = Mapping::of_file(self.file.as_fd(), length).map_err(lost("mmap"))?;
        Ok(mapping.resident().map_err(lost("mincore"))? * BLOCK as u64)
    }

    /// Checks every block of the file.
    fn prove(&self, round: &mut RoundContext, jobs: &[Job]) -> Result<(), WorkloadError> {
        let mut expected: Vec<u64> = (0..self.blocks).collect();
        for block in jobs.iter().flat_map(Job::written) {
            expected[block as usize] = WRITTEN + u64::from(block);
        }
        let found = self.pattern.stamps(self.file.as_fd(), &self.path, self.blocks)?.stamps;
        let right = expected.iter().zip(&found).filter(|(expected, found)| expected == found).count();
        round.check(CONTENT, self.blocks, right);
        Ok(())
    }
}

/// Opens `path` with O_DIRECT, to write.
pub(crate) fn open_direct(path: &Path) -> Result<OwnedFd, WorkloadError> {
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(&c_path(path)?, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::INVAL => WorkloadError::Unavailable {
            what: format!("O_DIRECT on {}", path.display()),
            next: "use xfs, ext4 or btrfs, or tmpfs of linux 6.6 or newer",
        },
        errno => failed("openat(O_DIRECT)", path, errno),
    })
}

/// What one worker does, and what it did.
struct Job {
    file: OwnedFd,
    places: Vec<u32>,
    block: Aligned,
    ring: Option<WriteRing>,
    free: Vec<usize>,
    started: Vec<u64>,
    latencies: Latencies,
    seconds: Seconds,
    /// Writes that ended.
    done: u64,
    /// Those that were whole.
    good: u64,
    /// Those that ended after the dropped time, when that was over, and when the last one ended.
    kept: u64,
    keep_from: u64,
    end: u64,
}

impl Job {
    /// One for each worker, with everything that it needs.
    fn all(round: &RoundContext, target: &Target) -> Result<Vec<Self>, WorkloadError> {
        let operations = round.integer(budget::OPERATIONS)?;
        let depth = match round.scenario() {
            IO_URING => Some(round.integer("depth")? as u32),
            _ => None,
        };
        let mut rng = round.rng();
        let mut job = || {
            // The bias of 2^32 over at most 2^24 blocks is far below notice.
            let place = || ((u64::from(rng.next_u32()) * target.blocks) >> 32) as u32;
            let places = std::iter::repeat_with(place).take(operations.min(PLACES) as usize).collect();
            let mut block = Aligned::new(BLOCK);
            block.get_mut().copy_from_slice(target.pattern.unit());
            let ring = depth.map(|depth| WriteRing::new(depth, target.pattern.unit())).transpose();
            let depth = depth.unwrap_or(0) as usize;
            Ok(Self {
                file: open_direct(&target.path)?,
                places,
                block,
                ring: ring.map_err(no_ring)?,
                free: (0..depth).rev().collect(),
                started: vec![0; depth],
                latencies: Latencies::with_capacity(operations as usize),
                seconds: Seconds::new(),
                done: 0,
                good: 0,
                kept: 0,
                keep_from: 0,
                end: 0,
            })
        };
        (0..round.integer("workers")?).map(|_| job()).collect()
    }

    /// Writes until `budget` is used up; hands back how often it waited for a ring. Timed.
    fn run(&mut self, budget: Budget, clock: Clock, dropped: u64) -> Result<Share, Errno> {
        let start = clock::now(clock);
        self.seconds.start(start);
        (self.keep_from, self.end) = (start + dropped, start);
        let enters = match self.ring.take() {
            None => {
                self.run_pwrite(budget, clock)?;
                0
            }
            Some(mut ring) => {
                let enters = self.run_ring(&mut ring, budget, clock);
                self.ring = Some(ring);
                enters?
            }
        };
        Ok(Share { ops: self.done, values: vec![enters] })
    }

    #[inline]
    fn run_pwrite(&mut self, mut budget: Budget, clock: Clock) -> Result<(), Errno> {
        let mut place = 0;
        while budget.next() {
            let block = u64::from(self.places[place]);
            place = if place + 1 == self.places.len() { 0 } else { place + 1 };
            self.block.get_mut()[..8].copy_from_slice(&(WRITTEN + block).to_le_bytes());
            let written = rustix::io::pwrite(&self.file, self.block.get(), block * BLOCK as u64)?;
            let now = clock::now(clock);
            self.ended(written == BLOCK, now, now - self.end);
        }
        Ok(())
    }

    /// As above, through the ring; returns how often it waited.
    #[inline]
    fn run_ring(&mut self, ring: &mut WriteRing, mut budget: Budget, clock: Clock) -> Result<u64, Errno> {
        let (mut enters, mut place) = (0, 0);
        let mut failure = None;
        loop {
            while failure.is_none() && !self.free.is_empty() && budget.next() {
                let Some(slot) = self.free.pop() else { break };
                let block = u64::from(self.places[place]);
                place = if place + 1 == self.places.len() { 0 } else { place + 1 };
                self.started[slot] = clock::now(clock);
                ring.queue(slot, self.file.as_fd(), WRITTEN + block, block * BLOCK as u64)?;
            }
            if ring.in_flight() == 0 {
                return failure.map_or(Ok(enters), Err);
            }
            enters += 1;
            ring.submit_and_wait()?;
            ring.completed(|slot, result| {
                if result < 0 {
                    failure.get_or_insert(Errno::from_raw_os_error(-result));
                }
                let now = clock::now(clock);
                self.ended(result == BLOCK as i32, now, now - self.started[slot]);
                self.free.push(slot);
            });
        }
    }

    /// Notes a write that ended `now`.
    #[inline]
    fn ended(&mut self, whole: bool, now: u64, ticks: u64) {
        self.done += 1;
        self.good += u64::from(whole);
        self.end = now;
        self.seconds.add(now);
        if now >= self.keep_from {
            self.kept += 1;
            self.latencies.push(ticks);
        }
    }

    /// Blocks that were written to, some of them more than once.
    fn written(&self) -> impl Iterator<Item = u32> {
        self.places.iter().copied().take(self.done.min(PLACES) as usize)
    }
}

#[cold]
fn no_ring(errno: Errno) -> WorkloadError {
    match errno {
        Errno::NOSYS | Errno::PERM => WorkloadError::Unavailable {
            what: format!("io_uring (io_uring_setup: errno {})", errno.raw_os_error()),
            next: "build the kernel with CONFIG_IO_URING and set kernel.io_uring_disabled to 0",
        },
        errno => failed("io_uring_setup", Path::new("ring"), errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    fn round(scenario: &str, values: &[(&str, Setting)]) -> Option<kdelta_wire::Round> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        match run(&request(&format!("dio/{scenario}"), folder.path(), values), None) {
            Err(WorkloadError::Unavailable { what, .. }) => {
                eprintln!("skipped: {what}");
                None
            }
            round => Some(round.expect("runs")),
        }
    }

    #[test]
    fn every_worker_does_its_writes_and_the_file_has_them() {
        for scenario in [PWRITE, IO_URING] {
            let values = [
                (budget::OPERATIONS, Setting::Integer(150)),
                ("workers", Setting::Integer(3)),
                ("file_mib", Setting::Integer(1)),
            ];
            let Some(round) = round(scenario, &values) else { continue };
            assert_sound(&round);
            let phase = &round.phases[0];
            assert_eq!((phase.ops, phase.workers.len()), (450, 3));
            for measure in ["iops", "p50", "p99", "p999", "max", "cached_bytes"] {
                assert!(phase.measures.contains_key(measure), "{measure}");
            }
            assert!(phase.measures["iops"] > 0.0);
            match scenario {
                PWRITE => assert_eq!(round.census["pwrite64"].attempted, 450),
                _ => assert!(round.census["io_uring_enter"].attempted >= 3),
            }
        }
    }

    #[test]
    fn a_run_by_time_has_a_rate_for_each_whole_second_and_drops_the_first() {
        let values = [
            (budget::OPERATIONS, Setting::Integer(1 << 22)),
            (budget::SECONDS, Setting::Integer(2)),
            ("drop", Setting::Integer(1)),
            ("file_mib", Setting::Integer(1)),
        ];
        let Some(round) = round(PWRITE, &values) else { return };
        assert_sound(&round);
        let measures = &round.phases[0].measures;
        assert!(measures["fastest_second"] >= measures["slowest_second"]);
        assert!(measures["iops"] > 0.0 && measures["iops"] < round.phases[0].ops as f64);
    }

    #[test]
    fn nothing_would_be_left_of_a_run_that_is_dropped_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let values = [(budget::SECONDS, Setting::Integer(3)), ("drop", Setting::Integer(3))];
        let error = run(&request("dio/pwrite", folder.path(), &values), None).expect_err("refused");
        assert_eq!(error.to_string(), "drop: 3 is out of range; allowed are 0..2 seconds");
    }

    #[test]
    fn a_ring_that_is_deeper_than_there_are_writes_ends() {
        let values = [(budget::OPERATIONS, Setting::Integer(5)), ("file_mib", Setting::Integer(1))];
        if let Some(round) = round(IO_URING, &values) {
            assert_sound(&round);
            assert_eq!(round.phases[0].ops, 5);
        }
    }
}
