//! `kdelta workloads`: what can be run, the page of one, a run on this host, and the trial in
//! guests. Read [`run`] first.

mod host;
mod prove;

use kdelta_wire::FilesystemKind;
use kdelta_workloads::{ALL, Selection};

use crate::args::{Global, Workloads, WorkloadsCommand};
use crate::exit::Exit;
use crate::terminal::say;

/// Does what the word after `workloads` says; without one, lists.
pub fn run(global: &Global, args: &Workloads) -> anyhow::Result<Exit> {
    match &args.command {
        None | Some(WorkloadsCommand::List) => say(list().trim_end())?,
        Some(WorkloadsCommand::Describe { name }) => say(describe(name)?.trim_end())?,
        Some(WorkloadsCommand::Run(args)) => return host::run(args),
        Some(WorkloadsCommand::Round { request }) => return host::round(request),
        Some(WorkloadsCommand::Prove(args)) => return prove::run(global, args),
    }
    Ok(Exit::NoRegression)
}

/// A table with one line for each scenario.
fn list() -> String {
    let marked = |selection: &Selection| match selection.scenario.default {
        true => format!("{} *", selection.name()),
        false => selection.name(),
    };
    let all: Vec<Selection> = kdelta_workloads::every_selection().collect();
    let width = all.iter().map(|selection| marked(selection).len()).max().unwrap_or(0);
    let mut text = format!("{:width$}", "scenario");
    for kind in FilesystemKind::ALL {
        text.push_str(&format!("  {kind}"));
    }
    text.push_str("  what\n");
    for selection in &all {
        text.push_str(&format!("{:width$}", marked(selection)));
        for kind in FilesystemKind::ALL {
            let refused = selection.workload.info().refusal(selection.scenario, kind).is_some();
            text.push_str(&format!(
                "  {:width$}",
                if refused { "-" } else { "yes" },
                width = kind.name().len()
            ));
        }
        text.push_str(&format!("  {}\n", selection.scenario.summary));
    }
    text.push_str(
        "\n* is run when only the workload is named. `kdelta workloads describe NAME` prints the page of one:\n\
         what is timed, parameters, presets, checks, and why it refuses a filesystem.\n",
    );
    text
}

/// The page of the workload called `name`, or to which the scenario of that name belongs.
fn describe(name: &str) -> anyhow::Result<String> {
    let named = ALL.iter().map(|workload| workload.info()).find(|info| info.name == name);
    let info = match named {
        Some(info) => info,
        None => kdelta_workloads::find(name)?.workload.info(),
    };
    Ok(kdelta_workloads::page::page(info))
}

/// Every scenario that `names` name: a scenario, or all of a workload's; everything without a name.
fn every(names: &[String]) -> anyhow::Result<Vec<Selection>> {
    let mut selected: Vec<Selection> = Vec::new();
    for name in names {
        let of_workload =
            kdelta_workloads::every_selection().filter(|selection| selection.workload.info().name == name);
        let mut found: Vec<Selection> = of_workload.collect();
        if found.is_empty() {
            found.push(kdelta_workloads::find(name)?);
        }
        found.retain(|new| selected.iter().all(|known| known.name() != new.name()));
        selected.extend(found);
    }
    Ok(if names.is_empty() { kdelta_workloads::every_selection().collect() } else { selected })
}
