//! Renames one file to and fro between two names in one folder. Read [`Rename`] first.

use std::os::fd::AsFd;

use crate::round::{failed, open_root};
use crate::{
    CheckInfo, Domain, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext, ScenarioInfo, Setting,
    Workload, WorkloadError, WorkloadInfo, sys,
};

static INFO: WorkloadInfo = WorkloadInfo {
    name: "rename",
    title: "rename a file",
    summary: "Renames one empty file to and fro between two names; only the calls are timed.",
    source: "an example for contributors",
    scenarios: &[ScenarioInfo { name: "same-folder", summary: "both names in one folder", default: true }],
    parameters: &[ParameterInfo {
        name: "pairs",
        summary: "times to and fro",
        unit: "pairs",
        domain: Domain::Integer { default: 10_000, min: 1, max: 1 << 24 },
        scenarios: &[],
    }],
    limits: &[],
    phases: &[PhaseInfo { name: "rename", operation: "one renameat", primary: true, scenarios: &[] }],
    measures: &[],
    checks: &[CheckInfo {
        name: "names",
        summary: "afterwards the folder holds the first name, and no other",
        scenarios: &[],
        // The last of 2 x 10 calls is not made and returns 0: the file keeps the second name.
        filesystems: &[],
        proof: Proof::Injection { scenario: "same-folder", inject: "renameat:retval=0:when=20" },
    }],
    refusals: &[],
    scale: "pairs",
    presets: &[
        Preset { name: "source", summary: "the default", values: &[("pairs", Setting::Integer(10_000))] },
        Preset { name: "guest", summary: "the default", values: &[("pairs", Setting::Integer(10_000))] },
        Preset { name: "quick", summary: "for a first look", values: &[("pairs", Setting::Integer(10))] },
    ],
};

/// The workload `rename`.
pub(crate) struct Rename;

impl Workload for Rename {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        // Setup: outside of the phase, and synced before it.
        let root = round.mount_point().to_owned();
        let folder = open_root(&root)?;
        let pairs = round.integer("pairs")?;
        drop(sys::create(folder.as_fd(), c"one").map_err(|errno| failed("openat", &root, errno))?);
        round.sync()?;
        // The phase: system calls, and nothing that allocates or formats.
        round.phase("rename", 2 * pairs, || {
            for _ in 0..pairs {
                rustix::fs::renameat(&folder, c"one", &folder, c"two")
                    .and_then(|()| rustix::fs::renameat(&folder, c"two", &folder, c"one"))
                    .map_err(|errno| failed("renameat", &root, errno))?;
            }
            Ok(())
        })?;
        // What was done, by the name of the system call, and what the folder says.
        round.count("renameat", 2 * pairs, 2 * pairs);
        let entries = std::fs::read_dir(&root).map_err(|error| {
            failed("open", &root, rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
        })?;
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        round.check("names", "[\"one\"]", format!("{names:?}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve;
    use crate::round::tests::{assert_sound, request};

    #[test]
    fn every_call_is_an_operation_and_the_file_has_its_name_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = request("rename/same-folder", folder.path(), &[("pairs", Setting::Integer(3))]);
        let scenario = &INFO.scenarios[0];
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        let mut context = RoundContext::for_test(request, scenario, parameters);
        Rename.round(&mut context).expect("runs");
        let round = context.finish();
        assert_sound(&round);
        assert_eq!((round.phases[0].ops, round.census["renameat"].attempted), (6, 6));
    }
}
