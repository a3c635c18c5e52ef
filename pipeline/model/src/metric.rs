//! Which numbers are judged. Read [`Metric`] first; [`MetricKind::value`] is the only place where
//! a raw counter or a workload's measure becomes a number with a unit.

use std::fmt;

use kdelta_wire::{Clock, Phase};
use serde::{Deserialize, Serialize};

use crate::guest::Disk;
use crate::record::MeasureMode;

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
    /// The counters that every phase has, in the order of tables.
    pub const COUNTERS: [Self; 4] = [Self::Elapsed, Self::Cpu, Self::System, Self::User];

    /// The kind that a verdict about guests with these disks is about: elapsed, or cpu where elapsed
    /// counts cannot be compared. In instructions mode idle time is skipped: while a guest waits for
    /// a thread of the host, its clock jumps to its next timer, however long the host takes. One such
    /// disk on either side of a comparison is enough (docs/guests.md, "What is exact").
    #[must_use]
    pub fn judged<'a>(mode: MeasureMode, disks: impl IntoIterator<Item = &'a Disk>) -> Self {
        let jumps = mode == MeasureMode::Instructions && disks.into_iter().any(Disk::is_served_by_host);
        if jumps { Self::Cpu } else { Self::Elapsed }
    }

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

#[cfg(test)]
mod tests {
    use kdelta_wire::DiskKind;

    use super::*;
    use crate::guest::{AioMode, CacheMode};

    #[test]
    fn a_verdict_is_about_cpu_where_a_thread_of_the_host_serves_a_disk_and_instructions_are_counted() {
        let disk = |kind| Disk { kind, size: None, cache: CacheMode::default(), aio: AioMode::default() };
        let judged = |mode, kinds: &[DiskKind]| {
            let disks: Vec<Disk> = kinds.iter().map(|kind| disk(*kind)).collect();
            MetricKind::judged(mode, &disks)
        };
        let (none, ram, nvme, virtio) = (DiskKind::None, DiskKind::Ram, DiskKind::Nvme, DiskKind::VirtioBlk);
        for (kinds, expected) in [
            ([none, none], MetricKind::Elapsed),
            ([ram, ram], MetricKind::Elapsed),
            ([nvme, nvme], MetricKind::Cpu),
            ([virtio, virtio], MetricKind::Cpu),
            ([ram, nvme], MetricKind::Cpu),
            ([virtio, none], MetricKind::Cpu),
        ] {
            assert_eq!(judged(MeasureMode::Instructions, &kinds), expected, "{kinds:?}");
            assert_eq!(judged(MeasureMode::Wall, &kinds), MetricKind::Elapsed, "{kinds:?}");
        }
    }
}
