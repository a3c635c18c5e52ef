//! Which numbers are judged. Read [`Metric`] first; [`MetricKind::value`] is the only place where
//! a raw counter becomes a number with a unit.

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

/// Which counter of a phase, always divided by its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Executed guest instructions per operation.
    InstructionsPerOp,
    /// Nanoseconds per operation.
    NanosecondsPerOp,
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
    /// Every kind; the first is the primary one, which verdicts are about.
    pub const ALL: [Self; 4] = [Self::Elapsed, Self::Cpu, Self::System, Self::User];

    /// One word for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Elapsed => "elapsed",
            Self::Cpu => "cpu",
            Self::System => "sys",
            Self::User => "user",
        }
    }

    /// Value of this metric in `phase`, per operation; `None` when the phase has no operations.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counters stay far below 2^53")]
    pub fn value(self, phase: &Phase) -> Option<f64> {
        let ticks = match self {
            Self::Elapsed => phase.elapsed,
            Self::Cpu => phase.cpu_ns,
            Self::System => phase.system_ns,
            Self::User => phase.user_ns,
        };
        (phase.ops > 0).then(|| ticks as f64 / phase.ops as f64)
    }

    /// Which way is better.
    #[must_use]
    pub fn direction(self) -> Direction {
        Direction::LowerIsBetter
    }
}

impl Unit {
    /// Unit of every metric under `clock`: under icount a nanosecond of guest time *is* an
    /// instruction.
    #[must_use]
    pub fn of(clock: Clock) -> Self {
        match clock {
            Clock::Instructions => Self::InstructionsPerOp,
            Clock::Nanoseconds => Self::NanosecondsPerOp,
        }
    }

    /// As tables print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InstructionsPerOp => "instructions/op",
            Self::NanosecondsPerOp => "ns/op",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.scenario, self.phase)?;
        match self.kind {
            MetricKind::Elapsed => Ok(()),
            kind => write!(f, ", {}", kind.name()),
        }
    }
}
