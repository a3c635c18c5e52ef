//! Kernel options: reads fragments, merges them, finds the options that the final configuration
//! dropped, and says from the kernel's own Kconfig files why. Read [`OptionRequest`] first, then
//! [`Kconfig::explain`].

mod expression;
mod reader;
mod reason;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};

pub use reader::Kconfig;

/// An option that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionRequest {
    /// Name without `CONFIG_`.
    pub name: String,
    /// `y`, `m`, `n`, a number, or a string with its quotes.
    pub value: String,
    /// Who wants it, as `file:line`.
    pub origin: String,
}

/// A request that the final configuration does not honour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// What was wanted.
    pub request: OptionRequest,
    /// What it became; `None` when it is not set.
    pub actual: Option<String>,
    /// Why, one sentence each; empty until somebody asks [`Kconfig::explain`].
    pub reasons: Vec<String>,
}

/// Why options could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KconfigError {
    /// A line of a fragment is no option.
    #[error("{origin}: `{text}` is no kernel option: {why}")]
    Line {
        /// The place, as `file:line`.
        origin: String,
        /// The line.
        text: String,
        /// What is wrong and what would be right.
        why: &'static str,
    },
    /// The tree has no readable Kconfig.
    #[error("cannot read {path}: {source}; is this a kernel tree?")]
    Tree {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Reads a fragment: `CONFIG_X=value`, `# CONFIG_X is not set`, comments and empty lines.
///
/// # Errors
/// When a line is none of these.
pub fn parse(text: &str, origin: &str) -> Result<Vec<OptionRequest>, KconfigError> {
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let origin = format!("{origin}:{}", index + 1);
        let wrong = |why| KconfigError::Line { origin: origin.clone(), text: line.to_owned(), why };
        let (name, value) = match line.strip_prefix('#') {
            Some(comment) => match unset(comment) {
                Some(name) => (name, "n"),
                None => continue,
            },
            None if line.is_empty() => continue,
            None => line
                .split_once('=')
                .ok_or_else(|| wrong("write CONFIG_NAME=y, or # CONFIG_NAME is not set"))?,
        };
        let name = name.strip_prefix("CONFIG_").filter(|name| is_name(name)).ok_or_else(|| {
            wrong("a name is CONFIG_ with letters, digits and _ after it, without spaces around `=`")
        })?;
        if let Some(why) = bad_value(value) {
            return Err(wrong(why));
        }
        requests.push(OptionRequest { name: name.to_owned(), value: value.to_owned(), origin });
    }
    Ok(requests)
}

/// One request for each name, the last one, in the order of names.
#[must_use]
pub fn merge(requests: Vec<OptionRequest>) -> Vec<OptionRequest> {
    let last: std::collections::BTreeMap<String, OptionRequest> =
        requests.into_iter().map(|request| (request.name.clone(), request)).collect();
    last.into_values().collect()
}

/// The requests whose value is another one in `final_config`, a `.config`. `n`, "is not set" and
/// absent are the same.
#[must_use]
pub fn dropped(requests: &[OptionRequest], final_config: &str) -> Vec<Dropped> {
    let config = values(final_config);
    let differs = |request: &&OptionRequest| {
        let wanted = Some(request.value.as_str()).filter(|value| *value != "n");
        let actual = config.get(request.name.as_str()).copied();
        wanted != actual
            && match (wanted.and_then(number), actual.and_then(number)) {
                (Some(wanted), Some(actual)) => wanted != actual,
                _ => true,
            }
    };
    let report = |request: &OptionRequest| Dropped {
        request: request.clone(),
        actual: config.get(request.name.as_str()).map(|value| (*value).to_owned()),
        reasons: Vec::new(),
    };
    requests.iter().filter(differs).map(report).collect()
}

/// Why `symbol` has the value it has in `final_config`; see [`Kconfig::explain`], which reads the
/// tree once for many symbols.
#[must_use]
pub fn explain(tree: &Utf8Path, source_arch: &str, final_config: &str, symbol: &str) -> Vec<String> {
    match Kconfig::read(tree, source_arch) {
        Ok(kconfig) => kconfig.explain(final_config, symbol),
        Err(error) => vec![error.to_string()],
    }
}

/// The options of a `.config` that are on, with their values.
fn values(config: &str) -> HashMap<&str, &str> {
    let on = |line| -> Option<(&str, &str)> { str::strip_prefix(line, "CONFIG_")?.split_once('=') };
    config.lines().map(str::trim).filter_map(on).filter(|(_, value)| *value != "n").collect()
}

/// The name in `# CONFIG_X is not set`.
fn unset(comment: &str) -> Option<&str> {
    let name = comment.trim().strip_suffix("is not set")?.trim();
    name.strip_prefix("CONFIG_").is_some_and(is_name).then_some(name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn bad_value(value: &str) -> Option<&'static str> {
    if matches!(value, "y" | "m" | "n") || number(value).is_some() {
        return None;
    }
    let Some(rest) = value.strip_prefix('"') else {
        return Some("a value is y, m, n, a number, 0x and hexadecimal digits, or a string in double quotes");
    };
    let mut escaped = false;
    let end = rest.find(|c: char| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    match end {
        Some(end) if end + 1 == rest.len() => None,
        Some(_) => Some("something follows the closing quote; a comment needs a line of its own"),
        None => Some("the string does not end with a double quote"),
    }
}

fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
