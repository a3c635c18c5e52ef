//! The whole life of many files as phases of one round, one table. Read [`Meta`] first; every phase is
//! another workload's.

use std::os::fd::AsFd;

use kdelta_wire::FilesystemKind;

use crate::parallel::Share;
use crate::round::{COLD, READ, failed, open_root};
use crate::tree::parameters::{self as tree_parameters};
use crate::tree::{LEFT, Tree, timed};
use crate::{
    CheckInfo, PhaseInfo, Proof, Refusal, RoundContext, ScenarioInfo, Workload, WorkloadError, WorkloadInfo,
    bulkstat, sys, unlink, walk,
};

const HOT: &str = "inodes, hot";
const COLD_SCAN: &str = "inodes, cold";
const FOUND: &str = "entries of find";
const LISTED: &str = "entries of ls";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "meta",
    title: "files from creation to removal",
    summary: "Creates files, reads all inodes hot and cold, walks over them, removes them and waits for the \
              filesystem: what a reviewer of a metadata change wants to see side by side.",
    source: "fs_mark, bulkstat, find, ls and rm in one script, in Darrick Wong's and Dave Chinner's mails to \
             linux-xfs",
    scenarios: &[ScenarioInfo {
        name: "suite",
        summary: "create, sync, scan hot, drop caches, scan cold, find, ls, remove, quiesce",
        default: true,
    }],
    parameters: &[
        tree_parameters::THREADS,
        tree_parameters::DIRS,
        tree_parameters::FILES,
        tree_parameters::SIZE,
        tree_parameters::WRITE_SIZE,
        tree_parameters::SYNC,
        tree_parameters::ORDER,
        bulkstat::BATCH,
    ],
    limits: tree_parameters::LIMITS,
    phases: &[
        phase("create", "one file opened, written and closed", true),
        phase("sync", "one file created before; the time is syncfs", false),
        phase("scan-hot", SCAN, false),
        phase("scan-cold", SCAN, false),
        phase("find", "one file or folder found and looked at by statx, after the cold scan", false),
        phase("ls", "one file or folder listed, after find", false),
        phase("remove", "one file or folder removed, as `rm -rf`", false),
        phase("quiesce", "one file removed before; the time is syncfs and, in a guest, unmount", false),
    ],
    measures: &[],
    checks: &[
        CheckInfo {
            name: "files",
            summary: "a walk after creation finds every file and no other",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_checks"),
        },
        CheckInfo {
            name: "bytes",
            summary: "the files have the size that was written",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_checks"),
        },
        CheckInfo {
            name: HOT,
            summary: "the scan before dropping the caches found every inode",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_checks"),
        },
        CheckInfo {
            name: COLD,
            summary: "nine tenths of the inodes were dropped from memory",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_cache_that_stays_warm_fails_the_checks"),
        },
        CheckInfo {
            name: COLD_SCAN,
            summary: "the scan after dropping the caches found every inode",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_checks"),
        },
        CheckInfo {
            name: READ,
            summary: "the cold scan read from the device",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_cache_that_stays_warm_fails_the_checks"),
        },
        CheckInfo {
            name: FOUND,
            summary: "find visited every file and folder",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_checks"),
        },
        CheckInfo {
            name: LISTED,
            summary: "ls visited every file and folder",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_checks"),
        },
        CheckInfo {
            name: LEFT,
            summary: "a walk after removal finds nothing",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("what_cannot_be_removed_fails_the_check"),
        },
    ],
    refusals: &[Refusal {
        filesystems: &[FilesystemKind::Tmpfs],
        scenarios: &[],
        reason: "tmpfs has no disk to read from again, hence no cold phases; create, walk and unlink have the \
                 others",
    }],
    scale: "files",
    presets: tree_parameters::PRESETS,
};

const SCAN: &str = "one inode looked at: by XFS_IOC_BULKSTAT on XFS, by walking and statx elsewhere";

const fn phase(name: &'static str, operation: &'static str, primary: bool) -> PhaseInfo {
    PhaseInfo { name, operation, primary, scenarios: &[] }
}

/// The workload `meta`.
pub(crate) struct Meta;

impl Workload for Meta {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mut tree = Tree::prepare(round, 1)?;
        round.sync()?;
        timed(round, "create", &mut tree.branches(), |branch| branch.create().map(Share::of))?;
        tree.count_creation(round);
        tree.close();
        sync(round, tree.file_count())?;
        examine(round, &tree)?;
        unlink::remove(round, "remove", &tree)?;
        let files = tree.file_count();
        tree.finish_removal(round)?;
        round.quiesce(files)
    }
}

/// Times how long what was created takes to reach the device.
fn sync(round: &mut RoundContext, files: u64) -> Result<(), WorkloadError> {
    let path = round.mount_point().to_owned();
    let root = open_root(&path)?;
    round
        .phase("sync", files, || sys::syncfs(root.as_fd()).map_err(|errno| failed("syncfs", &path, errno)))?;
    drop(root);
    round.sync()
}

/// The phases between creation and removal.
fn examine(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    let created = tree.survey(round)?;
    round.check("files", tree.file_count(), created.files);
    round.check("bytes", tree.total_bytes(), created.bytes);
    scan(round, "scan-hot", HOT, tree)?;
    round.make_cold(tree.file_count())?;
    let kib = round.kib_read()?;
    scan(round, "scan-cold", COLD_SCAN, tree)?;
    round.check_read(kib)?;
    walks(round, tree)
}

fn walks(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    walk::find(round, "find", FOUND, tree)?;
    walk::list(round, "ls", LISTED, tree)
}

/// Looks at every inode in the way that the filesystem is best at.
fn scan(
    round: &mut RoundContext,
    phase: &'static str,
    check: &str,
    tree: &Tree,
) -> Result<(), WorkloadError> {
    match round.filesystem() {
        FilesystemKind::Xfs => bulkstat::scan(round, phase, check, tree),
        _ => walk::find(round, phase, check, tree).map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{Setting, resolve, run};

    const SMALL: [(&str, Setting); 4] = [
        ("threads", Setting::Integer(2)),
        ("dirs", Setting::Integer(3)),
        ("files", Setting::Integer(20)),
        ("size", Setting::Integer(9)),
    ];

    fn filled(folder: &Path) -> (RoundContext, Tree) {
        let mut request = request("meta/suite", folder, &SMALL);
        request.filesystem = FilesystemKind::Ext4;
        let parameters = resolve(&INFO, &INFO.scenarios[0], &request.scenario.parameters).expect("allowed");
        let mut round = RoundContext::for_test(request, &INFO.scenarios[0], parameters);
        let mut tree = Tree::prepare(&mut round, 1).expect("folders");
        tree.fill(&mut round).expect("files");
        tree.close();
        (round, tree)
    }

    #[test]
    fn a_file_too_many_fails_the_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut round, tree) = filled(folder.path());
        std::fs::write(folder.path().join("t01/d0002/stray"), "1").expect("a stray file");
        let created = tree.survey(&mut round).expect("a survey");
        round.check("files", tree.file_count(), created.files);
        round.check("bytes", tree.total_bytes(), created.bytes);
        scan(&mut round, "scan-hot", HOT, &tree).expect("a scan");
        scan(&mut round, "scan-cold", COLD_SCAN, &tree).expect("a scan");
        walks(&mut round, &tree).expect("walks");
        let checks = round.finish().checks;
        let failed: Vec<_> =
            checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect();
        assert_eq!(failed, ["files", "bytes", HOT, COLD_SCAN, FOUND, LISTED]);
    }

    #[test]
    fn what_cannot_be_removed_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut round, tree) = filled(folder.path());
        unlink::remove(&mut round, "remove", &tree).expect("removes");
        std::fs::create_dir_all(folder.path().join("t00/d0000")).expect("a folder");
        tree.finish_removal(&mut round).expect("a survey");
        let check = round.finish().checks.pop().expect("a check");
        assert_eq!(
            (check.name.as_str(), check.actual.as_str(), check.passed),
            (LEFT, "0 files, 1 folders", false)
        );
    }

    #[test]
    fn a_cache_that_stays_warm_fails_the_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut round, _) = filled(folder.path());
        round.check_dropped(15, 14);
        round.check_read(u64::MAX).expect("counters");
        assert!(round.finish().checks.iter().all(|check| !check.passed));
    }

    #[test]
    fn tmpfs_is_refused_with_the_reason() {
        let error = run(&request("meta/suite", Path::new("/tmp"), &SMALL), None).expect_err("refused");
        assert!(error.to_string().contains("no cold phases"), "{error}");
    }

    #[test]
    #[ignore = "drops the caches of the whole machine, which needs root"]
    fn every_phase_runs_in_order() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a temporary folder");
        let mut request = request("meta/suite", folder.path(), &SMALL);
        request.filesystem = FilesystemKind::Ext4;
        let round = run(&request, None).expect("runs");
        assert_sound(&round);
        let phases: Vec<_> = round.phases.iter().map(|phase| phase.name.as_str()).collect();
        assert_eq!(phases, INFO.phases.iter().map(|phase| phase.name).collect::<Vec<_>>());
    }
}
