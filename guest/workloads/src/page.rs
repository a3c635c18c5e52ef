//! A workload's page: what it says about itself, as text that reads well in a terminal and in
//! `docs/workloads/`. Read [`page`] first; [`index`] is the list of all pages.

use std::fmt::Write;

use kdelta_wire::FilesystemKind;

use crate::{ALL, Better, Domain, Proof, ScenarioInfo, WorkloadInfo};

/// Columns of a line, but for tables.
const WIDTH: usize = 100;

/// Everything that is known about a workload without running it, in Markdown.
#[must_use]
pub fn page(info: &WorkloadInfo) -> String {
    let mut page = Page { text: format!("# {}: {}\n", info.name, info.title) };
    page.paragraph(info.summary);
    page.paragraph(&format!("From: {}.", info.source.trim_end_matches('.')));
    page.scenarios(info);
    page.filesystems(info);
    page.heading("Timed phases");
    for phase in info.phases {
        let primary = if phase.primary { " (verdicts are about this one)" } else { "" };
        let only = only(phase.scenarios);
        page.item(&format!("`{}`{primary}: one operation is {}{only}.", phase.name, phase.operation));
    }
    if !info.measures.is_empty() {
        page.heading("Own measures");
        for measure in info.measures {
            let better = match measure.better {
                Better::Lower => ", lower is better",
                Better::Higher => ", higher is better",
                Better::Neither => "",
            };
            let unit = if measure.unit.is_empty() { "a number" } else { measure.unit };
            let only = only(measure.scenarios);
            page.item(&format!(
                "`{}` of `{}` ({unit}{better}): {}{only}.",
                measure.name, measure.phase, measure.summary
            ));
        }
        if info.measures.iter().any(|measure| measure.unit == "ticks") {
            page.paragraph("A tick is an instruction in instructions mode, else a nanosecond.");
        }
    }
    page.checks(info);
    page.parameters(info);
    page.presets(info);
    page.text
}

/// A table of all workloads with links to their pages, in Markdown.
#[must_use]
pub fn index() -> String {
    let mut rows =
        vec![["workload", "what it times", "scenarios", "filesystems"].map(str::to_owned).to_vec()];
    for info in ALL.iter().map(|workload| workload.info()) {
        let name = |scenario: &ScenarioInfo| format!("`{}`", scenario.name);
        let scenarios: Vec<String> = info.scenarios.iter().map(name).collect();
        let kinds: Vec<&str> = FilesystemKind::ALL
            .into_iter()
            .filter(|&kind| info.scenarios.iter().any(|scenario| info.refusal(scenario, kind).is_none()))
            .map(FilesystemKind::name)
            .collect();
        let link = format!("[{name}](workloads/{name}.md)", name = info.name);
        rows.push(vec![link, info.title.to_owned(), scenarios.join(", "), kinds.join(", ")]);
    }
    table(&rows)
}

struct Page {
    text: String,
}

impl Page {
    fn heading(&mut self, text: &str) {
        let _ = write!(self.text, "\n## {text}\n\n");
    }

    fn paragraph(&mut self, text: &str) {
        let _ = write!(self.text, "\n{}", wrapped(text, ""));
    }

    fn item(&mut self, text: &str) {
        self.text.push_str(&wrapped(&format!("- {text}"), "  "));
    }

    fn scenarios(&mut self, info: &WorkloadInfo) {
        self.heading("Scenarios");
        for scenario in info.scenarios {
            let default = if scenario.default { " (default)" } else { "" };
            self.item(&format!("`{}/{}`{default}: {}.", info.name, scenario.name, scenario.summary));
        }
    }

    fn filesystems(&mut self, info: &WorkloadInfo) {
        self.heading("Where it runs");
        let mut groups: Vec<(Vec<FilesystemKind>, Vec<&str>)> = Vec::new();
        for scenario in info.scenarios {
            let kinds: Vec<FilesystemKind> = info.filesystems(scenario).collect();
            match groups.iter_mut().find(|(known, _)| *known == kinds) {
                Some((_, names)) => names.push(scenario.name),
                None => groups.push((kinds, vec![scenario.name])),
            }
        }
        for (kinds, names) in &groups {
            let who = if groups.len() == 1 { "every scenario".to_owned() } else { quoted(names) };
            self.item(&format!("{who}: {}", listed(kinds)));
        }
        for refusal in info.refusals {
            let who = match refusal.scenarios {
                [] => "no scenario".to_owned(),
                some => format!("not {}", quoted(some)),
            };
            self.item(&format!("{who} on {}: {}.", listed(refusal.filesystems), refusal.reason));
        }
    }

    fn checks(&mut self, info: &WorkloadInfo) {
        self.heading("Checks");
        for check in info.checks {
            let proof = match check.proof {
                Proof::Injection { scenario, inject } => {
                    format!("It fails when strace makes a call of `{scenario}` lie: `{inject}`.")
                }
                Proof::Test(test) => format!("It fails in the unit test `{test}`."),
            };
            self.item(&format!("`{}`: {}{}. {proof}", check.name, check.summary, only(check.scenarios)));
        }
        self.paragraph("A check that fails makes a comparison INVALID. A pinned round also checks its CPU.");
    }

    fn parameters(&mut self, info: &WorkloadInfo) {
        self.heading("Parameters");
        for parameter in info.parameters {
            let unit = if parameter.unit.is_empty() { String::new() } else { format!(" {}", parameter.unit) };
            let default = parameter.domain.default_value();
            let allowed = match parameter.domain {
                Domain::Integer { min, max, .. } => format!("{min} to {max}{unit}"),
                Domain::Choice { choices, .. } => choices.join(" or "),
            };
            self.item(&format!(
                "`{}`: {}; {allowed}, {default} by default{}.",
                parameter.name,
                parameter.summary,
                only(parameter.scenarios)
            ));
        }
        for limit in info.limits {
            self.item(&format!("{} is at most {}: {}.", product(limit.parameters), limit.max, limit.reason));
        }
        self.paragraph(&format!(
            "The work grows in proportion to `{}`: `kdelta workloads prove` doubles it and compares system calls.",
            info.scale
        ));
    }

    fn presets(&mut self, info: &WorkloadInfo) {
        self.heading("Presets");
        for preset in info.presets {
            self.item(&format!("`{}`: {}.", preset.name, preset.summary));
        }
        self.text.push('\n');
        let header = info.presets.iter().map(|preset| format!("`{}`", preset.name));
        let mut rows: Vec<Vec<String>> =
            vec![std::iter::once("parameter".to_owned()).chain(header).collect()];
        for parameter in info.parameters {
            let value = |preset: &crate::Preset| {
                let set = preset.values.iter().find(|(name, _)| *name == parameter.name);
                set.map_or_else(
                    || parameter.domain.default_value().to_string(),
                    |(_, setting)| setting.value().to_string(),
                )
            };
            let name = format!("`{}`", parameter.name);
            rows.push(std::iter::once(name).chain(info.presets.iter().map(value)).collect());
        }
        self.text.push_str(&table(&rows));
    }
}

/// `, in A and B only`, or nothing for all.
fn only(scenarios: &[&str]) -> String {
    if scenarios.is_empty() { String::new() } else { format!(" ({} only)", quoted(scenarios)) }
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn product(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(" x ")
}

fn listed(kinds: &[FilesystemKind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

/// `text` in lines of at most [`WIDTH`] columns; all but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(indent);
            column = indent.len();
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
    out
}

/// Rows of cells, the first of which is the heading, as a Markdown table with straight columns.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, "| {cell:<width$} ");
        }
        out.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(out, "| {:-<width$} ", "");
            }
            out.push_str("|\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_before_the_width_and_no_word_is_lost() {
        let text = "word ".repeat(60);
        let wrapped = wrapped(&text, "  ");
        assert!(wrapped.lines().all(|line| line.chars().count() <= WIDTH), "{wrapped}");
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  word")), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().count(), 60);
    }

    #[test]
    fn every_declared_name_is_on_the_page() {
        for info in ALL.iter().map(|workload| workload.info()) {
            let page = page(info);
            let names = (info.scenarios.iter().map(|scenario| scenario.name))
                .chain(info.parameters.iter().map(|parameter| parameter.name))
                .chain(info.phases.iter().map(|phase| phase.name))
                .chain(info.measures.iter().map(|measure| measure.name))
                .chain(info.checks.iter().map(|check| check.name))
                .chain(info.presets.iter().map(|preset| preset.name))
                .chain(info.refusals.iter().filter_map(|refusal| refusal.reason.split_whitespace().next()));
            for name in names {
                assert!(page.contains(name), "{name} is not on the page of {}", info.name);
            }
        }
    }
}
