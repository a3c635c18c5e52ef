//! Robust straight-line drift: the median of all pairwise slopes.
//! Read [`theil_sen`] first.

use crate::sample::{StatsError, check_parameter, median_of_sorted};

/// One measured value and when it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimedValue {
    /// Time since session start, in seconds (or the boot index; the slope is then per boot).
    pub t: f64,
    /// The value, usually a log boot value.
    pub y: f64,
}

/// Median of `(y_j - y_i) / (t_j - t_i)` over all pairs inside the same group, all groups pooled. Pairs at the same time
/// are skipped; `Ok(None)` if no pair is left, in which case no drift can be removed. (Theil 1950, Sen 1968.)
///
/// A group is one arm in one session, so that neither the difference of the arms nor of the sessions enters the slope.
///
/// # Errors
/// A time, value or slope that is not finite.
pub fn theil_sen(groups: &[Vec<TimedValue>]) -> Result<Option<f64>, StatsError> {
    let mut slopes = Vec::new();
    for group in groups {
        for (i, a) in group.iter().enumerate() {
            check_parameter("time of a value", a.t)?;
            check_parameter("timed value", a.y)?;
            for b in group[..i].iter().filter(|b| b.t != a.t) {
                let slope = (a.y - b.y) / (a.t - b.t);
                check_parameter("slope of a pair", slope)?;
                slopes.push(slope);
            }
        }
    }
    slopes.sort_by(f64::total_cmp);
    Ok((!slopes.is_empty()).then(|| median_of_sorted(&slopes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timed(values: &[(f64, f64)]) -> Vec<TimedValue> {
        values.iter().map(|(t, y)| TimedValue { t: *t, y: *y }).collect()
    }

    #[test]
    fn one_outlier_does_not_move_a_straight_line() {
        let line = timed(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (3.0, 7.0), (4.0, 900.0)]);
        assert_eq!(theil_sen(&[line]), Ok(Some(2.0)));
    }

    #[test]
    fn without_two_times_there_is_no_slope() {
        assert_eq!(theil_sen(&[]), Ok(None));
        assert_eq!(theil_sen(&[timed(&[(1.0, 2.0)])]), Ok(None));
        assert_eq!(theil_sen(&[timed(&[(1.0, 2.0), (1.0, 5.0)])]), Ok(None));
    }

    #[test]
    fn a_value_that_is_not_finite_is_refused() {
        assert!(theil_sen(&[timed(&[(f64::NAN, 2.0)])]).is_err());
        assert!(theil_sen(&[timed(&[(0.0, f64::INFINITY)])]).is_err());
        assert!(theil_sen(&[timed(&[(0.0, f64::MAX), (1e-9, -f64::MAX)])]).is_err());
    }

    proptest! {
        #[test]
        fn shifting_a_group_keeps_the_slope_and_tilting_adds_to_it(
            y in prop::collection::vec(-1f64..1.0, 2..12), shift in -5f64..5.0, tilt in -5f64..5.0,
        ) {
            let group = |shift: f64, tilt: f64| -> Vec<TimedValue> {
                y.iter().enumerate().map(|(i, y)| TimedValue { t: i as f64, y: y + shift + tilt * i as f64 }).collect()
            };
            let plain = theil_sen(&[group(0.0, 0.0)]).unwrap().unwrap();
            let moved = theil_sen(&[group(shift, tilt)]).unwrap().unwrap();
            prop_assert!((moved - plain - tilt).abs() < 1e-9);
        }
    }
}
