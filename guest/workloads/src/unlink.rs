//! Removing many files from one thread, and the work that removal leaves behind. Read [`Unlink`]
//! first; the tree is in `tree`.

use crate::tree::{self, Tree};
use crate::{
    CheckInfo, PhaseInfo, Proof, RoundContext, ScenarioInfo, Workload, WorkloadError, WorkloadInfo, create,
};

static INFO: WorkloadInfo = WorkloadInfo {
    name: "unlink",
    title: "remove files",
    summary: "Removes the files that `create` makes, then their folders, then waits for the filesystem; \
              creating them is not timed.",
    source: "`rm -rf` after fs_mark in Darrick Wong's mails to linux-xfs about the cost of parent pointers",
    scenarios: &[ScenarioInfo {
        name: "hot",
        summary: "right after creation, with every inode and folder still in memory",
        default: true,
    }],
    parameters: tree::PARAMETERS,
    limits: tree::LIMITS,
    phases: &[
        PhaseInfo { name: "unlink", operation: "one file removed", primary: true, scenarios: &[] },
        PhaseInfo { name: "rmdir", operation: "one empty folder removed", primary: false, scenarios: &[] },
        PhaseInfo {
            name: "quiesce",
            operation: "one file removed before; the time is syncfs and, in a guest, unmount",
            primary: false,
            scenarios: &[],
        },
    ],
    measures: &[],
    checks: &[CheckInfo {
        name: "folders left",
        summary: "every folder is gone, and one with a file in it cannot be removed",
        scenarios: &[],
        proof: Proof::Injection { scenario: "hot", inject: "unlinkat:retval=0:when=63" },
    }],
    refusals: &[],
    scale: "files",
    presets: create::PRESETS,
};

/// The workload `unlink`.
pub(crate) struct Unlink;

impl Workload for Unlink {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let tree = Tree::prepare(round)?;
        tree.create()?;
        tree.count_creation(round);
        round.sync()?;
        let (files, dirs) = (tree.file_count(), tree.dir_count());
        round.phase("unlink", files, || tree.unlink())?;
        // Nothing slow between the phases: the filesystem's background work would run untimed.
        let folders = tree.close()?;
        round.phase("rmdir", dirs, || folders.rmdir())?;
        round.count("unlinkat", files + dirs, files + dirs);
        // Every call succeeded and a folder with a file in it cannot be removed; this is the proof.
        round.check("folders left", 0, folders.remaining()?);
        drop(folders);
        round.quiesce(files)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{Setting, run};

    const SMALL: [(&str, Setting); 2] = [("dirs", Setting::Integer(3)), ("files", Setting::Integer(5))];

    #[test]
    fn everything_is_gone_and_counted() {
        for order in ["round-robin", "per-directory"] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut parameters = SMALL.to_vec();
            parameters.push(("order", Setting::Text(order)));
            let round = run(&request("unlink/hot", folder.path(), &parameters), None).expect("runs");
            assert_sound(&round);
            let phases: Vec<_> = round.phases.iter().map(|phase| (phase.name.as_str(), phase.ops)).collect();
            assert_eq!(phases, [("unlink", 15), ("rmdir", 3), ("quiesce", 15)]);
            assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
        }
    }

    #[test]
    fn the_filesystem_is_unmounted_only_where_the_request_allows_it() {
        fn refuse(_: &Path) -> std::io::Result<()> {
            Err(std::io::Error::from_raw_os_error(libc::EBUSY))
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = request("unlink/hot", folder.path(), &SMALL);
        assert_sound(&run(&request, Some(refuse)).expect("does not unmount"));
        request.may_unmount = true;
        let error = run(&request, Some(refuse)).expect_err("unmounting is refused");
        let path = folder.path().display().to_string();
        assert_eq!(error, WorkloadError::Call { call: "umount", path, errno: libc::EBUSY });
    }
}
