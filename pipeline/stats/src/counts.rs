//! Counts of events (faults, lock acquisitions, overflows), one total per boot. Read [`compare_counts`] first.

use statrs::distribution::{Beta, Binomial, ChiSquared, ContinuousCDF, Discrete};

use crate::sample::{Interval, StatsError, check_level};
use crate::welch::student_quantile;

/// Counts from which logs of boot values may be compared instead.
pub const LARGE_COUNT: u64 = 30;
/// p of the dispersion test from which counts pass for Poisson.
const POISSON_P: f64 = 0.05;
/// Largest sum of all counts whose permutations are counted exactly.
pub const MOST_EVENTS: u64 = 20_000;

/// Two arms of counts with equal exposure of every boot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CountSummary {
    /// Events of all parent boots.
    pub parent_total: u64,
    /// Events of all child boots.
    pub child_total: u64,
    /// Rate of the child over that of the parent; absent when the parent had no event.
    pub ratio: Option<f64>,
    /// Interval of the ratio at `1 - alpha`: conditional binomial for Poisson counts, else quasi-Poisson on the log.
    pub ratio_interval: Option<Interval>,
    /// Exact two-sided permutation p of the difference of the arms' totals over all labels of boots.
    pub permutation_p: f64,
    /// Conditional binomial p, right only for Poisson counts.
    pub binomial_p: f64,
    /// Sum over arms of sum (x - mean)^2 / mean; about its degrees of freedom for Poisson counts.
    pub dispersion: f64,
    /// Degrees of freedom of the dispersion: boots less 2.
    pub dispersion_df: usize,
    /// Upper tail p of the dispersion.
    pub dispersion_p: f64,
    /// With no event at all: rates above this many per boot are ruled out at 95 % (3 / boots, the rule of three).
    pub rate_below: Option<f64>,
}

/// Compares counts whose boots had the same exposure. The test is the permutation p; the interval is the binomial one only if
/// the counts are not more scattered than Poisson counts.
///
/// # Errors
/// Fewer than two boots on a side, more than [`MOST_EVENTS`] events, `alpha` not between 0 and 1.
pub fn compare_counts(parent: &[u64], child: &[u64], alpha: f64) -> Result<CountSummary, StatsError> {
    check_level("alpha", alpha)?;
    for (what, side) in [("parent counts", parent), ("child counts", child)] {
        if side.len() < 2 {
            return Err(StatsError::TooFew { what, needed: 2, found: side.len() });
        }
    }
    let sum = |side: &[u64]| side.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let (a, b) = (sum(parent), sum(child));
    let total = a.saturating_add(b);
    if total > MOST_EVENTS {
        let value = total as f64;
        return Err(StatsError::OutOfRange {
            what: "sum of all counts",
            value,
            expected: "at most 20000; compare logs instead",
        });
    }
    let (n, m) = (parent.len() as f64, child.len() as f64);
    let df = parent.len() + child.len() - 2;
    let dispersion = scatter(parent) + scatter(child);
    let dispersion_p = if total == 0 { 1.0 } else { 1.0 - chi_squared(df as f64)?.cdf(dispersion) };
    let ratio = (a > 0).then(|| (b as f64 / m) / (a as f64 / n));
    let ratio_interval = match (total, dispersion_p > POISSON_P) {
        (0, _) => None,
        (_, true) => binomial_interval(a, b, n / m, alpha)?,
        (_, false) => quasi_poisson_interval(a, b, n / m, dispersion / df as f64, df, alpha)?,
    };
    Ok(CountSummary {
        parent_total: a,
        child_total: b,
        ratio,
        ratio_interval,
        permutation_p: permutation_p(parent, child),
        binomial_p: binomial_p(a, b, m / (n + m))?,
        dispersion,
        dispersion_df: df,
        dispersion_p,
        rate_below: (total == 0).then(|| 3.0 / (n + m)),
    })
}

fn scatter(counts: &[u64]) -> f64 {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    if mean > 0.0 {
        counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / mean
    } else {
        0.0
    }
}

fn chi_squared(df: f64) -> Result<ChiSquared, StatsError> {
    ChiSquared::new(df).map_err(|_| StatsError::OutOfRange {
        what: "degrees of freedom",
        value: df,
        expected: "above 0",
    })
}

/// Share of all relabellings of boots whose parent total is at least as far from its expectation as the one seen. Exact: subsets
/// are counted by size and sum.
fn permutation_p(parent: &[u64], child: &[u64]) -> f64 {
    let all: Vec<usize> = parent.iter().chain(child).map(|count| *count as usize).collect();
    let (n, total) = (parent.len(), all.iter().sum::<usize>());
    // ways[k][s]: subsets of k boots with s events in all.
    let mut ways = vec![vec![0.0_f64; total + 1]; n + 1];
    ways[0][0] = 1.0;
    for count in &all {
        for k in (1..=n).rev() {
            for s in (*count..=total).rev() {
                ways[k][s] += ways[k - 1][s - count];
            }
        }
    }
    let expected = total as f64 * n as f64 / all.len() as f64;
    let seen = (parent.iter().sum::<u64>() as f64 - expected).abs();
    let reached = |s: usize| (s as f64 - expected).abs() >= seen - 1e-9;
    let (extreme, every) = ways[n].iter().enumerate().fold((0.0, 0.0), |(extreme, every), (s, count)| {
        (if reached(s) { extreme + count } else { extreme }, every + count)
    });
    extreme / every
}

/// Two-sided p of `b` of `a + b` events on the child: the sum of all outcomes that are not likelier.
fn binomial_p(a: u64, b: u64, share: f64) -> Result<f64, StatsError> {
    let total = a + b;
    if total == 0 {
        return Ok(1.0);
    }
    let law = binomial(share, total)?;
    let seen = law.ln_pmf(b);
    // Outcomes as likely as the one seen belong to it, whatever the last bits of their logs say.
    Ok((0..=total).filter(|k| law.ln_pmf(*k) <= seen + 1e-9).map(|k| law.pmf(k)).sum::<f64>().min(1.0))
}

fn binomial(share: f64, total: u64) -> Result<Binomial, StatsError> {
    Binomial::new(share, total).map_err(|_| StatsError::OutOfRange {
        what: "share",
        value: share,
        expected: "0 to 1",
    })
}

/// Clopper & Pearson (1934) interval of the child's share of events, as a ratio of rates.
fn binomial_interval(a: u64, b: u64, exposure: f64, alpha: f64) -> Result<Option<Interval>, StatsError> {
    let quantile = |p: f64, shape: (f64, f64)| -> Result<f64, StatsError> {
        let beta = Beta::new(shape.0, shape.1).map_err(|_| StatsError::OutOfRange {
            what: "shape",
            value: shape.0,
            expected: "above 0",
        })?;
        let (mut low, mut high) = (0.0_f64, 1.0_f64);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if beta.cdf(middle) < p { low = middle } else { high = middle }
        }
        Ok(0.5 * (low + high))
    };
    let (x, y) = (b as f64, a as f64);
    let odds = |share: f64| share / (1.0 - share) * exposure;
    let low = if b == 0 { 0.0 } else { odds(quantile(alpha / 2.0, (x, y + 1.0))?) };
    if a == 0 {
        return Ok(None);
    }
    Ok(Some(Interval { low, high: odds(quantile(1.0 - alpha / 2.0, (x + 1.0, y))?) }))
}

/// Interval on the log of the ratio with the variance of Poisson counts times their dispersion.
fn quasi_poisson_interval(
    a: u64,
    b: u64,
    exposure: f64,
    factor: f64,
    df: usize,
    alpha: f64,
) -> Result<Option<Interval>, StatsError> {
    if a == 0 || b == 0 {
        return Ok(None);
    }
    let log = (b as f64 / a as f64 * exposure).ln();
    let se = (factor * (1.0 / a as f64 + 1.0 / b as f64)).sqrt();
    let half = student_quantile(1.0 - alpha / 2.0, df as f64)? * se;
    Ok(Some(Interval { low: (log - half).exp(), high: (log + half).exp() }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference R8.
    #[test]
    fn counts_agree_with_the_reference() {
        let found = compare_counts(&[3, 0, 2, 1, 2], &[9, 7, 12, 8, 6], 0.05).expect("valid");
        let near =
            |value: f64, expected: f64| assert!((value / expected - 1.0).abs() < 5e-6, "{value} {expected}");
        assert_eq!(found.permutation_p, 2.0 / 252.0);
        near(found.binomial_p, 1.16356e-6);
        near(found.ratio.expect("events"), 5.25);
        let interval = found.ratio_interval.expect("events");
        assert!(
            (interval.low - 2.4349).abs() < 5e-5 && (interval.high - 12.9469).abs() < 5e-5,
            "{interval:?}"
        );
        near(found.dispersion, 5.773810);
        assert_eq!(found.dispersion_df, 8);
        near(found.dispersion_p, 0.672552);
    }

    #[test]
    fn no_events_rule_out_a_rate_and_nothing_else() {
        let found = compare_counts(&[0, 0, 0], &[0, 0, 0], 0.05).expect("valid");
        assert_eq!((found.ratio, found.ratio_interval, found.rate_below), (None, None, Some(0.5)));
        assert_eq!((found.permutation_p, found.binomial_p), (1.0, 1.0));
    }

    #[test]
    fn scattered_counts_get_a_wider_interval() {
        let calm = compare_counts(&[10, 11, 9, 10], &[20, 21, 19, 20], 0.05).expect("valid");
        let wild = compare_counts(&[1, 19, 2, 18], &[5, 35, 4, 36], 0.05).expect("valid");
        assert!(calm.dispersion_p > 0.9 && wild.dispersion_p < 1e-6);
        let width = |summary: CountSummary| summary.ratio_interval.map(|i| i.high / i.low).expect("events");
        assert!(width(wild) > 5.0 * width(calm));
        assert!(compare_counts(&[1], &[1, 2], 0.05).is_err());
        assert!(compare_counts(&[u64::MAX, 1], &[1, 2], 0.05).is_err());
    }

    proptest! {
        #[test]
        fn swapping_the_arms_keeps_p_and_inverts_the_ratio(
            a in proptest::collection::vec(1_u64..40, 2..6), b in proptest::collection::vec(1_u64..40, 2..6)
        ) {
            let (one, other) = (compare_counts(&a, &b, 0.05).expect("valid"), compare_counts(&b, &a, 0.05).expect("valid"));
            prop_assert!((one.permutation_p - other.permutation_p).abs() < 1e-9);
            prop_assert!((one.binomial_p - other.binomial_p).abs() < 1e-9);
            prop_assert!((one.ratio.expect("events") * other.ratio.expect("events") - 1.0).abs() < 1e-9);
        }
    }
}
