//! Filesystem workloads: what they are called, what they take, and the code that runs one round of
//! one of them. Read [`Workload`] first, then [`run`]; a new workload is one file and one line in [`ALL`].
//!
//! The same code runs in the guest (`kdelta-init round`) and on the host (`kdelta workloads`).

mod aging;
mod budget;
mod bulkstat;
mod clock;
mod connector;
mod counters;
mod create;
mod create_xattr;
mod device;
mod dio;
mod draw;
mod entries;
#[cfg(test)]
mod example;
mod fallocate;
mod fs_mark;
mod fsync;
mod info;
mod inotify_bigdir;
mod inventory;
mod latency;
mod meta;
mod mkdir;
mod modify_scaling;
mod mprotect;
mod names;
mod open_close;
mod opmix;
mod overwrite;
pub mod page;
mod parallel;
mod pattern;
mod recursive_watch;
mod remap;
mod round;
mod seconds;
mod shape;
mod shared_write;
mod sys;
mod tmpfile;
mod tree;
mod unlink;
mod untar;
mod walk;
mod watch;
mod xattr;
mod xattr_replace;

use std::fmt;

use thiserror::Error;

pub use clock::now;
pub use info::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterError, ParameterInfo, PhaseInfo, Preset, ProductLimit,
    Proof, Refusal, ScenarioInfo, Setting, WorkloadInfo, resolve,
};
pub use round::{Mounting, RoundContext, WorkloadError, run};

/// One filesystem workload.
pub trait Workload: Sync {
    /// What it is and what it takes.
    fn info(&self) -> &'static WorkloadInfo;

    /// Runs one round: prepares, measures in [`RoundContext::phase`], and proves what it did with
    /// [`RoundContext::check`] and [`RoundContext::count`].
    ///
    /// # Errors
    /// When a system call fails that the workload needs.
    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError>;
}

/// Every workload, in the order of help texts.
pub static ALL: &[&dyn Workload] = &[
    &create::Create,
    &create_xattr::CreateXattr,
    &unlink::Unlink,
    &bulkstat::Bulkstat,
    &walk::Walk,
    &meta::Meta,
    &opmix::Opmix,
    &xattr::Xattr,
    &xattr_replace::XattrReplace,
    &mkdir::Mkdir,
    &untar::Untar,
    &tmpfile::Tmpfile,
    &overwrite::Overwrite,
    &dio::Dio,
    &fsync::Fsync,
    &fallocate::Fallocate,
    &aging::Aging,
    &remap::Remap,
    &mprotect::Mprotect,
    &inotify_bigdir::InotifyBigdir,
    &open_close::OpenClose,
    &modify_scaling::ModifyScaling,
    &connector::Connector,
    &recursive_watch::RecursiveWatch,
    &shared_write::SharedWrite,
    &device::Device,
];

/// A workload with one of its scenarios.
#[derive(Clone, Copy)]
pub struct Selection {
    /// The workload.
    pub workload: &'static dyn Workload,
    /// The scenario, one of `workload.info().scenarios`.
    pub scenario: &'static ScenarioInfo,
}

impl Selection {
    /// Full name, as `xattr/flistxattr`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.workload.info().name, self.scenario.name)
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Selection").field(&self.name()).finish()
    }
}

/// A name that is no workload or scenario.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no workload `{name}`; {}: {}", if *.close { "did you mean" } else { "there are" }, .names.join(", "))]
pub struct UnknownWorkload {
    /// What was asked for.
    pub name: String,
    /// Names spelt much like it, or all names when none is.
    pub names: Vec<String>,
    /// Whether `names` are near names.
    pub close: bool,
}

/// The workload and scenario called `name`, as `xattr/flistxattr`.
///
/// # Errors
/// When there is none; the error lists near names.
pub fn find(name: &str) -> Result<Selection, UnknownWorkload> {
    every_selection().find(|selection| selection.name() == name).ok_or_else(|| unknown(name))
}

/// What `name` stands for: one scenario (`xattr/flistxattr`), or the default scenarios of a
/// workload (`xattr`).
///
/// # Errors
/// When there is none; the error lists near names.
pub fn select(name: &str) -> Result<Vec<Selection>, UnknownWorkload> {
    let of_workload: Vec<Selection> = every_selection()
        .filter(|selection| selection.workload.info().name == name && selection.scenario.default)
        .collect();
    if of_workload.is_empty() { Ok(vec![find(name)?]) } else { Ok(of_workload) }
}

/// Every scenario of every workload, in the order of help texts.
pub fn every_selection() -> impl Iterator<Item = Selection> {
    ALL.iter().flat_map(|&workload| {
        workload.info().scenarios.iter().map(move |scenario| Selection { workload, scenario })
    })
}

fn unknown(name: &str) -> UnknownWorkload {
    let known: Vec<String> = every_selection().map(|selection| selection.name()).collect();
    let last_part = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    // A third of the letters wrong is still a typing error; more is another word.
    let reach = name.len().div_ceil(3);
    let workloads = ALL.iter().map(|workload| workload.info().name.to_owned());
    let mut near: Vec<(usize, String)> = workloads
        .chain(known.iter().cloned())
        .map(|full| {
            let distance = edit_distance(name, &full).min(edit_distance(name, &last_part(&full)));
            (distance, full)
        })
        .filter(|(distance, full)| *distance <= reach || full.contains(name))
        .collect();
    near.sort();
    near.truncate(4);
    let close = !near.is_empty() && !name.is_empty();
    let names = if close { near.into_iter().map(|(_, full)| full).collect() } else { known };
    UnknownWorkload { name: name.to_owned(), names, close }
}

/// Letters to insert, delete or replace to turn `a` into `b` (Levenshtein 1966).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kdelta_wire::Parameters;

    use super::*;

    #[test]
    fn a_full_name_finds_one_scenario_and_a_workload_name_its_defaults() {
        assert_eq!(find("xattr/flistxattr").expect("known").scenario.name, "flistxattr");
        assert!(select("xattr").expect("known").len() > 1);
        assert_eq!(select("create/sane").expect("known").len(), 1);
    }

    #[test]
    fn an_unknown_name_lists_near_names_or_all() {
        let near = find("xattr/flistxatr").expect_err("misspelt");
        assert_eq!(near.names.first().map(String::as_str), Some("xattr/flistxattr"));
        assert!(near.to_string().contains("did you mean: xattr/flistxattr"), "{near}");
        let bare = find("flistxattr").expect_err("no workload");
        assert_eq!(bare.names.first().map(String::as_str), Some("xattr/flistxattr"));
        let workload = find("xatr").expect_err("misspelt");
        assert_eq!(workload.names.first().map(String::as_str), Some("xattr"), "{workload}");
        let far = find("database").expect_err("unknown");
        assert_eq!(far.names.len(), every_selection().count());
    }

    #[test]
    fn edit_distance_counts_letters() {
        for (a, b, distance) in [("", "", 0), ("abc", "abc", 0), ("kitten", "sitting", 3), ("", "ab", 2)] {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }

    /// Every table is consistent: names are unique and everything named elsewhere exists.
    #[test]
    fn every_workload_describes_itself_without_contradiction() {
        let names: BTreeSet<&str> = ALL.iter().map(|workload| workload.info().name).collect();
        assert_eq!(names.len(), ALL.len());
        for info in ALL.iter().map(|workload| workload.info()) {
            let scenarios: BTreeSet<&str> = info.scenarios.iter().map(|scenario| scenario.name).collect();
            assert_eq!(scenarios.len(), info.scenarios.len(), "{}", info.name);
            assert!(info.scenarios.iter().any(|scenario| scenario.default), "{}", info.name);
            assert!(!info.source.is_empty() && !info.summary.is_empty(), "{} has no docs", info.name);
            assert!(!info.checks.is_empty(), "{} has no checks", info.name);
            let owners = info
                .parameters
                .iter()
                .map(|parameter| (parameter.name, parameter.scenarios))
                .chain(info.phases.iter().map(|phase| (phase.name, phase.scenarios)))
                .chain(info.measures.iter().map(|measure| (measure.name, measure.scenarios)))
                .chain(info.checks.iter().map(|check| (check.name, check.scenarios)))
                .chain(info.refusals.iter().map(|refusal| (refusal.reason, refusal.scenarios)));
            for (name, owners) in owners {
                assert!(owners.iter().all(|owner| scenarios.contains(owner)), "{}: {name}", info.name);
                assert!(!name.is_empty(), "{}", info.name);
            }
            for measure in info.measures {
                assert!(info.phases.iter().any(|phase| phase.name == measure.phase), "{}", measure.name);
            }
            for check in info.checks {
                if let Proof::Injection { scenario, inject } = check.proof {
                    let scenario = info.scenario(scenario).expect("a scenario of its own");
                    assert!(info.checks_of(scenario).any(|own| own.name == check.name), "{}", check.name);
                    assert!(inject.contains(':'), "{inject}");
                }
            }
            for preset in ["source", "guest", "quick"] {
                assert!(info.preset(preset).is_some(), "{} has no preset {preset}", info.name);
            }
            for scenario in info.scenarios {
                let name = format!("{}/{}", info.name, scenario.name);
                assert_eq!(info.phases_of(scenario).filter(|phase| phase.primary).count(), 1, "{name}");
                assert!(info.filesystems(scenario).count() > 0, "{name} runs nowhere");
                let scale = info.parameters_of(scenario).find(|parameter| parameter.name == info.scale);
                let scale = scale.unwrap_or_else(|| panic!("{name} has no parameter {}", info.scale));
                assert!(matches!(scale.domain, Domain::Integer { .. }), "{name}");
                let defaults = resolve(info, scenario, &Parameters::new()).expect("defaults are valid");
                for preset in info.presets {
                    for (parameter, _) in preset.values {
                        assert!(info.parameters.iter().any(|known| known.name == *parameter), "{parameter}");
                    }
                    let resolved = resolve(info, scenario, &preset.parameters(info, scenario));
                    assert_eq!(resolved.expect("presets are valid").len(), defaults.len());
                }
            }
        }
    }
}
