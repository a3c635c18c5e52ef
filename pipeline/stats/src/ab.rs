//! The A/B comparison of two sets of boots: Hodges-Lehmann shift after removing a Theil-Sen drift, with the exact
//! Mann-Whitney interval at the current look ("TS-HL"). Read [`compare_ab`] and its result [`AbSummary`] first.

use std::collections::BTreeSet;

use crate::looks::{Look, Schedule};
use crate::mann_whitney::UDistribution;
use crate::sample::{
    Interval, StatsError, check_level, check_parameter, check_values, median, median_of_sorted,
    sum_of_squares,
};
use crate::theil_sen::{TimedValue, theil_sen};

/// Fewest boots of each arm in a session when sessions are pooled: with one, the alignment would use up all it says.
pub const MIN_BOOTS_PER_ARM_AND_SESSION: usize = 2;

/// A boot with at most this many distinct round values is limited by the resolution of its metric.
const FEW_DISTINCT: usize = 2;

/// One boot of one arm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Boot {
    /// Log of the boot value, or the raw value if any boot value is not positive; then every `_log` below is in raw units.
    pub y: f64,
    /// Start of the boot since session start, in seconds, or its place in the order of boots; the slope is per unit of it.
    pub t: f64,
    /// Session the boot belongs to; boots of another day are another session.
    pub session: u32,
}

/// What the caller decides before seeing the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AbSettings {
    /// Looks with their nominal p-values, counted in boots per side; normally `BOOTS_PER_SIDE`.
    pub schedule: Schedule,
    /// Error rate of "differs" over all looks together: 0.05, or 0.05/m for m primary metrics.
    pub alpha: f64,
    /// Twice the error rate of "equivalent": 0.10 makes two one-sided tests at 5 % each (Schuirmann 1987).
    pub equivalence_alpha: f64,
    /// Resolution q of the metric as a log ratio, added to both ends of every interval; 0 if the rounds of every boot take more than
    /// two distinct values. See [`resolution`].
    pub resolution_log: f64,
}

/// The comparison child against parent; positive means the child's values are larger.
#[derive(Debug, Clone, PartialEq)]
pub struct AbSummary {
    /// Boots of the parent.
    pub parent_n: usize,
    /// Boots of the child.
    pub child_n: usize,
    /// Last completed look for `min(parent_n, child_n)`; `None` before the first, when there is no interval and no verdict.
    pub look: Option<Look>,
    /// True if the smaller arm has exactly the size of the look. If false, the boots since that look may be shown, but the verdict
    /// stays that of the look: judging them now would be a look the error rate was not budgeted for.
    pub on_schedule: bool,
    /// Drift per unit of [`Boot::t`] removed from every boot; `None` if no arm has two boots at different times in a session.
    pub slope: Option<f64>,
    /// Hodges-Lehmann shift: median of all child-minus-parent differences, as a log ratio.
    pub estimate_log: f64,
    /// Interval at the nominal level that `alpha` has at this look.
    pub interval_log: Option<Interval>,
    /// Interval at the nominal level that `equivalence_alpha` has at this look.
    pub interval90_log: Option<Interval>,
    /// Nominal two-sided p: at most the nominal level exactly if `interval_log` excludes 0. `None` below 4 boots in total.
    pub p: Option<f64>,
    /// Smallest alpha whose rule this look meets; the repeated p-value is the minimum of it over the looks taken.
    pub alpha_reached: Option<f64>,
    /// Widening factor `sqrt((N-1)/(N-3))` for the estimated slope.
    pub widening: Option<f64>,
    /// Pooled standard deviation inside the arms after drift removal, with N-3 degrees of freedom.
    pub pooled_sd_log: Option<f64>,
    /// Parent values after session alignment and drift removal, in input order.
    pub parent_adjusted: Vec<f64>,
    /// Child values after session alignment and drift removal, in input order.
    pub child_adjusted: Vec<f64>,
}

/// Compares two arms (spec section 3, steps 2 to 9; Hodges & Lehmann 1963, Sen 1968).
///
/// 1. With several sessions, `(median parent + median child)/2` of its session is subtracted from each value.
/// 2. The Theil-Sen slope inside arm and session is removed.
/// 3. `d` = all differences child - parent; the estimate is their median; each `d` is pushed away from it by
///    `f = sqrt((N-1)/(N-3))`, giving `w`.
/// 4. The interval is `[w_(u+1) - q, w_(nm-u) + q]` with the exact critical U of the look, and p counts the `w` on or across 0.
///
/// # Errors
/// An arm without boots or with too few for pooling sessions, a value that is not finite, a setting out of range, or more boots
/// than [`MAX_TOTAL`](crate::MAX_TOTAL).
pub fn compare_ab(parent: &[Boot], child: &[Boot], settings: &AbSettings) -> Result<AbSummary, StatsError> {
    check_input(parent, child, settings)?;
    let (parent_adjusted, child_adjusted, slope) = adjust(parent, child)?;
    let (n, m) = (parent.len(), child.len());
    let null = UDistribution::new(n, m)?;

    let mut differences = Vec::with_capacity(n * m);
    for a in &parent_adjusted {
        differences.extend(child_adjusted.iter().map(|b| b - a));
    }
    differences.sort_by(f64::total_cmp);
    check_values("child - parent", &differences)?;
    let estimate = median_of_sorted(&differences);

    // N - 3: two levels and one slope are estimated.
    let residual_df = (n + m).checked_sub(3).filter(|df| *df > 0);
    let widening = residual_df.map(|df| ((df + 2) as f64 / df as f64).sqrt());
    let pooled_sd_log = residual_df
        .map(|df| ((sum_of_squares(&parent_adjusted) + sum_of_squares(&child_adjusted)) / df as f64).sqrt());
    check_parameter("pooled sd", pooled_sd_log.unwrap_or(0.0))?;
    let shift = widening.map(|factor| WidenedShift {
        estimate,
        widened: differences.iter().map(|d| estimate + factor * (d - estimate)).collect(),
        resolution: settings.resolution_log,
        null,
    });

    if let Some(shift) = &shift {
        check_values("widened differences", &shift.widened)?;
    }

    let look = settings.schedule.completed(n.min(m));
    let interval_at = |alpha: f64| -> Result<Option<Interval>, StatsError> {
        match (look, &shift) {
            (Some(look), Some(shift)) => shift.interval(settings.schedule.nominal_p(look, alpha)?),
            _ => Ok(None),
        }
    };
    let p = shift.as_ref().map(WidenedShift::p);
    let alpha_reached = match (look, p) {
        (Some(look), Some(p)) => Some(settings.schedule.alpha_reached(look, p)?),
        _ => None,
    };
    Ok(AbSummary {
        parent_n: n,
        child_n: m,
        look,
        on_schedule: look.is_some_and(|look| look.size == n.min(m)),
        slope,
        estimate_log: estimate,
        interval_log: interval_at(settings.alpha)?,
        interval90_log: interval_at(settings.equivalence_alpha)?,
        p,
        alpha_reached,
        widening,
        pooled_sd_log,
        parent_adjusted,
        child_adjusted,
    })
}

/// How finely a metric is recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resolution {
    /// Smallest positive gap between distinct round values divided by their median; `None` if all rounds are equal, in which case
    /// the resolution must be declared.
    pub relative: Option<f64>,
    /// True if some boot has at most two distinct round values, so that intervals must be extended by the resolution.
    pub limits_a_boot: bool,
}

impl Resolution {
    /// The extension for [`AbSettings::resolution_log`]: `ln(1+q)` if a boot is limited and q is known, else 0.
    #[must_use]
    pub fn extension_log(&self) -> f64 {
        match self.relative {
            Some(relative) if self.limits_a_boot => relative.ln_1p(),
            _ => 0.0,
        }
    }
}

/// Resolution q of the measured rounds, one slice per boot of both arms (spec section 3, step 7). A q above the margin makes
/// equivalence impossible: the report then says "raise iterations".
///
/// # Errors
/// No boots, a boot without rounds, a value that is not finite, or a median round that is not positive.
pub fn resolution(rounds_by_boot: &[&[f64]]) -> Result<Resolution, StatsError> {
    let mut all = Vec::new();
    let mut limits_a_boot = false;
    for rounds in rounds_by_boot {
        check_values("rounds of a boot", rounds)?;
        all.extend_from_slice(rounds);
        limits_a_boot |= distinct_sorted(rounds).len() <= FEW_DISTINCT;
    }
    let level = median(&all)?;
    crate::sample::check_positive("median round", level)?;
    let gap = distinct_sorted(&all).windows(2).map(|pair| pair[1] - pair[0]).min_by(f64::total_cmp);
    Ok(Resolution { relative: gap.map(|gap| gap / level), limits_a_boot })
}

/// The sorted differences pushed away from their median, with everything that turns ranks into an interval or a p-value.
struct WidenedShift {
    estimate: f64,
    widened: Vec<f64>,
    resolution: f64,
    null: UDistribution,
}

impl WidenedShift {
    fn interval(&self, nominal: f64) -> Result<Option<Interval>, StatsError> {
        let ends = self.null.critical(nominal)?.and_then(|u| {
            let low = self.widened.get(u)?;
            let high = self.widened.get(self.widened.len().checked_sub(u + 1)?)?;
            Some(Interval { low: low - self.resolution, high: high + self.resolution })
        });
        Ok(ends)
    }

    /// Counts with the very expressions of [`Self::interval`], so that p and interval cannot disagree. The resolution counts here
    /// too; without it the p of a coarse metric could be small while its interval contains 0.
    fn p(&self) -> f64 {
        let against = if self.estimate > 0.0 {
            self.widened.iter().filter(|w| **w - self.resolution <= 0.0).count()
        } else if self.estimate < 0.0 {
            self.widened.iter().filter(|w| **w + self.resolution >= 0.0).count()
        } else {
            return 1.0;
        };
        self.null.two_sided_p(against)
    }
}

fn check_input(parent: &[Boot], child: &[Boot], settings: &AbSettings) -> Result<(), StatsError> {
    for (what, boots) in [("parent boots", parent), ("child boots", child)] {
        let values: Vec<f64> = boots.iter().map(|boot| boot.y).collect();
        check_values(what, &values)?;
        for boot in boots {
            check_parameter("start time of a boot", boot.t)?;
        }
    }
    check_level("alpha", settings.alpha)?;
    check_level("equivalence alpha", settings.equivalence_alpha)?;
    check_parameter("resolution", settings.resolution_log)?;
    if settings.resolution_log < 0.0 {
        return Err(StatsError::OutOfRange {
            what: "resolution",
            value: settings.resolution_log,
            expected: "0 or above",
        });
    }
    Ok(())
}

/// Session alignment and drift removal: adjusted parent, adjusted child, slope.
#[expect(clippy::type_complexity, reason = "the three parts are unpacked at the only call")]
fn adjust(parent: &[Boot], child: &[Boot]) -> Result<(Vec<f64>, Vec<f64>, Option<f64>), StatsError> {
    let sessions: BTreeSet<u32> = parent.iter().chain(child).map(|b| b.session).collect();
    let mut aligned_parent = parent.to_vec();
    let mut aligned_child = child.to_vec();
    let mut groups = Vec::with_capacity(2 * sessions.len());
    for session in &sessions {
        if sessions.len() > 1 {
            let centre = session_centre(parent, child, *session)?;
            for boot in aligned_parent.iter_mut().chain(&mut aligned_child) {
                if boot.session == *session {
                    boot.y -= centre;
                }
            }
        }
        for arm in [&aligned_parent, &aligned_child] {
            groups.push(
                arm.iter()
                    .filter(|boot| boot.session == *session)
                    .map(|boot| TimedValue { t: boot.t, y: boot.y })
                    .collect(),
            );
        }
    }
    let slope = theil_sen(&groups)?;
    let without_drift = |boots: &[Boot]| -> Vec<f64> {
        boots.iter().map(|boot| boot.y - slope.unwrap_or(0.0) * boot.t).collect()
    };
    let (a, b) = (without_drift(&aligned_parent), without_drift(&aligned_child));
    check_values("parent boots without drift", &a)?;
    check_values("child boots without drift", &b)?;
    Ok((a, b, slope))
}

/// `(median parent + median child) / 2` of one session.
fn session_centre(parent: &[Boot], child: &[Boot], session: u32) -> Result<f64, StatsError> {
    let arm_median = |what: &'static str, boots: &[Boot]| {
        let values: Vec<f64> =
            boots.iter().filter(|boot| boot.session == session).map(|boot| boot.y).collect();
        if values.len() < MIN_BOOTS_PER_ARM_AND_SESSION {
            return Err(StatsError::TooFew {
                what,
                needed: MIN_BOOTS_PER_ARM_AND_SESSION,
                found: values.len(),
            });
        }
        median(&values)
    };
    let a = arm_median("parent boots of one session", parent)?;
    let b = arm_median("child boots of one session", child)?;
    Ok(a / 2.0 + b / 2.0)
}

fn distinct_sorted(values: &[f64]) -> Vec<f64> {
    let mut distinct = values.to_vec();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    distinct
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::looks::BOOTS_PER_SIDE;
    use crate::sample::{assert_close, log_to_percent};
    use proptest::prelude::*;

    pub(crate) const SETTINGS: AbSettings =
        AbSettings { schedule: BOOTS_PER_SIDE, alpha: 0.05, equivalence_alpha: 0.10, resolution_log: 0.0 };

    pub(crate) fn boots(values: &[f64], times: &[f64]) -> Vec<Boot> {
        values.iter().zip(times).map(|(value, t)| Boot { y: value.ln(), t: *t, session: 0 }).collect()
    }

    pub(crate) fn reference(child: [f64; 5]) -> AbSummary {
        let a = boots(&[100.0, 101.2, 99.5, 100.8, 100.3], &[0.0, 3.0, 5.0, 6.0, 8.0]);
        let b = boots(&child, &[1.0, 2.0, 4.0, 7.0, 9.0]);
        compare_ab(&a, &b, &SETTINGS).unwrap()
    }

    pub(crate) const R2_CHILD: [f64; 5] = [103.1, 102.2, 103.9, 102.6, 103.4];
    pub(crate) const R3_CHILD: [f64; 5] = [100.6, 100.1, 101.0, 99.9, 100.7];

    fn check_interval(found: Option<Interval>, low: f64, high: f64) {
        let found = found.unwrap();
        assert_close(found.low, low, 5.1e-7);
        assert_close(found.high, high, 5.1e-7);
    }

    #[test]
    fn reference_r2() {
        let found = reference(R2_CHILD);
        assert_close(found.slope.unwrap(), 0.000368818, 5e-10);
        assert_close(found.estimate_log, 0.025961, 5e-7);
        assert_close(log_to_percent(found.estimate_log), 2.6301, 5e-5);
        check_interval(found.interval_log, 0.008092, 0.046007);
        check_interval(found.interval90_log, 0.010430, 0.038497);
        let interval = found.interval_log.unwrap();
        assert_close(log_to_percent(interval.low), 0.8124, 1e-4);
        assert_close(log_to_percent(interval.high), 4.7082, 1e-4);
        assert_close(found.p.unwrap(), 0.007937, 5e-7);
        assert_close(found.alpha_reached.unwrap(), 6.0 * 2.0 / 252.0, 1e-5);
        assert_eq!(found.look.unwrap().number, 1);
        assert!(found.on_schedule);
    }

    #[test]
    fn reference_r3() {
        let found = reference(R3_CHILD);
        assert_close(found.slope.unwrap(), -0.000137904, 5e-10);
        assert_close(found.estimate_log, 0.001275, 5e-7);
        check_interval(found.interval_log, -0.014205, 0.016639);
        check_interval(found.interval90_log, -0.012720, 0.014048);
        assert_eq!(found.p, Some(1.0));
        let ruled_out = found.interval90_log.unwrap().largest_abs();
        assert_close(log_to_percent(ruled_out), 1.4147, 5e-5);
        assert_close(found.pooled_sd_log.unwrap(), 0.006078, 5e-7);
    }

    #[test]
    fn below_five_boots_per_side_there_is_no_interval() {
        let a = boots(&[100.0, 100.1, 100.2, 100.3], &[0.0, 2.0, 4.0, 6.0]);
        let b = boots(&[110.0, 110.1, 110.2, 110.3], &[1.0, 3.0, 5.0, 7.0]);
        let found = compare_ab(&a, &b, &SETTINGS).unwrap();
        assert_eq!((found.look, found.interval_log), (None, None));
        assert_close(found.p.unwrap(), 0.0286, 5e-5);
        let single = compare_ab(&a[..1], &b[..1], &SETTINGS).unwrap();
        assert_eq!((single.p, single.slope), (None, None));
        assert_close(single.estimate_log, 1.1f64.ln(), 1e-12);
    }

    #[test]
    fn a_sixth_boot_does_not_make_a_new_look() {
        let times: Vec<f64> = (0..12).map(f64::from).collect();
        let a = boots(&[100.0, 101.0, 99.0, 100.5, 99.5, 100.2], &times[..6]);
        let b = boots(&[100.1, 101.1, 99.1, 100.6, 99.6, 100.3], &times[6..]);
        let found = compare_ab(&a, &b, &SETTINGS).unwrap();
        assert_eq!(found.look.unwrap().number, 1);
        assert!(!found.on_schedule);
    }

    #[test]
    fn a_level_shift_between_sessions_is_removed() {
        let mut a = boots(&[100.0, 101.0, 100.5], &[0.0, 2.0, 4.0]);
        let mut b = boots(&[102.0, 103.0, 102.5], &[1.0, 3.0, 5.0]);
        for (arm, other) in [(&mut a, 130.0f64), (&mut b, 132.6)] {
            for (i, factor) in [1.0, 1.01, 1.005].iter().enumerate() {
                arm.push(Boot { y: (other * factor).ln(), t: 2.0 * i as f64, session: 1 });
            }
        }
        let found = compare_ab(&a, &b, &SETTINGS).unwrap();
        assert_close(found.estimate_log, 1.02f64.ln(), 2e-3);
        assert!(found.pooled_sd_log.unwrap() < 0.01);
        a.pop();
        a.pop();
        assert_eq!(
            compare_ab(&a, &b, &SETTINGS),
            Err(StatsError::TooFew { what: "parent boots of one session", needed: 2, found: 1 })
        );
    }

    #[test]
    fn a_coarse_metric_widens_the_interval_and_weakens_p() {
        let rounds: [&[f64]; 2] = [&[38.0, 38.0, 39.0], &[39.0, 40.0, 39.0]];
        let q = resolution(&rounds).unwrap();
        assert!(q.limits_a_boot);
        assert_close(q.relative.unwrap(), 1.0 / 39.0, 1e-12);
        let a = boots(&[100.0, 101.2, 99.5, 100.8, 100.3], &[0.0, 3.0, 5.0, 6.0, 8.0]);
        let b = boots(&R2_CHILD, &[1.0, 2.0, 4.0, 7.0, 9.0]);
        let coarse =
            compare_ab(&a, &b, &AbSettings { resolution_log: q.extension_log(), ..SETTINGS }).unwrap();
        let interval = coarse.interval_log.unwrap();
        assert_close(interval.low, 0.008092 - (1.0f64 / 39.0).ln_1p(), 6e-7);
        assert!(!interval.excludes_zero() && coarse.p.unwrap() > 0.05);
    }

    #[test]
    fn resolution_of_equal_or_fine_rounds() {
        let equal: [&[f64]; 2] = [&[38.0, 38.0], &[38.0]];
        let q = resolution(&equal).unwrap();
        assert_eq!((q.relative, q.limits_a_boot), (None, true));
        assert_eq!(q.extension_log(), 0.0);
        let fine: [&[f64]; 1] = [&[1.0, 2.0, 3.0]];
        assert_eq!(resolution(&fine).unwrap().extension_log(), 0.0);
        assert!(resolution(&[]).is_err());
        let negative: [&[f64]; 1] = [&[-1.0]];
        assert!(resolution(&negative).is_err());
    }

    #[test]
    fn bad_input_is_refused() {
        let good = boots(&[1.0, 2.0, 3.0, 4.0, 5.0], &[0.0, 1.0, 2.0, 3.0, 4.0]);
        let mut bad = good.clone();
        bad[2].y = f64::NAN;
        assert!(compare_ab(&good, &bad, &SETTINGS).is_err());
        bad[2].y = 1.0;
        bad[2].t = f64::INFINITY;
        assert!(compare_ab(&bad, &good, &SETTINGS).is_err());
        assert!(compare_ab(&[], &good, &SETTINGS).is_err());
        bad[2].t = 1.0;
        for huge in [1e200, 1e308, -1.7e308] {
            bad[2].y = huge;
            assert!(compare_ab(&bad, &good, &SETTINGS).is_err());
        }
        for broken in [
            AbSettings { alpha: 0.0, ..SETTINGS },
            AbSettings { equivalence_alpha: f64::NAN, ..SETTINGS },
            AbSettings { resolution_log: -1.0, ..SETTINGS },
        ] {
            assert!(compare_ab(&good, &good, &broken).is_err());
        }
        assert!(compare_ab(&vec![good[0]; 66], &vec![good[0]; 65], &SETTINGS).is_err());
    }

    fn arm(offset: f64) -> impl Strategy<Value = Vec<Boot>> {
        // Coarse values in half of the cases, so that ties occur.
        prop::collection::vec((-1f64..1.0, any::<bool>()), 5..14).prop_map(move |values| {
            let of = |(i, (y, coarse)): (usize, &(f64, bool))| Boot {
                y: if *coarse { (y * 4.0).round() / 4.0 } else { *y },
                t: 2.0 * i as f64 + offset,
                session: 0,
            };
            values.iter().enumerate().map(of).collect()
        })
    }

    fn moved(boots: &[Boot], shift: f64) -> Vec<Boot> {
        boots.iter().map(|b| Boot { y: b.y + shift, ..*b }).collect()
    }

    proptest! {
        #[test]
        fn swapping_the_sides_negates(a in arm(0.0), b in arm(1.0), q in 0f64..0.3) {
            let settings = AbSettings { resolution_log: q, ..SETTINGS };
            let one = compare_ab(&a, &b, &settings).unwrap();
            let other = compare_ab(&b, &a, &settings).unwrap();
            prop_assert_eq!(one.estimate_log, -other.estimate_log);
            prop_assert_eq!(one.p, other.p);
            prop_assert_eq!(one.interval_log, other.interval_log.map(|i| i.negated()));
            prop_assert_eq!(one.interval90_log, other.interval90_log.map(|i| i.negated()));
        }

        #[test]
        fn shifting_the_child_shifts_the_estimate(a in arm(0.0), b in arm(1.0), shift in -2f64..2.0) {
            let plain = compare_ab(&a, &b, &SETTINGS).unwrap();
            let shifted = compare_ab(&a, &moved(&b, shift), &SETTINGS).unwrap();
            prop_assert!((shifted.estimate_log - plain.estimate_log - shift).abs() < 1e-9);
            let (from, to) = (plain.interval_log.unwrap(), shifted.interval_log.unwrap());
            prop_assert!((to.low - from.low - shift).abs() < 1e-9 && (to.high - from.high - shift).abs() < 1e-9);
        }

        #[test]
        fn the_unit_of_the_metric_does_not_matter(a in arm(0.0), b in arm(1.0), log_scale in -10f64..10.0) {
            let plain = compare_ab(&a, &b, &SETTINGS).unwrap();
            let scaled = compare_ab(&moved(&a, log_scale), &moved(&b, log_scale), &SETTINGS).unwrap();
            prop_assert!((scaled.estimate_log - plain.estimate_log).abs() < 1e-9);
        }

        #[test]
        fn a_common_drift_does_not_matter(a in arm(0.0), b in arm(1.0), drift in -1f64..1.0) {
            let tilt = |boots: &[Boot]| -> Vec<Boot> { boots.iter().map(|x| Boot { y: x.y + drift * x.t, ..*x }).collect() };
            let plain = compare_ab(&a, &b, &SETTINGS).unwrap();
            let tilted = compare_ab(&tilt(&a), &tilt(&b), &SETTINGS).unwrap();
            prop_assert!((tilted.estimate_log - plain.estimate_log).abs() < 1e-9);
        }

        #[test]
        fn p_and_interval_agree(a in arm(0.0), b in arm(1.0), shift in -1f64..1.0, alpha in 0.001f64..0.2, q in 0f64..0.2) {
            let settings = AbSettings { alpha, resolution_log: q, ..SETTINGS };
            let found = compare_ab(&a, &moved(&b, shift), &settings).unwrap();
            let nominal = BOOTS_PER_SIDE.nominal_p(found.look.unwrap(), alpha).unwrap();
            let excluded = found.interval_log.is_some_and(|i| i.excludes_zero());
            prop_assert_eq!(excluded, found.p.unwrap() <= nominal);
        }

        #[test]
        fn the_same_input_gives_the_same_bits(a in arm(0.0), b in arm(1.0)) {
            prop_assert_eq!(compare_ab(&a, &b, &SETTINGS), compare_ab(&a, &b, &SETTINGS));
        }
    }
}
