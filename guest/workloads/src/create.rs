//! Creating many files from one thread, as fs_mark does it. Read [`Create`] first; the tree is in
//! `tree`.

use crate::tree::{self, Tree};
use crate::{
    CheckInfo, PhaseInfo, Preset, Proof, RoundContext, ScenarioInfo, Setting, Workload, WorkloadError,
    WorkloadInfo,
};

static INFO: WorkloadInfo = WorkloadInfo {
    name: "create",
    title: "create files",
    summary: "Creates files with 40-byte names in existing folders from one thread; timed are open, write \
              and close of every file.",
    source: "fs_mark runs in Darrick Wong's mails to linux-xfs about the cost of parent pointers; the \
              rounds are one of its iterations and one of its 40 threads",
    scenarios: &[ScenarioInfo {
        name: "sane",
        summary: "a true round-robin over the folders, without fs_mark's failing mkdir before every file",
        default: true,
    }],
    parameters: tree::PARAMETERS,
    limits: tree::LIMITS,
    phases: &[PhaseInfo {
        name: "create",
        operation: "one file opened, written and closed",
        primary: true,
        scenarios: &[],
    }],
    measures: &[],
    checks: &[
        CheckInfo {
            name: "files",
            summary: "a walk afterwards finds every file that was created, and no other",
            scenarios: &[],
            proof: Proof::Test("a_census_that_differs_fails_the_check"),
        },
        CheckInfo {
            name: "bytes",
            summary: "the files have the size that was written",
            scenarios: &[],
            proof: Proof::Injection { scenario: "sane", inject: "write:retval=600:when=7" },
        },
    ],
    refusals: &[],
    scale: "files",
    presets: PRESETS,
};

/// Presets of every workload on a [`Tree`].
pub(crate) const PRESETS: &[Preset] = &[
    Preset {
        name: "source",
        summary: "one thread and iteration of `fs_mark -D 10000 -S 0 -n 100000 -s 0`",
        values: &[
            ("dirs", Setting::Integer(10_000)),
            ("files", Setting::Integer(10)),
            ("size", Setting::Integer(0)),
            ("sync", Setting::Text("none")),
        ],
    },
    Preset {
        name: "source-1m",
        summary: "one thread and iteration of `fs_mark -D 1000 -S 0 -n 200 -s 1048576`, which reaches 200 folders",
        values: &[
            ("dirs", Setting::Integer(200)),
            ("files", Setting::Integer(1)),
            ("size", Setting::Integer(1 << 20)),
            ("sync", Setting::Text("none")),
        ],
    },
    Preset {
        name: "source-maildir",
        summary: "one thread and iteration of `fs_mark -w 778 -D 1000 -S 0 -n 6000 -s 16384`",
        values: &[
            ("dirs", Setting::Integer(1_000)),
            ("files", Setting::Integer(6)),
            ("size", Setting::Integer(16_384)),
            ("write_size", Setting::Integer(778)),
            ("sync", Setting::Text("none")),
        ],
    },
    Preset {
        name: "guest",
        summary: "10,000 empty files, which fit a guest of 1 GiB",
        values: &[
            ("dirs", Setting::Integer(10)),
            ("files", Setting::Integer(1_000)),
            ("size", Setting::Integer(0)),
            ("sync", Setting::Text("none")),
        ],
    },
    Preset {
        name: "quick",
        summary: "60 small files, for a first look",
        values: &[
            ("dirs", Setting::Integer(3)),
            ("files", Setting::Integer(20)),
            ("size", Setting::Integer(1_000)),
            ("write_size", Setting::Integer(600)),
        ],
    },
];

/// The workload `create`.
pub(crate) struct Create;

impl Workload for Create {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let tree = Tree::prepare(round)?;
        round.sync()?;
        let files = tree.file_count();
        round.phase("create", files, || tree.create())?;
        let census = tree.census()?;
        tree.count_creation(round);
        round.count("statx", files, files);
        round.check("files", files, census.files);
        round.check("bytes", tree.total_bytes(), census.bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{find, resolve, run};

    fn number(value: u64) -> Setting {
        Setting::Integer(value)
    }

    #[test]
    fn files_have_the_size_and_the_census_in_every_order_and_with_fsync() {
        for (order, sync, size) in
            [("round-robin", "none", 0), ("per-directory", "none", 2000), ("round-robin", "fsync", 778)]
        {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let parameters = [
                ("dirs", number(3)),
                ("files", number(7)),
                ("size", number(size)),
                ("write_size", number(778)),
                ("order", Setting::Text(order)),
                ("sync", Setting::Text(sync)),
            ];
            let round = run(&request("create/sane", folder.path(), &parameters), None).expect("runs");
            assert_sound(&round);
            assert_eq!(round.phases[0].ops, 21);
            assert_eq!(round.parameters.len(), INFO.parameters.len());
        }
    }

    #[test]
    fn round_robin_and_per_directory_spread_the_same_names_differently() {
        let first_names = |order| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let parameters = [("dirs", number(2)), ("files", number(3)), ("order", Setting::Text(order))];
            run(&request("create/sane", folder.path(), &parameters), None).expect("runs");
            let entries = std::fs::read_dir(folder.path().join("d0000")).expect("a folder");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            names.iter().map(|name| name.to_string_lossy()[15..16].to_owned()).collect::<String>()
        };
        assert_eq!(first_names("round-robin"), "024");
        assert_eq!(first_names("per-directory"), "012");
    }

    #[test]
    fn a_census_that_differs_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let given = [("dirs", number(2)), ("files", number(3))];
        let request = request("create/sane", folder.path(), &given);
        let parameters = resolve(&INFO, &INFO.scenarios[0], &request.scenario.parameters).expect("allowed");
        let scenario = find("create/sane").expect("known").scenario;
        let mut round = RoundContext::for_test(request, scenario, parameters);
        let tree = Tree::prepare(&mut round).expect("folders");
        tree.create().expect("files");
        let stray = folder.path().join("d0001/stray");
        std::fs::write(&stray, "12345").expect("a stray file");
        let census = tree.census().expect("a census");
        assert_eq!((census.files, census.bytes), (7, 5));
        round.check("files", tree.file_count(), census.files);
        assert!(round.finish().checks.iter().any(|check| !check.passed));
    }

    #[test]
    fn a_folder_that_is_there_already_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("d0000")).expect("a folder");
        let error = run(&request("create/sane", folder.path(), &[]), None).expect_err("exists");
        let path = folder.path().join("d0000").display().to_string();
        assert_eq!(error, WorkloadError::Call { call: "mkdirat", path, errno: libc::EEXIST });
    }
}
