//! `kdelta workloads`: what can be run, with every parameter; and a run on this host, for a look.

use anyhow::Context;
use camino::Utf8Path;
use kdelta_wire::{Clock, FilesystemKind, ParameterValue, Parameters, RoundRequest, ScenarioJob};
use kdelta_workloads::{ALL, Selection, WorkloadInfo};

use crate::args::Workloads;
use crate::exit::Exit;
use crate::terminal::say;

/// Lists, describes or runs.
pub fn run(args: &Workloads) -> anyhow::Result<Exit> {
    let Some(name) = &args.name else {
        say((list()).trim_end())?;
        return Ok(Exit::NoRegression);
    };
    let selected = kdelta_workloads::select(name)?;
    let Some(folder) = &args.run_in else {
        for selection in selected.iter().take(1) {
            say((describe(selection.workload.info())).trim_end())?;
        }
        return Ok(Exit::NoRegression);
    };
    for selection in &selected {
        run_here(selection, folder, &args.parameters)?;
    }
    Ok(Exit::NoRegression)
}

/// One line for each scenario.
fn list() -> String {
    let mut text = String::new();
    for workload in ALL {
        let info = workload.info();
        text.push_str(&format!("{}: {}\n", info.name, info.title));
        for scenario in info.scenarios {
            let name = format!("{}/{}", info.name, scenario.name);
            let default = if scenario.default { " [default]" } else { "" };
            let kinds: Vec<&str> = info.filesystems(scenario).map(FilesystemKind::name).collect();
            let only = match kinds.len() < FilesystemKind::ALL.len() {
                true => format!(" ({} only)", kinds.join(", ")),
                false => String::new(),
            };
            text.push_str(&format!("  {name:<26} {}{only}{default}\n", scenario.summary));
        }
    }
    text.push_str("\n`kdelta workloads NAME` describes one and its parameters.\n");
    text
}

fn describe(info: &WorkloadInfo) -> String {
    let mut text =
        format!("{}: {}\n\n{}\nFrom: {}\n\nScenarios:\n", info.name, info.title, info.summary, info.source);
    for scenario in info.scenarios {
        text.push_str(&format!("  {:<16} {}\n", scenario.name, scenario.summary));
    }
    text.push_str("\nTimed phases:\n");
    for phase in info.phases {
        let primary = if phase.primary { " [verdicts are about this one]" } else { "" };
        text.push_str(&format!("  {:<16} one operation is {}{primary}\n", phase.name, phase.operation));
    }
    text.push_str("\nParameters:\n");
    for parameter in info.parameters {
        let unit = if parameter.unit.is_empty() { String::new() } else { format!(" {}", parameter.unit) };
        let only = match parameter.scenarios {
            [] => String::new(),
            list => format!("; only {}", list.join(", ")),
        };
        text.push_str(&format!(
            "  {:<16} {} (default {}{unit}, allowed {}{only})\n",
            parameter.name,
            parameter.summary,
            parameter.domain.default_value(),
            parameter.domain
        ));
    }
    text.push_str("\nPresets:\n");
    for preset in info.presets {
        text.push_str(&format!("  {:<16} {}\n", preset.name, preset.summary));
    }
    text
}

/// One round in a folder of this host; numbers for a look, not for a report.
fn run_here(
    selection: &Selection,
    folder: &Utf8Path,
    assignments: &[(String, String)],
) -> anyhow::Result<()> {
    let parameters: Parameters = assignments
        .iter()
        .map(|(name, value)| {
            let value =
                value.parse().map_or_else(|_| ParameterValue::Text(value.clone()), ParameterValue::Integer);
            (name.clone(), value)
        })
        .collect();
    let kind =
        kdelta_engine::host::filesystem_of(folder).with_context(|| format!("cannot look at {folder}"))?;
    let kind = kind
        .with_context(|| format!("{folder} is not on tmpfs, xfs, ext4 or btrfs; try a folder in /dev/shm"))?;
    let workload = selection.name();
    say(format!("{workload}:"))?;
    let request = RoundRequest {
        scenario: ScenarioJob {
            id: workload.clone(),
            workload,
            parameters,
            warmup: 0,
            rounds: 1,
            strace: Vec::new(),
        },
        round: 0,
        seed: 0,
        clock: Clock::Nanoseconds,
        cpu: None,
        filesystem: kind,
        mount_point: folder.to_string(),
        may_unmount: false,
    };
    let round = kdelta_workloads::run(&request, None)?;
    for phase in &round.phases {
        let per_op = phase.elapsed as f64 / phase.ops.max(1) as f64;
        say(format!(
            "{}: {} operations, {per_op:.1} ns/op on this host's clock (no evidence: not a guest, not pinned)",
            phase.name, phase.ops
        ))?;
    }
    for check in &round.checks {
        let word = if check.passed { "ok" } else { "FAILED" };
        say(format!("check {}: {word} (expected {}, got {})", check.name, check.expected, check.actual))?;
    }
    for (operation, count) in &round.census {
        say(format!("{operation}: {} attempted, {} succeeded", count.attempted, count.succeeded))?;
    }
    anyhow::ensure!(
        round.checks.iter().all(|check| check.passed),
        "the workload did not do what it claims on {folder}"
    );
    Ok(())
}
