//! A random mix of metadata operations from several processes, each in its own folder, after
//! fsstress. Read [`Opmix`] first; what the processes do is drawn beforehand, in `script`.

mod script;

use std::ffi::{CStr, CString};
use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use kdelta_wire::Clock;
use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use self::script::{OPS, Op, Script, Step, shares};
use crate::inventory::{self, Inventory};
use crate::parallel::{Crew, Share};
use crate::round::{failed, open_root};
use crate::sys::{namespace, space};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, ProductLimit, Proof,
    RoundContext, ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock, sys,
};

/// Largest difference between the share of an operation that was asked for and the one that was
/// executed (rule M9).
const MIX_TOLERANCE: f64 = 0.02;
/// Ticks from which on an operation is a long one: 1 ms or a million instructions, far more than any
/// takes by itself and less than the scheduler gives another process.
const LONG_TICKS: u64 = 1_000_000;
/// What a symbolic link points to.
const TARGET: &CStr = c"nowhere";
/// The attribute that is set, always to the same value.
const ATTRIBUTE: &CStr = c"user.kdelta";
const VALUE: &[u8] = b"sixteen letters.";

/// The frequency of an operation: name, default, what it does.
macro_rules! frequency {
    ($op:literal, $default:literal, $what:literal) => {
        ParameterInfo {
            name: $op,
            summary: concat!("frequency of ", $op, ": ", $what),
            unit: "parts of the sum of all frequencies",
            domain: Domain::Integer { default: $default, min: 0, max: 1000 },
            scenarios: &[],
        }
    };
}

/// What is measured of each operation.
macro_rules! measures {
    ($($op:literal)*) => {
        &[$(
            MeasureInfo {
                name: concat!($op, "_ticks"),
                phase: "operations",
                summary: concat!("mean time of one ", $op, ", failed ones included, long ones not"),
                unit: "ticks",
                better: Better::Lower,
                scenarios: &[],
            },
            MeasureInfo {
                name: concat!($op, "_long"),
                phase: "operations",
                summary: concat!(
                    $op,
                    " operations of 1 ms and more: they waited, or another process had the CPU meanwhile"
                ),
                unit: "operations",
                better: Better::Neither,
                scenarios: &[],
            },
            MeasureInfo {
                name: concat!($op, "_executed"),
                phase: "operations",
                summary: concat!($op, " operations executed"),
                unit: "operations",
                better: Better::Neither,
                scenarios: &[],
            },
            MeasureInfo {
                name: concat!($op, "_succeeded"),
                phase: "operations",
                summary: concat!($op, " operations that succeeded"),
                unit: "operations",
                better: Better::Neither,
                scenarios: &[],
            },
            MeasureInfo {
                name: concat!($op, "_failed"),
                phase: "operations",
                summary: concat!($op, " operations that failed"),
                unit: "operations",
                better: Better::Neither,
                scenarios: &[],
            },
        )*]
    };
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "opmix",
    title: "random mix of metadata operations",
    summary: "Processes, each in its own folder, do operations in a random order and on random names of their \
              own: a mix of creat, mkdir, mknod, rmdir, unlink, link, rename and others by frequency. The order, \
              the names and every result are worked out beforehand; timed are the system calls.",
    source: "fsstress of xfstests as it is called in Darrick Wong's mails to linux-xfs about the cost of parent \
             pointers (`fsstress -n 400000 -p 4 -z -f creat=1,mkdir=1,...`); the version used first took only \
             the first operation of the list, and 58 to 77 % of its CPU time went into building paths",
    scenarios: &[ScenarioInfo {
        name: "mixed",
        summary: "operations by frequency; a kind that has nothing to be done to waits until it has",
        default: true,
    }],
    parameters: &[
        ParameterInfo {
            name: "workers",
            summary: "processes, process i in the folder p<i>",
            unit: "processes",
            domain: Domain::Integer { default: 4, min: 1, max: 256 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "operations",
            summary: "operations of each process",
            unit: "operations",
            domain: Domain::Integer { default: 2_500, min: 1, max: 10_000_000 },
            scenarios: &[],
        },
        frequency!("creat", 1, "an empty file in any folder"),
        frequency!("mkdir", 1, "a folder in any folder"),
        frequency!("mknod", 1, "a character device in any folder"),
        frequency!("symlink", 0, "a short symbolic link in any folder"),
        frequency!("rmdir", 1, "any folder, which must fail for one that is not empty"),
        frequency!("unlink", 1, "any name that is not a folder's"),
        frequency!("link", 1, "a further name, in any folder, of any file, device or symbolic link"),
        frequency!("rename", 1, "anything to a new name in any folder, which must fail below itself"),
        frequency!("write", 0, "open, write at any place up to the end, close, of any file"),
        frequency!("truncate", 0, "open, ftruncate to any size up to `write_bytes` more, close, of any file"),
        frequency!("setxattr", 0, "open, set one attribute of 16 bytes, close, of any file"),
        ParameterInfo {
            name: "write_bytes",
            summary: "most that one write operation writes; sizes from 1 up to this are as likely",
            unit: "bytes",
            // FILELEN_MAX of fsstress.
            domain: Domain::Integer { default: 131_072, min: 1, max: 16 << 20 },
            scenarios: &[],
        },
    ],
    limits: &[ProductLimit {
        parameters: &["workers", "operations"],
        max: 20_000_000,
        reason: "every operation is kept in memory with its paths, some 150 bytes each",
    }],
    phases: &[
        PhaseInfo {
            name: "operations",
            operation: "one operation of the mix; writes, truncations and attributes open and close their file",
            primary: true,
            scenarios: &[],
        },
        PhaseInfo {
            name: "drain",
            operation: "one operation before; the time is syncfs",
            primary: false,
            scenarios: &[],
        },
    ],
    measures: measures!("creat" "mkdir" "mknod" "symlink" "rmdir" "unlink" "link" "rename" "write" "truncate" "setxattr"),
    checks: &[
        CheckInfo {
            name: "mix",
            summary: "each operation's share of those executed is within 0.02 of the share that was asked for; a mix \
                      that removes more than it makes cannot be executed",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_mix_that_cannot_be_executed_fails_the_check"),
        },
        CheckInfo {
            name: "results",
            summary: "every operation succeeded, or failed with the very error that it must end with",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "mixed", inject: "linkat:error=ENOSPC:when=3" },
        },
        CheckInfo {
            name: "successes",
            summary: "of each operation as many succeeded as must",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "mixed", inject: "mknodat:error=ENOSPC:when=3" },
        },
        CheckInfo {
            name: "objects",
            summary: "a walk afterwards finds as many folders, names, inodes and bytes as there must be",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "mixed", inject: "mkdirat:retval=0:when=5" },
        },
    ],
    refusals: &[],
    scale: "operations",
    presets: &[
        Preset {
            name: "source",
            summary: "`fsstress -n 400000 -p 4 -f creat=1,mkdir=1,mknod=1,rmdir=1,unlink=1,link=1,rename=1`",
            values: &[("operations", Setting::Integer(400_000)), ("workers", Setting::Integer(4))],
        },
        Preset {
            name: "source-write",
            summary: "as `source`, with write=1",
            values: &[
                ("operations", Setting::Integer(400_000)),
                ("workers", Setting::Integer(4)),
                ("write", Setting::Integer(1)),
            ],
        },
        Preset {
            name: "source-nolink",
            summary: "as `source`, without link",
            values: &[
                ("operations", Setting::Integer(400_000)),
                ("workers", Setting::Integer(4)),
                ("link", Setting::Integer(0)),
            ],
        },
        Preset {
            name: "source-creat",
            summary: "`fsstress -n 100000 -p 4 -f creat=1`, which is what the first runs really did",
            values: &[
                ("operations", Setting::Integer(100_000)),
                ("workers", Setting::Integer(4)),
                ("mkdir", Setting::Integer(0)),
                ("mknod", Setting::Integer(0)),
                ("rmdir", Setting::Integer(0)),
                ("unlink", Setting::Integer(0)),
                ("link", Setting::Integer(0)),
                ("rename", Setting::Integer(0)),
            ],
        },
        Preset {
            name: "guest",
            summary: "10,000 operations from 4 processes",
            values: &[("operations", Setting::Integer(2_500)), ("workers", Setting::Integer(4))],
        },
        Preset {
            name: "guest-write",
            summary: "as `guest`, with writes of up to 32 KiB",
            values: &[
                ("operations", Setting::Integer(2_500)),
                ("workers", Setting::Integer(4)),
                ("write", Setting::Integer(1)),
                ("write_bytes", Setting::Integer(32_768)),
            ],
        },
        Preset {
            name: "guest-nolink",
            summary: "as `guest`, without link",
            values: &[
                ("operations", Setting::Integer(2_500)),
                ("workers", Setting::Integer(4)),
                ("link", Setting::Integer(0)),
            ],
        },
        Preset {
            name: "guest-creat",
            summary: "10,000 empty files in 4 folders",
            values: &[
                ("operations", Setting::Integer(2_500)),
                ("workers", Setting::Integer(4)),
                ("mkdir", Setting::Integer(0)),
                ("mknod", Setting::Integer(0)),
                ("rmdir", Setting::Integer(0)),
                ("unlink", Setting::Integer(0)),
                ("link", Setting::Integer(0)),
                ("rename", Setting::Integer(0)),
            ],
        },
        Preset {
            name: "quick",
            summary: "every kind of operation a few times, for a first look",
            values: &[
                ("operations", Setting::Integer(220)),
                ("workers", Setting::Integer(2)),
                ("symlink", Setting::Integer(1)),
                ("write", Setting::Integer(1)),
                ("truncate", Setting::Integer(1)),
                ("write_bytes", Setting::Integer(5_000)),
            ],
        },
    ],
};

/// The workload `opmix`.
pub(crate) struct Opmix;

impl Workload for Opmix {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mix = mix(round)?;
        let mut members = Member::prepare(round, &mix)?;
        round.sync()?;
        let clock = round.clock();
        let values = round.parallel("operations", Crew::Processes, &mut members, |member, _| {
            let tallies = member.play(clock);
            let ops = tallies.iter().map(|tally| tally.executed).sum();
            Ok(Share { ops, values: tallies.iter().flat_map(|tally| tally.numbers()).collect() })
        })?;
        let tallies = Tally::add_up(&values);
        let root = open_root(round.mount_point())?;
        let path = round.mount_point().to_owned();
        let executed: u64 = tallies.iter().map(|tally| tally.executed).sum();
        round.phase("drain", executed, || {
            sys::syncfs(root.as_fd()).map_err(|errno| failed("syncfs", &path, errno))
        })?;
        report(round, &tallies);
        judge(round, &mix, &members, &tallies)
    }
}

/// The frequencies asked for.
fn mix(round: &RoundContext) -> Result<[u64; OPS], WorkloadError> {
    let mut mix = [0; OPS];
    for op in Op::ALL {
        mix[op as usize] = round.integer(op.name())?;
    }
    if mix == [0; OPS] {
        let what = "a mix in which every frequency is 0".to_owned();
        return Err(WorkloadError::Unavailable { what, next: "set at least one frequency above 0" });
    }
    Ok(mix)
}

/// One process: its folder, what it does there, and what it writes.
struct Member {
    path: PathBuf,
    folder: OwnedFd,
    script: Script,
    block: Vec<u8>,
}

impl Member {
    fn prepare(round: &mut RoundContext, mix: &[u64; OPS]) -> Result<Vec<Self>, WorkloadError> {
        let (workers, operations) = (round.integer("workers")?, round.integer("operations")?);
        let write_bytes = round.integer("write_bytes")?;
        let root = open_root(round.mount_point())?;
        let mut block = vec![0; if mix[Op::Write as usize] > 0 { write_bytes as usize } else { 0 }];
        round.rng().fill_bytes(&mut block);
        let mut members = Vec::with_capacity(workers as usize);
        for number in 0..workers {
            // A stream for each process: what it does depends neither on how many there are nor on
            // how long the others' scripts are.
            let mut rng = round.rng();
            rng.set_stream(1 + number);
            let script = Script::draw(&mut rng, mix, operations, write_bytes);
            let text = format!("p{number}");
            let path = round.mount_point().join(&text);
            let name = CString::new(text).unwrap_or_default();
            sys::mkdir(root.as_fd(), &name).map_err(|errno| failed("mkdirat", &path, errno))?;
            let folder =
                sys::open_dir(root.as_fd(), &name).map_err(|errno| failed("openat", &path, errno))?;
            members.push(Self { path, folder, script, block: block.clone() });
        }
        round.count("mkdirat", workers, workers);
        if let (true, Some(member)) = (mix[Op::Setxattr as usize] > 0, members.first()) {
            member.try_attribute()?;
        }
        Ok(members)
    }

    /// Finds out whether the filesystem has attributes of users at all.
    fn try_attribute(&self) -> Result<(), WorkloadError> {
        let (at, name) = (self.folder.as_fd(), c"try");
        let lost = |errno| failed("fsetxattr", &self.path.join("try"), errno);
        let file = namespace::creat(at, name).map_err(lost)?;
        let result = sys::fsetxattr(file.as_fd(), ATTRIBUTE, VALUE);
        sys::close(file).and_then(|()| sys::unlink(at, name)).map_err(lost)?;
        result.map_err(|errno| match errno {
            Errno::OPNOTSUPP => WorkloadError::Unavailable {
                what: "the attribute namespace `user` on this filesystem".to_owned(),
                next: "set `setxattr` to 0; tmpfs has user attributes since linux 6.6",
            },
            errno => lost(errno),
        })
    }

    /// Does everything in the script. Timed: system calls, their arguments, and one look at the clock
    /// after each operation.
    fn play(&self, clock: Clock) -> [Tally; OPS] {
        let mut tallies = [Tally::default(); OPS];
        let mut start = clock::now(clock);
        for step in &self.script.steps {
            let errno = match self.act(self.folder.as_fd(), step) {
                Ok(()) => 0,
                Err(errno) => errno.raw_os_error(),
            };
            let end = clock::now(clock);
            let ticks = end.saturating_sub(start);
            let tally = &mut tallies[step.op as usize];
            if ticks < LONG_TICKS {
                tally.short_ticks += ticks;
            } else {
                tally.long += 1;
            }
            tally.executed += 1;
            tally.succeeded += u64::from(errno == 0);
            tally.as_predicted += u64::from(errno == step.errno);
            start = end;
        }
        tallies
    }

    #[inline(always)]
    fn act(&self, at: BorrowedFd<'_>, step: &Step) -> Result<(), Errno> {
        let path = self.script.from(step);
        match step.op {
            Op::Creat => sys::close(namespace::creat(at, path)?),
            Op::Mkdir => sys::mkdir(at, path),
            Op::Mknod => namespace::mknod(at, path),
            Op::Symlink => namespace::symlink(TARGET, at, path),
            Op::Rmdir => sys::rmdir(at, path),
            Op::Unlink => sys::unlink(at, path),
            Op::Link => namespace::link(at, path, self.script.to(step)),
            Op::Rename => namespace::rename(at, path, self.script.to(step)),
            Op::Write => {
                let file = namespace::open_for_writing(at, path)?;
                let length = step.length as usize;
                let written = space::write_at(file.as_fd(), &self.block[..length], step.offset)?;
                // A short write is the one result that is no error and still wrong.
                sys::close(file).and(if written == length { Ok(()) } else { Err(Errno::IO) })
            }
            Op::Truncate => {
                let file = namespace::open_for_writing(at, path)?;
                space::truncate(file.as_fd(), step.offset)?;
                sys::close(file)
            }
            Op::Setxattr => {
                let file = namespace::open_for_writing(at, path)?;
                sys::fsetxattr(file.as_fd(), ATTRIBUTE, VALUE)?;
                sys::close(file)
            }
        }
    }
}

/// What became of one kind of operation.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    executed: u64,
    succeeded: u64,
    as_predicted: u64,
    long: u64,
    /// Ticks of those that were not long.
    short_ticks: u64,
}

impl Tally {
    fn numbers(&self) -> [u64; 5] {
        [self.executed, self.succeeded, self.as_predicted, self.long, self.short_ticks]
    }

    /// The sums over all processes.
    fn add_up(values: &[Vec<u64>]) -> [Self; OPS] {
        let mut sums = [Self::default(); OPS];
        for worker in values {
            for (sum, numbers) in sums.iter_mut().zip(worker.chunks_exact(5)) {
                sum.executed += numbers[0];
                sum.succeeded += numbers[1];
                sum.as_predicted += numbers[2];
                sum.long += numbers[3];
                sum.short_ticks += numbers[4];
            }
        }
        sums
    }
}

/// Records what was executed, succeeded and failed of each kind, and the system calls.
fn report(round: &mut RoundContext, tallies: &[Tally; OPS]) {
    for (op, tally) in Op::ALL.iter().zip(tallies).filter(|(_, tally)| tally.executed > 0) {
        let mut measure = |what, value| round.measure("operations", &format!("{}_{what}", op.name()), value);
        if tally.executed > tally.long {
            measure("ticks", tally.short_ticks as f64 / (tally.executed - tally.long) as f64);
        }
        measure("long", tally.long as f64);
        measure("executed", tally.executed as f64);
        measure("succeeded", tally.succeeded as f64);
        measure("failed", (tally.executed - tally.succeeded) as f64);
        for call in op.calls() {
            round.count(call, tally.executed, tally.succeeded);
        }
    }
}

/// Makes the checks.
fn judge(
    round: &mut RoundContext,
    mix: &[u64; OPS],
    members: &[Member],
    tallies: &[Tally; OPS],
) -> Result<(), WorkloadError> {
    check_mix(round, mix, tallies);
    let predicted: u64 = members.iter().map(|member| member.script.steps.len() as u64).sum();
    round.check("results", predicted, tallies.iter().map(|tally| tally.as_predicted).sum::<u64>());
    let must = |op: Op| members.iter().map(|member| member.script.successes[op as usize]).sum();
    round.check("successes", list(mix, must), list(mix, |op| tallies[op as usize].succeeded));
    let (mut expected, mut found) = (Inventory::default(), Inventory::default());
    for member in members {
        expected += member.script.inventory;
        found += inventory::take(round, &member.path)?;
    }
    round.check("objects", expected, found);
    Ok(())
}

/// Compares the shares that were asked for with those that were executed.
fn check_mix(round: &mut RoundContext, mix: &[u64; OPS], tallies: &[Tally; OPS]) {
    let operations = round.integer("operations").unwrap_or(0) * round.integer("workers").unwrap_or(0);
    let total: u64 = mix.iter().sum();
    let executed: u64 = tallies.iter().map(|tally| tally.executed).sum();
    let passed = executed > 0
        && Op::ALL.iter().all(|&op| {
            let asked = mix[op as usize] as f64 / total as f64;
            let done = tallies[op as usize].executed as f64 / executed as f64;
            (asked - done).abs() <= MIX_TOLERANCE
        });
    let must =
        format!("shares within {MIX_TOLERANCE} of {}", list(mix, |op| shares(mix, operations)[op as usize]));
    round.check_that("mix", must, list(mix, |op| tallies[op as usize].executed), passed);
}

/// `creat 3, rmdir 2`, of the kinds in `mix`.
fn list(mix: &[u64; OPS], number: impl Fn(Op) -> u64) -> String {
    let mut text = String::new();
    for op in Op::ALL.into_iter().filter(|&op| mix[op as usize] > 0) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{} {}", op.name(), number(op));
    }
    text
}

#[cfg(test)]
mod tests {
    use kdelta_wire::Round;

    use super::*;
    use crate::round::tests::request;
    use crate::run;

    fn number(value: u64) -> Setting {
        Setting::Integer(value)
    }

    fn play(parameters: &[(&str, Setting)]) -> Result<Round, WorkloadError> {
        let folder =
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder");
        run(&request("opmix/mixed", folder.path(), parameters), None)
    }

    fn quick() -> Vec<(&'static str, Setting)> {
        INFO.preset("quick").expect("a preset").values.to_vec()
    }

    fn check<'a>(round: &'a Round, name: &str) -> &'a kdelta_wire::Check {
        round.checks.iter().find(|check| check.name == name).expect("a check")
    }

    #[test]
    fn every_kind_of_operation_runs_in_its_share_and_ends_as_predicted() {
        let round = play(&quick()).expect("runs");
        assert!(round.checks.iter().all(|check| check.passed), "{round:?}");
        let phase = &round.phases[0];
        assert_eq!((phase.ops, phase.workers.len()), (440, 2));
        for name in ["creat", "mkdir", "write", "truncate"] {
            assert_eq!(phase.measures[&format!("{name}_executed")], 44.0);
            assert!(phase.measures[&format!("{name}_long")] < 44.0);
            assert!(phase.measures[&format!("{name}_ticks")] > 0.0);
        }
        assert!(phase.measures["rmdir_failed"] > 0.0);
        assert_eq!(round.census["linkat"].attempted, 44);
    }

    #[test]
    fn presets_of_the_mails_run_and_a_mix_of_one_kind_too() {
        for preset in INFO.presets {
            let mut parameters = preset.values.to_vec();
            parameters.retain(|(name, _)| *name != "operations");
            parameters.push(("operations", number(140)));
            let round = play(&parameters).unwrap_or_else(|error| panic!("{}: {error}", preset.name));
            assert!(round.checks.iter().all(|check| check.passed), "{}: {round:?}", preset.name);
        }
    }

    #[test]
    fn attributes_are_set_where_there_are_any() {
        let mut parameters = quick();
        parameters.push(("setxattr", number(1)));
        match play(&parameters) {
            Ok(round) => {
                assert!(round.checks.iter().all(|check| check.passed), "{round:?}");
                assert_eq!(round.phases[0].measures["setxattr_failed"], 0.0);
            }
            Err(error) => assert!(matches!(error, WorkloadError::Unavailable { .. }), "{error}"),
        }
    }

    #[test]
    fn a_mix_that_cannot_be_executed_fails_the_check() {
        let zero = ["mkdir", "mknod", "rmdir", "link", "rename"].map(|op| (op, number(0)));
        let mut parameters = zero.to_vec();
        parameters.extend([("operations", number(100)), ("workers", number(1)), ("unlink", number(4))]);
        let round = play(&parameters).expect("runs");
        let mix = check(&round, "mix");
        assert!(!mix.passed);
        assert_eq!(mix.expected, "shares within 0.02 of creat 20, unlink 80");
        assert_eq!(mix.actual, "creat 20, unlink 20");
        assert!(check(&round, "results").passed && check(&round, "objects").passed);
    }

    #[test]
    fn a_mix_of_nothing_is_refused() {
        let parameters =
            ["creat", "mkdir", "mknod", "rmdir", "unlink", "link", "rename"].map(|op| (op, number(0)));
        let error = play(&parameters).expect_err("nothing to do");
        assert!(error.to_string().contains("set at least one frequency above 0"), "{error}");
    }

    #[test]
    fn a_process_does_the_same_whoever_is_beside_it() {
        let script = |workers| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let parameters = [("workers", number(workers)), ("operations", number(50))];
            let mut request = request("opmix/mixed", folder.path(), &parameters);
            let scenario = &INFO.scenarios[0];
            request.scenario.parameters =
                crate::resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
            let resolved = request.scenario.parameters.clone();
            let mut round = RoundContext::for_test(request, scenario, resolved);
            let mix = mix(&round).expect("a mix");
            format!("{:?}", Member::prepare(&mut round, &mix).expect("prepares")[0].script)
        };
        assert_eq!(script(1), script(3));
    }
}
