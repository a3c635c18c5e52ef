//! What holds for every workload of the catalogue: its page in `docs/workloads/`, its checks and how
//! each is made to fail, and a real round that does what the description says.
//! `KDELTA_UPDATE=1 cargo test -p kdelta-workloads` writes the pages anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kdelta_wire::{Clock, FilesystemKind, ParameterValue, Round, RoundRequest, ScenarioJob};
use kdelta_workloads::{ALL, Proof, ScenarioInfo, WorkloadError, WorkloadInfo, page, resolve};

const BEGIN: &str = "<!-- The table is written by the tests of kdelta-workloads. -->\n";
const END: &str = "<!-- End of the table. -->\n";

fn infos() -> impl Iterator<Item = &'static WorkloadInfo> {
    ALL.iter().map(|workload| workload.info())
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// `text` must be what the file holds; with `KDELTA_UPDATE` it is made so.
fn keep_current(path: &Path, text: &str) {
    if std::env::var_os("KDELTA_UPDATE").is_some() {
        fs::write(path, text).expect("write");
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    let hint = "run KDELTA_UPDATE=1 cargo test -p kdelta-workloads and commit it";
    assert!(stored == text, "{} is out of date; {hint}", path.display());
}

#[test]
fn every_workload_has_a_page_that_is_current_and_no_page_is_left_over() {
    let folder = docs().join("workloads");
    fs::create_dir_all(&folder).expect("a folder");
    let mut pages = BTreeSet::new();
    for info in infos() {
        let name = format!("{}.md", info.name);
        let origin = "<!-- Written by `KDELTA_UPDATE=1 cargo test -p kdelta-workloads`, from the code. -->";
        keep_current(&folder.join(&name), &format!("{origin}\n{}", page::page(info)));
        pages.insert(name);
    }
    for entry in fs::read_dir(&folder).expect("the folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        assert!(pages.contains(&name), "docs/workloads/{name} is the page of no workload; remove it");
    }
}

#[test]
fn the_index_of_the_docs_lists_every_workload() {
    let path = docs().join("workloads.md");
    let text = fs::read_to_string(&path).expect("docs/workloads.md");
    let (before, rest) = text.split_once(BEGIN).expect("the mark before the table");
    let (_, after) = rest.split_once(END).expect("the mark after the table");
    keep_current(&path, &format!("{before}{BEGIN}\n{}\n{END}{after}", page::index()));
}

#[test]
fn the_example_for_contributors_is_one_that_compiles_and_runs() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = fs::read_to_string(here.join("src/example.rs")).expect("the example");
    let path = here.join("../../CONTRIBUTING.md");
    let text = fs::read_to_string(&path).expect("CONTRIBUTING.md");
    let (before, rest) = text.split_once("```rust\n").expect("the example begins");
    let (_, after) = rest.split_once("```\n").expect("the example ends");
    keep_current(&path, &format!("{before}```rust\n{example}```\n{after}"));
}

#[test]
fn every_check_that_a_unit_test_proves_has_that_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                sources.push(fs::read_to_string(path).expect("a source"));
            }
        }
    }
    for info in infos() {
        for check in info.checks {
            let Proof::Test(test) = check.proof else { continue };
            // The attribute may be followed by others.
            let found = sources.iter().any(|source| {
                source.match_indices(&format!("fn {test}(")).any(|(at, _)| {
                    let above: Vec<&str> = source[..at].lines().rev().skip(1).take(3).collect();
                    above.iter().any(|line| line.trim() == "#[test]")
                })
            });
            assert!(found, "{}: there is no unit test {test} for the check {}", info.name, check.name);
        }
    }
}

/// One round with the preset `quick` in a fresh folder on tmpfs; the reason when it cannot be had here.
fn quick(info: &WorkloadInfo, scenario: &ScenarioInfo) -> Result<Round, String> {
    if let Some(reason) = info.refusal(scenario, FilesystemKind::Tmpfs) {
        return Err(format!("it does not run on tmpfs: {reason}"));
    }
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let name = format!("{}/{}", info.name, scenario.name);
    let preset = info.preset("quick").expect("every workload has it");
    let request = RoundRequest {
        scenario: ScenarioJob {
            id: name.clone(),
            workload: name.clone(),
            parameters: preset.parameters(info, scenario),
            warmup: 0,
            rounds: 1,
            strace: Vec::new(),
        },
        round: 0,
        seed: 1,
        clock: Clock::Nanoseconds,
        cpu: None,
        filesystem: FilesystemKind::Tmpfs,
        mount_point: folder.path().display().to_string(),
        may_unmount: false,
    };
    match kdelta_workloads::run(&request, None) {
        Ok(round) => Ok(round),
        Err(error @ (WorkloadError::Unavailable { .. } | WorkloadError::NoAttributes { .. })) => {
            Err(error.to_string())
        }
        Err(error @ WorkloadError::Call { errno: libc::EPERM | libc::EACCES, .. }) => Err(error.to_string()),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn twice_the_work_of_the_quick_preset_is_allowed() {
    for info in infos() {
        for scenario in info.scenarios {
            let preset = info.preset("quick").expect("every workload has it").parameters(info, scenario);
            let once = resolve(info, scenario, &preset).expect("the preset is allowed");
            let mut twice = once.clone();
            let Some(ParameterValue::Integer(value)) = twice.get_mut(info.scale) else {
                panic!("{}/{}: {} is no number", info.name, scenario.name, info.scale)
            };
            *value *= 2;
            let resolved = resolve(info, scenario, &twice);
            assert!(resolved.is_ok(), "{}/{}: {}", info.name, scenario.name, resolved.expect_err("refused"));
        }
    }
}

#[test]
fn every_scenario_counts_its_system_calls_and_keeps_what_its_description_promises() {
    for info in infos() {
        for scenario in info.scenarios {
            let name = format!("{}/{}", info.name, scenario.name);
            let round = match quick(info, scenario) {
                Ok(round) => round,
                Err(reason) => {
                    println!("skipped {name}: {reason}");
                    continue;
                }
            };
            assert!(!round.census.is_empty(), "{name} counts no system calls");
            assert_eq!(
                info.broken_promises(scenario, FilesystemKind::Tmpfs, &round),
                Vec::<String>::new(),
                "{name}"
            );
        }
    }
}
