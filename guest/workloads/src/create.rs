//! Creating many files from one process or several, in the manner of fs_mark or as fs_mark is taken
//! to do it. Read [`Create`] first; the tree is in `tree`, the rules of fs_mark are in `fs_mark`.

use kdelta_wire::Phase;

use crate::fs_mark::{self, NAMES, PHASE, REFUSED, SUBDIRS};
use crate::parallel::Share;
use crate::tree::parameters::{self as tree_parameters, DIRS, FILES, ORDER, SIZE, SYNC, THREADS, WRITE_SIZE};
use crate::tree::{Tree, spread, timed};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo,
};

const SANE: &[&str] = &["sane"];
const FS_MARK: &[&str] = &["fs_mark"];
const SPREAD: &str = "spread over folders";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "create",
    title: "create files",
    summary: "Creates files with 40-byte names; timed are open, write and close of every file. The two \
              scenarios do different work under the same parameters: their numbers are never comparable \
              with each other.",
    source: "fs_mark 3.3 in Darrick Wong's mails to linux-xfs about the cost of parent pointers (40 \
             threads, `-L 8`) and in Dave Chinner's about attributes of new inodes",
    scenarios: &[
        ScenarioInfo {
            name: "sane",
            summary: "a true round-robin over existing folders, rate = files / time; not comparable with \
                      create/fs_mark",
            default: true,
        },
        ScenarioInfo {
            name: "fs_mark",
            summary: "what fs_mark 3.3 does: paths, a failing mkdir before every file, one subdirectory per \
                      180 s, rate = sum of the threads' rates; not comparable with create/sane",
            default: false,
        },
    ],
    parameters: &[
        THREADS,
        ParameterInfo {
            summary: "folders of each process; for fs_mark its `-D`, where 1 means no subdirectories",
            ..DIRS
        },
        ParameterInfo { summary: "files of each process, in fs_mark of each iteration too (`-n`)", ..FILES },
        ParameterInfo { summary: "bytes written to each file (`-s`)", ..SIZE },
        ParameterInfo {
            summary: "bytes of one write call; the last one of a file writes what is left (`-w`)",
            ..WRITE_SIZE
        },
        ParameterInfo { scenarios: SANE, ..SYNC },
        ParameterInfo { scenarios: SANE, ..ORDER },
        ParameterInfo {
            name: "sync_method",
            summary: "fs_mark's `-S`: 0 nothing; 1 fsync before each close (its own default); 2 sync(2) after \
                      the last file, then fsync of the first; 3 open again and fsync each in reverse order; 4 \
                      sync(2), then as 3; 5 as 3 in order; 6 sync(2), then as 5",
            unit: "method",
            domain: Domain::Integer { default: 0, min: 0, max: 6 },
            scenarios: FS_MARK,
        },
        ParameterInfo {
            name: "iterations",
            summary: "fs_mark's `-L`: times that the processes are forked anew; all files are kept",
            unit: "iterations",
            domain: Domain::Integer { default: 1, min: 1, max: 64 },
            scenarios: FS_MARK,
        },
        ParameterInfo {
            name: "epoch",
            summary: "seconds since 1970 when the round begins, in place of the machine's clock: the first \
                      subdirectory and the names follow from it, so that all arms have the same; the default \
                      is the moment of the mailed run",
            unit: "seconds",
            domain: Domain::Integer { default: 1_765_376_527, min: 1, max: 1 << 33 },
            scenarios: FS_MARK,
        },
    ],
    limits: tree_parameters::LIMITS,
    phases: &[PhaseInfo {
        name: PHASE,
        operation: "one file opened, written and closed; fs_mark's part is the whole run, with forks and \
                    waits, as time(1) sees it",
        primary: true,
        scenarios: &[],
    }],
    measures: MEASURES,
    checks: &[
        CheckInfo {
            name: "files",
            summary: "a walk afterwards finds every file that was created, and no other",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_census_that_differs_fails_the_checks"),
        },
        CheckInfo {
            name: "bytes",
            summary: "the files have the size that was written",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "sane", inject: "write:retval=600:when=7" },
        },
        CheckInfo {
            name: SPREAD,
            summary: "the files are in as many folders as the order says, evenly",
            scenarios: SANE,
            filesystems: &[],
            proof: Proof::Test("a_census_that_differs_fails_the_checks"),
        },
        CheckInfo {
            name: SUBDIRS,
            summary: "a walk finds the subdirectories that the clock and the 180 s rule say, and no other",
            scenarios: FS_MARK,
            filesystems: &[],
            proof: Proof::Test("a_census_that_differs_fails_the_checks"),
        },
        CheckInfo {
            name: REFUSED,
            summary: "every mkdir but the first of each subdirectory failed with EEXIST",
            scenarios: FS_MARK,
            filesystems: &[],
            proof: Proof::Injection { scenario: "fs_mark", inject: "mkdir:retval=0:when=5" },
        },
        CheckInfo {
            name: NAMES,
            summary: "names are a second in hexadecimal, tildes up to 16, and 24 capital letters or digits",
            scenarios: FS_MARK,
            filesystems: &[],
            proof: Proof::Test("a_census_that_differs_fails_the_checks"),
        },
    ],
    refusals: &[],
    scale: "files",
    presets: &[
        tree_parameters::SOURCE,
        tree_parameters::SOURCE_1M,
        tree_parameters::SOURCE_MAILDIR,
        tree_parameters::GUEST,
        Preset {
            name: "quick",
            summary: "two processes with 30 small files each, in fs_mark twice, for a first look",
            values: &[
                (THREADS.name, Setting::Integer(2)),
                (DIRS.name, Setting::Integer(3)),
                (FILES.name, Setting::Integer(30)),
                (SIZE.name, Setting::Integer(1_000)),
                (WRITE_SIZE.name, Setting::Integer(600)),
                ("iterations", Setting::Integer(2)),
            ],
        },
    ],
};

const fn measure(
    scenarios: &'static [&'static str],
    name: &'static str,
    unit: &'static str,
    better: Better,
    summary: &'static str,
) -> MeasureInfo {
    MeasureInfo { name, phase: PHASE, summary, unit, better, scenarios }
}

use Better::{Higher, Lower, Neither};

/// Numbers of a single iteration of fs_mark have its number, from 1, after a `#`.
const MEASURES: &[MeasureInfo] = &[
    measure(SANE, "rate", "files/s", Higher, "all files divided by the time of the phase"),
    measure(SANE, "slowest_thread", "files/s", Higher, "files of a process divided by its own time, lowest"),
    measure(SANE, "fastest_thread", "files/s", Higher, "files of a process divided by its own time, highest"),
    measure(SANE, "start_skew", "ticks", Neither, "from the first process's beginning to the last one's"),
    measure(SANE, "finish_skew", "ticks", Neither, "from the first process's end to the last one's"),
    measure(FS_MARK, "fsuse_percent", "%", Neither, "FSUse% after the last iteration, not cut to an integer"),
    measure(FS_MARK, "count", "files", Neither, "Count: files of all iterations so far"),
    measure(FS_MARK, "size", "bytes", Neither, "Size"),
    measure(FS_MARK, "files_per_sec", "files/s", Higher, "Files/sec: sum of the threads' rates; mean"),
    measure(FS_MARK, "app_overhead_us", "us", Lower, "App Overhead: the threads' time outside calls; mean"),
    measure(FS_MARK, "creat_min", "ticks", Lower, "open(2), the quickest"),
    measure(FS_MARK, "creat_avg", "ticks", Lower, "open(2), mean over files, threads and iterations"),
    measure(FS_MARK, "creat_max", "ticks", Lower, "open(2), the slowest"),
    measure(FS_MARK, "write_min", "ticks", Lower, "write(2), the quickest"),
    measure(FS_MARK, "write_avg", "ticks", Lower, "write(2), mean over files of the mean of each"),
    measure(FS_MARK, "write_max", "ticks", Lower, "write(2), the slowest"),
    measure(
        FS_MARK,
        "fsync_min",
        "ticks",
        Lower,
        "fsync(2), the quickest; methods 2 to 6 with open and close",
    ),
    measure(FS_MARK, "fsync_avg", "ticks", Lower, "fsync(2), mean over files; 0 without"),
    measure(FS_MARK, "fsync_max", "ticks", Lower, "fsync(2), the slowest"),
    measure(FS_MARK, "sync_min", "ticks", Lower, "sync(2) after the last file, the quickest"),
    measure(FS_MARK, "sync_avg", "ticks", Lower, "sync(2) after the last file, mean over threads"),
    measure(FS_MARK, "sync_max", "ticks", Lower, "sync(2) after the last file, the slowest"),
    measure(FS_MARK, "close_min", "ticks", Lower, "close(2), the quickest"),
    measure(FS_MARK, "close_avg", "ticks", Lower, "close(2), mean over files, threads and iterations"),
    measure(FS_MARK, "close_max", "ticks", Lower, "close(2), the slowest"),
    measure(
        FS_MARK,
        "subdirs_used",
        "folders",
        Neither,
        "subdirectories that a walk found in all -d folders",
    ),
    measure(
        FS_MARK,
        "real_to_implied",
        "ratio",
        Neither,
        "time of the phase to the time that Files/sec implies: 1.05 in the mailed run of 40 threads",
    ),
];

/// The workload `create`.
pub(crate) struct Create;

impl Workload for Create {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        if round.scenario() == "fs_mark" { fs_mark::round(round) } else { sane(round) }
    }
}

fn sane(round: &mut RoundContext) -> Result<(), WorkloadError> {
    let tree = Tree::prepare(round, 1)?;
    round.sync()?;
    timed(round, PHASE, &mut tree.branches(), |branch| branch.create().map(Share::of))?;
    tree.count_creation(round);
    if let Some(phase) = round.latest(PHASE) {
        for (name, value) in rates(phase) {
            round.measure(PHASE, name, value);
        }
    }
    verify(round, &tree)
}

/// Checks what is on the filesystem.
fn verify(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    let found = tree.survey(round)?;
    round.check("files", tree.file_count(), found.files);
    round.check("bytes", tree.total_bytes(), found.bytes);
    round.check(SPREAD, tree.planned_spread(), spread(found.used, found.fewest, found.most));
    Ok(())
}

/// Rate of the whole and of its workers, and how far they were apart.
fn rates(phase: &Phase) -> Vec<(&'static str, f64)> {
    let per_second = |ops: u64, ticks: u64| ops as f64 / ticks.max(1) as f64 * 1e9;
    let whole = per_second(phase.ops, phase.elapsed);
    let workers = || phase.workers.iter();
    let own = || workers().map(|worker| per_second(worker.ops, worker.elapsed));
    let skew = |moments: Vec<u64>| match (moments.iter().min(), moments.iter().max()) {
        (Some(first), Some(last)) => (last - first) as f64,
        _ => 0.0,
    };
    vec![
        ("rate", whole),
        ("slowest_thread", own().reduce(f64::min).unwrap_or(whole)),
        ("fastest_thread", own().reduce(f64::max).unwrap_or(whole)),
        ("start_skew", skew(workers().map(|worker| worker.started).collect())),
        ("finish_skew", skew(workers().map(|worker| worker.started + worker.elapsed).collect())),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kdelta_wire::{Parameters, Round, RoundRequest, Worker};

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{find, resolve, run};

    const MOMENT: u64 = 1_765_376_527;

    fn number(value: u64) -> Setting {
        Setting::Integer(value)
    }

    fn context(name: &str, folder: &Path, given: &[(&str, Setting)]) -> RoundContext {
        let request: RoundRequest = request(name, folder, given);
        let scenario = find(name).expect("known").scenario;
        let parameters: Parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        RoundContext::for_test(request, scenario, parameters)
    }

    fn failed(round: &Round) -> Vec<&str> {
        round.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect()
    }

    #[test]
    fn files_have_the_size_and_the_census_in_every_order_and_with_fsync() {
        for (order, sync, size, threads) in [
            ("round-robin", "none", 0, 1),
            ("per-directory", "none", 2000, 3),
            ("round-robin", "fsync", 778, 2),
        ] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let parameters = [
                ("threads", number(threads)),
                ("dirs", number(3)),
                ("files", number(7)),
                ("size", number(size)),
                ("write_size", number(778)),
                ("order", Setting::Text(order)),
                ("sync", Setting::Text(sync)),
            ];
            let round = run(&request("create/sane", folder.path(), &parameters), None).expect("runs");
            assert_sound(&round);
            let phase = &round.phases[0];
            assert_eq!((phase.ops, round.parameters.len()), (7 * threads, 7));
            assert_eq!(phase.workers.len() as u64, if threads == 1 { 0 } else { threads });
            assert!(phase.measures["slowest_thread"] <= phase.measures["fastest_thread"], "{phase:?}");
            assert_eq!(round.census["mkdirat"].attempted, threads * 4);
            let writes = round.census.get("write").map_or(0, |count| count.attempted);
            assert_eq!(writes, 7 * threads * size.div_ceil(778));
        }
    }

    #[test]
    fn round_robin_and_per_directory_spread_the_same_names_differently() {
        let first_names = |order| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let parameters = [("dirs", number(2)), ("files", number(6)), ("order", Setting::Text(order))];
            run(&request("create/sane", folder.path(), &parameters), None).expect("runs");
            let entries = std::fs::read_dir(folder.path().join("t00/d0000")).expect("a folder");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            names.iter().map(|name| name.to_string_lossy()[15..16].to_owned()).collect::<String>()
        };
        assert_eq!(first_names("round-robin"), "024");
        assert_eq!(first_names("per-directory"), "012");
    }

    #[test]
    fn more_folders_than_files_leave_the_rest_empty() {
        for (order, spread) in
            [("round-robin", "5 folders with 1 to 1 files"), ("per-directory", "5 folders with 1 to 1 files")]
        {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let given = [("dirs", number(9)), ("files", number(5)), ("order", Setting::Text(order))];
            let round = run(&request("create/sane", folder.path(), &given), None).expect("runs");
            assert_sound(&round);
            assert_eq!(round.checks.last().expect("a check").actual, spread);
        }
    }

    /// The rate of the whole is no sum: two workers of 10 and 5 files a second that began together
    /// and made 10 each took 2 s.
    #[test]
    fn the_rate_is_files_over_time_and_the_threads_are_apart_by_their_skew() {
        let worker = |started, elapsed| Worker { ops: 10, started, elapsed, cpu_ns: 0 };
        let second = 1_000_000_000;
        let workers = vec![worker(0, second), worker(1000, 2 * second)];
        let phase = Phase { ops: 20, elapsed: 2 * second + 1000, workers, ..Phase::default() };
        let rates = rates(&phase);
        assert!((rates[0].1 - 10.0).abs() < 0.001, "{rates:?}");
        let skew = (second + 1000) as f64;
        let rest = [
            ("slowest_thread", 5.0),
            ("fastest_thread", 10.0),
            ("start_skew", 1000.0),
            ("finish_skew", skew),
        ];
        assert_eq!(rates[1..], rest);
    }

    /// Traps A and B in a real run: every file of an iteration is in one subdirectory of ten, and is
    /// preceded by a mkdir that fails for all but the first.
    #[test]
    fn fs_mark_fills_one_subdirectory_and_makes_it_anew_for_every_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let given = [
            ("threads", number(2)),
            ("dirs", number(10)),
            ("files", number(5)),
            ("size", number(0)),
            ("iterations", number(3)),
        ];
        let round = run(&request("create/fs_mark", folder.path(), &given), None).expect("runs");
        assert!(failed(&round).is_empty(), "{round:?}");
        for top in ["0", "1"] {
            let entries = std::fs::read_dir(folder.path().join(top)).expect("a folder");
            let names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            assert_eq!(names, [format!("{:02x}", MOMENT % 10).as_str()]);
        }
        let count = |call: &str| (round.census[call].attempted, round.census[call].succeeded);
        assert_eq!((count("mkdir"), count("write")), ((36, 2), (30, 30)), "writes of nothing are made");
        let phase = &round.phases[0];
        assert_eq!((phase.ops, phase.workers.len()), (30, 6));
        assert_eq!((phase.measures["count#1"], phase.measures["count"]), (10.0, 30.0));
        assert_eq!((phase.measures["subdirs_used"], phase.measures["size"]), (2.0, 0.0));
        assert!(phase.measures["real_to_implied"] > 1.0, "{phase:?}");
        let declared = |name: &str| {
            let name = name.split('#').next().unwrap_or_default();
            MEASURES.iter().any(|measure| measure.name == name && measure.scenarios == FS_MARK)
        };
        assert!(phase.measures.keys().all(|name| declared(name)), "{:?}", phase.measures);
    }

    #[test]
    fn every_sync_method_makes_its_calls() {
        for (method, opens, fsyncs, syncs) in
            [(0, 4, 0, 0), (1, 4, 4, 0), (2, 5, 1, 1), (3, 8, 4, 0), (4, 8, 4, 1), (5, 8, 4, 0), (6, 8, 4, 1)]
        {
            let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
            let given = [
                ("dirs", number(1)),
                ("files", number(4)),
                ("size", number(900)),
                ("write_size", number(400)),
                ("sync_method", number(method)),
            ];
            let round = run(&request("create/fs_mark", folder.path(), &given), None).expect("runs");
            assert!(failed(&round).is_empty(), "{round:?}");
            let count = |call: &str| round.census.get(call).map_or(0, |count| count.attempted);
            // A walk of the top folder opens and closes one more.
            assert_eq!(
                (count("openat"), count("fsync"), count("sync")),
                (opens + 1, fsyncs, syncs),
                "{method}"
            );
            assert_eq!((count("write"), count("mkdir")), (12, 5));
        }
    }

    #[test]
    fn a_census_that_differs_fails_the_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut round = context("create/sane", folder.path(), &[("dirs", number(2)), ("files", number(6))]);
        let tree = Tree::prepare(&mut round, 1).expect("folders");
        tree.fill(&mut round).expect("files");
        std::fs::write(folder.path().join("t00/d0001/stray"), "12345").expect("a stray file");
        verify(&mut round, &tree).expect("a census");
        assert_eq!(failed(&round.finish()), ["files", "bytes", SPREAD]);

        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut round = context("create/fs_mark", folder.path(), &[("files", number(6))]);
        fs_mark::round_with(&mut round, || {
            std::fs::create_dir(folder.path().join("0/ff")).expect("a folder");
            std::fs::write(folder.path().join("0/ff/stray"), "12345").expect("a stray file");
        })
        .expect("runs");
        let round = round.finish();
        assert_eq!(failed(&round), ["files", "bytes", SUBDIRS]);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut round = context("create/fs_mark", folder.path(), &[("files", number(6))]);
        fs_mark::round_with(&mut round, || {
            let subdir = folder.path().join(format!("0/{:02x}", MOMENT % 10));
            let file = std::fs::read_dir(&subdir).expect("a folder").next().expect("a file");
            std::fs::rename(file.expect("a file").path(), subdir.join("other")).expect("renamed");
        })
        .expect("runs");
        assert_eq!(failed(&round.finish()), [NAMES]);
    }

    #[test]
    fn a_folder_that_is_there_already_is_an_error_with_its_path() {
        for (scenario, name) in [("create/sane", "t00"), ("create/fs_mark", "0")] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
            let error = run(&request(scenario, folder.path(), &[]), None).expect_err("exists");
            let path = folder.path().join(name).display().to_string();
            assert_eq!(error, WorkloadError::Call { call: "mkdirat", path, errno: libc::EEXIST });
        }
    }
}
