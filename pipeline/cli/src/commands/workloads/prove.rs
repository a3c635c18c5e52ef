//! `kdelta workloads prove`: renders what the engine's trial found. Read [`run`] first, then
//! [`render`].

use std::fs;
use std::time::Instant;

use anyhow::Context as _;
use camino::Utf8PathBuf;
use kdelta_engine::Context;
use kdelta_engine::prove::{self, Answer, Problem, ProveRequest, ScenarioTrial, Standing, Trial};
use kdelta_model::Outcome;
use kdelta_wire::{DiskKind, FilesystemKind};
use kdelta_workloads::{Proof, Selection};

use crate::args::{Global, Prove};
use crate::exit::Exit;
use crate::progress::{Progress, seconds};
use crate::settings::{self, Settings};
use crate::terminal::say;

/// Puts workloads on trial, prints the table, and ends as it went.
pub fn run(global: &Global, args: &Prove) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let selections = super::every(&args.names)?;
    let folder = Utf8PathBuf::try_from(std::env::current_dir()?)?;
    let filesystems: Vec<FilesystemKind> = FilesystemKind::ALL
        .into_iter()
        .filter(|kind| args.filesystems.is_empty() || args.filesystems.contains(kind))
        .collect();
    let settings = Settings::new(global)?;
    let init = settings::init(global)?;
    let progress = Progress::new(global.json);
    let ctx =
        Context { cache: &settings.cache, events: &progress, cancel: &settings.cancel, jobs: settings.jobs };
    let patches: Vec<_> = args.patches.iter().map(|patch| patch.under(folder.as_str())).collect();
    let request = ProveRequest {
        selections: &selections,
        filesystems: &filesystems,
        disk: args.disk,
        kernel: &args.kernel.under(folder.as_str()),
        patches: &patches,
        init: &init,
    };
    let trial = prove::prove(&ctx, &request)?;
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&trial)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
    }
    say(render(&trial, &selections).trim_end())?;
    say(format!("in all: {}", seconds(started.elapsed())))?;
    Ok(exit(trial.standing()))
}

/// Lies of a workload are no verdict about a kernel: nothing that it measures is evidence.
fn exit(standing: Standing) -> Exit {
    match standing {
        Standing::AsClaimed => Exit::NoRegression,
        Standing::Disproved => Exit::Inconclusive,
        Standing::KernelFailed => Exit::Kernel,
        Standing::HostFailed => Exit::Host,
    }
}

/// The table, then every detail that it leaves out.
fn render(trial: &Trial, selections: &[Selection]) -> String {
    let mut text = table(trial, selections);
    refusals(&mut text, trial);
    mismatches(&mut text, trial);
    lies(&mut text, trial, selections);
    text.push_str(&format!("\nkernel: {}, {}\n", trial.kernel.source, trial.kernel.release));
    for patch in &trial.kernel.patches {
        text.push_str(&format!("  with {patch}\n"));
    }
    for boot in &trial.filesystems {
        let disk = match boot.disk {
            DiskKind::None => "no disk",
            DiskKind::Ram => "ram",
            DiskKind::Nvme => "nvme",
            DiskKind::VirtioBlk => "virtio-blk",
        };
        text.push_str(&format!(
            "guest {} ({disk}): {}, {:.1} s of CPU, {:.1} s\n",
            boot.filesystem,
            boot.outcome.name(),
            boot.host_cpu_seconds,
            boot.wall_seconds
        ));
    }
    text.push_str(&summary(trial));
    text
}

fn cell(trial: &ScenarioTrial) -> &'static str {
    match trial {
        ScenarioTrial { refused: Some(_), .. } => "refused",
        trial if !trial.is_as_claimed() && (trial.complete || !trial.problems.is_empty()) => "MISMATCH",
        ScenarioTrial { complete: false, .. } => "not done",
        _ => "ok",
    }
}

fn table(trial: &Trial, selections: &[Selection]) -> String {
    let width = selections.iter().map(|selection| selection.name().len()).max().unwrap_or(0).max(8);
    let mut text = format!("{:width$}", "scenario");
    for boot in &trial.filesystems {
        text.push_str(&format!("  {:<8}", boot.filesystem));
    }
    text.push('\n');
    for (row, selection) in selections.iter().enumerate() {
        text.push_str(&format!("{:width$}", selection.name()));
        for boot in &trial.filesystems {
            let cell = boot.scenarios.get(row).map_or("", cell);
            text.push_str(&format!("  {cell:<8}"));
        }
        let trimmed = text.trim_end().len();
        text.truncate(trimmed);
        text.push('\n');
    }
    text
}

/// Entries that several filesystems share, each once with the filesystems that have it.
fn grouped(trial: &Trial, of: impl Fn(&ScenarioTrial) -> Vec<String>) -> Vec<(String, Vec<&'static str>)> {
    let mut groups: Vec<(String, Vec<&'static str>)> = Vec::new();
    for boot in &trial.filesystems {
        for line in boot.scenarios.iter().flat_map(&of) {
            match groups.iter_mut().find(|(known, _)| *known == line) {
                Some((_, kinds)) => kinds.push(boot.filesystem.name()),
                None => groups.push((line, vec![boot.filesystem.name()])),
            }
        }
    }
    groups
}

fn refusals(text: &mut String, trial: &Trial) {
    let of = |trial: &ScenarioTrial| {
        trial.refused.map(|reason| format!("{}: {reason}", trial.scenario)).into_iter().collect()
    };
    let groups = grouped(trial, of);
    if !groups.is_empty() {
        text.push_str("\nrefused:\n");
    }
    for (line, kinds) in groups {
        text.push_str(&format!("  {line} ({})\n", kinds.join(", ")));
    }
}

fn mismatches(text: &mut String, trial: &Trial) {
    let of = |trial: &ScenarioTrial| {
        trial.problems.iter().map(|problem| format!("{} {}", trial.scenario, told(problem))).collect()
    };
    let groups = grouped(trial, of);
    let broken = trial.filesystems.iter().filter(|boot| boot.outcome != Outcome::Completed);
    let broken: Vec<String> =
        broken.map(|boot| format!("guest {}: {}", boot.filesystem, boot.outcome.message())).collect();
    if !groups.is_empty() || !broken.is_empty() {
        text.push_str("\nnot as claimed:\n");
    }
    for line in broken {
        text.push_str(&format!("  {line}\n"));
    }
    for (line, kinds) in groups {
        text.push_str(&format!("  MISMATCH {line} ({})\n", kinds.join(", ")));
    }
}

fn told(problem: &Problem) -> String {
    match problem {
        Problem::RoundFailed { round, message } => format!("[{round}]: {message}"),
        Problem::RoundLost { round } => format!("[{round}]: the guest did not say what came of it"),
        Problem::CheckFailed { round, check, expected, actual } => {
            format!("[{round}]: check {check}: expected {expected}, got {actual}")
        }
        Problem::Promise { message } => format!("[plain]: {message}"),
        Problem::NoCensus => "[plain]: it counts no system calls".to_owned(),
        Problem::NoGrowth { ops: (once, twice) } => {
            format!("[under strace]: {once} operations, and {twice} with twice the work")
        }
        Problem::CallsDiffer { call, traced, counted } => format!(
            "[under strace]: with twice the work there are {traced} more calls of {call} and the census says {counted}"
        ),
        Problem::NoTrace { text } => format!("[under strace]: its table cannot be read: {text:?}"),
    }
}

fn lies(text: &mut String, trial: &Trial, selections: &[Selection]) {
    let of = |trial: &ScenarioTrial| {
        let line = |lie: &prove::Lie| {
            let answer = match &lie.answer {
                Answer::Noticed { expected, actual } => {
                    format!("noticed by \"{}\": expected {expected}, got {actual}", lie.check)
                }
                Answer::Unnoticed { others } if others.is_empty() => {
                    format!("NOT NOTICED by \"{}\", nor by any other check", lie.check)
                }
                Answer::Unnoticed { others } => {
                    format!("NOT NOTICED by \"{}\", but by {}", lie.check, others.join(", "))
                }
                Answer::RoundFailed { message } => {
                    format!("NOT NOTICED by \"{}\": the round ended first: {message}", lie.check)
                }
                Answer::NotTold => "not told: the guest ended before".to_owned(),
            };
            format!("{} with {}: {answer}", trial.scenario, lie.inject)
        };
        trial.lies.iter().map(line).collect()
    };
    let groups = grouped(trial, of);
    if !groups.is_empty() {
        text.push_str("\nlies, and the check that must notice:\n");
    }
    for (line, kinds) in groups {
        text.push_str(&format!("  {line} ({})\n", kinds.join(", ")));
    }
    let mut by_tests: Vec<String> = Vec::new();
    for info in selections.iter().map(|selection| selection.workload.info()) {
        for check in info.checks {
            if let Proof::Test(test) = check.proof {
                let line = format!("  {}: \"{}\" by {test}\n", info.name, check.name);
                if !by_tests.contains(&line) {
                    by_tests.push(line);
                }
            }
        }
    }
    if !by_tests.is_empty() {
        text.push_str("\nlies that strace cannot tell, and the unit test that does:\n");
        by_tests.iter().for_each(|line| text.push_str(line));
    }
}

fn summary(trial: &Trial) -> String {
    let (mut ok, mut refused, mut wrong, mut open, mut told, mut noticed) = (0, 0, 0, 0, 0, 0);
    for scenario in trial.filesystems.iter().flat_map(|boot| &boot.scenarios) {
        match cell(scenario) {
            "ok" => ok += 1,
            "refused" => refused += 1,
            "not done" => open += 1,
            _ => wrong += 1,
        }
        told += scenario.lies.len();
        let is_noticed = |lie: &&prove::Lie| matches!(lie.answer, Answer::Noticed { .. });
        noticed += scenario.lies.iter().filter(is_noticed).count();
    }
    let word = if trial.standing() == Standing::AsClaimed { "as claimed" } else { "NOT as claimed" };
    let open = if open == 0 { String::new() } else { format!(", {open} not done") };
    format!(
        "{word}: {ok} ok, {refused} refused, {wrong} mismatches{open}; {noticed} of {told} lies noticed\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_standing_has_its_exit_code() {
        assert_eq!(exit(Standing::AsClaimed), Exit::NoRegression);
        assert_eq!(exit(Standing::Disproved), Exit::Inconclusive);
        assert_eq!(exit(Standing::KernelFailed), Exit::Kernel);
        assert_eq!(exit(Standing::HostFailed), Exit::Host);
    }
}
