//! Reads an experiment file: text, variables, then typed settings, with the place of every
//! mistake. Read [`load`] first.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{Experiment, ExperimentVariable};
use serde::Deserialize;

/// An experiment with the text it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedExperiment {
    /// What it says.
    pub experiment: Experiment,
    /// Its text after variables were filled in.
    pub yaml: String,
    /// Folder that its relative paths start from.
    pub folder: Utf8PathBuf,
}

/// Why an experiment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read experiment {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not an experiment.
    #[error("{path}:{line}:{column}: {message}")]
    Malformed {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong.
        message: String,
        /// The text that was parsed.
        text: String,
    },
    /// A variable has no value.
    #[error("experiment {path} needs a value for \"{name}\" ({description}); add --set {name}=VALUE")]
    Unset {
        /// The file.
        path: String,
        /// The variable.
        name: String,
        /// What it is for.
        description: String,
    },
    /// `--set` names no variable.
    #[error("--set {name}=...: experiment {path} has no variable \"{name}\"; it has: {known}")]
    UnknownVariable {
        /// The file.
        path: String,
        /// What was set.
        name: String,
        /// What there is.
        known: String,
    },
    /// A value that YAML would read as something else.
    #[error("--set {name}={value}: quotes, line breaks, \": \" and \" #\" cannot be part of a value")]
    Value {
        /// The variable.
        name: String,
        /// The value.
        value: String,
    },
    /// The settings contradict each other or the catalogue.
    #[error("{place}: {message}")]
    Invalid {
        /// Path of the setting, such as `workloads[0].parameters`.
        place: String,
        /// What is wrong and what to do.
        message: String,
    },
}

impl ConfigError {
    /// A contradiction at `place`.
    pub fn invalid(place: impl Into<String>, message: impl ToString) -> Self {
        Self::Invalid { place: place.into(), message: message.to_string() }
    }
}

/// The part of a file that is needed before the rest can be read.
#[derive(Deserialize)]
struct Preamble {
    #[serde(default)]
    variables: BTreeMap<String, ExperimentVariable>,
}

/// Reads the experiment at `path` with the values of `--set`. A value that names an existing file
/// is made absolute; paths inside the file start from the file's folder.
///
/// # Errors
/// When the file cannot be read, is malformed, or a variable is unknown or lacks a value.
pub fn load(path: &Utf8Path, values: &BTreeMap<String, String>) -> Result<LoadedExperiment, ConfigError> {
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_string(), source })?;
    let folder = path.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let folder =
        folder.canonicalize_utf8().map_err(|source| ConfigError::Read { path: path.to_string(), source })?;
    parse(path.as_str(), &text, folder, values)
}

/// As [`load`], for text that is already there.
///
/// # Errors
/// As [`load`].
pub fn parse(
    name: &str,
    text: &str,
    folder: Utf8PathBuf,
    values: &BTreeMap<String, String>,
) -> Result<LoadedExperiment, ConfigError> {
    let preamble: Preamble = from_yaml(name, text)?;
    if let Some(unknown) = values.keys().find(|key| !preamble.variables.contains_key(*key)) {
        let known: Vec<&str> = preamble.variables.keys().map(String::as_str).collect();
        return Err(ConfigError::UnknownVariable {
            path: name.to_owned(),
            name: unknown.clone(),
            known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
        });
    }
    let mut yaml = text.to_owned();
    for (variable, meaning) in &preamble.variables {
        let given = values.get(variable).or(meaning.default.as_ref());
        let Some(value) = given else {
            return Err(ConfigError::Unset {
                path: name.to_owned(),
                name: variable.clone(),
                description: meaning.description.clone(),
            });
        };
        let hostile = value.contains(['"', '\'', '\n', '\r']) || value.contains(": ") || value.contains(" #");
        if hostile {
            return Err(ConfigError::Value { name: variable.clone(), value: value.clone() });
        }
        let value = match Utf8Path::new(value).canonicalize_utf8() {
            Ok(path) if values.contains_key(variable) => path.into_string(),
            _ => value.clone(),
        };
        yaml = yaml.replace(&format!("${{{variable}}}"), &value);
    }
    let experiment: Experiment = from_yaml(name, &yaml)?;
    if experiment.version != 1 {
        return Err(ConfigError::invalid(
            "version",
            format!("this kdelta reads version 1, the file says {}", experiment.version),
        ));
    }
    Ok(LoadedExperiment { experiment, yaml, folder })
}

/// An experiment as the text that [`parse`] reads.
///
/// # Errors
/// When it cannot be written as YAML.
pub fn to_yaml(experiment: &Experiment) -> Result<String, serde_yaml::Error> {
    serde_yaml::to_string(experiment)
}

fn from_yaml<T: for<'de> Deserialize<'de>>(name: &str, text: &str) -> Result<T, ConfigError> {
    serde_yaml::from_str(text).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let message = error.to_string();
        // The place is told apart from the message, which would repeat it.
        let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
        ConfigError::Malformed { path: name.to_owned(), line, column, message, text: text.to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "version: 1
name: small
variables:
  patch: {description: the change}
kernel: {source: \"debian:linux-source-6.12\"}
workloads:
  - {workload: create}
arms:
  - {name: parent}
  - {name: child, kernel: {patches: [\"${patch}\"]}}
";

    fn read(text: &str, set: &[(&str, &str)]) -> Result<LoadedExperiment, ConfigError> {
        let values = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        parse("small.yaml", text, "/".into(), &values)
    }

    #[test]
    fn a_variable_is_filled_in_everywhere() {
        let loaded = read(SMALL, &[("patch", "no-such.patch")]).expect("an experiment");
        assert_eq!(loaded.experiment.arms[1].kernel.patches[0].to_string(), "no-such.patch");
    }

    #[test]
    fn a_missing_variable_says_how_to_give_it() {
        let error = read(SMALL, &[]).expect_err("unset").to_string();
        assert!(error.contains("--set patch=VALUE") && error.contains("the change"), "{error}");
    }

    #[test]
    fn an_unknown_variable_lists_the_known_ones() {
        let error = read(SMALL, &[("pacth", "x")]).expect_err("unknown").to_string();
        assert!(error.contains("it has: patch"), "{error}");
    }

    #[test]
    fn a_value_cannot_change_the_structure_of_the_file() {
        for value in ["a\nb: c", "a: b", "a #", "\"", "'"] {
            assert!(matches!(read(SMALL, &[("patch", value)]), Err(ConfigError::Value { .. })), "{value}");
        }
    }

    #[test]
    fn every_kind_of_mistake_is_shown_where_it_is() {
        let place = |from: &str, to: &str| match read(&SMALL.replace(from, to), &[("patch", "x")]) {
            Err(ConfigError::Malformed { line, column, message, .. }) => format!("{line}:{column} {message}"),
            other => panic!("{other:?}"),
        };
        insta::assert_snapshot!(place("name: small", "nmae: small"), @"");
        insta::assert_snapshot!(place("debian:linux-source-6.12", "debain:linux"), @"");
        insta::assert_snapshot!(place("workload: create", "workload: create, rounds: many"), @"");
        insta::assert_snapshot!(place("- {name: parent}", "- {name: parent, memory: 3GB}"), @"");
        insta::assert_snapshot!(place("name: small", "name: [small"), @"");
    }
}
