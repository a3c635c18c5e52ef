//! Says why an option has the value it has: unmet conditions by name, and what would meet them.
//! Read [`Kconfig::explain`] first.

use std::collections::BTreeSet;

use super::expression::{Expression, Tristate, Values};
use super::reader::{Definition, Kconfig};
use super::values;

/// Names that a list shows before "and n more".
const SHOWN: usize = 6;

impl Kconfig {
    /// Why `symbol` is not set in `final_config`, or why it is set when that was not wanted; one
    /// sentence each, and never none.
    #[must_use]
    pub fn explain(&self, final_config: &str, symbol: &str) -> Vec<String> {
        let symbol = symbol.strip_prefix("CONFIG_").unwrap_or(symbol);
        let values = values(final_config);
        let Some(definitions) = self.definitions.get(symbol) else {
            return vec![self.unknown(symbol)];
        };
        let value = values.get(symbol).copied();
        // An option that is m lacks what would let it be y.
        let wanted = if value == Some("m") { Tristate::Yes } else { Tristate::Module };
        let mut reasons = Vec::new();
        match value {
            Some(value) if value != "m" => reasons.extend(self.why_set(symbol, value, definitions, &values)),
            _ => {
                reasons.extend(self.why_missing(symbol, definitions, wanted, &values));
            }
        }
        let mut seen = BTreeSet::new();
        reasons.retain(|reason| seen.insert(reason.clone()));
        if reasons.is_empty() {
            reasons.push(match value {
                Some(value) => format!("{symbol} is {value}, and nothing in the kernel's Kconfig files forces that"),
                None => format!(
                    "all that {symbol} depends on is on, as far as can be seen from the kernel's Kconfig files; run \
                     `make menuconfig` in the tree, search for it with `/`, and compare"
                ),
            });
        }
        reasons
    }

    fn unknown(&self, symbol: &str) -> String {
        let limit = (symbol.len() / 4).clamp(1, 4);
        let mut near: Vec<(usize, &str)> = Vec::new();
        for name in self.definitions.keys() {
            if let Some(distance) = distance(symbol, name, limit) {
                near.push((distance, name));
            } else if symbol.len() >= 5
                && (name.contains(symbol) || (name.len() >= 5 && symbol.contains(name.as_str())))
            {
                near.push((limit + 1, name));
            }
        }
        near.sort_unstable();
        let names: Vec<&str> = near.into_iter().take(SHOWN).map(|(_, name)| name).collect();
        let hint = match names.as_slice() {
            [] => "none has a similar name".to_owned(),
            [name] => format!("the nearest name is {name}"),
            _ => format!("the nearest names are {}", names.join(", ")),
        };
        format!("this kernel has no option {symbol} for {}; {hint}", self.arch)
    }

    /// Why an option is on.
    fn why_set(&self, symbol: &str, value: &str, definitions: &[Definition], values: &Values) -> Vec<String> {
        let mut reasons = Vec::new();
        let selecting: Vec<&str> = self
            .selectors(symbol)
            .filter(|(name, condition)| is_on(name, values) && condition.value(values) > Tristate::No)
            .map(|(name, _)| name)
            .collect();
        if !selecting.is_empty() {
            let who = selected_by(&selecting, "and");
            reasons
                .push(format!("{symbol} is {value} because {who}; to turn it off, turn off what selects it"));
        }
        if !values.contains_key("MODULES")
            && definitions.iter().any(|definition| definition.kind == "tristate")
        {
            reasons.push(format!("{symbol} cannot be m while MODULES is not set"));
        }
        let choice = definitions.iter().find_map(|definition| definition.choice);
        if let Some(choice) = choice.and_then(|index| self.choices.get(index)) {
            reasons.push(format!(
                "{symbol} is the answer of the choice \"{}\"; turn on another answer",
                choice.prompt
            ));
        }
        if reasons.is_empty() {
            reasons.extend(self.why_not_asked(symbol, best(definitions, Tristate::Module, values), values));
        }
        reasons
    }

    /// Why an option is off, or m instead of y.
    fn why_missing(
        &self,
        symbol: &str,
        definitions: &[Definition],
        wanted: Tristate,
        values: &Values,
    ) -> Vec<String> {
        let definition = best(definitions, wanted, values);
        let mut reasons: Vec<String> = unmet(definition, wanted, values)
            .into_iter()
            .map(|condition| format!("{symbol} depends on {}", self.state(condition, wanted, values)))
            .collect();
        reasons.extend(self.why_not_asked(symbol, definition, values));
        if !reasons.is_empty() {
            return reasons;
        }
        if let Some(choice) = definition.choice.and_then(|index| self.choices.get(index)) {
            let taken = choice.members.iter().find(|name| is_on(name, values));
            reasons.extend(taken.map(|name| {
                format!(
                    "{symbol} is one answer of the choice \"{}\", and {name} was chosen; only one can be on",
                    choice.prompt
                )
            }));
        }
        for condition in definition.depends.iter().flat_map(|depends| depends.conjuncts()) {
            if let Expression::Unknown(text) = condition {
                reasons
                    .push(format!("{symbol} depends on {text}, which the compiler or another tool decides"));
            }
        }
        reasons
    }

    /// Why the user is not asked about an option, so that a request for it is ignored.
    fn why_not_asked(&self, symbol: &str, definition: &Definition, values: &Values) -> Vec<String> {
        let Some(prompt) = &definition.prompt else {
            return vec![format!(
                "{symbol} has no prompt, so that a fragment cannot set it: {}",
                self.set_by(symbol, values)
            )];
        };
        let conditions = definition.visible.iter().map(AsRef::as_ref).chain([prompt]);
        let unmet = conditions
            .flat_map(Expression::conjuncts)
            .filter(|condition| condition.value(values) == Tristate::No);
        unmet
            .map(|condition| {
                let state = self.state(condition, Tristate::Module, values);
                format!("{symbol} can be set only with {state}; without that it takes its default")
            })
            .collect()
    }

    /// What turns on an option without a prompt.
    fn set_by(&self, symbol: &str, values: &Values) -> String {
        let mut selectors: Vec<(bool, &str)> = self
            .selectors(symbol)
            .filter(|(name, _)| !is_on(name, values))
            .map(|(name, condition)| {
                (condition.value(values) == Tristate::No || !self.is_ready(name, values), name)
            })
            .collect();
        // Ready ones first; then those named after it, which are the nearest in kind.
        selectors.sort_by_key(|(unready, name)| (*unready, !name.starts_with(symbol)));
        let mut seen = BTreeSet::new();
        selectors.retain(|(_, name)| seen.insert(*name));
        let ready = selectors.iter().filter(|(unready, _)| !unready).count();
        let names: Vec<&str> = selectors.iter().map(|(_, name)| *name).collect();
        let (ready, others) = names.split_at(ready);
        let mut ways = Vec::new();
        if !ready.is_empty() {
            let which = if ready.len() == 1 { "that" } else { "one of them" };
            ways.push(format!("{}; turn {which} on", selected_by(ready, "or")));
        }
        if !others.is_empty() {
            let also = if ready.is_empty() { "" } else { "with more dependencies, " };
            let which = if ready.is_empty() { ", once what that depends on is on" } else { "" };
            ways.push(format!("{also}{}{which}", selected_by(others, "or")));
        }
        let defaults =
            self.definitions.get(symbol).into_iter().flatten().flat_map(|definition| &definition.defaults);
        for (value, condition) in defaults {
            let always = *condition == Expression::Constant("y".into());
            match value {
                Expression::Constant(text) if text == "n" => {}
                _ if always && matches!(value, Expression::Constant(_)) => {
                    ways.push(format!("its default is {value}"))
                }
                _ if always => ways.push(format!("it follows {value}")),
                _ => ways.push(format!("its default is {value} if {condition}")),
            }
        }
        ways.truncate(SHOWN);
        if ways.is_empty() { "nothing that is known here selects it".into() } else { ways.join("; ") }
    }

    /// An unmet condition with the state of what it names, and one level of why.
    fn state(&self, condition: &Expression, wanted: Tristate, values: &Values) -> String {
        let is = |name: &str| match values.get(name) {
            Some(value) => format!("is {value}"),
            None => "is not set".to_owned(),
        };
        match condition {
            Expression::Symbol(name) if values.contains_key(name.as_str()) => {
                let only = if wanted == Tristate::Yes { "only " } else { "" };
                format!("{name}, which is {only}{}", values[name.as_str()])
            }
            Expression::Symbol(name) => format!("{name}, which is not set{}", self.hint(name, values)),
            Expression::Constant(text) => format!("{text}: it is off for good"),
            other => {
                let mut names = other.symbols();
                names.dedup();
                let more = names.len().saturating_sub(SHOWN);
                let mut states: Vec<String> =
                    names.iter().take(SHOWN).map(|name| format!("{name} {}", is(name))).collect();
                if more > 0 {
                    states.push(format!("and {more} more"));
                }
                let verb = if names.len() > 1 { ": " } else { ", but " };
                let ready = match other {
                    Expression::Any(parts) => parts.iter().find_map(|part| match part {
                        Expression::Symbol(name) if self.is_ready(name, values) => Some(name),
                        _ => None,
                    }),
                    _ => None,
                };
                let hint = ready.map(|name| format!("; turn on {name}, for example")).unwrap_or_default();
                format!("{other}{verb}{}{hint}", states.join(", "))
            }
        }
    }

    /// What to do about an option that is not set.
    fn hint(&self, name: &str, values: &Values) -> String {
        let Some(definitions) = self.definitions.get(name) else {
            return format!("; {}", self.unknown(name));
        };
        let definition = best(definitions, Tristate::Module, values);
        let unmet: Vec<String> = unmet(definition, Tristate::Module, values)
            .into_iter()
            .take(SHOWN)
            .map(ToString::to_string)
            .collect();
        if !unmet.is_empty() {
            return format!("; {name} in turn lacks {}", unmet.join(" and "));
        }
        if definition.prompt.is_none() {
            return format!(" and has no prompt: {}", self.set_by(name, values));
        }
        format!("; turn on {name}")
    }

    fn selectors(&self, symbol: &str) -> impl Iterator<Item = (&str, &Expression)> {
        let selectors = self.selectors.get(symbol).into_iter().flatten();
        selectors.map(|(name, condition)| (name.as_str(), condition))
    }

    /// Whether a fragment could turn it on with nothing else.
    fn is_ready(&self, name: &str, values: &Values) -> bool {
        self.definitions.get(name).into_iter().flatten().any(|definition| {
            unmet(definition, Tristate::Module, values).is_empty()
                && definition.prompt.as_ref().is_some_and(|prompt| prompt.value(values) > Tristate::No)
                && definition.visible.iter().all(|condition| condition.value(values) > Tristate::No)
        })
    }
}

fn is_on(name: &str, values: &Values) -> bool {
    matches!(values.get(name), Some(&("y" | "m")))
}

/// The conditions of a block that do not hold.
fn unmet<'d>(definition: &'d Definition, wanted: Tristate, values: &Values) -> Vec<&'d Expression> {
    let conditions = definition.depends.iter().flat_map(|depends| depends.conjuncts());
    let mut unmet: Vec<&Expression> = Vec::new();
    for condition in conditions.filter(|condition| condition.value(values) < wanted) {
        if !unmet.contains(&condition) {
            unmet.push(condition);
        }
    }
    unmet
}

/// The block that comes nearest to being usable; one with a prompt before one without.
fn best<'d>(definitions: &'d [Definition], wanted: Tristate, values: &Values) -> &'d Definition {
    let rank =
        |definition: &&Definition| (definition.prompt.is_none(), unmet(definition, wanted, values).len());
    definitions.iter().min_by_key(rank).unwrap_or(&definitions[0])
}

/// `A, B and C select it`, at most six of them.
fn selected_by(names: &[&str], join: &str) -> String {
    // Never "or 1 others": the last name is as short.
    let shown = if names.len() == SHOWN + 1 { names } else { &names[..names.len().min(SHOWN)] };
    let more = names.len() - shown.len();
    match shown {
        [one] => format!("{one} selects it"),
        _ if more > 0 => format!("{} or {more} others select it", shown.join(", ")),
        [first @ .., last] => format!("{} {join} {last} select it", first.join(", ")),
        [] => "nothing selects it".into(),
    }
}

/// Edits between two names (Levenshtein), when there are at most `limit`.
fn distance(left: &str, right: &str, limit: usize) -> Option<usize> {
    if left.len().abs_diff(right.len()) > limit {
        return None;
    }
    let right = right.as_bytes();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, l) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, r) in right.iter().enumerate() {
            let change = diagonal + usize::from(l != *r);
            diagonal = row[at + 1];
            row[at + 1] = change.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().filter(|distance| *distance <= limit)
}
