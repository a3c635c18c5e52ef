//! Adding an inotify watch to a folder with very many files in memory, alone or while others remove
//! and recreate files in it. Read [`InotifyBigdir`] first, then `Adder`.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use kdelta_wire::{Clock, FilesystemKind};
use rand_chacha::rand_core::Rng;
use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;

use crate::budget::{Budget, OPERATIONS, SECONDS_PARAMETER};
use crate::latency::Latencies;
use crate::parallel::{Crew, Share};
use crate::round::{c_path, failed, open_root};
use crate::sys::{self, notify};
use crate::watch::{self, Limit, Names};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, Refusal, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock,
};

const QUIET: &str = "quiet";
const MUTATING: &str = "mutating";
const NEGATIVE: &str = "negative";
const EMPTY: &str = "empty";

/// Not of the files themselves but of the children of a folder: such a mask makes the kernel visit
/// the folder's dentries (`FS_EVENTS_POSS_ON_CHILD`, kernel `include/linux/fsnotify_backend.h`).
/// Removing and recreating files is no such event, so that nothing piles up in the queue.
const MASK: WatchFlags = WatchFlags::MODIFY;
/// The first watch of an instance (`idr_alloc_cyclic(.., 1, ..)`, kernel `fs/notify/inotify/inotify_user.c`).
const FIRST_WATCH: i32 = 1;

const fn ticks(name: &'static str, summary: &'static str, scenarios: &'static [&'static str]) -> MeasureInfo {
    MeasureInfo { name, phase: "add", summary, unit: "ticks", better: Better::Lower, scenarios }
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "inotify-bigdir",
    title: "inotify watch on a big folder",
    summary: "Makes an inotify instance, adds the only watch of a folder with many files in memory, and closes \
              the instance, over and over; the phase's elapsed ticks are those of inotify_add_watch(2) alone. \
              Closing waits for a grace period and is measured beside it, all other counters include it.",
    source: "Partha Satapathy's patch to linux-fsdevel that checks parent watches without child dentry \
             flags, and the review of it (12 million files, 8 workers, 100 cycles)",
    scenarios: &[
        ScenarioInfo { name: QUIET, summary: "nobody else uses the folder", default: true },
        ScenarioInfo {
            name: MUTATING,
            summary: "workers remove and recreate files of the folder, each a fixed number or for a fixed time, \
                      whatever the watches take; with fewer CPUs than workers, `p50` and `add_cpu` say more \
                      than the mean, which contains the turns of others",
            default: true,
        },
        ScenarioInfo {
            name: NEGATIVE,
            summary: "as quiet, with negative dentries in the folder: names that were looked up and are not there",
            default: false,
        },
        ScenarioInfo {
            name: EMPTY,
            summary: "the control: the watch is on an empty folder beside the big one",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "files",
            summary: "files in the folder; every one has a dentry in memory",
            unit: "files",
            domain: Domain::Integer { default: 200_000, min: 64, max: 16_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "cycles",
            summary: "instances made, watched with and closed",
            unit: "cycles",
            domain: Domain::Integer { default: 100, min: 1, max: 1_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "missing",
            summary: "names looked up that are not there",
            unit: "names",
            domain: Domain::Integer { default: 200_000, min: 1, max: 16_000_000 },
            scenarios: &[NEGATIVE],
        },
        ParameterInfo {
            name: "workers",
            summary: "threads that remove and recreate files, each of its own part of the files",
            unit: "threads",
            domain: Domain::Integer { default: 4, min: 1, max: 64 },
            scenarios: &[MUTATING],
        },
        ParameterInfo {
            name: OPERATIONS,
            summary: "files that each worker removes and recreates",
            unit: "files",
            domain: Domain::Integer { default: 1_000, min: 1, max: 10_000_000 },
            scenarios: &[MUTATING],
        },
        ParameterInfo { scenarios: &[MUTATING], ..SECONDS_PARAMETER },
    ],
    limits: &[],
    phases: &[PhaseInfo {
        name: "add",
        operation: "one watch added, as the only one of its folder",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        ticks("p50", "median of one add", &[]),
        ticks("p99", "99th percentile of one add", &[]),
        ticks("p999", "99.9th percentile of one add", &[]),
        ticks("max", "longest add", &[]),
        ticks("init_mean", "inotify_init1(2), on average", &[]),
        ticks("close_mean", "closing the instance and with it the watch, on average", &[]),
        ticks("close_max", "longest close", &[]),
        MeasureInfo {
            name: "add_cpu",
            phase: "add",
            summary: "CPU time of one add, on average; unlike the elapsed ticks it has no turns of others in it",
            unit: "ns",
            better: Better::Lower,
            scenarios: &[],
        },
        MeasureInfo {
            name: "window",
            phase: "add",
            summary: "the whole phase: every cycle and, where there are workers, all of their work",
            unit: "ticks",
            better: Better::Neither,
            scenarios: &[],
        },
        ticks("unlink_p99", "99th percentile of removing a file", &[MUTATING]),
        ticks("unlink_max", "longest removal", &[MUTATING]),
        ticks("recreate_p99", "99th percentile of recreating a file, open and close", &[MUTATING]),
        ticks("recreate_max", "longest recreation", &[MUTATING]),
        MeasureInfo {
            name: "mutations",
            phase: "add",
            summary: "files removed and recreated: the size of the sample that those maxima are of",
            unit: "files",
            better: Better::Neither,
            scenarios: &[MUTATING],
        },
        MeasureInfo {
            name: "mutation_window",
            phase: "add",
            summary: "from the start to the last worker's end; maxima compare only between equal windows",
            unit: "ticks",
            better: Better::Neither,
            scenarios: &[MUTATING],
        },
        MeasureInfo {
            name: "adds_meanwhile",
            phase: "add",
            summary: "adds that began before the last worker had ended; raise `operations` if it is far below `cycles`",
            unit: "adds",
            better: Better::Neither,
            scenarios: &[MUTATING],
        },
        Limit::Instances.measure("add", &[]),
    ],
    checks: &[
        CheckInfo {
            name: "adds",
            summary: "every add returned the first watch of its instance",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: QUIET, inject: "inotify_add_watch:retval=7:when=3" },
        },
        CheckInfo {
            name: "names found",
            summary: "every file was there when its dentry was warmed",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: QUIET, inject: "newfstatat:error=ENOENT:when=20" },
        },
        CheckInfo {
            name: "files",
            summary: "a walk afterwards finds as many files as were made: all that were removed are back",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: QUIET, inject: "mknodat:retval=0:when=5" },
        },
        CheckInfo {
            name: "negative dentries",
            summary: "nine tenths of the missing names have become negative dentries (`nr_negative` of \
                      /proc/sys/fs/dentry-state, since Linux 5.0)",
            scenarios: &[NEGATIVE],
            filesystems: &[],
            proof: Proof::Test("a_filesystem_that_keeps_no_negative_dentries_fails_the_check"),
        },
    ],
    refusals: &[Refusal {
        filesystems: &[FilesystemKind::Tmpfs],
        scenarios: &[NEGATIVE],
        reason: "tmpfs forgets the dentry of a missing name at once (simple_dentry_operations, kernel fs/libfs.c)",
    }],
    scale: "cycles",
    presets: &[
        Preset {
            name: "source",
            summary: "the mail's; its 12 million files need 16 GiB of memory and more",
            values: &[
                ("files", Setting::Integer(12_000_000)),
                ("cycles", Setting::Integer(100)),
                ("missing", Setting::Integer(12_000_000)),
                ("workers", Setting::Integer(8)),
                ("operations", Setting::Integer(100_000)),
            ],
        },
        Preset {
            name: "guest",
            summary: "20,000 files, which a guest makes in seconds on every filesystem; sweep `files` from there",
            values: &[
                ("files", Setting::Integer(20_000)),
                ("cycles", Setting::Integer(50)),
                ("missing", Setting::Integer(20_000)),
                ("workers", Setting::Integer(4)),
                ("operations", Setting::Integer(2_500)),
            ],
        },
        Preset {
            name: "guest-200k",
            summary: "200,000 files, for a guest of 1 GiB with tmpfs or patience",
            values: &[
                ("files", Setting::Integer(200_000)),
                ("cycles", Setting::Integer(20)),
                ("missing", Setting::Integer(200_000)),
                ("workers", Setting::Integer(4)),
                ("operations", Setting::Integer(2_500)),
            ],
        },
        Preset {
            name: "quick",
            summary: "500 files and 2 cycles, for a first look",
            values: &[
                ("files", Setting::Integer(500)),
                ("cycles", Setting::Integer(4)),
                ("missing", Setting::Integer(500)),
                ("workers", Setting::Integer(2)),
                ("operations", Setting::Integer(20)),
            ],
        },
    ],
};

/// The workload `inotify-bigdir`.
pub(crate) struct InotifyBigdir;

impl Workload for InotifyBigdir {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let fixture = Fixture::make(round)?;
        if round.scenario() == NEGATIVE {
            look_up_missing(round, &fixture)?;
        }
        let cycles = round.integer("cycles")?;
        let path = if round.scenario() == EMPTY { &fixture.empty } else { &fixture.big };
        let adder = Adder::new(path, cycles, round.clock())?;
        round.sync()?;
        let adder = match round.scenario() {
            MUTATING => add_while_mutating(round, &fixture, adder)?,
            _ => {
                let mut adder = adder;
                round.phase("add", cycles, || adder.run())?;
                adder
            }
        };
        adder.report(round);
        Limit::Instances.record(round, "add")?;
        round.check("files", fixture.names.count(), watch::count_files(&fixture.big)?);
        Ok(())
    }
}

/// The big folder, full, and an empty one.
struct Fixture {
    big: PathBuf,
    empty: PathBuf,
    folder: OwnedFd,
    names: Names,
}

impl Fixture {
    fn make(round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let root = round.mount_point().to_owned();
        let parent = open_root(&root)?;
        let folder = watch::make_folder(&parent, &root, c"big")?;
        watch::make_folder(&parent, &root, c"empty")?;
        let big = root.join("big");
        let names = Names::new(b'f', round.integer("files")?);
        for name in names.iter() {
            notify::make_file(folder.as_fd(), name).map_err(|errno| failed("mknodat", &big, errno))?;
        }
        let mut found = 0;
        for name in names.iter() {
            found += u64::from(notify::stat(folder.as_fd(), name).is_ok());
        }
        let files = names.count() as u64;
        round.count("mkdirat", 2, 2);
        round.count("mknodat", files, files);
        round.count("newfstatat", files, found);
        round.check("names found", files, found);
        Ok(Self { big, empty: root.join("empty"), folder, names })
    }
}

/// Leaves a negative dentry for each of the names `m0` and so on.
fn look_up_missing(round: &mut RoundContext, fixture: &Fixture) -> Result<(), WorkloadError> {
    let missing = Names::new(b'm', round.integer("missing")?);
    let before = negative_dentries()?;
    let mut found = 0;
    for name in missing.iter() {
        match notify::stat(fixture.folder.as_fd(), name) {
            Ok(_) => found += 1,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("newfstatat", &fixture.big, errno)),
        }
    }
    let more = negative_dentries()?.saturating_sub(before);
    let count = missing.count() as u64;
    round.count("newfstatat", count, found);
    let wanted = count * 9 / 10;
    round.check_that("negative dentries", format!("at least {wanted} more"), more, more >= wanted);
    Ok(())
}

/// The fifth number of `/proc/sys/fs/dentry-state` (kernel `Documentation/admin-guide/sysctl/fs.rst`).
fn negative_dentries() -> Result<u64, WorkloadError> {
    let path = Path::new("/proc/sys/fs/dentry-state");
    let text = std::fs::read_to_string(path)
        .map_err(|error| failed("read", path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let number = text.split_whitespace().nth(4).and_then(|word| word.parse().ok());
    number.ok_or_else(|| failed("read", path, Errno::PROTO))
}

/// Who makes the watches, and what they took.
struct Adder {
    path: CString,
    at: PathBuf,
    cycles: u64,
    clock: Clock,
    adds: Latencies,
    /// When each add began.
    starts: Latencies,
    total: u64,
    cpu_ns: u64,
    init: u64,
    close: u64,
    longest_close: u64,
    first_watches: u64,
}

impl Adder {
    fn new(path: &Path, cycles: u64, clock: Clock) -> Result<Self, WorkloadError> {
        Ok(Self {
            path: c_path(path)?,
            at: path.to_owned(),
            cycles,
            clock,
            adds: Latencies::with_capacity(cycles as usize),
            starts: Latencies::with_capacity(cycles as usize),
            total: 0,
            cpu_ns: 0,
            init: 0,
            close: 0,
            longest_close: 0,
            first_watches: 0,
        })
    }

    /// Every cycle. Timed.
    fn run(&mut self) -> Result<(), WorkloadError> {
        for _ in 0..self.cycles {
            let start = clock::now(self.clock);
            let instance = watch::instance()?;
            self.init += clock::now(self.clock).saturating_sub(start);
            let cpu_ns = sys::thread_cpu_ns();
            let start = clock::now(self.clock);
            let added = notify::add_watch(instance.as_fd(), &self.path, MASK);
            let ticks = clock::now(self.clock).saturating_sub(start);
            self.cpu_ns += sys::thread_cpu_ns().saturating_sub(cpu_ns);
            let number = added.map_err(|errno| failed("inotify_add_watch", &self.at, errno))?;
            self.first_watches += u64::from(number == FIRST_WATCH);
            self.adds.push(ticks);
            self.starts.push(start);
            self.total += ticks;
            let start = clock::now(self.clock);
            sys::close(instance).map_err(|errno| failed("close", &self.at, errno))?;
            let ticks = clock::now(self.clock).saturating_sub(start);
            self.close += ticks;
            self.longest_close = self.longest_close.max(ticks);
        }
        Ok(())
    }

    /// Leaves what was measured in the phase.
    fn report(self, round: &mut RoundContext) {
        let cycles = self.cycles;
        let window = round.latest("add").map_or(0, |phase| phase.elapsed);
        round.time_operations("add", self.total);
        round.measure("add", "window", window as f64);
        round.measure_latencies("add", &self.adds);
        let mean = |sum: u64| sum as f64 / cycles as f64;
        round.measure("add", "add_cpu", mean(self.cpu_ns));
        round.measure("add", "init_mean", mean(self.init));
        round.measure("add", "close_mean", mean(self.close));
        round.measure("add", "close_max", self.longest_close as f64);
        for call in ["inotify_init1", "close"] {
            round.count(call, cycles, cycles);
        }
        round.count("inotify_add_watch", cycles, self.first_watches);
        round.check("adds", cycles, self.first_watches);
    }
}

/// Who removes and recreates files, and what that took.
struct Mutator<'a> {
    folder: &'a OwnedFd,
    at: &'a Path,
    names: &'a Names,
    /// Which file each turn takes.
    picks: Vec<u32>,
    budget: Budget,
    clock: Clock,
    unlinks: Latencies,
    recreations: Latencies,
    /// When the last turn ended.
    end: u64,
}

impl Mutator<'_> {
    /// Every turn. Timed.
    fn run(&mut self) -> Result<(), WorkloadError> {
        let at = self.at;
        while self.budget.next() {
            let name = self.names.get(self.picks[self.budget.turns() as usize - 1] as usize);
            let start = clock::now(self.clock);
            sys::unlink(self.folder.as_fd(), name).map_err(|errno| lost("unlinkat", at, name, errno))?;
            let middle = clock::now(self.clock);
            let file = notify::create_new(self.folder.as_fd(), name)
                .map_err(|errno| lost("openat", at, name, errno))?;
            sys::close(file).map_err(|errno| lost("close", at, name, errno))?;
            let end = clock::now(self.clock);
            self.unlinks.push(middle.saturating_sub(start));
            self.recreations.push(end.saturating_sub(middle));
            self.end = end;
        }
        Ok(())
    }
}

#[cold]
fn lost(call: &'static str, at: &Path, name: &CStr, errno: Errno) -> WorkloadError {
    failed(call, &at.join(&*name.to_string_lossy()), errno)
}

enum Member<'a> {
    Adder(Box<Adder>),
    Mutator(Mutator<'a>),
}

fn add_while_mutating(
    round: &mut RoundContext,
    fixture: &Fixture,
    adder: Adder,
) -> Result<Adder, WorkloadError> {
    let (workers, operations) = (round.integer("workers")?, round.integer(OPERATIONS)?);
    let mut rng = round.rng();
    let files = fixture.names.count() as u64;
    let mut members = vec![Member::Adder(Box::new(adder))];
    for worker in 0..workers {
        let first = files * worker / workers;
        let span = files * (worker + 1) / workers - first;
        // The bias of a span far below 2^32 is far below notice.
        let mut pick = || (first + ((u64::from(rng.next_u32()) * span) >> 32)) as u32;
        members.push(Member::Mutator(Mutator {
            folder: &fixture.folder,
            at: &fixture.big,
            names: &fixture.names,
            picks: (0..operations).map(|_| pick()).collect(),
            budget: round.budget()?,
            clock: round.clock(),
            unlinks: Latencies::with_capacity(operations as usize),
            recreations: Latencies::with_capacity(operations as usize),
            end: 0,
        }));
    }
    round.parallel("add", Crew::Threads, &mut members, |member, _| match member {
        Member::Adder(adder) => {
            adder.run()?;
            Ok(Share { ops: adder.cycles, ..Share::default() })
        }
        // Their turns are no operations of the phase.
        Member::Mutator(mutator) => mutator.run().map(|()| Share::default()),
    })?;
    let workers = round.latest("add").map(|phase| phase.workers.as_slice()).unwrap_or_default();
    let end = |worker: &kdelta_wire::Worker| worker.started + worker.elapsed;
    let window = workers.iter().skip(1).map(end).max().unwrap_or(0);
    round.measure("add", "mutation_window", window as f64);
    let (mut unlinks, mut recreations) = (Latencies::with_capacity(0), Latencies::with_capacity(0));
    let (mut adder, mut last) = (None, 0);
    for member in members {
        match member {
            Member::Adder(one) => adder = Some(*one),
            Member::Mutator(mutator) => {
                last = last.max(mutator.end);
                unlinks.extend(mutator.unlinks.into_ticks());
                recreations.extend(mutator.recreations.into_ticks());
            }
        }
    }
    for (what, latencies) in [("unlink", &unlinks), ("recreate", &recreations)] {
        for (name, ticks) in latencies.summary().into_iter().flatten() {
            if matches!(name, "p99" | "max") {
                round.measure("add", &format!("{what}_{name}"), ticks as f64);
            }
        }
    }
    let mutations = unlinks.into_ticks().len() as u64;
    round.measure("add", "mutations", mutations as f64);
    for call in ["unlinkat", "openat", "close"] {
        round.count(call, mutations, mutations);
    }
    let mut adder = adder.ok_or_else(|| WorkloadError::Undeclared("the adder".to_owned()))?;
    let starts = std::mem::take(&mut adder.starts).into_ticks();
    let meanwhile = starts.iter().filter(|start| **start < last).count();
    round.measure("add", "adds_meanwhile", meanwhile as f64);
    Ok(adder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;
    use crate::watch::tests::assert_measures_declared;

    fn quick(scenario: &str, folder: &Path) -> kdelta_wire::RoundRequest {
        let preset = INFO.preset("quick").expect("a preset");
        let name = format!("inotify-bigdir/{scenario}");
        let mut request = request(&name, folder, &[]);
        let scenario = INFO.scenario(scenario).expect("a scenario");
        request.scenario.parameters = preset.parameters(&INFO, scenario);
        request
    }

    #[test]
    fn every_scenario_adds_the_only_watch_of_a_folder_in_each_cycle() {
        for scenario in [QUIET, MUTATING, EMPTY] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let round = run(&quick(scenario, folder.path()), None).expect("runs");
            assert_sound(&round);
            let phase = &round.phases[0];
            assert_eq!((phase.name.as_str(), phase.ops), ("add", 4));
            assert_eq!(round.census["inotify_add_watch"].attempted, 4);
            assert_eq!(round.census["mknodat"].attempted, 500);
            assert_measures_declared(&INFO, scenario, &round);
            let (adds, window) = (phase.elapsed as f64, phase.measures["window"]);
            assert!(adds < window, "closing lies between the adds: {adds} of {window}");
            let calls = round.census.get("unlinkat").map(|count| count.attempted);
            assert_eq!(calls, (scenario == MUTATING).then_some(40));
        }
    }

    #[test]
    fn workers_stop_when_their_time_is_over_and_the_files_are_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = quick(MUTATING, folder.path());
        for (name, value) in [("operations", 5_000_000), ("seconds", 1)] {
            request.scenario.parameters.insert(name.into(), Setting::Integer(value).value());
        }
        let round = run(&request, None).expect("runs");
        assert_sound(&round);
        let phase = &round.phases[0];
        assert!(phase.measures["mutation_window"] >= 1e9, "{phase:?}");
        let mutations = round.census["unlinkat"].attempted;
        assert!(mutations > 0 && mutations < 10_000_000);
        assert_eq!(phase.measures["mutations"], mutations as f64);
    }

    #[test]
    fn a_filesystem_that_keeps_no_negative_dentries_fails_the_check() {
        // It is tmpfs, and is said to be another one.
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("skipped: there is no /dev/shm");
            return;
        };
        let mut request = quick(NEGATIVE, folder.path());
        assert!(matches!(run(&request, None), Err(WorkloadError::Filesystem { .. })));
        request.filesystem = FilesystemKind::Ext4;
        request.scenario.parameters.insert("missing".into(), Setting::Integer(20_000).value());
        let round = run(&request, None).expect("runs");
        let failures: Vec<_> = round.checks.iter().filter(|check| !check.passed).collect();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!(failures[0].name, "negative dentries");
        assert_eq!(round.census["newfstatat"].attempted - round.census["newfstatat"].succeeded, 20_000);
    }

    #[test]
    fn missing_names_become_negative_dentries() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kind = rustix::fs::statfs(folder.path()).expect("a filesystem").f_type;
        // TMPFS_MAGIC and OVERLAYFS_SUPER_MAGIC (uapi linux/magic.h); the latter keeps its own dentries.
        if kind == 0x0102_1994 || kind == 0x794c_7630 {
            eprintln!("skipped: temporary files are on {kind:x}, which keeps no negative dentries");
            return;
        }
        let mut request = quick(NEGATIVE, folder.path());
        request.filesystem = FilesystemKind::Ext4;
        request.scenario.parameters.insert("missing".into(), Setting::Integer(20_000).value());
        let round = run(&request, None).expect("runs");
        assert!(round.checks.iter().all(|check| check.passed), "{:?}", round.checks);
    }
}
