use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_wire::{Clock, Round, RoundFailed, RoundRequest, ScenarioJob};

use super::*;
use crate::cancel::Cancel;
use crate::console::Console;
use crate::event::Silent;
use crate::layout::Cache;
use crate::testing::{digest, identity};
use crate::vm::BootResult;

const ONE: &str = "xattr/flistxattr";

/// A guest that really runs the workload, here, and lets strace say what the census says and every
/// lie be noticed. `edit` then makes of a round what it likes.
struct Host<'a> {
    edit: &'a (dyn Fn(&ScenarioJob, Round) -> Result<Round, String> + Sync),
    outcome: Outcome,
}

impl Guest for Host<'_> {
    fn boot(&self, spec: &BootSpec, _: &Cancel, on_stage: &dyn Fn(&str)) -> Result<BootResult, ProcessError> {
        let (mut rounds, mut failed_rounds) = (Vec::new(), Vec::new());
        for job in &spec.arm.scenarios {
            on_stage(&format!("round {} 1/1", job.id));
            match (self.edit)(job, honest(job, spec.arm.filesystem.kind)) {
                Ok(round) => rounds.push(round),
                Err(message) => {
                    failed_rounds.push(RoundFailed { scenario: job.id.clone(), round: 0, message })
                }
            }
        }
        if self.outcome != Outcome::Completed {
            rounds.clear();
        }
        Ok(BootResult {
            outcome: self.outcome.clone(),
            hello: None,
            setups: Vec::new(),
            rounds,
            failed_rounds,
            console: Console::default(),
            host_cpu_seconds: 1.0,
            init_cpu_seconds: None,
            wall_seconds: 1.0,
        })
    }
}

fn honest(job: &ScenarioJob, filesystem: FilesystemKind) -> Round {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let request = RoundRequest {
        scenario: job.clone(),
        round: 0,
        seed: SEED,
        clock: Clock::Nanoseconds,
        cpu: None,
        filesystem,
        mount_point: folder.path().to_str().expect("UTF-8").to_owned(),
        may_unmount: false,
    };
    let mut round = kdelta_workloads::run(&request, None).expect("a round");
    if !job.strace.is_empty() {
        let calls: BTreeMap<String, u64> =
            round.census.iter().map(|(name, count)| (name.clone(), count.attempted)).collect();
        round.trace = Some(table(calls));
    }
    if job.strace.iter().any(|word| word.starts_with("inject=")) {
        round.checks.iter_mut().for_each(|check| (check.passed, check.actual) = (false, "a lie".to_owned()));
    }
    round
}

/// As strace prints it, with calls that every process makes.
fn table(mut calls: BTreeMap<String, u64>) -> String {
    calls.insert("execve".to_owned(), 1);
    let rows: String = calls.iter().map(|(name, calls)| format!("{calls:9} {name}\n")).collect();
    let total: u64 = calls.values().sum();
    format!("    calls syscall\n--------- --------\n{rows}--------- --------\n{total:9} total\n")
}

fn selections(names: &[&str]) -> Vec<Selection> {
    names.iter().map(|name| kdelta_workloads::find(name).expect("a scenario")).collect()
}

/// The trial of `names` on tmpfs in the guest.
fn trial(names: &[&str], guest: &Host) -> Trial {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Utf8Path::from_path(folder.path()).expect("UTF-8");
    let (cache, cancel) = (Cache::open(&root.join("cache")).expect("a cache"), Cancel::default());
    let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
    let path = root.join("image");
    std::fs::write(&path, "").expect("an image");
    let image =
        GuestImage { path, digest: digest("image"), init_digest: digest("init"), userland: Vec::new() };
    let kernel_source: KernelSource = "debian:linux-source-6.12".parse().expect("a source");
    let identity = identity(&KernelRequest {
        source: kernel_source.clone(),
        patches: Vec::new(),
        base: ConfigBase::default(),
        fragments: Vec::new(),
        options: Vec::new(),
        placebo: false,
    });
    let kernel = Kernel { image: Utf8PathBuf::from("KERNEL"), identity, config: None, modules: Vec::new() };
    let (selections, filesystems) = (selections(names), [FilesystemKind::Tmpfs]);
    let request = ProveRequest {
        selections: &selections,
        filesystems: &filesystems,
        disk: DiskKind::Ram,
        kernel: &kernel_source,
        patches: &[],
        init: Utf8Path::new("INIT"),
    };
    let arms = [arm(FilesystemKind::Tmpfs, DiskKind::Ram).expect("an arm")];
    let filesystems = boot_all(&ctx, guest, &request, &arms, &kernel, &image).expect("boots");
    Trial {
        version: TRIAL_VERSION,
        kdelta: String::new(),
        kernel: kernel.identity,
        qemu: String::new(),
        userland: Vec::new(),
        exempt: EXEMPT,
        filesystems,
    }
}

/// What is wrong with [`ONE`] after `edit` has been at the rounds whose id contains `where_`.
fn problems(where_: &str, edit: impl Fn(&mut Round) + Sync) -> (Vec<Problem>, Standing) {
    let edit = |job: &ScenarioJob, mut round: Round| {
        if job.id.contains(where_) {
            edit(&mut round);
        }
        Ok(round)
    };
    let trial = trial(&[ONE], &Host { edit: &edit, outcome: Outcome::Completed });
    (trial.filesystems[0].scenarios[0].problems.clone(), trial.standing())
}

#[test]
fn an_honest_workload_is_as_claimed_and_every_lie_to_it_was_noticed() {
    let honest = Host { edit: &|_, round| Ok(round), outcome: Outcome::Completed };
    let trial = trial(&[ONE, "create/sane"], &honest);
    assert_eq!(trial.standing(), Standing::AsClaimed, "{trial:?}");
    let scenarios = &trial.filesystems[0].scenarios;
    assert_eq!(scenarios[0].calls["flistxattr"], (256, 256));
    assert!(scenarios.iter().all(|one| one.lies.len() == 1 && one.complete), "{scenarios:?}");
}

#[test]
fn a_call_that_the_census_leaves_out_or_makes_up_is_found() {
    let more = |name: &'static str, extra: u64| {
        move |round: &mut Round| {
            let mut calls: BTreeMap<String, u64> =
                round.census.iter().map(|(name, count)| (name.clone(), count.attempted)).collect();
            *calls.entry(name.to_owned()).or_default() += extra;
            round.trace = Some(table(calls));
        }
    };
    let differ = |call: &str, traced, counted| {
        (vec![Problem::CallsDiffer { call: call.to_owned(), traced, counted }], Standing::Disproved)
    };
    assert_eq!(problems("twice the work", more("fsync", 7)), differ("fsync", 7, 0));
    assert_eq!(problems("twice the work", more("flistxattr", 1)), differ("flistxattr", 257, 256));
    // The runtime's own calls may differ; what every round does alike is no growth.
    assert_eq!(problems("twice the work", more("futex", 7)), (vec![], Standing::AsClaimed));
    assert_eq!(problems("under strace", more("fsync", 7)), (vec![], Standing::AsClaimed));
}

#[test]
fn a_call_that_is_exempt_is_compared_where_a_workload_counts_it() {
    let count = |round: &mut Round| {
        round.census.insert("futex".to_owned(), kdelta_wire::OpCount { attempted: 3, succeeded: 3 });
    };
    let (problems, _) = problems("twice the work", count);
    assert_eq!(problems, [Problem::CallsDiffer { call: "futex".to_owned(), traced: 0, counted: 3 }]);
}

#[test]
fn a_table_that_was_cut_short_is_no_table() {
    let cut = |round: &mut Round| round.trace = Some("    calls syscall\n 5 openat\n".to_owned());
    assert!(matches!(problems("twice the work", cut).0[..], [Problem::NoTrace { .. }]));
    assert!(matches!(
        problems("twice the work", |round| round.trace = None).0[..],
        [Problem::NoTrace { .. }]
    ));
}

#[test]
fn what_a_round_promises_and_does_not_keep_is_found() {
    let fail = |round: &mut Round| round.checks[0].passed = false;
    assert!(matches!(problems("[plain]", fail).0[..], [Problem::CheckFailed { round: "plain", .. }]));
    let forget = |round: &mut Round| round.checks.clear();
    assert!(matches!(problems("[plain]", forget).0[..], [Problem::Promise { .. }]));
    let stray = |round: &mut Round| round.phases[0].name = "other".to_owned();
    assert!(matches!(problems("[plain]", stray).0[..], [Problem::Promise { .. }, Problem::Promise { .. }]));
    assert_eq!(problems("[plain]", |round| round.census.clear()).0, [Problem::NoCensus]);
    let idle = |round: &mut Round| round.phases[0].ops = 256;
    assert_eq!(problems("twice the work", idle).0, [Problem::NoGrowth { ops: (256, 256) }]);
}

#[test]
fn a_lie_that_is_not_noticed_by_its_check_is_found() {
    let believe = |job: &ScenarioJob, mut round: Round| {
        if job.id.contains("lie") {
            round.checks.iter_mut().for_each(|check| check.passed = true);
        }
        Ok(round)
    };
    let gullible = trial(&[ONE], &Host { edit: &believe, outcome: Outcome::Completed });
    assert_eq!(gullible.filesystems[0].scenarios[0].lies[0].answer, Answer::Unnoticed { others: vec![] });
    assert_eq!(gullible.standing(), Standing::Disproved);
    let stumble = |job: &ScenarioJob, round: Round| {
        if job.id.contains("lie") { Err("ENOENT".to_owned()) } else { Ok(round) }
    };
    let fragile = trial(&[ONE], &Host { edit: &stumble, outcome: Outcome::Completed });
    let message = "ENOENT".to_owned();
    assert_eq!(fragile.filesystems[0].scenarios[0].lies[0].answer, Answer::RoundFailed { message });
    assert_eq!(fragile.standing(), Standing::Disproved);
}

#[test]
fn a_round_that_fails_is_the_workloads_fault_and_a_guest_that_breaks_down_is_not() {
    let fail = |_: &ScenarioJob, _: Round| Err("no space".to_owned());
    let failing = trial(&[ONE], &Host { edit: &fail, outcome: Outcome::Completed });
    let failed = &failing.filesystems[0].scenarios[0].problems;
    assert!(failed.iter().all(|problem| matches!(problem, Problem::RoundFailed { .. })), "{failed:?}");
    assert_eq!((failed.len(), failing.standing()), (3, Standing::Disproved));
    let outcome = Outcome::KernelFailed { message: "BUG".to_owned() };
    let broken = trial(&[ONE], &Host { edit: &|_, round| Ok(round), outcome });
    let scenario = &broken.filesystems[0].scenarios[0];
    assert_eq!((scenario.complete, scenario.problems.len()), (false, 0));
    assert_eq!(broken.standing(), Standing::KernelFailed);
}

#[test]
fn what_is_not_meant_to_run_somewhere_is_refused_with_the_reason_and_no_round_is_made_for_it() {
    for selection in kdelta_workloads::every_selection() {
        for kind in FilesystemKind::ALL {
            let refused = selection.workload.info().refusal(selection.scenario, kind).is_some();
            let charges = charge::list(&[selection], kind).expect("allowed");
            assert_eq!(charges.is_empty(), refused, "{} on {kind}", selection.name());
        }
    }
}

#[test]
fn exempt_calls_are_listed_once() {
    let names: std::collections::BTreeSet<&&str> = EXEMPT.iter().collect();
    assert_eq!(names.len(), EXEMPT.len());
}
