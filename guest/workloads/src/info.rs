//! What a workload says about itself, and how given parameter values are completed and judged.
//! Read [`WorkloadInfo`] first, then [`resolve`].

use std::fmt;

use kdelta_wire::{FilesystemKind, ParameterValue, Parameters, Round};
use thiserror::Error;

/// Checks that the harness makes by itself where it pins, starts workers or drops caches.
const IMPLIED_CHECKS: &[&str] = &["affinity", "workers on their CPU", "cold cache"];

/// Everything that is known about a workload without running it.
#[derive(Debug)]
pub struct WorkloadInfo {
    /// First half of a name such as `xattr/flistxattr`.
    pub name: &'static str,
    /// A few words for lists and headings.
    pub title: &'static str,
    /// What it does and what is timed.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its variants; at least one is a default.
    pub scenarios: &'static [ScenarioInfo],
    /// What can be set.
    pub parameters: &'static [ParameterInfo],
    /// Bounds on several parameters together.
    pub limits: &'static [ProductLimit],
    /// Timed parts of a round, in order; exactly one of each scenario is primary.
    pub phases: &'static [PhaseInfo],
    /// Numbers that it measures itself, beside the counters of every phase.
    pub measures: &'static [MeasureInfo],
    /// What it proves of itself in every round.
    pub checks: &'static [CheckInfo],
    /// Filesystems on which scenarios cannot run, and why.
    pub refusals: &'static [Refusal],
    /// The parameter that grows the work in proportion; the audit doubles it.
    pub scale: &'static str,
    /// Named sets of parameter values; every workload has `source`, `guest` and `quick`.
    pub presets: &'static [Preset],
}

impl WorkloadInfo {
    /// The scenario called `name`.
    #[must_use]
    pub fn scenario(&self, name: &str) -> Option<&'static ScenarioInfo> {
        self.scenarios.iter().find(|scenario| scenario.name == name)
    }

    /// The preset called `name`.
    #[must_use]
    pub fn preset(&self, name: &str) -> Option<&'static Preset> {
        self.presets.iter().find(|preset| preset.name == name)
    }

    /// The parameters that `scenario` takes.
    pub fn parameters_of(&self, scenario: &ScenarioInfo) -> impl Iterator<Item = &'static ParameterInfo> {
        let name = scenario.name;
        self.parameters.iter().filter(move |parameter| applies(parameter.scenarios, name))
    }

    /// The phases of `scenario`, in order.
    pub fn phases_of(&self, scenario: &ScenarioInfo) -> impl Iterator<Item = &'static PhaseInfo> {
        let name = scenario.name;
        self.phases.iter().filter(move |phase| applies(phase.scenarios, name))
    }

    /// The measures of `scenario`.
    pub fn measures_of(&self, scenario: &ScenarioInfo) -> impl Iterator<Item = &'static MeasureInfo> {
        let name = scenario.name;
        self.measures.iter().filter(move |measure| applies(measure.scenarios, name))
    }

    /// The checks of `scenario`; every round also checks its affinity.
    pub fn checks_of(&self, scenario: &ScenarioInfo) -> impl Iterator<Item = &'static CheckInfo> {
        let name = scenario.name;
        self.checks.iter().filter(move |check| applies(check.scenarios, name))
    }

    /// Why `scenario` does not run on `filesystem`, if it does not.
    #[must_use]
    pub fn refusal(&self, scenario: &ScenarioInfo, filesystem: FilesystemKind) -> Option<&'static str> {
        let refusal = self.refusals.iter().find(|refusal| {
            refusal.filesystems.contains(&filesystem) && applies(refusal.scenarios, scenario.name)
        })?;
        Some(refusal.reason)
    }

    /// What `round`, made by `scenario` on `filesystem`, has and should not, or should and has not, by this
    /// description; empty when they agree. Whether checks passed is another question.
    #[must_use]
    pub fn broken_promises(
        &self,
        scenario: &ScenarioInfo,
        filesystem: FilesystemKind,
        round: &Round,
    ) -> Vec<String> {
        let mut broken = Vec::new();
        let mut compare = |what: &str, declared: Vec<String>, made: Vec<String>, implied: &[&str]| {
            for name in declared.iter().filter(|name| !made.contains(name)) {
                broken.push(format!("the {what} `{name}` is declared and was not made"));
            }
            let known = |name: &String| declared.contains(name) || implied.contains(&name.as_str());
            for name in made.iter().filter(|name| !known(name)) {
                broken.push(format!("the {what} `{name}` was made and is not declared"));
            }
        };
        let own = |name: &str| name.to_owned();
        compare(
            "phase",
            self.phases_of(scenario).map(|phase| own(phase.name)).collect(),
            round.phases.iter().map(|phase| own(&phase.name)).collect(),
            &[],
        );
        // A measure may be absent (a device that counts nothing, another filesystem), and one of several
        // iterations has the iteration's number behind its name: `rate#2`.
        let of = |phase: &str, name: &str| format!("{name} of {phase}");
        let declared: Vec<String> =
            self.measures_of(scenario).map(|measure| of(measure.phase, measure.name)).collect();
        let made = (round.phases.iter()).flat_map(|phase| {
            let base = |name: &String| of(&phase.name, name.split('#').next().unwrap_or_default());
            phase.measures.keys().map(base).collect::<Vec<_>>()
        });
        compare("measure", Vec::new(), made.filter(|name| !declared.contains(name)).collect(), &[]);
        compare(
            "check",
            self.checks_of(scenario)
                .filter(|check| check.filesystems.is_empty() || check.filesystems.contains(&filesystem))
                .map(|check| own(check.name))
                .collect(),
            round.checks.iter().map(|check| own(&check.name)).collect(),
            IMPLIED_CHECKS,
        );
        broken
    }

    /// The filesystems on which `scenario` runs.
    pub fn filesystems(&self, scenario: &ScenarioInfo) -> impl Iterator<Item = FilesystemKind> {
        FilesystemKind::ALL.into_iter().filter(|&kind| self.refusal(scenario, kind).is_none())
    }
}

/// Whether something that belongs to `scenarios` (empty means all) belongs to the one called `name`.
fn applies(scenarios: &[&str], name: &str) -> bool {
    scenarios.is_empty() || scenarios.contains(&name)
}

/// One variant of a workload.
#[derive(Debug)]
pub struct ScenarioInfo {
    /// Second half of a name such as `xattr/flistxattr`.
    pub name: &'static str,
    /// What is particular about it.
    pub summary: &'static str,
    /// Whether it is meant when only the workload is named.
    pub default: bool,
}

/// One thing that can be set.
#[derive(Debug)]
pub struct ParameterInfo {
    /// Its name in experiment files.
    pub name: &'static str,
    /// What it sets.
    pub summary: &'static str,
    /// What an integer counts; empty for a choice.
    pub unit: &'static str,
    /// Default and allowed values.
    pub domain: Domain,
    /// Scenarios that take it; empty means all.
    pub scenarios: &'static [&'static str],
}

/// Default and allowed values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// A whole number.
    Integer {
        /// Value when none is given.
        default: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
    },
    /// One of a few words.
    Choice {
        /// Value when none is given.
        default: &'static str,
        /// Allowed words.
        choices: &'static [&'static str],
    },
}

impl Domain {
    /// Value when none is given.
    #[must_use]
    pub fn default_value(self) -> ParameterValue {
        match self {
            Self::Integer { default, .. } => ParameterValue::Integer(default),
            Self::Choice { default, .. } => ParameterValue::Text(default.to_owned()),
        }
    }
}

impl fmt::Display for Domain {
    /// The allowed values, as `1..256` or `none | fsync`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer { min, max, .. } => write!(f, "{min}..{max}"),
            Self::Choice { choices, .. } => f.write_str(&choices.join(" | ")),
        }
    }
}

/// A bound on the product of integer parameters.
#[derive(Debug)]
pub struct ProductLimit {
    /// Names of the factors.
    pub parameters: &'static [&'static str],
    /// Largest allowed product.
    pub max: u64,
    /// What the product is and why it is bounded.
    pub reason: &'static str,
}

/// One timed part of a round.
#[derive(Debug)]
pub struct PhaseInfo {
    /// [`kdelta_wire::Phase::name`].
    pub name: &'static str,
    /// What one operation is.
    pub operation: &'static str,
    /// Whether the verdict is about this one.
    pub primary: bool,
    /// Scenarios that have it; empty means all.
    pub scenarios: &'static [&'static str],
}

/// A number that a workload measures itself.
#[derive(Debug)]
pub struct MeasureInfo {
    /// Name in [`kdelta_wire::Phase::measures`].
    pub name: &'static str,
    /// [`PhaseInfo::name`] of the phase it belongs to.
    pub phase: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// Its unit; `ticks` are instructions or nanoseconds, whichever are counted.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// Scenarios that have it; empty means all.
    pub scenarios: &'static [&'static str],
}

/// Which way a measure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Costs and times.
    Lower,
    /// Rates.
    Higher,
    /// A fact that is shown and not judged.
    Neither,
}

/// Something that a round proves.
#[derive(Debug)]
pub struct CheckInfo {
    /// [`kdelta_wire::Check::name`].
    pub name: &'static str,
    /// What it proves, and what a failure means.
    pub summary: &'static str,
    /// Scenarios that make it; empty means all.
    pub scenarios: &'static [&'static str],
    /// Filesystems on which it can be made; empty means all.
    pub filesystems: &'static [FilesystemKind],
    /// What shows that it can fail.
    pub proof: Proof,
}

/// What shows that a check can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A lie told to the workload: `kdelta workloads prove` runs `scenario` with the preset `quick`
    /// under strace(1) with `-e inject=` this, and the check must fail.
    Injection {
        /// One of the workload's scenarios.
        scenario: &'static str,
        /// As strace takes it: `unlinkat:retval=0:when=3`.
        inject: &'static str,
    },
    /// The unit test of this name in the workload's file, for what strace cannot fake.
    Test(&'static str),
}

/// Filesystems on which scenarios cannot run.
#[derive(Debug)]
pub struct Refusal {
    /// Which filesystems.
    pub filesystems: &'static [FilesystemKind],
    /// Which scenarios; empty means all.
    pub scenarios: &'static [&'static str],
    /// Why.
    pub reason: &'static str,
}

/// A named set of parameter values.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Where the values come from.
    pub summary: &'static str,
    /// Values; parameters that are not listed keep their defaults.
    pub values: &'static [(&'static str, Setting)],
}

impl Preset {
    /// The values that `scenario` of `info` takes.
    #[must_use]
    pub fn parameters(&self, info: &WorkloadInfo, scenario: &ScenarioInfo) -> Parameters {
        let taken = |name: &str| info.parameters_of(scenario).any(|parameter| parameter.name == name);
        self.values
            .iter()
            .filter(|(name, _)| taken(name))
            .map(|(name, setting)| ((*name).to_owned(), setting.value()))
            .collect()
    }
}

/// A parameter value that can stand in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// As [`ParameterValue::Integer`].
    Integer(u64),
    /// As [`ParameterValue::Text`].
    Text(&'static str),
}

impl Setting {
    /// The same as a wire value.
    #[must_use]
    pub fn value(self) -> ParameterValue {
        match self {
            Self::Integer(value) => ParameterValue::Integer(value),
            Self::Text(value) => ParameterValue::Text(value.to_owned()),
        }
    }
}

/// Why parameter values are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// No such parameter.
    #[error("{workload} has no parameter `{name}`; it has {}", .known.join(", "))]
    Unknown {
        /// Workload and scenario.
        workload: String,
        /// The name given.
        name: String,
        /// Names that exist.
        known: Vec<&'static str>,
    },
    /// The parameter belongs to other scenarios.
    #[error("{workload} does not take `{name}`; only {} does", .scenarios.join(", "))]
    OtherScenario {
        /// Workload and scenario.
        workload: String,
        /// The name given.
        name: &'static str,
        /// Scenarios that take it.
        scenarios: &'static [&'static str],
    },
    /// A number where a word is needed, or a word that is not one of the choices.
    #[error("{name}: {value} is not one of {allowed}")]
    NotAChoice {
        /// Parameter.
        name: &'static str,
        /// The value given.
        value: ParameterValue,
        /// Allowed values.
        allowed: Domain,
    },
    /// A word where a number is needed.
    #[error("{name}: `{value}` is not a whole number; allowed are {allowed} {unit}")]
    NotANumber {
        /// Parameter.
        name: &'static str,
        /// The value given.
        value: String,
        /// Allowed values.
        allowed: Domain,
        /// What the number counts.
        unit: &'static str,
    },
    /// A number that is too small or too large.
    #[error("{name}: {value} is out of range; allowed are {allowed} {unit}")]
    OutOfRange {
        /// Parameter.
        name: &'static str,
        /// The value given.
        value: u64,
        /// Allowed values.
        allowed: Domain,
        /// What the number counts.
        unit: &'static str,
    },
    /// Several numbers are too large together.
    #[error("{} is {product}, more than the allowed {max} ({reason})", .names.join(" x "))]
    ProductTooLarge {
        /// Parameters multiplied.
        names: &'static [&'static str],
        /// Their product.
        product: u128,
        /// Largest allowed.
        max: u64,
        /// Why it is bounded.
        reason: &'static str,
    },
}

/// `given` with every default filled in, after checking names, types and ranges.
///
/// # Errors
/// At the first value that is not allowed.
pub fn resolve(
    info: &WorkloadInfo,
    scenario: &ScenarioInfo,
    given: &Parameters,
) -> Result<Parameters, ParameterError> {
    let workload = || format!("{}/{}", info.name, scenario.name);
    for name in given.keys() {
        let Some(parameter) = info.parameters.iter().find(|parameter| parameter.name == name) else {
            let known = info.parameters_of(scenario).map(|parameter| parameter.name).collect();
            return Err(ParameterError::Unknown { workload: workload(), name: name.clone(), known });
        };
        if !applies(parameter.scenarios, scenario.name) {
            let (name, scenarios) = (parameter.name, parameter.scenarios);
            return Err(ParameterError::OtherScenario { workload: workload(), name, scenarios });
        }
    }
    let mut resolved = Parameters::new();
    for parameter in info.parameters_of(scenario) {
        let value = match given.get(parameter.name) {
            Some(value) => admit(parameter, value)?,
            None => parameter.domain.default_value(),
        };
        resolved.insert(parameter.name.to_owned(), value);
    }
    for limit in info.limits {
        let product: u128 = limit.parameters.iter().map(|name| factor(&resolved, name)).product();
        if product > u128::from(limit.max) {
            let (names, max, reason) = (limit.parameters, limit.max, limit.reason);
            return Err(ParameterError::ProductTooLarge { names, product, max, reason });
        }
    }
    Ok(resolved)
}

/// `value` if `parameter` allows it.
fn admit(parameter: &ParameterInfo, value: &ParameterValue) -> Result<ParameterValue, ParameterError> {
    let ParameterInfo { name, unit, domain: allowed, .. } = *parameter;
    match (allowed, value) {
        (Domain::Integer { min, max, .. }, &ParameterValue::Integer(value)) => {
            if !(min..=max).contains(&value) {
                return Err(ParameterError::OutOfRange { name, value, allowed, unit });
            }
        }
        (Domain::Integer { .. }, ParameterValue::Text(value)) => {
            return Err(ParameterError::NotANumber { name, value: value.clone(), allowed, unit });
        }
        (Domain::Choice { choices, .. }, ParameterValue::Text(text)) if choices.contains(&text.as_str()) => {}
        (Domain::Choice { .. }, value) => {
            return Err(ParameterError::NotAChoice { name, value: value.clone(), allowed });
        }
    }
    Ok(value.clone())
}

/// The number in a product; a word or a missing parameter counts as one.
fn factor(parameters: &Parameters, name: &str) -> u128 {
    match parameters.get(name) {
        Some(ParameterValue::Integer(value)) => u128::from(*value),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    static INFO: WorkloadInfo = WorkloadInfo {
        name: "example",
        title: "",
        summary: "",
        source: "",
        scenarios: &[
            ScenarioInfo { name: "one", summary: "", default: true },
            ScenarioInfo { name: "two", summary: "", default: false },
        ],
        parameters: &[
            ParameterInfo {
                name: "files",
                summary: "",
                unit: "files",
                domain: Domain::Integer { default: 10, min: 1, max: 1000 },
                scenarios: &[],
            },
            ParameterInfo {
                name: "dirs",
                summary: "",
                unit: "dirs",
                domain: Domain::Integer { default: 2, min: 1, max: 100 },
                scenarios: &["two"],
            },
            ParameterInfo {
                name: "sync",
                summary: "",
                unit: "",
                domain: Domain::Choice { default: "none", choices: &["none", "fsync"] },
                scenarios: &[],
            },
        ],
        limits: &[ProductLimit { parameters: &["files", "dirs"], max: 2000, reason: "memory" }],
        phases: &[],
        measures: &[],
        checks: &[],
        refusals: &[],
        scale: "files",
        presets: &[],
    };

    fn refused(scenario: &str, name: &str, value: ParameterValue) -> String {
        let given = Parameters::from([(name.to_owned(), value)]);
        let scenario = INFO.scenario(scenario).expect("exists");
        resolve(&INFO, scenario, &given).expect_err("refused").to_string()
    }

    #[test]
    fn a_refusal_names_the_parameter_the_value_and_what_is_allowed() {
        let (number, text) = (ParameterValue::Integer, |word: &str| ParameterValue::Text(word.into()));
        for (scenario, name, value, message) in [
            ("one", "filez", number(1), "example/one has no parameter `filez`; it has files, sync"),
            ("one", "dirs", number(1), "example/one does not take `dirs`; only two does"),
            ("one", "files", number(0), "files: 0 is out of range; allowed are 1..1000 files"),
            ("one", "files", text("x"), "files: `x` is not a whole number; allowed are 1..1000 files"),
            ("one", "sync", number(1), "sync: 1 is not one of none | fsync"),
            ("one", "sync", text("no"), "sync: no is not one of none | fsync"),
        ] {
            assert_eq!(refused(scenario, name, value), message);
        }
        let given = [("files", 1000), ("dirs", 3)].map(|(name, value)| (name.to_owned(), number(value)));
        let error = resolve(&INFO, &INFO.scenarios[1], &Parameters::from(given)).expect_err("too large");
        assert_eq!(error.to_string(), "files x dirs is 3000, more than the allowed 2000 (memory)");
    }

    proptest! {
        #[test]
        fn resolution_keeps_what_is_given_fills_the_rest_and_is_a_projection(
            files in proptest::option::of(1_u64..=1000),
            sync in proptest::option::of(prop_oneof![Just("none"), Just("fsync")]),
        ) {
            let mut given = Parameters::new();
            given.extend(files.map(|value| ("files".to_owned(), ParameterValue::Integer(value))));
            given.extend(sync.map(|value| ("sync".to_owned(), ParameterValue::Text(value.into()))));
            let resolved = resolve(&INFO, &INFO.scenarios[0], &given).expect("allowed");
            prop_assert_eq!(resolved.keys().map(String::as_str).collect::<Vec<_>>(), ["files", "sync"]);
            prop_assert!(given.iter().all(|(name, value)| resolved.get(name) == Some(value)));
            prop_assert_eq!(&resolve(&INFO, &INFO.scenarios[0], &resolved).expect("still allowed"), &resolved);
        }

        #[test]
        fn a_number_is_taken_exactly_when_it_is_in_range(value in prop_oneof![0_u64..1200, any::<u64>()]) {
            let given = Parameters::from([("files".to_owned(), ParameterValue::Integer(value))]);
            let taken = resolve(&INFO, &INFO.scenarios[0], &given).is_ok();
            prop_assert_eq!(taken, (1..=1000).contains(&value));
        }

        #[test]
        fn no_name_or_word_makes_resolution_panic(name in ".*", word in ".*") {
            let given = Parameters::from([(name, ParameterValue::Text(word))]);
            for scenario in INFO.scenarios {
                let _ = resolve(&INFO, scenario, &given);
            }
        }
    }
}
