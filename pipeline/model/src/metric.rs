//! Which numbers are judged. Read [`Metric`] first; [`MetricKind::value`] is the only place where
//! a raw counter or a workload's measure becomes a number with a unit.

use std::fmt;

use kdelta_wire::{Clock, Phase};
use serde::{Deserialize, Serialize};

/// A number of one phase of one scenario.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Metric {
    /// Scenario name.
    pub scenario: String,
    /// Phase of the scenario.
    pub phase: String,
    /// Which counter.
    pub kind: MetricKind,
}

/// Which number of a phase: a counter divided by its operations, or what the workload measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// Elapsed ticks per operation: everything that ran in the guest, kernel threads and idle
    /// waiting included.
    Elapsed,
    /// CPU time of the workload's own process per operation (`CLOCK_PROCESS_CPUTIME_ID`).
    Cpu,
    /// System time per operation, as getrusage(2) has it.
    System,
    /// User time per operation, as getrusage(2) has it.
    User,
    /// The workload's own measure of this name ([`kdelta_wire::Phase::measures`]).
    Measure(String),
}

/// Unit of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Executed guest instructions per operation.
    InstructionsPerOp,
    /// Nanoseconds per operation.
    NanosecondsPerOp,
    /// Executed guest instructions.
    Instructions,
    /// Nanoseconds.
    Nanoseconds,
    /// Any other, as the workload names it: `MB/s`.
    Named(String),
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Less is better: costs.
    LowerIsBetter,
    /// More is better: rates.
    HigherIsBetter,
}

impl MetricKind {
    /// The counters that every phase has; the first is the primary one, which verdicts are about.
    pub const COUNTERS: [Self; 4] = [Self::Elapsed, Self::Cpu, Self::System, Self::User];

    /// A word or two for tables.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Measure(name) => name,
            Self::Elapsed => "elapsed",
            Self::Cpu => "cpu",
            Self::System => "sys",
            Self::User => "user",
        }
    }

    /// Value of this metric in `phase`: per operation for counters; `None` when the phase has no
    /// operations, or no such measure.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counters stay far below 2^53")]
    pub fn value(&self, phase: &Phase) -> Option<f64> {
        let ticks = match self {
            Self::Elapsed => phase.elapsed,
            Self::Cpu => phase.cpu_ns,
            Self::System => phase.system_ns,
            Self::User => phase.user_ns,
            Self::Measure(name) => return phase.measures.get(name).copied(),
        };
        (phase.ops > 0).then(|| ticks as f64 / phase.ops as f64)
    }
}

impl Unit {
    /// Unit of every counter under `clock`: under icount a nanosecond of guest time *is* an
    /// instruction.
    #[must_use]
    pub fn of(clock: Clock) -> Self {
        match clock {
            Clock::Instructions => Self::InstructionsPerOp,
            Clock::Nanoseconds => Self::NanosecondsPerOp,
        }
    }

    /// Unit of a measure that is called `name`; `ticks` are what `clock` counts.
    #[must_use]
    pub fn named(name: &str, clock: Clock) -> Self {
        match (name, clock) {
            ("ticks", Clock::Instructions) => Self::Instructions,
            ("ticks", Clock::Nanoseconds) => Self::Nanoseconds,
            _ => Self::Named(name.to_owned()),
        }
    }

    /// As tables print it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::InstructionsPerOp => "instructions/op",
            Self::NanosecondsPerOp => "ns/op",
            Self::Instructions => "instructions",
            Self::Nanoseconds => "ns",
            Self::Named(name) => name,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.scenario, self.phase)?;
        match &self.kind {
            MetricKind::Elapsed => Ok(()),
            kind => write!(f, ", {}", kind.name()),
        }
    }
}
