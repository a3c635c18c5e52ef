//! Removing many files, and the work that removal leaves behind. Read [`Unlink`] first; the tree is
//! in `tree`.

use kdelta_wire::FilesystemKind;

use crate::entries::{Buffers, Removal, walk};
use crate::parallel::Share;
use crate::round::{COLD, READ, c_path, failed};
use crate::tree::parameters as tree_parameters;
use crate::tree::{LEFT, Tree, timed};
use crate::{
    CheckInfo, PhaseInfo, Proof, Refusal, RoundContext, ScenarioInfo, Workload, WorkloadError, WorkloadInfo,
};

/// Scenarios that remove files by names that they know, in the order of creation.
const BY_NAME: &[&str] = &["hot", "cold", "linked"];
const LINKED: &[&str] = &["linked"];
const RECURSIVE: &[&str] = &["recursive", "recursive-cold"];
const FROM_DISK: &[&str] = &["cold", "recursive-cold"];
const LINKS: &str = "links";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "unlink",
    title: "remove files",
    summary: "Removes the files that `create` makes, then their folders, then waits for the filesystem; \
              creating them is not timed.",
    source: "`rm -rf` of every thread's folder after fs_mark in Darrick Wong's mails to linux-xfs about the \
             cost of parent pointers; cold and with a second link as Dave Chinner asks there",
    scenarios: &[
        ScenarioInfo {
            name: "hot",
            summary: "right after creation, with every inode and folder still in memory",
            default: true,
        },
        ScenarioInfo {
            name: "cold",
            summary: "after statx(2) of every file and dropping the caches; folders are then opened again",
            default: false,
        },
        ScenarioInfo {
            name: "linked",
            summary: "every file has a second name, so that its inode outlives the first removal",
            default: false,
        },
        ScenarioInfo {
            name: "recursive",
            summary: "as `rm -rf`: reads every folder and removes what it finds, one process for each top folder",
            default: false,
        },
        ScenarioInfo {
            name: "recursive-cold",
            summary: "the same after statx(2) of every file and dropping the caches",
            default: false,
        },
    ],
    parameters: tree_parameters::PARAMETERS,
    limits: tree_parameters::LIMITS,
    phases: &[
        PhaseInfo {
            name: "unlink",
            operation: "one name of a file removed; with it the file, but in `linked`",
            primary: true,
            scenarios: BY_NAME,
        },
        PhaseInfo {
            name: "unlink-last",
            operation: "the second and last name of a file removed",
            primary: false,
            scenarios: LINKED,
        },
        PhaseInfo {
            name: "rmdir",
            operation: "one empty folder removed",
            primary: false,
            scenarios: BY_NAME,
        },
        PhaseInfo {
            name: "remove",
            operation: "one file or folder removed, its folder's opening and reading included",
            primary: true,
            scenarios: RECURSIVE,
        },
        PhaseInfo {
            name: "quiesce",
            operation: "one file removed before; the time is syncfs and, in a guest, unmount",
            primary: false,
            scenarios: &[],
        },
    ],
    measures: &[],
    checks: &[
        CheckInfo {
            name: LEFT,
            summary: "a walk afterwards finds no file and no folder",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "hot", inject: "unlinkat:retval=0:when=5" },
        },
        CheckInfo {
            name: LINKS,
            summary: "before removal every file has two names and a link count of two",
            scenarios: LINKED,
            filesystems: &[],
            proof: Proof::Injection { scenario: "linked", inject: "linkat:retval=0:when=5" },
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
            summary: "removal read from the device",
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
    presets: tree_parameters::PRESETS,
};

/// The workload `unlink`.
pub(crate) struct Unlink;

impl Workload for Unlink {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let scenario = round.scenario();
        let linked = LINKED.contains(&scenario);
        let mut tree = Tree::prepare(round, if linked { 2 } else { 1 })?;
        tree.fill(round)?;
        if linked {
            link(round, &tree)?;
        }
        let cold = FROM_DISK.contains(&scenario);
        if cold {
            tree.survey(round)?;
            tree.close();
            round.make_cold(tree.file_count())?;
        } else {
            round.sync()?;
        }
        let kib = round.kib_read()?;
        let files = tree.file_count();
        if RECURSIVE.contains(&scenario) {
            tree.close();
            remove(round, "remove", &tree)?;
        } else {
            if cold {
                tree.open()?;
            }
            by_name(round, &mut tree, linked)?;
        }
        if cold {
            round.check_read(kib)?;
        }
        tree.close();
        tree.finish_removal(round)?;
        round.quiesce(files)
    }
}

/// Gives every file its second name, and checks that it has two.
fn link(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    for branch in tree.branches() {
        let files = branch.link()?;
        round.count("linkat", files, files);
    }
    let (files, found) = (tree.file_count(), tree.survey(round)?);
    let text = |names: u64, links: u64| format!("{names} names, {links} links in all");
    round.check(LINKS, text(2 * files, 4 * files), text(found.files, found.links));
    Ok(())
}

/// Removes files by their names, then their folders.
fn by_name(round: &mut RoundContext, tree: &mut Tree, linked: bool) -> Result<(), WorkloadError> {
    let mut removed = timed(round, "unlink", &mut tree.branches(), |branch| share(branch.unlink(false)?))?;
    if linked {
        removed
            .extend(timed(round, "unlink-last", &mut tree.branches(), |branch| share(branch.unlink(true)?))?);
    }
    // Nothing slow between the phases: the filesystem's background work would run untimed.
    tree.close_folders();
    removed.extend(timed(round, "rmdir", &mut tree.branches(), |branch| share(branch.rmdir()?))?);
    count(round, &removed);
    Ok(())
}

fn share(Removal { tried, removed }: Removal) -> Result<Share, WorkloadError> {
    Ok(Share { ops: tried, values: vec![tried, removed, 0] })
}

/// Claims what removers handed back: calls tried, those that succeeded, and folders opened.
fn count(round: &mut RoundContext, values: &[Vec<u64>]) {
    for numbers in values {
        if let [tried, removed, opened] = numbers[..] {
            round.count("unlinkat", tried, removed);
            if opened > 0 {
                round.count("openat", opened, opened);
                round.count("close", opened, opened);
            }
        }
    }
}

/// Removes everything in the top folders by reading them, as the phase `phase`.
pub(crate) fn remove(
    round: &mut RoundContext,
    phase: &'static str,
    tree: &Tree,
) -> Result<(), WorkloadError> {
    let mut members = Vec::new();
    for branch in tree.branches() {
        members.push((branch.path(), c_path(branch.path())?, Buffers::new()));
    }
    let values = timed(round, phase, &mut members, |(path, c_path, buffers)| {
        let mut removal = Removal::default();
        let opened =
            walk(c_path, buffers, &mut removal).map_err(|(call, errno)| failed(call, path, errno))?;
        Ok(Share { ops: removal.tried, values: vec![removal.tried, removal.removed, opened] })
    })?;
    count(round, &values);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{Mounting, Setting, run};

    const SMALL: [(&str, Setting); 2] = [("dirs", Setting::Integer(3)), ("files", Setting::Integer(15))];

    #[test]
    fn everything_is_gone_and_counted() {
        for (scenario, order, threads, phases) in [
            ("hot", "round-robin", 1, vec![("unlink", 15), ("rmdir", 3), ("quiesce", 15)]),
            ("hot", "per-directory", 2, vec![("unlink", 30), ("rmdir", 6), ("quiesce", 30)]),
            (
                "linked",
                "round-robin",
                2,
                vec![("unlink", 30), ("unlink-last", 30), ("rmdir", 6), ("quiesce", 30)],
            ),
            ("recursive", "round-robin", 1, vec![("remove", 18), ("quiesce", 15)]),
            ("recursive", "round-robin", 3, vec![("remove", 54), ("quiesce", 45)]),
        ] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut parameters = SMALL.to_vec();
            parameters.extend([("order", Setting::Text(order)), ("threads", Setting::Integer(threads))]);
            let name = format!("unlink/{scenario}");
            let round = run(&request(&name, folder.path(), &parameters), None).expect("runs");
            assert_sound(&round);
            let found: Vec<_> = round.phases.iter().map(|phase| (phase.name.as_str(), phase.ops)).collect();
            assert_eq!(found, phases, "{name}");
            assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
            let names = if scenario == "linked" { 30 } else { 15 };
            assert_eq!(round.census["unlinkat"].attempted, threads * (names + 4), "{name}");
        }
    }

    fn refuse(_: &Path) -> std::io::Result<()> {
        Err(std::io::Error::from_raw_os_error(libc::EBUSY))
    }

    #[test]
    fn the_filesystem_is_unmounted_only_where_the_request_allows_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = request("unlink/hot", folder.path(), &SMALL);
        let mounting = Some(Mounting { unmount: refuse, remount: refuse });
        assert_sound(&run(&request, mounting).expect("does not unmount"));
        request.may_unmount = true;
        let error = run(&request, mounting).expect_err("unmounting is refused");
        let path = folder.path().display().to_string();
        assert_eq!(error, WorkloadError::Call { call: "umount", path, errno: libc::EBUSY });
    }

    #[test]
    fn tmpfs_has_no_cold_removal() {
        let error = run(&request("unlink/cold", Path::new("/tmp"), &SMALL), None).expect_err("refused");
        assert!(matches!(error, WorkloadError::Filesystem { .. }), "{error}");
    }

    #[test]
    fn a_cache_that_stays_warm_fails_the_checks() {
        let request = request("unlink/hot", &std::env::temp_dir(), &SMALL);
        let scenario = INFO.scenario("hot").expect("known");
        let mut round = RoundContext::for_test(request, scenario, Default::default());
        round.check_dropped(15, 14);
        round.check_read(u64::MAX).expect("counters");
        let failed: Vec<_> =
            round.finish().checks.into_iter().map(|check| (check.name, check.passed)).collect();
        assert_eq!(failed, [(COLD.to_owned(), false), (READ.to_owned(), false)]);
    }

    #[test]
    #[ignore = "drops the caches of the whole machine, which needs root"]
    fn cold_files_are_removed() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a temporary folder");
        for scenario in ["unlink/cold", "unlink/recursive-cold"] {
            let mut request = request(scenario, folder.path(), &SMALL);
            request.filesystem = FilesystemKind::Ext4;
            assert_sound(&run(&request, None).expect("runs"));
        }
    }
}
