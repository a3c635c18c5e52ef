//! Walking trees of files as find(1) and ls(1) do. Read [`Walk`] first; the walks are in `entries`.

use kdelta_wire::FilesystemKind;

use crate::entries::{Buffers, Listing, Survey, walk};
use crate::parallel::Share;
use crate::round::{COLD, READ, c_path, failed};
use crate::tree::parameters::{self as tree_parameters, DIRS, FILES, SIZE, THREADS, WRITE_SIZE};
use crate::tree::{Tree, timed};
use crate::{
    CheckInfo, PhaseInfo, Preset, Proof, Refusal, RoundContext, ScenarioInfo, Setting, Workload,
    WorkloadError, WorkloadInfo,
};

const FIND: &[&str] = &["find", "find-cold"];
const FROM_DISK: &[&str] = &["find-cold", "ls-cold"];
const PHASE: &str = "walk";
const ENTRIES: &str = "entries";
const BYTES: &str = "bytes";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "walk",
    title: "walk over files",
    summary: "Visits every file that `create` makes, one process for each top folder; making them is not \
              timed. find looks at every inode, ls -R takes the type from the folder's entry.",
    source: "the phases between fs_mark and rm in Dave Chinner's benchmark of XFS metadata, named in the mails \
             to linux-xfs about the cost of parent pointers",
    scenarios: &[
        ScenarioInfo {
            name: "find",
            summary: "getdents64(2), and statx(2) of every entry, right after creation",
            default: true,
        },
        ScenarioInfo { name: "find-cold", summary: "the same after dropping the caches", default: false },
        ScenarioInfo {
            name: "ls",
            summary: "getdents64(2) alone, as `ls -R`, right after creation",
            default: true,
        },
        ScenarioInfo { name: "ls-cold", summary: "the same after dropping the caches", default: false },
    ],
    parameters: &[THREADS, DIRS, FILES, SIZE, WRITE_SIZE],
    limits: tree_parameters::LIMITS,
    phases: &[PhaseInfo {
        name: PHASE,
        operation: "one file or folder visited, its folder's opening and reading included",
        primary: true,
        scenarios: &[],
    }],
    measures: &[],
    checks: &[
        CheckInfo {
            name: ENTRIES,
            summary: "as many files and folders were visited as were made",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "ls", inject: "getdents64:retval=0:when=2" },
        },
        CheckInfo {
            name: BYTES,
            summary: "the sizes that statx(2) told are those of the files",
            scenarios: FIND,
            filesystems: &[],
            proof: Proof::Injection { scenario: "find", inject: "statx:retval=0:when=5" },
        },
        CheckInfo {
            name: COLD,
            summary: "nine tenths of the inodes were dropped from memory",
            scenarios: FROM_DISK,
            filesystems: &[],
            proof: Proof::Test("a_cache_that_stays_warm_fails_the_checks"),
        },
        CheckInfo {
            name: READ,
            summary: "the walk read from the device",
            scenarios: FROM_DISK,
            filesystems: &[],
            proof: Proof::Test("a_cache_that_stays_warm_fails_the_checks"),
        },
    ],
    refusals: &[Refusal {
        filesystems: &[FilesystemKind::Tmpfs],
        scenarios: FROM_DISK,
        reason: "tmpfs has no disk to read from again: its files live in the caches",
    }],
    scale: "files",
    presets: &[
        Preset {
            name: "source",
            summary: "the files of one thread and iteration of `fs_mark -D 10000 -n 100000 -s 0`",
            values: &[(DIRS.name, Setting::Integer(10_000)), (FILES.name, Setting::Integer(100_000))],
        },
        Preset {
            name: "guest",
            summary: "10,000 empty files, which fit a guest of 1 GiB",
            values: &[(DIRS.name, Setting::Integer(10)), (FILES.name, Setting::Integer(10_000))],
        },
        Preset {
            name: "quick",
            summary: "two processes with 30 small files each, for a first look",
            values: &[
                (THREADS.name, Setting::Integer(2)),
                (DIRS.name, Setting::Integer(3)),
                (FILES.name, Setting::Integer(30)),
                (SIZE.name, Setting::Integer(1_000)),
            ],
        },
    ],
};

/// The workload `walk`.
pub(crate) struct Walk;

impl Workload for Walk {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mut tree = Tree::prepare(round, 1)?;
        tree.fill(round)?;
        tree.close();
        let cold = FROM_DISK.contains(&round.scenario());
        if cold {
            round.make_cold(tree.file_count())?;
        } else {
            round.sync()?;
        }
        let kib = round.kib_read()?;
        if FIND.contains(&round.scenario()) {
            let bytes = find(round, PHASE, ENTRIES, &tree)?;
            round.check(BYTES, tree.total_bytes(), bytes);
        } else {
            list(round, PHASE, ENTRIES, &tree)?;
        }
        if cold {
            round.check_read(kib)?;
        }
        Ok(())
    }
}

/// Times statx(2) of everything in the top folders as `phase`, and checks as `check` how much that
/// was; the bytes of all files.
pub(crate) fn find(
    round: &mut RoundContext,
    phase: &'static str,
    check: &str,
    tree: &Tree,
) -> Result<u64, WorkloadError> {
    let mut members = Vec::new();
    for branch in tree.branches() {
        members.push((branch.path(), c_path(branch.path())?, Buffers::new(), Survey::new()));
    }
    let values = timed(round, phase, &mut members, |(path, c_path, buffers, survey)| {
        let opened = walk(c_path, buffers, survey).map_err(|(call, errno)| failed(call, path, errno))?;
        let values = vec![survey.files, survey.dirs, opened, survey.looked_at, survey.bytes];
        Ok(Share { ops: survey.looked_at, values })
    })?;
    let [files, dirs, opened, looked_at, bytes] = sum(&values);
    count(round, opened);
    round.count("statx", looked_at, looked_at);
    check_entries(round, check, tree, files, dirs);
    Ok(bytes)
}

/// Times getdents64(2) of every folder as `phase`, and checks as `check` how much there was.
pub(crate) fn list(
    round: &mut RoundContext,
    phase: &'static str,
    check: &str,
    tree: &Tree,
) -> Result<(), WorkloadError> {
    let mut members = Vec::new();
    for branch in tree.branches() {
        members.push((branch.path(), c_path(branch.path())?, Buffers::new()));
    }
    let values = timed(round, phase, &mut members, |(path, c_path, buffers)| {
        let mut listing = Listing::default();
        let opened =
            walk(c_path, buffers, &mut listing).map_err(|(call, errno)| failed(call, path, errno))?;
        let Listing { files, dirs } = listing;
        Ok(Share { ops: files + dirs, values: vec![files, dirs, opened] })
    })?;
    let [files, dirs, opened] = sum(&values);
    count(round, opened);
    check_entries(round, check, tree, files, dirs);
    Ok(())
}

/// Sums of what workers handed back, place by place.
fn sum<const COUNT: usize>(values: &[Vec<u64>]) -> [u64; COUNT] {
    std::array::from_fn(|place| values.iter().filter_map(|numbers| numbers.get(place)).sum())
}

fn count(round: &mut RoundContext, opened: u64) {
    round.count("openat", opened, opened);
    round.count("close", opened, opened);
}

fn check_entries(round: &mut RoundContext, check: &str, tree: &Tree, files: u64, dirs: u64) {
    let text = |files: u64, dirs: u64| format!("{files} files, {dirs} folders");
    round.check(check, text(tree.file_count(), tree.dir_count()), text(files, dirs));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    const SMALL: [(&str, Setting); 4] = [
        ("threads", Setting::Integer(2)),
        ("dirs", Setting::Integer(4)),
        ("files", Setting::Integer(10)),
        ("size", Setting::Integer(3)),
    ];

    #[test]
    fn every_entry_is_visited_by_find_and_ls() {
        for (name, looked_at) in [("walk/find", 28), ("walk/ls", 0)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let round = run(&request(name, folder.path(), &SMALL), None).expect("runs");
            assert_sound(&round);
            assert_eq!((round.phases[0].ops, round.phases[0].workers.len()), (28, 2), "{name}");
            assert_eq!(round.census.get("statx").map_or(0, |count| count.attempted), looked_at);
            assert_eq!(round.census["openat"].attempted, 20 + 10, "{name}");
        }
    }

    #[test]
    fn a_cache_that_stays_warm_fails_the_checks() {
        let request = request("walk/find", &std::env::temp_dir(), &SMALL);
        let scenario = INFO.scenario("find").expect("known");
        let mut round = RoundContext::for_test(request, scenario, Default::default());
        round.check_dropped(15, 14);
        round.check_read(u64::MAX).expect("counters");
        assert!(round.finish().checks.iter().all(|check| !check.passed));
    }

    #[test]
    fn tmpfs_is_never_cold() {
        for scenario in FROM_DISK {
            let scenario = INFO.scenario(scenario).expect("known");
            assert!(INFO.refusal(scenario, FilesystemKind::Tmpfs).is_some());
            assert_eq!(INFO.refusal(scenario, FilesystemKind::Btrfs), None);
        }
    }

    #[test]
    #[ignore = "drops the caches of the whole machine, which needs root"]
    fn cold_files_are_visited() {
        for scenario in FROM_DISK {
            let folder = tempfile::tempdir_in("/var/tmp").expect("a temporary folder");
            let mut request = request(&format!("walk/{scenario}"), folder.path(), &SMALL);
            request.filesystem = FilesystemKind::Ext4;
            assert_sound(&run(&request, None).expect("runs"));
        }
    }
}
