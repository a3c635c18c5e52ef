//! From an estimate and its intervals to one call. The same table serves boots and seeds.
//! Read [`Call`] and [`decide`] first; [`decide_ab`], [`decide_paired`] and [`decide_sandwich`] feed it.

use crate::ab::AbSummary;
use crate::looks::{Look, Schedule};
use crate::paired::PairedSummary;
use crate::power::{Design, look_reaching, needed_n};
use crate::sample::{Interval, StatsError, check_parameter};
use crate::sandwich::SandwichSummary;

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Call {
    /// Every paired difference is exactly 0.
    Identical,
    /// The child is worse.
    Regression {
        /// The whole interval (or the exact change) is beyond the margin.
        beyond_margin: bool,
    },
    /// The child is better.
    Improvement {
        /// The whole interval (or the exact change) is beyond the margin.
        beyond_margin: bool,
    },
    /// No change larger than the margin.
    Equivalent {
        /// A smaller shift is likely (its interval excludes 0) or exact.
        shift_likely: bool,
    },
    /// Neither a difference nor equivalence is established.
    Inconclusive {
        /// Changes beyond this |log ratio| are ruled out; `None` if there is no interval yet.
        ruled_out_log: Option<f64>,
        /// About this many more boots per side (or seeds) should resolve it; `None` if the cap is reached or no look of the schedule
        /// is expected to.
        more: Option<usize>,
    },
}

/// A call with what must be printed beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The call.
    pub call: Call,
    /// The estimate is not larger than the largest change of the placebo build. The report then prints "within placebo scatter";
    /// the call is never a regression or an improvement.
    pub within_placebo: bool,
    /// Changes beyond this |log ratio| are ruled out, whatever the call: `max(|L90|, |H90|)`, or |d| of exact data.
    pub ruled_out_log: Option<f64>,
}

/// What the user fixed before the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VerdictSettings {
    /// Margin `ln(1+X)`, see [`percent_to_log`](crate::percent_to_log): changes inside it are not worth reporting. With 0 nothing is ever
    /// equivalent.
    pub margin_log: f64,
    /// True if a higher value of the metric is worse (time, instructions), false for throughput.
    pub worse_is_higher: bool,
    /// Looks used to say how many more samples are needed: `BOOTS_PER_SIDE` or `SEEDS`.
    pub schedule: Schedule,
    /// Boots per side (or seeds) at which the run stops; from there on "inconclusive" carries no number of further boots.
    pub max_n: usize,
}

/// What the decision table looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Estimated log ratio child to parent.
    pub estimate_log: f64,
    /// 95 % interval of the current look; `None` before the first look.
    pub interval_log: Option<Interval>,
    /// 90 % interval of the current look; `None` before the first look.
    pub interval90_log: Option<Interval>,
    /// A second interval that must exclude 0 on the same side before a difference is claimed: Welch's at the same level when
    /// the spreads differ more than twofold.
    pub cross_check_log: Option<Interval>,
    /// Largest |log ratio| of a placebo build over the same seeds, if one was run.
    pub placebo_largest_log: Option<f64>,
    /// Boots of the smaller arm, or seeds.
    pub n: usize,
    /// Standard deviation for [`needs_more`]; `None` if unknown.
    pub sd_log: Option<f64>,
    /// What `n` and `sd_log` count.
    pub design: Design,
}

/// The first row that holds (spec section 4, rows 2 to 6; row 1, invalid data, is for the caller to find first):
///
/// 1. 90 % interval strictly inside the margin: equivalent; a shift is likely if 0 is outside the 95 % interval.
/// 2. 95 % interval (and the cross-check) on one side of 0: regression or improvement, unless within the placebo scatter.
/// 3. Otherwise inconclusive, with what is ruled out and about how many more samples are needed.
///
/// # Errors
/// A number that is not finite, a negative margin, placebo or sd.
pub fn decide(evidence: &Evidence, settings: &VerdictSettings) -> Result<Decision, StatsError> {
    check(evidence, settings)?;
    let margin = settings.margin_log;
    let within_placebo = is_within(evidence.estimate_log, evidence.placebo_largest_log);
    let ruled_out_log = evidence.interval90_log.map(|interval| interval.largest_abs());
    let difference = difference(evidence).filter(|_| !within_placebo);

    let equivalent = evidence.interval90_log.is_some_and(|interval| interval.is_inside(margin));
    let call = if equivalent {
        Call::Equivalent { shift_likely: difference.is_some() }
    } else if let Some(interval) = difference {
        directed(interval.low > 0.0, interval.is_beyond(margin), settings)
    } else {
        // More samples do not make the placebo's scatter smaller.
        let more = if within_placebo || evidence.n >= settings.max_n {
            None
        } else {
            needs_more(evidence, settings)?.map(|needs| needs.more)
        };
        Call::Inconclusive { ruled_out_log, more }
    };
    Ok(Decision { call, within_placebo, ruled_out_log })
}

/// Decides an A/B comparison. A summary that is not `on_schedule` may be decided once, when its size was fixed beforehand; while boots
/// accumulate keep the verdict of the last completed look.
///
/// # Errors
/// As [`decide`].
pub fn decide_ab(
    summary: &AbSummary,
    cross_check_log: Option<Interval>,
    settings: &VerdictSettings,
) -> Result<Decision, StatsError> {
    let evidence = Evidence {
        estimate_log: summary.estimate_log,
        interval_log: summary.interval_log,
        interval90_log: summary.interval90_log,
        cross_check_log,
        placebo_largest_log: None,
        n: summary.parent_n.min(summary.child_n),
        sd_log: summary.pooled_sd_log,
        design: Design::TwoArms,
    };
    decide(&evidence, settings)
}

/// Decides a paired comparison (spec section 6, steps 3 to 5). Exact data need no interval: all zero is identical, else the common |d|
/// is held against the margin.
///
/// # Errors
/// As [`decide`].
pub fn decide_paired(
    summary: &PairedSummary,
    placebo_largest_log: Option<f64>,
    settings: &VerdictSettings,
) -> Result<Decision, StatsError> {
    let evidence = Evidence {
        estimate_log: summary.median_log,
        interval_log: summary.interval_log,
        interval90_log: summary.interval90_log,
        cross_check_log: None,
        placebo_largest_log,
        n: summary.n,
        sd_log: summary.sd_log,
        design: Design::Paired,
    };
    if !summary.exact {
        return decide(&evidence, settings);
    }
    check(&evidence, settings)?;
    let change = summary.median_log;
    let within_placebo = !summary.all_zero && is_within(change, placebo_largest_log);
    let ruled_out_log = Some(change.abs());
    let call = if summary.all_zero {
        Call::Identical
    } else if change.abs() < settings.margin_log {
        Call::Equivalent { shift_likely: !within_placebo }
    } else if within_placebo {
        Call::Inconclusive { ruled_out_log, more: None }
    } else {
        directed(change > 0.0, change.abs() > settings.margin_log, settings)
    };
    Ok(Decision { call, within_placebo, ruled_out_log })
}

/// Decides an ABA sandwich: a difference only if the t interval excludes 0 and the two parent blocks agree; never equivalence, because
/// three boots cannot show it.
///
/// # Errors
/// As [`decide`].
pub fn decide_sandwich(
    summary: &SandwichSummary,
    settings: &VerdictSettings,
) -> Result<Decision, StatsError> {
    check_settings(settings)?;
    check_parameter("estimate", summary.estimate_log)?;
    check_interval("sandwich interval", summary.interval_log)?;
    let ruled_out_log = summary.interval_log.map(|interval| interval.largest_abs());
    let call = match summary.interval_log {
        Some(interval) if interval.excludes_zero() && summary.control_is_stable => {
            directed(interval.low > 0.0, interval.is_beyond(settings.margin_log), settings)
        }
        _ => Call::Inconclusive { ruled_out_log, more: None },
    };
    Ok(Decision { call, within_placebo: false, ruled_out_log })
}

/// How much more data should resolve an inconclusive comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NeedsMore {
    /// The sample size n* of the formula; `None` without a standard deviation.
    pub n_star: Option<f64>,
    /// The look expected to resolve it.
    pub look: Look,
    /// Samples missing until that look.
    pub more: usize,
}

/// The next look with at least n* samples (spec section 4): `n* = 21.5 s^2/D^2` boots per side, half of it for pairs, with
/// `D = |est|` if that is beyond the margin X, else `max(|est|, X - |est|)`. About 79 % of cases are resolved by then; hence "about".
/// `Ok(None)` if no look of the schedule reaches n*. Without a standard deviation it is simply the next look.
///
/// # Errors
/// As [`decide`].
pub fn needs_more(evidence: &Evidence, settings: &VerdictSettings) -> Result<Option<NeedsMore>, StatsError> {
    check(evidence, settings)?;
    let size = evidence.estimate_log.abs();
    let distance = if size > settings.margin_log { size } else { size.max(settings.margin_log - size) };
    let n_star = match evidence.sd_log {
        Some(_) if distance <= 0.0 => return Ok(None),
        // Only an overflow is left to go wrong, and no look reaches that.
        Some(sd) => match needed_n(sd, distance, evidence.design) {
            Ok(n) => Some(n),
            Err(_) => return Ok(None),
        },
        None => None,
    };
    let look = look_reaching(&settings.schedule, evidence.n, n_star.unwrap_or(0.0));
    Ok(look.map(|look| NeedsMore { n_star, look, more: look.size - evidence.n }))
}

/// The 95 % interval if it shows a difference that the cross-check does not contradict.
fn difference(evidence: &Evidence) -> Option<Interval> {
    let interval = evidence.interval_log.filter(Interval::excludes_zero)?;
    let agrees = evidence
        .cross_check_log
        .is_none_or(|second| second.excludes_zero() && (second.low > 0.0) == (interval.low > 0.0));
    agrees.then_some(interval)
}

fn directed(is_higher: bool, beyond_margin: bool, settings: &VerdictSettings) -> Call {
    if is_higher == settings.worse_is_higher {
        Call::Regression { beyond_margin }
    } else {
        Call::Improvement { beyond_margin }
    }
}

fn is_within(change_log: f64, placebo_largest_log: Option<f64>) -> bool {
    placebo_largest_log.is_some_and(|largest| change_log.abs() <= largest)
}

fn check(evidence: &Evidence, settings: &VerdictSettings) -> Result<(), StatsError> {
    check_settings(settings)?;
    check_parameter("estimate", evidence.estimate_log)?;
    check_interval("interval", evidence.interval_log)?;
    check_interval("equivalence interval", evidence.interval90_log)?;
    check_interval("cross-check interval", evidence.cross_check_log)?;
    check_not_negative("largest placebo change", evidence.placebo_largest_log.unwrap_or(0.0))?;
    check_not_negative("standard deviation", evidence.sd_log.unwrap_or(0.0))
}

fn check_settings(settings: &VerdictSettings) -> Result<(), StatsError> {
    check_not_negative("margin", settings.margin_log)
}

fn check_interval(what: &'static str, interval: Option<Interval>) -> Result<(), StatsError> {
    let Some(Interval { low, high }) = interval else {
        return Ok(());
    };
    check_parameter(what, low)?;
    check_parameter(what, high)?;
    if low > high {
        return Err(StatsError::OutOfRange {
            what,
            value: low,
            expected: "a lower end not above the upper end",
        });
    }
    Ok(())
}

fn check_not_negative(what: &'static str, value: f64) -> Result<(), StatsError> {
    check_parameter(what, value)?;
    if value < 0.0 {
        return Err(StatsError::OutOfRange { what, value, expected: "0 or above" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ab::tests::{R2_CHILD, R3_CHILD, reference};
    use crate::looks::{BOOTS_PER_SIDE, SEEDS};
    use crate::paired::tests::{R6, summary};
    use crate::sample::{assert_close, percent_to_log};
    use crate::sandwich::compare_sandwich;
    use proptest::prelude::*;

    fn boots(margin_percent: f64) -> VerdictSettings {
        VerdictSettings {
            margin_log: percent_to_log(margin_percent).unwrap(),
            worse_is_higher: true,
            schedule: BOOTS_PER_SIDE,
            max_n: 33,
        }
    }

    fn seeds(margin_percent: f64) -> VerdictSettings {
        VerdictSettings { schedule: SEEDS, max_n: 60, ..boots(margin_percent) }
    }

    fn evidence(estimate: f64, at_95: (f64, f64), at_90: (f64, f64)) -> Evidence {
        let interval = |(low, high): (f64, f64)| Some(Interval { low, high });
        Evidence {
            estimate_log: estimate,
            interval_log: interval(at_95),
            interval90_log: interval(at_90),
            cross_check_log: None,
            placebo_largest_log: None,
            n: 10,
            sd_log: Some(0.01),
            design: Design::TwoArms,
        }
    }

    fn call(evidence: &Evidence, settings: &VerdictSettings) -> Call {
        decide(evidence, settings).unwrap().call
    }

    fn paired(d: &[f64], placebo: Option<f64>, margin_percent: f64) -> Decision {
        decide_paired(&summary(d), placebo, &seeds(margin_percent)).unwrap()
    }

    const INCONCLUSIVE_AT_CAP: Call = Call::Inconclusive { ruled_out_log: Some(0.03), more: None };

    #[test]
    fn reference_r2_is_a_regression() {
        let decision = decide_ab(&reference(R2_CHILD), None, &boots(2.0)).unwrap();
        let expected = Call::Regression { beyond_margin: false };
        assert_eq!(decision.call, expected);
        let throughput = VerdictSettings { worse_is_higher: false, ..boots(0.5) };
        let decision = decide_ab(&reference(R2_CHILD), None, &throughput).unwrap();
        let expected = Call::Improvement { beyond_margin: true };
        assert_eq!(decision.call, expected);
    }

    #[test]
    fn reference_r3_is_equivalent_at_2_percent_and_inconclusive_at_1() {
        let found = reference(R3_CHILD);
        let decision = decide_ab(&found, None, &boots(2.0)).unwrap();
        let expected = Call::Equivalent { shift_likely: false };
        assert_eq!(decision.call, expected);
        assert_close(decision.ruled_out_log.unwrap(), 0.014048, 5e-7);
        let decision = decide_ab(&found, None, &boots(1.0)).unwrap();
        assert!(matches!(
            decision.call,
            Call::Inconclusive { more: Some(10), .. } // n* 10.6: look 4 with 15 boots
        ));
    }

    #[test]
    fn reference_r3_needs_the_next_look() {
        let found = reference(R3_CHILD);
        let evidence = Evidence {
            sd_log: found.pooled_sd_log,
            n: 5,
            ..evidence(found.estimate_log, (-1.0, 1.0), (-1.0, 1.0))
        };
        let needs = needs_more(&evidence, &boots(2.0)).unwrap().unwrap();
        assert_close(needs.n_star.unwrap(), 2.3137, 5e-5);
        assert_eq!((needs.look.size, needs.more), (7, 2));
    }

    #[test]
    fn the_table_of_verdicts_in_order() {
        let x = boots(2.0);
        for (found, expected) in [
            (evidence(0.006, (0.002, 0.011), (0.003, 0.010)), Call::Equivalent { shift_likely: true }),
            (evidence(0.0, (-0.021, 0.021), (-0.019, 0.019)), Call::Equivalent { shift_likely: false }),
            (evidence(0.03, (0.01, 0.05), (0.015, 0.045)), Call::Regression { beyond_margin: false }),
            (evidence(-0.03, (-0.04, -0.021), (-0.035, -0.022)), Call::Improvement { beyond_margin: true }),
            (
                evidence(0.02, (0.0, 0.04), (0.005, 0.03)),
                Call::Inconclusive {
                    ruled_out_log: Some(0.03),
                    more: Some(5), // n* 5.4: the next look
                },
            ),
        ] {
            assert_eq!(call(&found, &x), expected);
        }
    }

    #[test]
    fn at_the_cap_or_without_a_sufficient_look_no_number_is_promised() {
        let undecided = evidence(0.02, (0.0, 0.04), (0.005, 0.03));
        let capped = VerdictSettings { max_n: 10, ..boots(2.0) };
        assert_eq!(call(&undecided, &capped), INCONCLUSIVE_AT_CAP);
        let noisy = Evidence { sd_log: Some(0.05), ..undecided };
        assert_eq!(call(&noisy, &boots(2.0)), INCONCLUSIVE_AT_CAP);
        let done = Evidence { n: 50, ..undecided };
        let uncapped = VerdictSettings { max_n: 100, ..boots(2.0) };
        assert_eq!(call(&done, &uncapped), INCONCLUSIVE_AT_CAP);
    }

    #[test]
    fn a_vanishing_estimate_without_a_margin_asks_for_no_number() {
        for estimate in [0.0, 1e-200] {
            let found = evidence(estimate, (-0.1, 0.1), (-0.1, 0.1));
            assert_eq!(needs_more(&found, &boots(0.0)), Ok(None));
        }
    }

    #[test]
    fn before_the_first_look_it_says_what_is_missing() {
        let early = Evidence {
            interval_log: None,
            interval90_log: None,
            sd_log: None,
            n: 3,
            ..evidence(0.5, (0.4, 0.6), (0.4, 0.6))
        };
        let expected = Call::Inconclusive { ruled_out_log: None, more: Some(2) };
        assert_eq!(call(&early, &boots(2.0)), expected);
        let decision = paired(&R6[..7], None, 0.1);
        let expected = Call::Inconclusive { ruled_out_log: None, more: Some(1) };
        assert_eq!(decision.call, expected);
    }

    #[test]
    fn a_cross_check_that_includes_zero_or_points_elsewhere_withholds_the_claim() {
        let clear = evidence(0.03, (0.01, 0.05), (0.015, 0.045));
        for (low, high) in [(-0.001, 0.06), (-0.06, -0.01)] {
            let doubted = Evidence { cross_check_log: Some(Interval { low, high }), ..clear };
            let decided = call(&doubted, &boots(2.0));
            assert!(matches!(decided, Call::Inconclusive { .. }));
        }
        let confirmed = Evidence { cross_check_log: clear.interval_log, ..clear };
        assert!(matches!(call(&confirmed, &boots(2.0)), Call::Regression { .. }));
    }

    #[test]
    fn seeds_that_agree_exactly_are_held_against_the_margin() {
        assert_eq!(paired(&[0.0; 3], Some(0.01), 0.5).call, Call::Identical);
        assert!(!paired(&[0.0; 3], Some(0.01), 0.5).within_placebo);
        let equivalent = Call::Equivalent { shift_likely: true };
        assert_eq!(paired(&[0.003; 3], None, 0.5).call, equivalent);
        let regression = Call::Regression { beyond_margin: true };
        assert_eq!(paired(&[0.03], Some(0.01), 0.5).call, regression);
        let improvement = Call::Improvement { beyond_margin: true };
        assert_eq!(paired(&[-0.03; 9], None, 0.5).call, improvement);
    }

    #[test]
    fn a_change_within_the_placebo_scatter_is_never_a_difference() {
        let exact = paired(&[0.03; 3], Some(0.03), 0.5);
        assert!(exact.within_placebo);
        assert_eq!(exact.call, INCONCLUSIVE_AT_CAP);
        let small = paired(&[0.003; 3], Some(0.01), 0.5);
        let expected = Call::Equivalent { shift_likely: false };
        assert_eq!((small.call, small.within_placebo), (expected, true));

        let clear = paired(&R6, Some(0.004), 0.1);
        assert!(matches!(clear.call, Call::Regression { beyond_margin: true }));
        let hidden = paired(&R6, Some(0.005), 0.1);
        assert!(hidden.within_placebo);
        assert!(matches!(hidden.call, Call::Inconclusive { more: None, .. }));
    }

    #[test]
    fn a_sandwich_is_never_equivalent_and_needs_a_stable_parent() {
        let of = |a1: f64, b: f64, a2: f64| {
            let found = compare_sandwich(&[a1.ln()], &[b.ln()], &[a2.ln()], 0.05).unwrap();
            decide_sandwich(&found, &boots(2.0)).unwrap().call
        };
        let regression = Call::Regression { beyond_margin: true };
        assert_eq!(of(135.754, 229.663, 135.335), regression);
        assert!(matches!(of(55.333333, 58.2, 54.266667), Call::Inconclusive { .. }));
        assert!(matches!(of(100.0, 100.01, 100.001), Call::Inconclusive { .. }));
        let mut unstable = compare_sandwich(&[0.0, 0.001], &[0.5, 0.501], &[0.3, 0.301], 0.05).unwrap();
        assert!(!unstable.control_is_stable && unstable.interval_log.unwrap().excludes_zero());
        let decided = decide_sandwich(&unstable, &boots(2.0)).unwrap();
        assert!(matches!(decided.call, Call::Inconclusive { .. }));
        unstable.estimate_log = f64::NAN;
        assert!(decide_sandwich(&unstable, &boots(2.0)).is_err());
    }

    #[test]
    fn bad_input_is_refused() {
        let good = evidence(0.0, (-0.1, 0.1), (-0.1, 0.1));
        let x = boots(2.0);
        for bad in [
            evidence(f64::NAN, (-0.1, 0.1), (-0.1, 0.1)),
            evidence(0.0, (0.1, -0.1), (-0.1, 0.1)),
            evidence(0.0, (-0.1, 0.1), (f64::NEG_INFINITY, 0.1)),
            Evidence { sd_log: Some(-1.0), ..good },
            Evidence { placebo_largest_log: Some(f64::NAN), ..good },
        ] {
            assert!(decide(&bad, &x).is_err());
        }
        let negative = VerdictSettings { margin_log: -0.1, ..x };
        assert!(decide(&good, &negative).is_err());
    }

    proptest! {
        #[test]
        fn swapping_the_sides_swaps_the_direction(
            estimate in -0.1f64..0.1, half in 0.001f64..0.1, placebo in prop::option::of(0f64..0.1), margin in 0f64..10.0,
        ) {
            let found = Evidence {
                placebo_largest_log: placebo,
                ..evidence(estimate, (estimate - half, estimate + half), (estimate - 0.8 * half, estimate + 0.8 * half))
            };
            let swapped = Evidence {
                estimate_log: -estimate,
                interval_log: found.interval_log.map(|i| i.negated()),
                interval90_log: found.interval90_log.map(|i| i.negated()),
                ..found
            };
            let one = decide(&found, &boots(margin)).unwrap();
            let other = decide(&swapped, &boots(margin)).unwrap();
            let mirrored = match one.call {
                Call::Regression { beyond_margin } => Call::Improvement { beyond_margin },
                Call::Improvement { beyond_margin } => Call::Regression { beyond_margin },
                same => same,
            };
            prop_assert_eq!(other.call, mirrored);
            let claims = matches!(one.call, Call::Regression { .. } | Call::Improvement { .. });
            prop_assert!(!(one.within_placebo && claims));
        }
    }
}
