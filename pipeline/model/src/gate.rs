//! Conditions that a measurement must meet, with the numbers that decided them. Read [`Gate`] first;
//! docs/method.md explains every rule.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One rule, applied to one part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Name of the rule in docs/method.md, as `M1`.
    pub rule: String,
    /// Scenario that it is about; `None` for the whole run.
    pub scenario: Option<String>,
    /// What it was applied to, for readers: scenario, phase and arms, or the run.
    pub subject: String,
    /// What came of it.
    pub state: GateState,
    /// The numbers that decided, by name with their unit (`user share, percent`).
    pub numbers: BTreeMap<String, f64>,
    /// What was found, in words.
    pub finding: String,
    /// What to do about it; empty when it is met.
    pub next: String,
}

/// What came of a gate, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateState {
    /// The condition holds.
    Met,
    /// This run cannot decide it.
    NotMeasured,
    /// It holds with a reservation that the reader must know.
    Noted,
    /// It does not hold: believe the numbers only after doing what `next` says.
    Missed,
    /// It does not hold, and the numbers are void.
    Void,
}

impl GateState {
    /// As reports print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMeasured => "not measured",
            Self::Noted => "noted",
            Self::Missed => "MISSED",
            Self::Void => "VOID",
        }
    }
}
