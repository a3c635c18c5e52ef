//! Paired comparison over seeds, for deterministic (instruction count) data: both arms run the same seeds.
//! Read [`summarize_pairs`] and its result [`PairedSummary`] first.

use crate::looks::{Look, Schedule};
use crate::sample::{Interval, StatsError, check_level, check_parameter, check_values, sum_of_squares};
use crate::signed_rank::WalshAverages;

/// Error rate of the bound on the share of seeds: 95 % confidence.
const SHARE_BOUND_ALPHA: f64 = 0.05;

/// What the caller decides before seeing the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedSettings {
    /// Looks with their nominal p-values, counted in seeds; normally `SEEDS`.
    pub schedule: Schedule,
    /// Error rate of "differs" over all looks together: 0.05, or 0.05/m for m primary metrics.
    pub alpha: f64,
    /// Twice the error rate of "equivalent": 0.10 makes two one-sided tests at 5 % each.
    pub equivalence_alpha: f64,
}

/// The paired comparison; positive means the child's values are larger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedSummary {
    /// Seeds.
    pub n: usize,
    /// True if all log ratios are equal (or there is one): the change is exact for these seeds, there is no interval and no p.
    pub exact: bool,
    /// True if every log ratio is exactly 0.
    pub all_zero: bool,
    /// Median of the Walsh averages of the log ratios; the common value if exact.
    pub median_log: f64,
    /// Smallest log ratio.
    pub min_log: f64,
    /// Largest log ratio.
    pub max_log: f64,
    /// Largest |log ratio|: of a placebo build, the scatter a real change must exceed.
    pub largest_abs_log: f64,
    /// Standard deviation of the log ratios (n-1); `None` for one seed.
    pub sd_log: Option<f64>,
    /// Last completed look; `None` before the first.
    pub look: Option<Look>,
    /// True if n is exactly the size of the look. Otherwise the verdict stays that of the look, as for A/B comparisons.
    pub on_schedule: bool,
    /// Signed-rank interval at the nominal level that `alpha` has at the last completed look.
    pub interval_log: Option<Interval>,
    /// Signed-rank interval at the nominal level that `equivalence_alpha` has at that look.
    pub interval90_log: Option<Interval>,
    /// Nominal two-sided p: at most the nominal level exactly if `interval_log` excludes 0.
    pub p: Option<f64>,
    /// Smallest alpha whose rule this look meets; the repeated p-value is the minimum of it over the looks taken.
    pub alpha_reached: Option<f64>,
    /// The smallest p that n seeds can reach, `min(1, 2/2^n)`: why few seeds carry no test.
    pub attainable_p: f64,
    /// True if all log ratios are positive or all are negative.
    pub same_sign: bool,
    /// `0.05^(1/n)`: if something holds for all n seeds (same sign, or inside the margin), it holds for at least this share of all
    /// seeds, with 95 % confidence (Clopper & Pearson 1934 for n out of n).
    pub share_of_seeds_lower_bound: f64,
}

impl PairedSummary {
    /// True if every log ratio lies strictly inside `-margin_log ..= margin_log`; then it does in at least
    /// [`share_of_seeds_lower_bound`](Self::share_of_seeds_lower_bound) of all seeds.
    #[must_use]
    pub fn all_inside(&self, margin_log: f64) -> bool {
        self.largest_abs_log < margin_log
    }
}

/// Summarises the log ratios `ln(child) - ln(parent)`, one per seed (spec section 6, steps 3 and 4).
///
/// # Errors
/// No seeds, a value that is not finite, more seeds than [`MAX_PAIRS`](crate::MAX_PAIRS), a level out of range.
pub fn summarize_pairs(log_ratios: &[f64], settings: &PairedSettings) -> Result<PairedSummary, StatsError> {
    check_values("log ratios of the seeds", log_ratios)?;
    check_level("alpha", settings.alpha)?;
    check_level("equivalence alpha", settings.equivalence_alpha)?;
    let n = log_ratios.len();
    let walsh = WalshAverages::new(log_ratios)?;
    let first = log_ratios[0];
    let exact = log_ratios.iter().all(|d| *d == first);
    let min_log = log_ratios.iter().copied().fold(first, f64::min);
    let max_log = log_ratios.iter().copied().fold(first, f64::max);

    let sd_log = (n > 1).then(|| match exact {
        // The mean of equal values may be off by a rounding error.
        true => 0.0,
        false => (sum_of_squares(log_ratios) / (n - 1) as f64).sqrt(),
    });
    check_parameter("sd of the log ratios", sd_log.unwrap_or(0.0))?;

    let look = settings.schedule.completed(n);
    let tested = look.filter(|_| !exact);
    let interval_at = |alpha: f64| match tested {
        Some(look) => walsh.interval(settings.schedule.nominal_p(look, alpha)?),
        None => Ok(None),
    };
    let p = tested.map(|_| walsh.p());
    let alpha_reached = match (tested, p) {
        (Some(look), Some(p)) => Some(settings.schedule.alpha_reached(look, p)?),
        _ => None,
    };
    Ok(PairedSummary {
        n,
        exact,
        all_zero: exact && first == 0.0,
        median_log: if exact { first } else { walsh.median() },
        min_log,
        max_log,
        largest_abs_log: min_log.abs().max(max_log.abs()),
        sd_log,
        look,
        on_schedule: look.is_some_and(|look| look.size == n),
        interval_log: interval_at(settings.alpha)?,
        interval90_log: interval_at(settings.equivalence_alpha)?,
        p,
        alpha_reached,
        attainable_p: (2.0 * 0.5f64.powf(n as f64)).min(1.0),
        same_sign: min_log > 0.0 || max_log < 0.0,
        share_of_seeds_lower_bound: SHARE_BOUND_ALPHA.powf(1.0 / n as f64),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::looks::SEEDS;
    use crate::sample::assert_close;
    use proptest::prelude::*;

    pub(crate) const SETTINGS: PairedSettings =
        PairedSettings { schedule: SEEDS, alpha: 0.05, equivalence_alpha: 0.10 };

    pub(crate) const R6: [f64; 8] = [0.0041, 0.0038, 0.0052, 0.0029, 0.0047, 0.0035, 0.0044, 0.0040];

    pub(crate) fn summary(d: &[f64]) -> PairedSummary {
        summarize_pairs(d, &SETTINGS).unwrap()
    }

    #[test]
    fn reference_r6() {
        let found = summary(&R6);
        assert_close(found.median_log, 0.004075, 5e-10);
        let interval = found.interval_log.unwrap();
        assert_close(interval.low, 0.0029, 1e-12);
        assert_close(interval.high, 0.0052, 1e-12);
        assert_close(found.p.unwrap(), 0.007812, 1e-6);
        assert_eq!(found.attainable_p, 2.0 / 256.0);
        assert!(found.same_sign && !found.exact && found.on_schedule);
        assert!(interval.low <= found.interval90_log.unwrap().low);
    }

    #[test]
    fn the_share_of_seeds_is_bounded_as_printed() {
        for (n, percent) in [(5, 54.9), (8, 68.8), (20, 86.1), (59, 95.0)] {
            let found = summary(&vec![0.01; n]);
            assert_close(100.0 * found.share_of_seeds_lower_bound, percent, 0.06);
            assert!(found.exact && found.same_sign);
            assert_eq!((found.p, found.interval_log), (None, None));
            assert_eq!((found.median_log, found.sd_log), (0.01, Some(0.0)));
        }
    }

    #[test]
    fn one_seed_is_exact_and_has_no_spread() {
        let found = summary(&[0.002]);
        assert!(found.exact && !found.all_zero);
        assert_eq!((found.sd_log, found.attainable_p), (None, 1.0));
        assert!(summary(&[0.0]).all_zero);
        assert!(summary(&[0.0, -0.0]).all_zero);
    }

    #[test]
    fn seven_different_seeds_carry_no_test() {
        let found = summary(&R6[..7]);
        assert_eq!((found.look, found.p, found.interval_log), (None, None, None));
        assert_eq!(found.attainable_p, 2.0 / 128.0);
    }

    #[test]
    fn between_looks_the_level_is_that_of_the_last_one() {
        let d: Vec<f64> = (0..11).map(|i| f64::from(i) * 1e-4 + 1e-3).collect();
        let found = summary(&d);
        assert_eq!(found.look.unwrap().size, 8);
        assert!(!found.on_schedule);
        let walsh = WalshAverages::new(&d).unwrap();
        assert_eq!(found.interval_log, walsh.interval(0.008333).unwrap());
    }

    #[test]
    fn the_margin_itself_is_not_inside() {
        assert!(summary(&R6).all_inside(0.0053));
        assert!(!summary(&R6).all_inside(0.0052));
        assert!(!summary(&[-0.01, 0.0]).all_inside(0.005));
    }

    #[test]
    fn a_sign_change_or_a_zero_is_not_one_sign() {
        assert!(!summary(&[0.1, 0.0]).same_sign);
        assert!(!summary(&[0.1, -0.1]).same_sign);
        assert!(summary(&[-0.1, -0.2]).same_sign);
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(summarize_pairs(&[], &SETTINGS).is_err());
        assert!(summarize_pairs(&[f64::NAN], &SETTINGS).is_err());
        assert!(summarize_pairs(&[0.1; 127], &SETTINGS).is_err());
        assert!(summarize_pairs(&[1e300, -1e300], &SETTINGS).is_err());
        let broken = PairedSettings { alpha: 1.0, ..SETTINGS };
        assert!(summarize_pairs(&R6, &broken).is_err());
    }

    proptest! {
        #[test]
        fn swapping_the_sides_negates(d in prop::collection::vec(-8i32..12, 1..70)) {
            let d: Vec<f64> = d.into_iter().map(|x| f64::from(x) / 1024.0).collect();
            let swapped: Vec<f64> = d.iter().map(|x| -x).collect();
            let (one, other) = (summary(&d), summary(&swapped));
            prop_assert_eq!(one.median_log, -other.median_log);
            prop_assert_eq!(one.p, other.p);
            prop_assert_eq!(one.interval_log, other.interval_log.map(|i| i.negated()));
            prop_assert_eq!((one.same_sign, one.exact), (other.same_sign, other.exact));
        }

        #[test]
        fn shifting_the_logs_shifts_the_estimate(d in prop::collection::vec(-0.1f64..0.1, 2..40), shift in -1f64..1.0) {
            let moved: Vec<f64> = d.iter().map(|x| x + shift).collect();
            prop_assert!((summary(&moved).median_log - summary(&d).median_log - shift).abs() < 1e-12);
        }

        #[test]
        fn p_and_interval_agree(d in prop::collection::vec(-4i32..12, 8..40)) {
            let d: Vec<f64> = d.into_iter().map(f64::from).collect();
            let found = summary(&d);
            prop_assume!(!found.exact);
            let nominal = SEEDS.nominal_p(found.look.unwrap(), 0.05).unwrap();
            prop_assert_eq!(found.interval_log.unwrap().excludes_zero(), found.p.unwrap() <= nominal);
        }
    }
}
