//! The ABA sandwich: parent, child, parent again, where reboots are too dear for pairs.
//! Read [`compare_sandwich`] and its result [`SandwichSummary`] first.

use crate::sample::{Interval, StatsError, check_level, check_values, mean, sum_of_squares};
use crate::welch::{student_quantile, student_two_sided_p};

/// A sandwich is trusted only if the two parent blocks differ by less than this share of the effect: a drift that is not linear
/// then still leaves two thirds of it (spec section 5).
pub const LARGEST_CONTROL_SHARE: f64 = 1.0 / 3.0;

/// The comparison of the child block with the parent blocks around it, on logs; positive means the child's values are larger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SandwichSummary {
    /// `mean child - (mean first parent + mean second parent)/2`; linear drift cancels, nothing else does.
    pub estimate_log: f64,
    /// Standard deviation of a boot: pooled inside the blocks, or `|A2-A1|/sqrt 2` with one boot per block.
    pub sd_log: f64,
    /// Degrees of freedom of `sd_log`.
    pub df: usize,
    /// Standard error of the estimate.
    pub se_log: f64,
    /// t interval at `1 - alpha`; `None` if no boot differs, because zero variance is not certainty.
    pub interval_log: Option<Interval>,
    /// Two-sided p of the t statistic; `None` as the interval.
    pub p: Option<f64>,
    /// `mean second parent - mean first parent`: what the same kernel did between the blocks.
    pub control_shift_log: f64,
    /// `|control_shift_log| < |estimate_log| / 3`.
    pub control_is_stable: bool,
}

/// Compares three blocks of log boot values (spec section 5): `se = s sqrt(1/n_B + 1/(4 n_A1) + 1/(4 n_A2))`.
///
/// # Errors
/// A block without boots, a value that is not finite, `alpha` not between 0 and 1.
pub fn compare_sandwich(
    first_parent: &[f64],
    child: &[f64],
    second_parent: &[f64],
    alpha: f64,
) -> Result<SandwichSummary, StatsError> {
    check_values("first parent block", first_parent)?;
    check_values("child block", child)?;
    check_values("second parent block", second_parent)?;
    check_level("alpha", alpha)?;
    let (a1, b, a2) = (mean(first_parent), mean(child), mean(second_parent));
    let estimate = b - (a1 / 2.0 + a2 / 2.0);
    let control_shift = a2 - a1;

    let blocks = [first_parent, child, second_parent];
    let inside_df = blocks.iter().map(|block| block.len() - 1).sum::<usize>();
    let (sd, df) = if inside_df == 0 {
        (control_shift.abs() / std::f64::consts::SQRT_2, 1)
    } else {
        let inside: f64 = blocks.iter().map(|block| sum_of_squares(block)).sum();
        ((inside / inside_df as f64).sqrt(), inside_df)
    };
    let se = sd
        * (1.0 / child.len() as f64 + 0.25 / first_parent.len() as f64 + 0.25 / second_parent.len() as f64)
            .sqrt();
    check_values("sandwich", &[estimate, control_shift, se])?;

    let (interval, p) = if se > 0.0 {
        let half = student_quantile(1.0 - alpha / 2.0, df as f64)? * se;
        let interval = Interval { low: estimate - half, high: estimate + half };
        let p = student_two_sided_p(estimate / se, df as f64)?;
        (Some(interval), Some(p))
    } else {
        (None, None)
    };
    Ok(SandwichSummary {
        estimate_log: estimate,
        sd_log: sd,
        df,
        se_log: se,
        interval_log: interval,
        p,
        control_shift_log: control_shift,
        control_is_stable: control_shift.abs() < estimate.abs() * LARGEST_CONTROL_SHARE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{assert_close, log_to_percent};
    use proptest::prelude::*;

    fn check(a1: f64, b: f64, a2: f64, estimate: f64, sd: f64, percent: [f64; 2], p: f64) {
        let found = compare_sandwich(&[a1.ln()], &[b.ln()], &[a2.ln()], 0.05).unwrap();
        assert_close(found.estimate_log, estimate, 5e-7);
        assert_close(found.sd_log, sd, 5e-7);
        assert_eq!(found.df, 1);
        let interval = found.interval_log.unwrap();
        assert_close(log_to_percent(interval.low), percent[0], 5e-4);
        assert_close(log_to_percent(interval.high), percent[1], 5e-4);
        assert_close(found.p.unwrap(), p, 5e-7);
    }

    #[test]
    fn reference_r7_tmpfs() {
        check(135.754, 229.663, 135.335, 0.527314, 0.002186, [63.771, 75.300], 0.003232);
    }

    #[test]
    fn reference_r7_pedro_v3() {
        let (a1, a2) = (55.333333, 54.266667);
        check(a1, 58.2, a2, 0.060243, 0.013764, [-14.269, 31.579], 0.173700);
        let found = compare_sandwich(&[a1.ln()], &[58.2f64.ln()], &[a2.ln()], 0.05).unwrap();
        assert!(found.control_is_stable);
    }

    #[test]
    fn several_boots_per_block_pool_the_spread_inside_blocks() {
        let found = compare_sandwich(&[0.0, 0.02], &[0.5, 0.54], &[0.1, 0.1], 0.05).unwrap();
        assert_eq!(found.df, 3);
        assert_close(found.sd_log, ((2e-4f64 + 8e-4) / 3.0).sqrt(), 1e-12);
        assert_close(found.se_log, found.sd_log * 0.75f64.sqrt(), 1e-12);
        assert_close(found.estimate_log, 0.465, 1e-12);
    }

    #[test]
    fn equal_parent_boots_are_not_certainty() {
        let found = compare_sandwich(&[1.0], &[2.0], &[1.0], 0.05).unwrap();
        assert_eq!((found.interval_log, found.p), (None, None));
        assert!(found.control_is_stable);
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(compare_sandwich(&[], &[1.0], &[1.0], 0.05).is_err());
        assert!(compare_sandwich(&[1.0], &[f64::NAN], &[1.0], 0.05).is_err());
        assert!(compare_sandwich(&[1.0], &[1.0], &[1.0], 0.0).is_err());
        assert!(compare_sandwich(&[f64::MAX], &[1.0], &[-f64::MAX], 0.05).is_err());
    }

    proptest! {
        #[test]
        fn linear_drift_cancels_and_shifting_shifts(a in -1f64..1.0, effect in -1f64..1.0, drift in -1f64..1.0, scale in -5f64..5.0) {
            let base = a + scale;
            let found = compare_sandwich(&[base], &[base + drift + effect], &[base + 2.0 * drift], 0.05).unwrap();
            prop_assert!((found.estimate_log - effect).abs() < 1e-9);
        }

        #[test]
        fn p_and_interval_agree_and_the_order_of_the_parents_is_free(
            a1 in prop::collection::vec(-1f64..1.0, 1..5), b in prop::collection::vec(-1f64..1.0, 1..5),
            a2 in prop::collection::vec(-1f64..1.0, 1..5), alpha in 0.001f64..0.3,
        ) {
            let found = compare_sandwich(&a1, &b, &a2, alpha).unwrap();
            let back = compare_sandwich(&a2, &b, &a1, alpha).unwrap();
            prop_assert!((found.estimate_log - back.estimate_log).abs() < 1e-12);
            prop_assert!((found.se_log - back.se_log).abs() < 1e-12);
            if let (Some(interval), Some(p)) = (found.interval_log, found.p) {
                prop_assume!((p - alpha).abs() > 1e-6);
                prop_assert_eq!(interval.excludes_zero(), p <= alpha);
            }
        }
    }
}
