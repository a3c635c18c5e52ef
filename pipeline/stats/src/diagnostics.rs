//! Questions asked of a session beside the verdict: warm-up, drift, outliers, modes, spread. Read [`outlying_boots`] for the
//! shape of the answers: a statistic, the limit it is held against, and whether it is beyond. Nothing here changes data.

use statrs::distribution::{ContinuousCDF, FisherSnedecor};

use crate::midmean::midmean;
use crate::sample::{
    StatsError, check_at_least, check_positive, check_values, mean, median, median_of_sorted, sorted,
    sum_of_squares,
};
use crate::signed_rank::signed_rank_test;
use crate::welch::student_two_sided_p;

/// p below which a diagnostic is flagged.
pub const FLAG_P: f64 = 0.01;
/// Median absolute deviation of a normal distribution, as a share of its standard deviation.
const MAD_SCALE: f64 = 1.4826;
/// Spread ratio that is flagged whatever its p.
pub const FLAG_SPREAD: f64 = 2.0;

/// A flag with the numbers behind it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flag {
    /// The size of what was looked for, on the scale of the values given (logs: a log ratio).
    pub size: f64,
    /// Its two-sided p.
    pub p: f64,
    /// Whether it is more than chance and more than half the margin.
    pub raised: bool,
}

/// Whether the first measured round of boots differs from the rest: signed-rank test of
/// `ln first - ln midmean(rest)` over all boots.
/// `None` when no boot has at least two rounds, or all differences are zero.
///
/// # Errors
/// A round that is not positive or not finite, a margin that is not above 0.
pub fn first_round(boots: &[&[f64]], margin_log: f64) -> Result<Option<Flag>, StatsError> {
    check_positive("margin", margin_log)?;
    let mut differences = Vec::new();
    for boot in boots {
        check_values("rounds of a boot", boot)?;
        if let Some(value) = boot.iter().find(|value| **value <= 0.0) {
            return Err(StatsError::OutOfRange { what: "round", value: *value, expected: "above 0" });
        }
        if let [first, rest @ ..] = boot
            && !rest.is_empty()
        {
            differences.push(first.ln() - midmean(rest)?.ln());
        }
    }
    if differences.is_empty() || differences.iter().all(|difference| *difference == 0.0) {
        return Ok(None);
    }
    let p = signed_rank_test(&differences)?.p;
    let size = median(&differences)?;
    Ok(Some(Flag { size, p, raised: p < FLAG_P && size.abs() > margin_log / 2.0 }))
}

/// Linear drift over the session inside both arms: slope of `(time, log value)` in a model with one level per arm, times the
/// session's span. `None` with fewer than four boots, or when no time or no value differs inside an arm.
///
/// # Errors
/// A value that is not finite, a margin that is not above 0.
pub fn session_drift(
    parent: &[(f64, f64)],
    child: &[(f64, f64)],
    margin_log: f64,
) -> Result<Option<Flag>, StatsError> {
    check_positive("margin", margin_log)?;
    let (mut stt, mut sty, mut syy) = (0.0, 0.0, 0.0);
    let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
    for arm in [parent, child] {
        let times: Vec<f64> = arm.iter().map(|(time, _)| *time).collect();
        let values: Vec<f64> = arm.iter().map(|(_, value)| *value).collect();
        if times.is_empty() {
            continue;
        }
        check_values("times", &times)?;
        check_values("boot values", &values)?;
        let (mt, my) = (mean(&times), mean(&values));
        for (time, value) in arm {
            stt += (time - mt) * (time - mt);
            sty += (time - mt) * (value - my);
            syy += (value - my) * (value - my);
            (first, last) = (first.min(*time), last.max(*time));
        }
    }
    let boots = parent.len() + child.len();
    if boots < 4 || stt <= 0.0 || syy <= 0.0 {
        return Ok(None);
    }
    let slope = sty / stt;
    let df = (boots - 3) as f64;
    let se = ((syy - slope * sty).max(0.0) / df / stt).sqrt();
    let size = slope * (last - first);
    let p = if se > 0.0 { student_two_sided_p(slope / se, df)? } else { f64::from(u8::from(slope == 0.0)) };
    Ok(Some(Flag { size, p, raised: p < FLAG_P && size.abs() > margin_log / 2.0 }))
}

/// Boots far from their arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Outliers {
    /// Limit in robust standard deviations: 7 below 14 boots in all, 6 below 20, else 5.
    pub limit: f64,
    /// `(arm, index in the arm, distance in robust standard deviations)` of each boot beyond it; arm 0 is the parent.
    pub boots: Vec<(usize, usize, f64)>,
}

/// Boots whose residual from the arm's median exceeds the limit times 1.4826 MAD, both arms pooled. With a MAD of zero,
/// nothing is called far.
///
/// # Errors
/// An arm without boots or a value that is not finite.
pub fn outlying_boots(parent: &[f64], child: &[f64]) -> Result<Outliers, StatsError> {
    let mut residuals = Vec::new();
    for (arm, values) in [parent, child].into_iter().enumerate() {
        let middle = median(values)?;
        residuals.extend(values.iter().enumerate().map(|(index, value)| (arm, index, value - middle)));
    }
    let sizes: Vec<f64> = residuals.iter().map(|(_, _, residual)| residual.abs()).collect();
    let scale = MAD_SCALE * median(&sizes)?;
    let limit = match residuals.len() {
        0..14 => 7.0,
        14..20 => 6.0,
        _ => 5.0,
    };
    let far = residuals
        .into_iter()
        .filter(|(_, _, residual)| scale > 0.0 && residual.abs() / scale > limit)
        .map(|(arm, index, residual)| (arm, index, residual.abs() / scale));
    Ok(Outliers { limit, boots: far.collect() })
}

/// Two groups inside one set of boots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modes {
    /// Smallest within-group share of the total sum of squares over all splits of the sorted values.
    pub within_share: f64,
    /// Below this share two modes are likely (1 % of normal samples are).
    pub limit: f64,
    /// Mean of the lower and the upper group.
    pub means: (f64, f64),
    /// Share of values in the upper group.
    pub upper_share: f64,
    /// Whether the share is below the limit.
    pub raised: bool,
}

/// Looks for two modes in arm residuals or values of one arm: splits with at least two values, and 15 %, on each side.
/// `None` below ten values, or when no value differs.
///
/// # Errors
/// A value that is not finite.
pub fn modes(values: &[f64]) -> Result<Option<Modes>, StatsError> {
    const LIMITS: [(f64, f64); 5] = [(10.0, 0.09), (14.0, 0.13), (20.0, 0.17), (30.0, 0.21), (44.0, 0.24)];
    if values.len() < 10 {
        return Ok(None);
    }
    let x = sorted("values", values)?;
    let total = sum_of_squares(&x);
    if total <= 0.0 {
        return Ok(None);
    }
    let n = x.len();
    let least = 2.max((0.15 * n as f64).ceil() as usize);
    let (within, split) = (least..=n - least)
        .map(|split| (sum_of_squares(&x[..split]) + sum_of_squares(&x[split..]), split))
        .fold((f64::INFINITY, least), |best, next| if next.0 < best.0 { next } else { best });
    let size = n as f64;
    let limit = match LIMITS.iter().position(|(boots, _)| size <= *boots) {
        Some(0) => LIMITS[0].1,
        Some(i) => {
            let ((below, low), (above, high)) = (LIMITS[i - 1], LIMITS[i]);
            low + (high - low) * (size - below) / (above - below)
        }
        None => LIMITS[LIMITS.len() - 1].1,
    };
    let within_share = within / total;
    Ok(Some(Modes {
        within_share,
        limit,
        means: (mean(&x[..split]), mean(&x[split..])),
        upper_share: (n - split) as f64 / size,
        raised: within_share < limit,
    }))
}

/// Share of boots that a mode may have without one being seen in `boots` boots, at 95 %: `1 - 0.05^(1/n)`.
///
/// # Errors
/// No boots.
pub fn rarest_excluded_mode(boots: usize) -> Result<f64, StatsError> {
    if boots == 0 {
        return Err(StatsError::Empty { what: "boots" });
    }
    Ok(1.0 - 0.05_f64.powf(1.0 / boots as f64))
}

/// How the scatter of two arms compares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Standard deviation of the child over that of the parent.
    pub ratio: f64,
    /// Brown & Forsythe (1974): p of the analysis of variance of distances from the arms' medians.
    pub p: f64,
    /// Whether one spread is more than twice the other, or p is below 0.01.
    pub raised: bool,
}

/// Compares the spread of two arms; `None` when an arm does not vary.
///
/// # Errors
/// Fewer than two values in an arm, a value that is not finite.
pub fn spread(parent: &[f64], child: &[f64]) -> Result<Option<Spread>, StatsError> {
    check_at_least("parent boots", parent, 2)?;
    check_at_least("child boots", child, 2)?;
    let sd = |values: &[f64]| (sum_of_squares(values) / (values.len() - 1) as f64).sqrt();
    let (a, b) = (sd(parent), sd(child));
    if a <= 0.0 || b <= 0.0 {
        return Ok(None);
    }
    let distances = |values: &[f64]| -> Result<Vec<f64>, StatsError> {
        let middle = median_of_sorted(&sorted("boot values", values)?);
        Ok(values.iter().map(|value| (value - middle).abs()).collect())
    };
    let (da, db) = (distances(parent)?, distances(child)?);
    let (na, nb) = (da.len() as f64, db.len() as f64);
    let grand = (mean(&da) * na + mean(&db) * nb) / (na + nb);
    let between = na * (mean(&da) - grand).powi(2) + nb * (mean(&db) - grand).powi(2);
    let df = na + nb - 2.0;
    let within = (sum_of_squares(&da) + sum_of_squares(&db)) / df;
    let p = if within > 0.0 {
        let law = FisherSnedecor::new(1.0, df).map_err(|_| StatsError::OutOfRange {
            what: "degrees of freedom",
            value: df,
            expected: "above 0",
        })?;
        1.0 - law.cdf(between / within)
    } else {
        1.0
    };
    let ratio = b / a;
    Ok(Some(Spread { ratio, p, raised: ratio.max(1.0 / ratio) > FLAG_SPREAD || p < FLAG_P }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_first_round_is_flagged_and_even_rounds_are_not() {
        let slow: Vec<Vec<f64>> =
            (0..10).map(|i| vec![110.0 + f64::from(i % 3), 100.0, 101.0, 99.0, 100.0]).collect();
        let slow: Vec<&[f64]> = slow.iter().map(Vec::as_slice).collect();
        let flag = first_round(&slow, 0.02).expect("valid").expect("rounds");
        assert!(flag.raised && (flag.size - (111.0f64 / 100.0).ln()).abs() < 0.011, "{flag:?}");
        let even: Vec<Vec<f64>> =
            (0..10).map(|i| vec![100.0 + f64::from(i % 2) - 0.5, 100.0, 100.0]).collect();
        let even: Vec<&[f64]> = even.iter().map(Vec::as_slice).collect();
        assert!(!first_round(&even, 0.02).expect("valid").expect("rounds").raised);
        assert_eq!(first_round(&[&[5.0]], 0.02), Ok(None));
        assert!(first_round(&[&[0.0, 1.0]], 0.02).is_err());
    }

    #[test]
    fn drift_is_the_common_slope_times_the_span() {
        let line = |offset: f64, wobble: f64| -> Vec<(f64, f64)> {
            (0..8)
                .map(|i| {
                    let time = f64::from(i) * 10.0;
                    (time, offset + 0.001 * time + wobble * f64::from(i % 2))
                })
                .collect()
        };
        let flag = session_drift(&line(1.0, 1e-4), &line(5.0, -1e-4), 0.02).expect("valid").expect("boots");
        assert!(flag.raised && (flag.size - 0.07).abs() < 1e-3, "{flag:?}");
        let flat: Vec<(f64, f64)> = (0..8).map(|i| (f64::from(i), f64::from(i * i % 3))).collect();
        assert!(!session_drift(&flat, &flat, 0.02).expect("valid").expect("boots").raised);
        assert_eq!(session_drift(&[(0.0, 1.0); 4], &[], 0.02), Ok(None));
        assert!(session_drift(&[(0.0, f64::NAN); 4], &[], 0.02).is_err());
    }

    #[test]
    fn an_outlier_is_named_by_arm_and_index() {
        let calm = [1.0, 1.01, 0.99, 1.02, 0.98];
        let wild = [2.0, 2.01, 1.99, 2.02, 2.5];
        let found = outlying_boots(&calm, &wild).expect("valid");
        assert_eq!(found.limit, 7.0);
        assert_eq!(found.boots.iter().map(|(arm, index, _)| (*arm, *index)).collect::<Vec<_>>(), [(1, 4)]);
        assert!(outlying_boots(&[1.0; 5], &[1.0, 1.0, 1.0, 1.0, 9.0]).expect("valid").boots.is_empty());
        assert!(outlying_boots(&[], &calm).is_err());
    }

    #[test]
    fn two_clusters_are_two_modes_and_a_ramp_is_not() {
        let two: Vec<f64> =
            (0..20).map(|i| f64::from(i % 3) * 0.01 + if i % 4 == 0 { 1.0 } else { 0.0 }).collect();
        let found = modes(&two).expect("valid").expect("enough");
        assert!(found.raised && (found.upper_share - 0.25).abs() < 1e-9, "{found:?}");
        assert!((found.limit - 0.17).abs() < 1e-12);
        let ramp: Vec<f64> = (0..20).map(f64::from).collect();
        assert!(!modes(&ramp).expect("valid").expect("enough").raised);
        assert_eq!(modes(&[1.0; 12]), Ok(None));
        for (boots, share) in [(5, 0.4507), (10, 0.2589), (15, 0.1810)] {
            assert!((rarest_excluded_mode(boots).expect("boots") - share).abs() < 5e-5);
        }
    }

    #[test]
    fn spread_that_grows_is_flagged() {
        let narrow = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0];
        let wide: Vec<f64> = narrow.iter().map(|value| 3.0 * value).collect();
        let found = spread(&narrow, &wide).expect("valid").expect("both vary");
        assert!((found.ratio - 3.0).abs() < 1e-9 && found.raised);
        let same = spread(&narrow, &narrow).expect("valid").expect("both vary");
        assert!(!same.raised && (same.p - 1.0).abs() < 1e-9, "{same:?}");
        assert_eq!(spread(&[1.0, 1.0], &narrow), Ok(None));
    }
}
