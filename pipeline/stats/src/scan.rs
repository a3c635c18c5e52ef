//! Where a nightly series shifted. Read [`scan`] first; an alarm is only the start of a comparison of both sides.

use crate::sample::{StatsError, check_at_least, mean, median_of_sorted, sorted};

/// Fewest values before a shift.
pub const LEAST_BEFORE: usize = 8;
/// Fewest values after a shift.
pub const LEAST_AFTER: usize = 2;
/// Statistic above which a shift is looked into: 4.5 % of null series a year alarm (independent normal nights).
pub const ALARM: f64 = 4.6;
/// Values further than this many standard deviations from the median count as this far.
const WINSOR: f64 = 3.0;
/// Median of |x - y| of two standard normal values.
const DIFFERENCE_MEDIAN: f64 = 0.95387;
/// Largest autocorrelation that is corrected for.
const LARGEST_RHO: f64 = 0.7;

/// The best split of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// Index of the first value after the shift.
    pub first_new: usize,
    /// Mean after minus mean before, of winsorised values, on the scale given (logs: a log ratio).
    pub shift: f64,
    /// Standardised size of the shift, deflated for autocorrelation; alarm above [`ALARM`].
    pub statistic: f64,
    /// Autocorrelation about the split that was corrected for, 0 to 0.7.
    pub rho: f64,
}

/// The split of `series` (log ratios in order of time) that separates it best; `None` when no two neighbours differ
/// or it is shorter than a split needs.
///
/// # Errors
/// No value, or a value that is not finite.
pub fn scan(series: &[f64]) -> Result<Option<Shift>, StatsError> {
    check_at_least("series", series, 1)?;
    let n = series.len();
    if n < LEAST_BEFORE + LEAST_AFTER {
        return Ok(None);
    }
    let steps: Vec<f64> = series.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    let s = median_of_sorted(&sorted("differences", &steps)?) / DIFFERENCE_MEDIAN;
    if s <= 0.0 {
        return Ok(None);
    }
    let middle = median_of_sorted(&sorted("series", series)?);
    let z: Vec<f64> = series.iter().map(|y| ((y - middle) / s).clamp(-WINSOR, WINSOR)).collect();
    let mut best: Option<(f64, usize)> = None;
    for split in LEAST_BEFORE..=n - LEAST_AFTER {
        let (i, m) = (split as f64, (n - split) as f64);
        let statistic = (mean(&z[split..]) - mean(&z[..split])).abs() * (i * m / n as f64).sqrt();
        if best.is_none_or(|(largest, _)| statistic > largest) {
            best = Some((statistic, split));
        }
    }
    let Some((statistic, first_new)) = best else { return Ok(None) };
    let (before, after) = (mean(&z[..first_new]), mean(&z[first_new..]));
    let residuals: Vec<f64> =
        z.iter().enumerate().map(|(i, z)| z - if i < first_new { before } else { after }).collect();
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let lag_one = if squares > 0.0 { products / squares } else { 0.0 };
    let rho = (lag_one + 1.0 / n as f64).clamp(0.0, LARGEST_RHO);
    // The spread of differences understates that of correlated values by sqrt(1-rho), and the means of
    // correlated values scatter more by sqrt((1+rho)/(1-rho)).
    let statistic = statistic * (1.0 - rho).sqrt() / ((1.0 + rho) / (1.0 - rho)).sqrt();
    Ok(Some(Shift { first_new, shift: (after - before) * s, statistic, rho }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference R14.
    #[test]
    fn the_scan_agrees_with_the_reference() {
        let values = [
            100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 99.0, 100.0, 100.5, 99.5, 104.0, 105.0,
            104.5,
        ];
        let found = scan(&values.map(f64::ln)).expect("valid").expect("a shift");
        assert!((found.statistic - 4.655239).abs() < 5e-7, "{found:?}");
        assert_eq!((found.first_new, found.rho), (12, 0.0));
        assert!((found.shift - 0.031661).abs() < 5e-7, "{found:?}");
    }

    #[test]
    fn a_constant_or_short_series_has_no_shift() {
        assert_eq!(scan(&[1.0; 30]), Ok(None));
        assert_eq!(scan(&[1.0, 2.0, 3.0]), Ok(None));
        assert!(scan(&[]).is_err() && scan(&[1.0, f64::NAN]).is_err());
    }

    proptest! {
        #[test]
        fn the_scan_does_not_care_for_scale_place_or_sign(
            series in proptest::collection::vec(-1.0f64..1.0, 12..60), factor in 0.1f64..10.0, offset in -5.0f64..5.0
        ) {
            let moved: Vec<f64> = series.iter().map(|y| -factor * y + offset).collect();
            let (one, other) = (scan(&series).expect("valid"), scan(&moved).expect("valid"));
            if let (Some(one), Some(other)) = (one, other) {
                prop_assert!((one.statistic - other.statistic).abs() < 1e-6);
                prop_assert!((one.shift * factor + other.shift).abs() < 1e-6);
            }
        }
    }
}
