//! Welch's t interval and Student-t helpers: the cross-check of the rank procedure, never the primary test.
//! Read [`welch`] first; feed it boot values, never rounds of one boot.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::sample::{
    Interval, StatsError, check_at_least, check_level, check_parameter, check_positive, mean, sum_of_squares,
};

/// Halvings of a bracket at most as wide as the quantile itself: below the rounding of an `f64`.
const BISECTIONS: usize = 60;

/// Welch's two-sample t statistics for `second - first`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Welch {
    /// Mean of the second sample minus mean of the first, in their unit.
    pub difference: f64,
    /// The t statistic.
    pub t: f64,
    /// Welch-Satterthwaite degrees of freedom.
    pub df: f64,
    /// Two-sided p-value.
    pub p: f64,
    /// Two-sided interval of the difference at `1 - alpha`.
    pub interval: Interval,
}

/// Welch's t test of `second` against `first` with an interval at `1 - alpha`. (Welch 1947.)
/// `Ok(None)` if neither sample varies: zero variance never yields p = 0.
///
/// # Errors
/// Fewer than two values in a sample, a value that is not finite, `alpha` not between 0 and 1.
pub fn welch(first: &[f64], second: &[f64], alpha: f64) -> Result<Option<Welch>, StatsError> {
    check_at_least("first sample", first, 2)?;
    check_at_least("second sample", second, 2)?;
    check_level("alpha", alpha)?;
    let variance_of_mean = |x: &[f64]| {
        let n = x.len() as f64;
        sum_of_squares(x) / (n - 1.0) / n
    };
    let (va, vb) = (variance_of_mean(first), variance_of_mean(second));
    let total = va + vb;
    let difference = mean(second) - mean(first);
    check_parameter("variance of the samples", total)?;
    check_parameter("difference of the means", difference)?;
    if total <= 0.0 {
        return Ok(None);
    }
    // Shares of the variance instead of squares of it: squares of tiny variances underflow.
    let (share_a, share_b) = (va / total, vb / total);
    let df = 1.0
        / (share_a * share_a / (first.len() as f64 - 1.0) + share_b * share_b / (second.len() as f64 - 1.0));
    let se = total.sqrt();
    let t = difference / se;
    let half = student_quantile(1.0 - alpha / 2.0, df)? * se;
    Ok(Some(Welch {
        difference,
        t,
        df,
        p: student_two_sided_p(t, df)?,
        interval: Interval { low: difference - half, high: difference + half },
    }))
}

/// Two-sided p of a Student-t statistic with `df` degrees of freedom.
///
/// # Errors
/// A `t` that is not finite or a `df` that is not above 0.
pub fn student_two_sided_p(t: f64, df: f64) -> Result<f64, StatsError> {
    check_parameter("t", t)?;
    Ok((2.0 * student(df)?.cdf(-t.abs())).min(1.0))
}

/// Quantile of Student's t with `df` degrees of freedom at probability `p`, by bisection of the distribution function
/// (statrs' own inverse is off in the fourth digit at large `df`).
///
/// # Errors
/// A `p` that is not strictly between 0 and 1 or a `df` that is not above 0.
pub fn student_quantile(p: f64, df: f64) -> Result<f64, StatsError> {
    check_level("probability", p)?;
    let distribution = student(df)?;
    // The lower tail is the accurate one; the sign is put back at the end.
    let tail = p.min(1.0 - p);
    let (mut near, mut far) = (0.0f64, 1.0f64);
    while distribution.cdf(-far) > tail {
        near = far;
        far *= 2.0;
        check_parameter("t quantile", far)?;
    }
    for _ in 0..BISECTIONS {
        let middle = 0.5 * (near + far);
        if distribution.cdf(-middle) > tail {
            near = middle;
        } else {
            far = middle;
        }
    }
    let quantile = 0.5 * (near + far);
    Ok(if p < 0.5 { -quantile } else { quantile })
}

fn student(df: f64) -> Result<StudentsT, StatsError> {
    check_positive("degrees of freedom", df)?;
    StudentsT::new(0.0, 1.0, df).map_err(|_| StatsError::OutOfRange {
        what: "degrees of freedom",
        value: df,
        expected: "above 0",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::assert_close;
    use proptest::prelude::*;

    fn logs(values: &[f64]) -> Vec<f64> {
        values.iter().map(|x| x.ln()).collect()
    }

    #[test]
    fn reference_r2_cross_check() {
        let a = logs(&[100.0, 101.2, 99.5, 100.8, 100.3]);
        let b = logs(&[103.1, 102.2, 103.9, 102.6, 103.4]);
        let test = welch(&a, &b, 0.05).unwrap().unwrap();
        assert_close(test.t, 6.365310, 5e-7);
        assert_close(test.df, 7.994438, 5e-7);
        assert_close(test.p, 0.000217668, 5e-10);
        assert_close(test.interval.low, 0.016806, 5e-7);
        assert_close(test.interval.high, 0.035903, 5e-7);
    }

    #[test]
    fn reference_r7_rounds_of_one_boot_give_a_false_alarm() {
        let rounds = |parts: [(usize, f64); 3]| -> Vec<f64> {
            parts.iter().flat_map(|(count, value)| std::iter::repeat_n(*value, *count)).collect()
        };
        let first = rounds([(1, 54.0), (8, 55.0), (6, 56.0)]);
        let second = rounds([(1, 53.0), (9, 54.0), (5, 55.0)]);
        let test = welch(&second, &first, 0.05).unwrap().unwrap();
        assert_close(test.t, 4.824182, 5e-7);
        assert_close(test.df, 27.9576, 5e-5);
        assert_close(test.p, 4.50108e-5, 5e-11);
    }

    #[test]
    fn quantiles_agree_with_the_tables() {
        assert_close(student_quantile(0.975, 1.0).unwrap(), 12.706205, 5e-7);
        assert_close(student_quantile(0.975, 10.0).unwrap(), 2.228139, 5e-7);
        assert_close(student_quantile(0.5, 3.0).unwrap(), 0.0, 1e-9);
        assert_close(student_quantile(0.975, 1e6).unwrap(), 1.959966, 1e-6);
    }

    #[test]
    fn extreme_arguments_give_a_number_or_an_error() {
        for df in [1e-3, 0.5, 1.0, 30.0, 1e9, 1e300] {
            for t in [0.0, 1e-300, 1.0, 40.0, 1e200, -f64::MAX] {
                let p = student_two_sided_p(t, df).unwrap();
                assert!((0.0..=1.0).contains(&p), "t {t} df {df}: {p}");
            }
            for p in [1e-300, 1e-9, 0.3, 0.5, 1.0 - 1e-12] {
                if let Ok(quantile) = student_quantile(p, df) {
                    assert!(quantile.is_finite(), "p {p} df {df}");
                }
            }
        }
    }

    #[test]
    fn constant_samples_have_no_p() {
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0], 0.05), Ok(None));
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(welch(&[1.0], &[2.0, 3.0], 0.05).is_err());
        assert!(welch(&[1.0, f64::NAN], &[2.0, 3.0], 0.05).is_err());
        assert!(welch(&[1.0, 2.0], &[2.0, 3.0], 1.0).is_err());
        assert!(welch(&[f64::MAX, -f64::MAX], &[2.0, 3.0], 0.05).is_err());
        assert!(student_two_sided_p(f64::NAN, 3.0).is_err());
        assert!(student_quantile(0.975, 0.0).is_err());
        assert!(student_quantile(1.0, 3.0).is_err());
    }

    proptest! {
        #[test]
        fn swapping_negates_and_p_and_interval_agree(
            a in prop::collection::vec(-1f64..1.0, 2..12), b in prop::collection::vec(-1f64..1.0, 2..12), alpha in 0.001f64..0.3,
        ) {
            let (Some(one), Some(other)) = (welch(&a, &b, alpha).unwrap(), welch(&b, &a, alpha).unwrap()) else { return Ok(()); };
            prop_assert!((one.difference + other.difference).abs() < 1e-12);
            prop_assert!((one.p - other.p).abs() < 1e-12);
            prop_assume!((one.p - alpha).abs() > 1e-6);
            prop_assert_eq!(one.interval.excludes_zero(), one.p <= alpha);
        }
    }
}
