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
        let compared = verdicts().next().is_some();
        let ended = |fits: fn(&Outcome) -> bool| {
            record.boots.iter().any(|boot| (!compared || invalid(boot.arm)) && fits(&boot.outcome))
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
        if !compared && ended(|outcome| matches!(outcome, Outcome::WorkloadFailed { .. })) {
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

#[cfg(test)]
mod tests {
    use kdelta_model::Verdict::{Equivalent, Identical, Improvement, Inconclusive, Invalid, Regression};

    use super::*;

    const DEMO: &str = include_str!("../../../reports/examples/demo.json");

    /// How a run of two primary metrics ends when one has `verdict` and a boot of the child `outcome`.
    fn exit(verdict: Verdict, outcome: Outcome) -> Exit {
        let mut record: RunRecord = serde_json::from_str(DEMO).expect("a record");
        record.comparisons[0].verdict = verdict;
        let child = record.boots.iter_mut().find(|boot| boot.arm == 1).expect("a boot of the child");
        child.outcome = outcome;
        Exit::of(&record)
    }

    #[test]
    fn the_worst_primary_verdict_decides() {
        let fine = || Outcome::Completed;
        assert_eq!(exit(Identical, fine()), Exit::NoRegression);
        assert_eq!(exit(Equivalent { shift_likely: true }, fine()), Exit::NoRegression);
        assert_eq!(exit(Improvement { beyond_margin: true }, fine()), Exit::NoRegression);
        assert_eq!(exit(Regression { beyond_margin: false }, fine()), Exit::Regression);
        let open = Inconclusive { more_boots: Some(4), within_placebo: false };
        assert_eq!(exit(open, fine()), Exit::Inconclusive);
        assert_eq!(exit(Invalid { reason: "a check failed".into() }, fine()), Exit::Inconclusive);
    }

    #[test]
    fn a_kernel_or_a_host_that_failed_is_told_apart_when_the_verdict_is_void() {
        let void = || Invalid { reason: "no boot gave a value".into() };
        let message = || "x".to_owned();
        assert_eq!(exit(void(), Outcome::BootFailed { message: message() }), Exit::Kernel);
        assert_eq!(exit(void(), Outcome::KernelFailed { message: message() }), Exit::Kernel);
        assert_eq!(exit(void(), Outcome::TimedOut { stage: message(), after_seconds: 600 }), Exit::Kernel);
        assert_eq!(exit(void(), Outcome::HostFailed { message: message() }), Exit::Host);
        assert_eq!(exit(void(), Outcome::WorkloadFailed { message: message() }), Exit::Inconclusive);
        assert_eq!(exit(Identical, Outcome::HostFailed { message: message() }), Exit::NoRegression);
    }

    #[test]
    fn a_metric_without_a_verdict_of_its_own_never_decides() {
        let mut record: RunRecord = serde_json::from_str(DEMO).expect("a record");
        record.comparisons.retain(|comparison| !comparison.primary);
        for comparison in &mut record.comparisons {
            comparison.verdict = Regression { beyond_margin: true };
        }
        assert_eq!(Exit::of(&record), Exit::NoRegression);
    }

    #[test]
    fn without_a_comparison_the_boots_decide() {
        let mut record: RunRecord = serde_json::from_str(DEMO).expect("a record");
        record.comparisons.clear();
        assert_eq!(Exit::of(&record), Exit::NoRegression);
        let message = || "x".to_owned();
        record.boots[0].outcome = Outcome::WorkloadFailed { message: message() };
        assert_eq!(Exit::of(&record), Exit::Inconclusive);
        record.boots[0].outcome = Outcome::HostFailed { message: message() };
        assert_eq!(Exit::of(&record), Exit::Host);
        record.boots[0].outcome = Outcome::KernelFailed { message: message() };
        assert_eq!(Exit::of(&record), Exit::Kernel);
    }
}
