//! Every inode of an XFS by `XFS_IOC_BULKSTAT`, one worker for each allocation group, as `bulkstat -a`
//! of xfs_io(8). Read [`Bulkstat`] first, then [`scan`].

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use kdelta_wire::FilesystemKind;
use rustix::io::Errno;

use crate::parallel::{Crew, Share};
use crate::round::{COLD, READ, failed, open_root};
use crate::sys::ioctls::{BulkRequest, Record, allocation_groups};
use crate::tree::Tree;
use crate::tree::parameters::{self as tree_parameters, DIRS, FILES, SIZE, THREADS, WRITE_SIZE};
use crate::{
    CheckInfo, Domain, ParameterInfo, PhaseInfo, Preset, Proof, Refusal, RoundContext, ScenarioInfo, Setting,
    Workload, WorkloadError, WorkloadInfo,
};

const FROM_DISK: &[&str] = &["drop-caches", "remount"];
const PHASE: &str = "bulkstat";
const INODES: &str = "inodes";
const RECORDS: &str = "records";

/// Inodes that one call may return.
pub(crate) const BATCH: ParameterInfo = ParameterInfo {
    name: "batch",
    summary: "inodes that one XFS_IOC_BULKSTAT may return; the default is that of xfs_io",
    unit: "inodes",
    domain: Domain::Integer { default: 4096, min: 1, max: 65_536 },
    scenarios: &[],
};

static INFO: WorkloadInfo = WorkloadInfo {
    name: "bulkstat",
    title: "read all inodes of an XFS",
    summary: "Asks XFS for the attributes of every inode, one thread for each allocation group; what it \
              answers is looked at afterwards only, as with `-q`. Making the files is not timed.",
    source: "the parallel bulkstat in Darrick Wong's mails to linux-xfs about the cost of parent pointers",
    scenarios: &[
        ScenarioInfo {
            name: "hot",
            summary: "right after creation, with every inode still in memory",
            default: true,
        },
        ScenarioInfo { name: "drop-caches", summary: "after dropping the caches", default: false },
        ScenarioInfo { name: "remount", summary: "after unmounting and mounting again", default: false },
    ],
    parameters: &[THREADS, DIRS, FILES, SIZE, WRITE_SIZE, BATCH],
    limits: tree_parameters::LIMITS,
    phases: &[PhaseInfo { name: PHASE, operation: "one inode returned", primary: true, scenarios: &[] }],
    measures: &[],
    checks: &[
        CheckInfo {
            name: INODES,
            summary: "the groups returned as many inodes as there are files and folders, the root among them",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_call_that_is_not_made_fails_the_check_of_inodes"),
        },
        CheckInfo {
            name: RECORDS,
            summary: "a second pass finds the files with their size, and the folders, in what is returned",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("records_that_are_not_the_files_fail_the_check"),
        },
        CheckInfo {
            name: COLD,
            summary: "nine tenths of the inodes were dropped from memory",
            scenarios: &["drop-caches"],
            filesystems: &[],
            proof: Proof::Test("a_cache_that_stays_warm_fails_the_checks"),
        },
        CheckInfo {
            name: READ,
            summary: "bulkstat read from the device",
            scenarios: FROM_DISK,
            filesystems: &[],
            proof: Proof::Test("a_cache_that_stays_warm_fails_the_checks"),
        },
    ],
    refusals: &[Refusal {
        filesystems: &[FilesystemKind::Tmpfs, FilesystemKind::Ext4, FilesystemKind::Btrfs],
        scenarios: &[],
        reason: "bulkstat is an ioctl(2) of XFS; walk/find looks at every inode of any filesystem",
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
            summary: "4 x 5,000 empty files, one top folder for each of the four groups of a small disk",
            values: &[
                (THREADS.name, Setting::Integer(4)),
                (DIRS.name, Setting::Integer(10)),
                (FILES.name, Setting::Integer(5_000)),
            ],
        },
        Preset {
            name: "quick",
            summary: "60 small files, for a first look",
            values: &[
                (THREADS.name, Setting::Integer(2)),
                (DIRS.name, Setting::Integer(3)),
                (FILES.name, Setting::Integer(30)),
                (SIZE.name, Setting::Integer(1_000)),
                (BATCH.name, Setting::Integer(16)),
            ],
        },
    ],
};

/// The workload `bulkstat`.
pub(crate) struct Bulkstat;

impl Workload for Bulkstat {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mut tree = Tree::prepare(round, 1)?;
        tree.fill(round)?;
        tree.close();
        match round.scenario() {
            "drop-caches" => round.drop_caches(tree.file_count())?,
            "remount" => {
                round.sync()?;
                round.remount()?;
            }
            _ => round.sync()?,
        }
        let kib = round.kib_read()?;
        scan(round, PHASE, INODES, &tree)?;
        if FROM_DISK.contains(&round.scenario()) {
            round.check_read(kib)?;
        }
        verify(round, &tree)
    }
}

/// The filesystem's root, and one cursor for each of its allocation groups.
fn cursors(round: &RoundContext) -> Result<(OwnedFd, Vec<BulkRequest>), WorkloadError> {
    let root = open_root(round.mount_point())?;
    let groups = allocation_groups(root.as_fd()).map_err(|errno| refused(round.mount_point(), errno))?;
    let batch = round.integer(BATCH.name)? as u32;
    Ok((root, (0..groups).map(|group| BulkRequest::of_group(group, batch)).collect()))
}

#[cold]
fn refused(path: &Path, errno: Errno) -> WorkloadError {
    let unavailable = |next| WorkloadError::Unavailable { what: "XFS_IOC_BULKSTAT".to_owned(), next };
    match errno {
        Errno::NOTTY => unavailable("it needs XFS, and Linux 5.5 or newer"),
        Errno::PERM => unavailable("it needs CAP_SYS_ADMIN: run as root"),
        errno => failed("ioctl(XFS_IOC_BULKSTAT)", path, errno),
    }
}

/// Times a pass over all groups as `phase`, and checks as `check` that it returned every inode.
pub(crate) fn scan(
    round: &mut RoundContext,
    phase: &'static str,
    check: &str,
    tree: &Tree,
) -> Result<(), WorkloadError> {
    let (root, mut requests) = cursors(round)?;
    let path = round.mount_point().to_owned();
    // Threads, as the buffers are large: processes would copy them page by page.
    let values = round.parallel(phase, Crew::Threads, &mut requests, |request, _| {
        let (inodes, calls) = drain(|| request.next(root.as_fd())).map_err(|errno| refused(&path, errno))?;
        Ok(Share { ops: inodes, values: vec![inodes, calls] })
    })?;
    let total = |place: usize| values.iter().filter_map(|numbers| numbers.get(place)).sum::<u64>();
    round.count("ioctl", total(1), total(1));
    round.check(check, inodes(tree), total(0));
    Ok(())
}

/// Calls `next` until it returns nothing more; inodes returned, and calls.
#[inline]
fn drain(mut next: impl FnMut() -> Result<u32, Errno>) -> Result<(u64, u64), Errno> {
    let (mut inodes, mut calls) = (0, 0);
    loop {
        calls += 1;
        match next()? {
            0 => return Ok((inodes, calls)),
            count => inodes += u64::from(count),
        }
    }
}

/// Inodes that a filesystem with nothing but `tree` has: internal ones are not returned
/// (`xfs_bulkstat_one_int` of `fs/xfs/xfs_itable.c`).
fn inodes(tree: &Tree) -> u64 {
    tree.file_count() + folders(tree)
}

fn folders(tree: &Tree) -> u64 {
    tree.dir_count() + tree.top_count() + 1
}

/// What records say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contents {
    files: u64,
    bytes: u64,
    folders: u64,
}

impl Contents {
    fn add(&mut self, record: &Record) {
        match u32::from(record.mode) & libc::S_IFMT {
            libc::S_IFREG => {
                self.files += 1;
                self.bytes += record.size;
            }
            libc::S_IFDIR => self.folders += 1,
            _ => {}
        }
    }

    fn check(self, round: &mut RoundContext, tree: &Tree) {
        let text = |contents: Self| {
            let Self { files, bytes, folders } = contents;
            format!("{files} files of {bytes} bytes in all, {folders} folders")
        };
        let expected = Self { files: tree.file_count(), bytes: tree.total_bytes(), folders: folders(tree) };
        round.check(RECORDS, text(expected), text(self));
    }
}

/// Looks at every record, which the timed pass does not.
fn verify(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    let (root, mut requests) = cursors(round)?;
    let mut contents = Contents::default();
    for request in &mut requests {
        let mut calls = 1;
        while request.next(root.as_fd()).map_err(|errno| refused(round.mount_point(), errno))? > 0 {
            request.records().for_each(|record| contents.add(&record));
            calls += 1;
        }
        round.count("ioctl", calls, calls);
    }
    contents.check(round, tree);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::request;
    use crate::{resolve, run};

    const SMALL: [(&str, Setting); 2] = [("dirs", Setting::Integer(2)), ("files", Setting::Integer(6))];

    fn context(folder: &Path) -> RoundContext {
        let request = request("bulkstat/hot", folder, &SMALL);
        let scenario = INFO.scenario("hot").expect("known");
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        RoundContext::for_test(request, scenario, parameters)
    }

    /// Batches as a kernel returns them, of which one call is not made.
    #[test]
    fn a_call_that_is_not_made_fails_the_check_of_inodes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut round = context(folder.path());
        let tree = Tree::prepare(&mut round, 1).expect("folders");
        // Six files, two folders, their top folder and the root.
        for (batches, all) in [(vec![4, 4, 2, 0], true), (vec![4, 0, 4, 2], false)] {
            let mut batches = batches.into_iter();
            let (found, calls) = drain(|| Ok(batches.next().unwrap_or(0))).expect("no error");
            round.check(INODES, inodes(&tree), found);
            assert_eq!((found == 10, calls), (all, if all { 4 } else { 2 }));
        }
        assert_eq!(drain(|| Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(round.finish().checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn records_that_are_not_the_files_fail_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut round = context(folder.path());
        let tree = Tree::prepare(&mut round, 1).expect("folders");
        let record = |mode: u32, size| {
            let mut record = Record::default();
            (record.mode, record.size) = (mode as u16, size);
            record
        };
        for size in [0, 1] {
            let mut contents = Contents::default();
            (0..6).for_each(|_| contents.add(&record(libc::S_IFREG | 0o644, size)));
            (0..4).for_each(|_| contents.add(&record(libc::S_IFDIR | 0o755, 99)));
            contents.check(&mut round, &tree);
        }
        assert_eq!(round.finish().checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_cache_that_stays_warm_fails_the_checks() {
        let mut round = context(&std::env::temp_dir());
        round.check_dropped(15, 14);
        round.check_read(u64::MAX).expect("counters");
        assert!(round.finish().checks.iter().all(|check| !check.passed));
    }

    #[test]
    fn other_filesystems_are_refused_and_so_is_one_that_claims_to_be_xfs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = request("bulkstat/hot", folder.path(), &SMALL);
        assert!(matches!(run(&request, None), Err(WorkloadError::Filesystem { .. })));
        request.filesystem = FilesystemKind::Xfs;
        let error = run(&request, None).expect_err("not XFS");
        assert!(matches!(error, WorkloadError::Unavailable { .. }), "{error}");
        let folder = tempfile::tempdir().expect("a temporary folder");
        request.mount_point = folder.path().display().to_string();
        request.scenario.workload = "bulkstat/remount".into();
        let error = run(&request, None).expect_err("a host does not remount");
        assert!(error.to_string().ends_with("run this scenario in a guest"), "{error}");
    }
}
