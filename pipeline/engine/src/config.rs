//! Reads an experiment file: text, variables, then typed settings, with the place of every
//! mistake. Read [`load`] first.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{Experiment, ExperimentVariable};
use serde::Deserialize;

use crate::builtin;

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
    #[error(
        "cannot read experiment {path}: {source}; give the path of an experiment file (docs/experiments.md)"
    )]
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
    #[error(
        "--set {name}={value}: a value cannot be empty, begin like a YAML structure, or hold quotes, backslashes, control characters, \": \" or \" #\""
    )]
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

/// Reads the experiment at `path` with the values of `--set`. A value that is the path of an
/// existing file is made absolute; paths inside the file start from the file's folder.
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
        let hostile = value.is_empty()
            || value.contains(['"', '\'', '\\'])
            || value.chars().any(char::is_control)
            || value.starts_with(['[', '{', '&', '*', '!', '|', '>', '%', '@', '`', '-', '?', ' '])
            || value.contains(": ")
            || value.contains(" #");
        if hostile {
            return Err(ConfigError::Value { name: variable.clone(), value: value.clone() });
        }
        let value = match Utf8Path::new(value).canonicalize_utf8() {
            Ok(path) if values.contains_key(variable) && builtin::is_path(value) => path.into_string(),
            _ => value.clone(),
        };
        yaml = yaml.replace(&format!("${{{variable}}}"), &value);
    }
    let known: Vec<&str> = preamble.variables.keys().map(String::as_str).collect();
    check_filled(name, &yaml, &known)?;
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
        // The place is told apart from the message, which would repeat it.
        let message = error.to_string().replacen(&format!(" at line {line} column {column}"), "", 1);
        malformed(name, text, (line, column), in_plain_words(&message))
    })
}

fn malformed(name: &str, text: &str, (line, column): (usize, usize), message: String) -> ConfigError {
    ConfigError::Malformed { path: name.to_owned(), line, column, message, text: text.to_owned() }
}

/// A message of serde without the names of Rust's types.
fn in_plain_words(message: &str) -> String {
    const WORDS: [(&str, &str); 11] = [
        ("did not find expected", "expected"),
        ("flow sequence", "list in brackets"),
        ("flow mapping", "mapping in braces"),
        ("block collection", "list"),
        ("block mapping", "mapping"),
        ("unknown variant", "unknown value"),
        ("expected u32", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
    ];
    let text = WORDS.iter().fold(message.to_owned(), |text, (from, to)| text.replace(from, to));
    match text.split_once("expected struct ") {
        Some((before, _)) => format!("{before}expected settings, as {{name: value}}"),
        None => text,
    }
}

/// A `${NAME}` outside of comments that stands for nothing: it would end up in a path or a name.
fn check_filled(name: &str, yaml: &str, known: &[&str]) -> Result<(), ConfigError> {
    for (number, line) in yaml.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#')) {
        let Some(start) = line.find("${") else { continue };
        let Some(length) = line[start..].find('}') else { continue };
        let place = (number + 1, line[..start].chars().count() + 1);
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let variable = &line[start + 2..start + length];
        let message = format!("there is no variable \"{variable}\"; variables of this experiment: {known}");
        return Err(malformed(name, yaml, place, message));
    }
    Ok(())
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
        insta::assert_snapshot!(place("name: small", "nmae: small"), @"2:1 unknown field `nmae`, expected one of `version`, `name`, `description`, `measure`, `boots`, `seed`, `margin_percent`, `repeats`, `deadline_seconds`, `placebo`, `variables`, `kernel`, `guest`, `settings`, `workloads`, `arms`, `factors`");
        insta::assert_snapshot!(place("debian:linux-source-6.12", "debain:linux"), @r#"5:18 kernel.source: "debain:linux" is not a kernel: debian:linux-source-6.12, tarball:PATH, tarball:URL#sha256=HEX, git:REPOSITORY#REVISION, dir:PATH, image:PATH, deb:PATH or deb:PACKAGE"#);
        insta::assert_snapshot!(place("workload: create", "workload: create, rounds: many"), @r#"7:32 workloads[0].rounds: invalid type: string "many", expected a whole number"#);
        insta::assert_snapshot!(place("- {name: parent}", "- {name: parent, memory: 3GB}"), @r#"9:28 arms[0].memory: "3GB" is not a size with a unit, such as 512MiB or 2GiB"#);
        insta::assert_snapshot!(place("name: small", "name: [small"), @"3:10 expected ',' or ']', while parsing a list in brackets at line 2 column 7");
        insta::assert_snapshot!(place("- {name: parent}", "- {name: parent, filesystem: {type: xsf}}"), @"9:39 arms[0].filesystem.type: unknown value `xsf`, expected one of `tmpfs`, `xfs`, `ext4`, `btrfs`");
        insta::assert_snapshot!(place("- {name: parent}", "- {name: parent, disk: {type: nmve}}"), @"9:33 arms[0].disk.type: unknown value `nmve`, expected one of `none`, `ram`, `nvme`, `virtio-blk`");
        insta::assert_snapshot!(place("- {name: parent}", "- {name: parent, cpus: -1}"), @"9:26 arms[0].cpus: invalid type: integer `-1`, expected a whole number");
        insta::assert_snapshot!(place("- {name: parent}", "- {name: parent, parameters: {files: 1.5}}"), @"9:40 arms[0].parameters.files: invalid type: floating point `1.5`, expected a whole number or a word");
        insta::assert_snapshot!(place("- {name: parent}", "- parent"), @r#"9:5 arms[0]: invalid type: string "parent", expected settings, as {name: value}"#);
        insta::assert_snapshot!(place("${patch}", "git:/r#a"), @r#"10:38 arms[1].kernel.patches[0]: "git:/r#a" is not a range of commits: git:REPOSITORY#A..B"#);
        insta::assert_snapshot!(place("${patch}", "${pacth}"), @r#"10:39 there is no variable "pacth"; variables of this experiment: patch"#);
        insta::assert_snapshot!(place("name: small", "name: small\nmargin_percent: 3%"), @r#"3:17 margin_percent: invalid type: string "3%", expected a number"#);
        insta::assert_snapshot!(place("name: small", "name: small\nplacebo: maybe"), @r#"3:10 placebo: invalid type: string "maybe", expected true or false"#);
        insta::assert_snapshot!(place("name: small", "name: small\nmeasure: walls"), @"3:10 measure: unknown value `walls`, expected one of `auto`, `instructions`, `wall`");
        insta::assert_snapshot!(place("name: small", "name: small\nname: twice"), @"1:1 duplicate field `name`");
        insta::assert_snapshot!(place("name: small", "\tname: small"), @"2:1 found a tab character that violates indentation, while scanning a plain scalar at line 1 column 10");
        insta::assert_snapshot!(place("workloads:\n  - {workload: create}\n", ""), @"1:1 missing field `workloads`");
        insta::assert_snapshot!(place("arms:\n", "arms: parent\nx:\n"), @r#"8:7 arms: invalid type: string "parent", expected a list"#);
        let of_file = |text: &str| read(text, &[]).expect_err("no experiment").to_string();
        insta::assert_snapshot!(of_file(""), @"small.yaml:1:1: missing field `version`");
        insta::assert_snapshot!(of_file("- a list\n"), @"small.yaml:1:1: invalid type: sequence, expected settings, as {name: value}");
        insta::assert_snapshot!(of_file("kdelta"), @r#"small.yaml:1:1: invalid type: string "kdelta", expected settings, as {name: value}"#);
    }

    #[test]
    fn a_dollar_in_a_comment_stands_for_itself() {
        let text = format!("# ${{anything}} goes here\n{SMALL}");
        assert!(read(&text, &[("patch", "x")]).is_ok());
    }

    #[test]
    fn another_version_of_the_format_is_refused() {
        let error = read(&SMALL.replace("version: 1", "version: 2"), &[("patch", "x")]).expect_err("version");
        assert_eq!(error.to_string(), "version: this kdelta reads version 1, the file says 2");
    }

    #[test]
    fn an_experiment_written_as_yaml_is_read_back_the_same() {
        let loaded = read(SMALL, &[("patch", "x")]).expect("an experiment");
        let text = to_yaml(&loaded.experiment).expect("YAML");
        let again = read(&text, &[("patch", "x")]).expect("the same");
        assert_eq!(again.experiment, loaded.experiment);
    }
}
