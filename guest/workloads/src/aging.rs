//! Files replaced over and over, to see whether a filesystem gets slower as it ages. Read [`Aging`]
//! first; its three phases are thirds of one loop.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use kdelta_wire::Clock;
use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use crate::budget::{Budget, OPERATIONS, SECONDS};
use crate::draw::{below, log_uniform};
use crate::inventory;
use crate::round::{failed, open_root};
use crate::sys::names::Names;
use crate::sys::namespace;
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, ProductLimit, Proof,
    RoundContext, ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock, sys,
};

/// The phases.
const THIRDS: [&str; 3] = ["first", "middle", "last"];
/// Parts of a phase that are timed.
const SLICES: usize = 8;
/// Smallest file; nothing is smaller than this on most filesystems.
const MIN_BYTES: u64 = 512;

/// A measure of one phase.
macro_rules! measure {
    ($phase:literal, $name:literal, $what:literal, $unit:literal, $better:expr) => {
        MeasureInfo {
            name: $name,
            phase: $phase,
            summary: $what,
            unit: $unit,
            better: $better,
            scenarios: &[],
        }
    };
}

/// The measures of every phase.
macro_rules! measures {
    ($($phase:literal)*) => {
        &[$(
            measure!($phase, "slice_1", "time of one replacement in the first eighth of the phase", "ticks", Better::Lower),
            measure!($phase, "slice_2", "the same in the second eighth", "ticks", Better::Lower),
            measure!($phase, "slice_3", "the same in the third eighth", "ticks", Better::Lower),
            measure!($phase, "slice_4", "the same in the fourth eighth", "ticks", Better::Lower),
            measure!($phase, "slice_5", "the same in the fifth eighth", "ticks", Better::Lower),
            measure!($phase, "slice_6", "the same in the sixth eighth", "ticks", Better::Lower),
            measure!($phase, "slice_7", "the same in the seventh eighth", "ticks", Better::Lower),
            measure!($phase, "slice_8", "the same in the last eighth", "ticks", Better::Lower),
            measure!($phase, "slab_growth", "growth of the slab during the phase (`Slab` of /proc/meminfo)", "bytes",
                Better::Neither),
            measure!($phase, "reclaimable_growth", "growth of `SReclaimable`", "bytes", Better::Neither),
            measure!($phase, "unreclaimable_growth", "growth of `SUnreclaim`", "bytes", Better::Neither),
        )*
        measure!("last", "slowdown", "time of one replacement in the last third, of that in the first", "ratio",
            Better::Lower)]
    };
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "aging",
    title: "replace files over and over",
    summary: "Keeps a number of files of very different sizes, and over and over removes one of them at random and \
              writes another under a new name. The first, middle and last third are phases of their own, each with \
              a series of eight and the growth of the slab.",
    source: "the question that reviewers ask of every short benchmark: what is it after an hour",
    scenarios: &[ScenarioInfo {
        name: "churn",
        summary: "one file removed and one written, from one thread",
        default: true,
    }],
    parameters: &[
        ParameterInfo {
            name: "files",
            summary: "files that exist at any time",
            unit: "files",
            domain: Domain::Integer { default: 2_000, min: 1, max: 4_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "dirs",
            summary: "folders that they are spread over",
            unit: "folders",
            domain: Domain::Integer { default: 10, min: 1, max: 10_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: OPERATIONS,
            summary: "replacements in all three thirds together",
            unit: "operations",
            domain: Domain::Integer { default: 6_000, min: 24, max: 100_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: SECONDS,
            summary: "stop each third after a third of this time, rounded up to whole seconds; 0 leaves the number of \
                      operations alone",
            unit: "seconds",
            domain: Domain::Integer { default: 0, min: 0, max: 86_400 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "max_bytes",
            summary: "largest size of a file; the smallest is 512 bytes, and each doubling is as likely",
            unit: "bytes",
            domain: Domain::Integer { default: 16_384, min: 512, max: 16 << 20 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "sync_every",
            summary: "replacements between two calls of syncfs, without which files that do not live long never get a \
                      place on the device; 0 calls none",
            unit: "operations",
            domain: Domain::Integer { default: 500, min: 0, max: 100_000_000 },
            scenarios: &[],
        },
    ],
    limits: &[ProductLimit {
        parameters: &["files", "max_bytes"],
        max: 1 << 42,
        reason: "the bytes that all files could have together must fit the disk",
    }],
    phases: &[
        PhaseInfo { name: "first", operation: "one file replaced", primary: false, scenarios: &[] },
        PhaseInfo { name: "middle", operation: "one file replaced", primary: false, scenarios: &[] },
        PhaseInfo { name: "last", operation: "one file replaced", primary: true, scenarios: &[] },
    ],
    measures: measures!("first" "middle" "last"),
    checks: &[
        CheckInfo {
            name: "files",
            summary: "a walk afterwards finds as many files as there were at the beginning",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "churn", inject: "unlinkat:retval=0:when=30" },
        },
        CheckInfo {
            name: "writes",
            summary: "every write returned its whole length",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "churn", inject: "write:retval=7:when=60" },
        },
        CheckInfo {
            name: "bytes",
            summary: "the files that are left have the sizes that were drawn for them",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "churn", inject: "write:retval=512:when=170" },
        },
    ],
    refusals: &[],
    scale: OPERATIONS,
    presets: &[
        Preset {
            name: "source",
            summary: "100,000 files, each replaced a hundred times unless an hour is over before",
            values: &[
                ("files", Setting::Integer(100_000)),
                ("dirs", Setting::Integer(100)),
                (OPERATIONS, Setting::Integer(10_000_000)),
                (SECONDS, Setting::Integer(3_600)),
                ("sync_every", Setting::Integer(10_000)),
            ],
        },
        Preset {
            name: "guest",
            summary: "2,000 files of up to 16 KiB, each replaced three times",
            values: &[
                ("files", Setting::Integer(2_000)),
                ("dirs", Setting::Integer(10)),
                (OPERATIONS, Setting::Integer(6_000)),
                ("max_bytes", Setting::Integer(16_384)),
                ("sync_every", Setting::Integer(500)),
            ],
        },
        Preset {
            name: "quick",
            summary: "50 files and 120 replacements, for a first look",
            values: &[
                ("files", Setting::Integer(50)),
                ("dirs", Setting::Integer(2)),
                (OPERATIONS, Setting::Integer(120)),
                ("max_bytes", Setting::Integer(4_096)),
                ("sync_every", Setting::Integer(60)),
            ],
        },
    ],
};

/// The workload `aging`.
pub(crate) struct Aging;

impl Workload for Aging {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let operations = round.integer(OPERATIONS)?;
        let seconds = round.integer(SECONDS)?.div_ceil(3);
        let mut population = Population::settle(round)?;
        round.sync()?;
        let clock = round.clock();
        let third = operations / 3;
        let mut slab = Slab::read()?;
        for (name, operations) in THIRDS.into_iter().zip([third, third, operations - 2 * third]) {
            let budget = Budget::new(operations, seconds, clock);
            let slices = round.counted_phase(name, || {
                let slices = population.churn(budget, operations, clock)?;
                Ok((slices.iter().map(|slice| slice.turns).sum(), slices))
            })?;
            for (number, slice) in slices.iter().enumerate().filter(|(_, slice)| slice.turns > 0) {
                let ticks = slice.ticks as f64 / slice.turns as f64;
                round.measure(name, &format!("slice_{}", number + 1), ticks);
            }
            let after = Slab::read()?;
            after.report_growth(round, name, &slab);
            slab = after;
        }
        let cost = |name| {
            let phase = round.latest(name)?;
            Some(phase.elapsed as f64 / phase.ops as f64)
        };
        if let (Some(first), Some(last)) = (cost("first"), cost("last")) {
            round.measure("last", "slowdown", last / first);
        }
        population.judge(round)
    }
}

/// The files that exist, and those that are going to.
struct Population {
    path: PathBuf,
    root: OwnedFd,
    dirs: Vec<OwnedFd>,
    /// Names of all files that ever exist, in the order of their making.
    names: Names,
    /// Their sizes.
    sizes: Vec<u64>,
    /// Number of the file in each place.
    places: Vec<u32>,
    /// The place whose file each replacement removes.
    victims: Vec<u32>,
    /// Number of the next file.
    next: u32,
    block: Vec<u8>,
    sync_every: u64,
    /// Replacements so far.
    turns: u64,
    /// Calls of syncfs(2) so far.
    syncs: u64,
    /// Writes that returned their whole length.
    whole: u64,
}

/// A part of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    turns: u64,
    ticks: u64,
}

impl Population {
    /// Draws everything and makes the first files.
    fn settle(round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let (files, dir_count) = (round.integer("files")?, round.integer("dirs")?);
        let (operations, max_bytes) = (round.integer(OPERATIONS)?, round.integer("max_bytes")?);
        let mut rng = round.rng();
        let all = (files + operations) as usize;
        let mut names = Names::with_capacity(all, 10);
        for number in 0..all {
            names.push(format!("f{number:09}").as_bytes());
        }
        let sizes = (0..all).map(|_| log_uniform(&mut rng, MIN_BYTES, max_bytes)).collect();
        let victims = (0..operations).map(|_| below(&mut rng, files) as u32).collect();
        let mut block = vec![0; max_bytes as usize];
        rng.fill_bytes(&mut block);
        let path = round.mount_point().to_owned();
        sys::allow_open_files(dir_count).map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", &path, errno))?;
        let root = open_root(&path)?;
        let mut dirs = Vec::with_capacity(dir_count as usize);
        for number in 0..dir_count {
            let name = dir_name(number);
            let dir_path = path.join(&*name.to_string_lossy());
            let lost = |call, errno| failed(call, &dir_path, errno);
            sys::mkdir(root.as_fd(), &name).map_err(|errno| lost("mkdirat", errno))?;
            dirs.push(sys::open_dir(root.as_fd(), &name).map_err(|errno| lost("openat", errno))?);
        }
        let places = (0..files as u32).collect();
        let sync_every = round.integer("sync_every")?;
        let mut population = Self {
            path,
            root,
            dirs,
            names,
            sizes,
            places,
            victims,
            next: 0,
            block,
            sync_every,
            turns: 0,
            syncs: 0,
            whole: 0,
        };
        for _ in 0..files {
            population.write_next().map_err(|(call, errno)| population.failed(call, errno))?;
        }
        Ok(population)
    }

    /// Replaces files until `budget` ends, which is after `operations` at most. Timed: nothing here but
    /// system calls, their arguments, and the clock eight times.
    fn churn(
        &mut self,
        mut budget: Budget,
        operations: u64,
        clock: Clock,
    ) -> Result<[Slice; SLICES], WorkloadError> {
        let mut slices = [Slice::default(); SLICES];
        let mut start = clock::now(clock);
        for (number, slice) in slices.iter_mut().enumerate() {
            let end = operations * (number as u64 + 1) / SLICES as u64;
            let before = budget.turns();
            while budget.turns() < end && budget.next() {
                self.replace().map_err(|(call, errno)| self.failed(call, errno))?;
            }
            slice.turns = budget.turns() - before;
            let now = clock::now(clock);
            slice.ticks = now.saturating_sub(start);
            start = now;
        }
        Ok(slices)
    }

    #[inline]
    fn replace(&mut self) -> Result<(), (&'static str, Errno)> {
        let place = self.victims[self.turns as usize] as usize;
        let old = self.places[place];
        sys::unlink(self.dir(old), self.names.get(old)).map_err(|errno| ("unlinkat", errno))?;
        self.places[place] = self.next;
        self.write_next()?;
        self.turns += 1;
        if self.sync_every > 0 && self.turns.is_multiple_of(self.sync_every) {
            sys::syncfs(self.root.as_fd()).map_err(|errno| ("syncfs", errno))?;
            self.syncs += 1;
        }
        Ok(())
    }

    #[inline]
    fn write_next(&mut self) -> Result<(), (&'static str, Errno)> {
        let number = self.next;
        let bytes = &self.block[..self.sizes[number as usize] as usize];
        let file = namespace::create_new(self.dir(number), self.names.get(number))
            .map_err(|errno| ("openat", errno))?;
        let written = sys::write(file.as_fd(), bytes).map_err(|errno| ("write", errno))?;
        self.whole += u64::from(written == bytes.len());
        self.next += 1;
        sys::close(file).map_err(|errno| ("close", errno))
    }

    #[inline]
    fn dir(&self, number: u32) -> BorrowedFd<'_> {
        self.dirs[number as usize % self.dirs.len()].as_fd()
    }

    #[cold]
    fn failed(&self, call: &'static str, errno: Errno) -> WorkloadError {
        failed(call, &self.path.join("d*").join(format!("file {}", self.next)), errno)
    }

    /// Claims the system calls and makes the checks.
    fn judge(self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let made = u64::from(self.next);
        for (call, count) in [
            ("unlinkat", self.turns),
            ("syncfs", self.syncs),
            ("openat", made),
            ("write", made),
            ("close", made),
        ] {
            round.count(call, count, count);
        }
        let (mut files, mut bytes) = (0, 0);
        for number in 0..self.dirs.len() as u64 {
            let name = dir_name(number);
            let found = inventory::take(round, &self.path.join(&*name.to_string_lossy()))?;
            files += found.files;
            bytes += found.bytes;
        }
        round.check("files", self.places.len(), files);
        round.check("writes", made, self.whole);
        let left: u64 = self.places.iter().map(|&number| self.sizes[number as usize]).sum();
        round.check("bytes", left, bytes);
        Ok(())
    }
}

fn dir_name(number: u64) -> CString {
    CString::new(format!("d{number:04}")).unwrap_or_default()
}

/// Memory of the slab in bytes, from `/proc/meminfo` (proc_meminfo(5)).
#[derive(Clone, Copy, Debug)]
struct Slab {
    all: f64,
    reclaimable: f64,
    unreclaimable: f64,
}

impl Slab {
    fn read() -> Result<Self, WorkloadError> {
        let path = Path::new("/proc/meminfo");
        let text = std::fs::read_to_string(path)
            .map_err(|error| failed("read", path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Self::parse(&text).ok_or_else(|| failed("read", path, Errno::PROTO))
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
            Some(kib * 1024.0)
        };
        Some(Self {
            all: field("Slab:")?,
            reclaimable: field("SReclaimable:")?,
            unreclaimable: field("SUnreclaim:")?,
        })
    }

    fn report_growth(&self, round: &mut RoundContext, phase: &str, before: &Self) {
        round.measure(phase, "slab_growth", self.all - before.all);
        round.measure(phase, "reclaimable_growth", self.reclaimable - before.reclaimable);
        round.measure(phase, "unreclaimable_growth", self.unreclaimable - before.unreclaimable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    fn play(more: &[(&str, Setting)]) -> kdelta_wire::Round {
        let folder =
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder");
        let mut parameters = INFO.preset("quick").expect("a preset").values.to_vec();
        parameters.extend(more);
        run(&request("aging/churn", folder.path(), &parameters), None).expect("runs")
    }

    #[test]
    fn thirds_are_phases_with_a_series_each() {
        let round = play(&[(OPERATIONS, Setting::Integer(125))]);
        assert_sound(&round);
        let phases: Vec<_> = round.phases.iter().map(|phase| (phase.name.as_str(), phase.ops)).collect();
        assert_eq!(phases, [("first", 41), ("middle", 41), ("last", 43)]);
        for phase in &round.phases {
            let series: Vec<f64> =
                (1..=SLICES).map(|slice| phase.measures[&format!("slice_{slice}")]).collect();
            assert!(series.iter().all(|ticks| *ticks > 0.0), "{series:?}");
            assert!(phase.measures.contains_key("slab_growth"));
        }
        assert!(round.phases[2].measures["slowdown"] > 0.0);
        assert_eq!((round.census["unlinkat"].attempted, round.census["syncfs"].attempted), (125, 2));
    }

    #[test]
    fn a_loop_can_end_by_time() {
        let round = play(&[(OPERATIONS, Setting::Integer(3_000_000)), (SECONDS, Setting::Integer(2))]);
        assert_sound(&round);
        for phase in &round.phases {
            assert!(phase.elapsed >= 1_000_000_000 && phase.ops < 1_000_000, "{phase:?}");
            assert!(phase.measures.contains_key("slice_1"), "{phase:?}");
        }
    }

    #[test]
    fn the_slab_is_read_by_name() {
        let text = "MemTotal: 9 kB\nSlab:             100 kB\nSReclaimable:    60 kB\nSUnreclaim:  40 kB\n";
        let slab = Slab::parse(text).expect("all fields");
        assert_eq!((slab.all, slab.reclaimable, slab.unreclaimable), (102_400.0, 61_440.0, 40_960.0));
        assert!(Slab::parse("Slab: 1 kB\n").is_none());
    }
}
