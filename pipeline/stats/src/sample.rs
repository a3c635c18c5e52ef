//! The vocabulary every other module shares: the error of a rejected input, a closed interval, and order statistics of a slice.
//! Read [`StatsError`] first.

use std::error::Error;
use std::fmt;

/// Why a computation was refused. Nothing in this crate panics on its input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StatsError {
    /// A list that must hold at least one value is empty.
    Empty {
        /// Name of the list.
        what: &'static str,
    },
    /// A value is NaN or infinite.
    NotFinite {
        /// Name of the list or parameter.
        what: &'static str,
        /// Position in the list (0 for a parameter).
        index: usize,
        /// The value.
        value: f64,
    },
    /// A list is shorter than the method allows.
    TooFew {
        /// Name of the list.
        what: &'static str,
        /// Smallest accepted length.
        needed: usize,
        /// Length found.
        found: usize,
    },
    /// A list is longer than the exact method can count.
    TooMany {
        /// Name of the list.
        what: &'static str,
        /// Largest accepted length.
        limit: usize,
        /// Length found.
        found: usize,
    },
    /// A parameter or result is finite but outside its range.
    OutOfRange {
        /// Name of the parameter.
        what: &'static str,
        /// The value.
        value: f64,
        /// The accepted range in words.
        expected: &'static str,
    },
}

impl fmt::Display for StatsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty { what } => write!(f, "{what}: no values"),
            Self::NotFinite { what, index, value } => {
                write!(f, "{what}[{index}] is {value}, not a finite number")
            }
            Self::TooFew { what, needed, found } => {
                write!(f, "{what}: {found} given, at least {needed} needed")
            }
            Self::TooMany { what, limit, found } => {
                write!(f, "{what}: {found} given, at most {limit} can be counted")
            }
            Self::OutOfRange { what, value, expected } => write!(f, "{what} is {value}, expected {expected}"),
        }
    }
}

impl Error for StatsError {}

/// A closed interval, in the unit of the estimate beside it (a log ratio unless stated otherwise).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end, never below `low`.
    pub high: f64,
}

impl Interval {
    /// True if 0 is outside; an end that is exactly 0 counts as inside, so ties speak against a difference.
    #[must_use]
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// True if the interval lies strictly inside `-margin ..= margin`.
    #[must_use]
    pub fn is_inside(&self, margin: f64) -> bool {
        -margin < self.low && self.high < margin
    }

    /// True if the interval lies strictly outside `-margin ..= margin`.
    #[must_use]
    pub fn is_beyond(&self, margin: f64) -> bool {
        self.low > margin || self.high < -margin
    }

    /// The larger distance of an end from 0: changes beyond it are ruled out.
    #[must_use]
    pub fn largest_abs(&self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// The same interval of `-x`.
    #[must_use]
    pub fn negated(&self) -> Self {
        Self { low: -self.high, high: -self.low }
    }
}

impl From<Interval> for (f64, f64) {
    fn from(interval: Interval) -> Self {
        (interval.low, interval.high)
    }
}

/// A log ratio in percent: `100 (exp(d) - 1)`.
#[must_use]
pub fn log_to_percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

/// A change in percent as a log ratio: `ln(1 + percent/100)`.
///
/// # Errors
/// [`StatsError::NotFinite`], or [`StatsError::OutOfRange`] at -100 % and below.
pub fn percent_to_log(percent: f64) -> Result<f64, StatsError> {
    check_parameter("percent", percent)?;
    if percent <= -100.0 {
        return Err(StatsError::OutOfRange { what: "percent", value: percent, expected: "above -100" });
    }
    Ok((percent / 100.0).ln_1p())
}

/// Median; the mean of the two middle values for an even count.
///
/// # Errors
/// [`StatsError::Empty`] or [`StatsError::NotFinite`].
pub fn median(values: &[f64]) -> Result<f64, StatsError> {
    Ok(median_of_sorted(&sorted("median input", values)?))
}

/// A sorted copy of a non-empty list of finite values.
pub(crate) fn sorted(what: &'static str, values: &[f64]) -> Result<Vec<f64>, StatsError> {
    check_values(what, values)?;
    let mut copy = values.to_vec();
    copy.sort_by(f64::total_cmp);
    Ok(copy)
}

/// Median of a sorted list; NaN if it is empty, which callers exclude.
pub(crate) fn median_of_sorted(values: &[f64]) -> f64 {
    let n = values.len();
    match (values.get(n.wrapping_sub(1) / 2), values.get(n / 2)) {
        // Halving first keeps the sum of two huge values finite.
        (Some(low), Some(high)) if n.is_multiple_of(2) => low / 2.0 + high / 2.0,
        (Some(middle), Some(_)) => *middle,
        _ => f64::NAN,
    }
}

/// Arithmetic mean; the caller has checked that the list is not empty.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sum of squared deviations from the mean.
pub(crate) fn sum_of_squares(values: &[f64]) -> f64 {
    let centre = mean(values);
    values.iter().map(|v| (v - centre) * (v - centre)).sum()
}

/// Refuses an empty list and any NaN or infinite value.
pub(crate) fn check_values(what: &'static str, values: &[f64]) -> Result<(), StatsError> {
    if values.is_empty() {
        return Err(StatsError::Empty { what });
    }
    match values.iter().position(|v| !v.is_finite()) {
        Some(index) => Err(StatsError::NotFinite { what, index, value: values[index] }),
        None => Ok(()),
    }
}

/// Refuses a list shorter than `needed`, then as [`check_values`].
pub(crate) fn check_at_least(what: &'static str, values: &[f64], needed: usize) -> Result<(), StatsError> {
    check_values(what, values)?;
    if values.len() < needed {
        return Err(StatsError::TooFew { what, needed, found: values.len() });
    }
    Ok(())
}

/// Refuses a NaN or infinite parameter.
pub(crate) fn check_parameter(what: &'static str, value: f64) -> Result<(), StatsError> {
    if value.is_finite() { Ok(()) } else { Err(StatsError::NotFinite { what, index: 0, value }) }
}

/// Refuses a parameter that is not a finite number above 0.
pub(crate) fn check_positive(what: &'static str, value: f64) -> Result<(), StatsError> {
    check_parameter(what, value)?;
    if value > 0.0 { Ok(()) } else { Err(StatsError::OutOfRange { what, value, expected: "above 0" }) }
}

/// Refuses a probability that is not strictly between 0 and 1.
pub(crate) fn check_level(what: &'static str, value: f64) -> Result<(), StatsError> {
    check_positive(what, value)?;
    if value < 1.0 {
        Ok(())
    } else {
        Err(StatsError::OutOfRange { what, value, expected: "between 0 and 1" })
    }
}

/// Test helper: absolute difference below half a unit of the last printed digit.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_close(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "found {found}, expected {expected} +- {tolerance}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_list_is_the_mean_of_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Ok(2.5));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Ok(2.0));
        assert_eq!(median(&[7.0]), Ok(7.0));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Ok(f64::MAX));
    }

    #[test]
    fn bad_input_is_named_in_the_error() {
        assert_eq!(median(&[]), Err(StatsError::Empty { what: "median input" }));
        let error = median(&[1.0, f64::INFINITY]).unwrap_err();
        assert_eq!(error.to_string(), "median input[1] is inf, not a finite number");
        assert!(percent_to_log(-100.0).is_err());
        assert!(percent_to_log(f64::NAN).is_err());
    }

    #[test]
    fn percent_and_log_are_inverse() {
        assert_close(log_to_percent(0.025961), 2.6301, 5e-5);
        assert_close(log_to_percent(percent_to_log(-37.5).unwrap()), -37.5, 1e-12);
    }

    #[test]
    fn an_end_at_zero_does_not_exclude_zero() {
        let touching = Interval { low: 0.0, high: 1.0 };
        assert!(!touching.excludes_zero());
        assert!(!touching.is_inside(1.0));
        assert!(touching.is_inside(1.5));
        assert!(!touching.is_beyond(0.0));
        assert_eq!(touching.negated().negated(), touching);
        assert_eq!(<(f64, f64)>::from(touching), (0.0, 1.0));
    }
}
