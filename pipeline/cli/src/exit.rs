//! Exit codes, as `kdelta help` documents them. Read [`Exit`] first.

use std::process::ExitCode;

use kdelta_model::{Outcome, RunRecord, Verdict};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: no regression.
    NoRegression,
    /// 1: a regression.
    Regression,
    /// 2: the command or the experiment is wrong.
    Usage,
    /// 3: neither shown nor ruled out.
    Inconclusive,
    /// 4: a kernel did not build or boot.
    Kernel,
    /// 5: the host could not do its part.
    Host,
}

impl Exit {
    /// How a finished run ended: the worst of its primary comparisons.
    pub fn of(record: &RunRecord) -> Self {
        let verdicts =
            || record.comparisons.iter().filter(|comparison| comparison.primary).map(|c| &c.verdict);
        if verdicts().any(|verdict| matches!(verdict, Verdict::Regression { .. })) {
            return Self::Regression;
        }
        // Placebos and boots that were made good do not count: a verdict stands or it does not.
        let invalid = |arm: usize| {
            let of_arm = |c: &&kdelta_model::Comparison| c.primary && (c.base == arm || c.arm == arm);
            record.comparisons.iter().filter(of_arm).any(|c| matches!(c.verdict, Verdict::Invalid { .. }))
        };
        let ended = |fits: fn(&Outcome) -> bool| {
            record.boots.iter().any(|boot| invalid(boot.arm) && fits(&boot.outcome))
        };
        if ended(|outcome| {
            matches!(
                outcome,
                Outcome::BootFailed { .. } | Outcome::KernelFailed { .. } | Outcome::TimedOut { .. }
            )
        }) {
            return Self::Kernel;
        }
        if ended(|outcome| matches!(outcome, Outcome::HostFailed { .. })) {
            return Self::Host;
        }
        if verdicts().any(|verdict| matches!(verdict, Verdict::Inconclusive { .. } | Verdict::Invalid { .. }))
        {
            return Self::Inconclusive;
        }
        Self::NoRegression
    }

    /// As `git bisect run` reads it: 0 good, 1 bad, 125 cannot be tested, 129 stop.
    pub fn for_bisect(self) -> ExitCode {
        ExitCode::from(match self {
            Self::NoRegression => 0,
            Self::Regression => 1,
            Self::Inconclusive | Self::Kernel => 125,
            Self::Usage | Self::Host => 129,
        })
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::NoRegression => 0,
            Exit::Regression => 1,
            Exit::Usage => 2,
            Exit::Inconclusive => 3,
            Exit::Kernel => 4,
            Exit::Host => 5,
        })
    }
}
