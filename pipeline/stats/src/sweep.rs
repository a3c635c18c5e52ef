//! A metric over a series of levels (clients, files, attributes), all measured inside every boot. Read [`level_and_slope`]
//! for what a boot contributes and [`max_t`] for the verdicts on single points.

use crate::sample::{StatsError, check_at_least, check_values, mean, sum_of_squares};

/// Boots per side up to which every relabelling is counted; beyond, a sample of them is drawn.
pub const EXACT_BOOTS: usize = 6;
/// Relabellings drawn where they are too many to count.
pub const RELABELLINGS: usize = 9999;

/// What one boot says of a whole sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelAndSlope {
    /// Mean of the logs over all points.
    pub level: f64,
    /// Least-squares slope of the logs on log2 of the level: change per doubling ("gets worse as it scales").
    pub slope_per_doubling: f64,
}

/// Level and slope of one boot: `values[i]` is the positive value at `points[i]`.
///
/// # Errors
/// Fewer than two points, lists of different length, a point or value that is not positive, points that are all equal.
pub fn level_and_slope(points: &[f64], values: &[f64]) -> Result<LevelAndSlope, StatsError> {
    check_at_least("points of the sweep", points, 2)?;
    if points.len() != values.len() {
        let (needed, found) = (points.len(), values.len());
        return Err(StatsError::TooFew { what: "values of the sweep", needed, found });
    }
    let logs = |what: &'static str, list: &[f64], log: fn(f64) -> f64| -> Result<Vec<f64>, StatsError> {
        check_values(what, list)?;
        match list.iter().find(|value| **value <= 0.0) {
            Some(value) => Err(StatsError::OutOfRange { what, value: *value, expected: "above 0" }),
            None => Ok(list.iter().map(|value| log(*value)).collect()),
        }
    };
    let (x, y) = (logs("point", points, f64::log2)?, logs("value", values, f64::ln)?);
    let (mx, my) = (mean(&x), mean(&y));
    let sxx = sum_of_squares(&x);
    if sxx <= 0.0 {
        return Err(StatsError::OutOfRange {
            what: "points",
            value: points[0],
            expected: "at least two different ones",
        });
    }
    let sxy: f64 = x.iter().zip(&y).map(|(x, y)| (x - mx) * (y - my)).sum();
    Ok(LevelAndSlope { level: my, slope_per_doubling: sxy / sxx })
}

/// One point of a sweep after [`max_t`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepPoint {
    /// Mean child minus mean parent, on the scale given.
    pub difference: f64,
    /// Its t statistic with pooled variance; 0 when no value at this point varies and the means agree.
    pub t: f64,
    /// Probability, if the arms do not differ, that any point shows so large a |t|.
    pub p: f64,
}

/// Single-step max-|t| over boot labels (Westfall & Young 1993): p-values that hold for all points together. A boot is one
/// vector of (log) values, one per point. All relabellings are counted up to [`EXACT_BOOTS`] boots per side, else
/// [`RELABELLINGS`] are drawn; `below(n)` returns a random number below n.
///
/// # Errors
/// Fewer than two boots on a side, no points, boots of different length, values that are not finite.
pub fn max_t(
    parent: &[Vec<f64>],
    child: &[Vec<f64>],
    below: &mut dyn FnMut(usize) -> usize,
) -> Result<Vec<SweepPoint>, StatsError> {
    let boots: Vec<&Vec<f64>> = parent.iter().chain(child).collect();
    let points = parent.first().map_or(0, Vec::len);
    for (what, side) in [("parent boots", parent), ("child boots", child)] {
        if side.len() < 2 {
            return Err(StatsError::TooFew { what, needed: 2, found: side.len() });
        }
    }
    if points == 0 {
        return Err(StatsError::Empty { what: "points of the sweep" });
    }
    for boot in &boots {
        check_values("sweep of a boot", boot)?;
        if boot.len() != points {
            return Err(StatsError::TooFew { what: "points of a boot", needed: points, found: boot.len() });
        }
    }
    let total = boots.len();
    let observed: Vec<usize> = (0..parent.len()).collect();
    let statistics = |first: &[usize]| -> Vec<(f64, f64)> {
        (0..points).map(|point| two_sample_t(&boots, first, point)).collect()
    };
    let here = statistics(&observed);
    let mut exceed = vec![0_usize; points];
    let mut counted = 0_usize;
    let mut take = |first: &[usize]| {
        let largest = statistics(first).iter().map(|(_, t)| t.abs()).fold(0.0, f64::max);
        // Ties count against rejection, and rounding must not break one.
        let reached = |(_, t): &(f64, f64)| largest >= t.abs() * (1.0 - 1e-12);
        exceed.iter_mut().zip(&here).filter(|(_, own)| reached(own)).for_each(|(count, _)| *count += 1);
        counted += 1;
    };
    if parent.len().max(child.len()) <= EXACT_BOOTS {
        let mut first = observed.clone();
        loop {
            take(&first);
            if !next_combination(&mut first, total) {
                break;
            }
        }
    } else {
        take(&observed);
        let mut order: Vec<usize> = (0..total).collect();
        for _ in 0..RELABELLINGS {
            for i in 0..parent.len() {
                order.swap(i, i + below(total - i).min(total - i - 1));
            }
            take(&order[..parent.len()]);
        }
    }
    Ok(here
        .into_iter()
        .zip(exceed)
        .map(|((difference, t), count)| SweepPoint { difference, t, p: count as f64 / counted as f64 })
        .collect())
}

/// Difference of means (the others minus `first`) and its pooled t at one point.
fn two_sample_t(boots: &[&Vec<f64>], first: &[usize], point: usize) -> (f64, f64) {
    let (mut one, mut other) = (Vec::with_capacity(boots.len()), Vec::with_capacity(boots.len()));
    for (index, boot) in boots.iter().enumerate() {
        if first.contains(&index) { one.push(boot[point]) } else { other.push(boot[point]) }
    }
    let difference = mean(&other) - mean(&one);
    let df = (boots.len() - 2) as f64;
    let variance = (sum_of_squares(&one) + sum_of_squares(&other)) / df;
    let se = (variance * (1.0 / one.len() as f64 + 1.0 / other.len() as f64)).sqrt();
    let t = match difference {
        0.0 => 0.0,
        difference if se > 0.0 => difference / se,
        difference => f64::INFINITY.copysign(difference),
    };
    (difference, t)
}

/// The next subset of `0..total` in lexicographic order; false after the last.
fn next_combination(subset: &mut [usize], total: usize) -> bool {
    let size = subset.len();
    let Some(at) = (0..size).rev().find(|i| subset[*i] < total - size + i) else { return false };
    subset[at] += 1;
    for i in at + 1..size {
        subset[i] = subset[i - 1] + 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(_: usize) -> usize {
        unreachable!("few boots are counted, not drawn")
    }

    /// Reference R11.
    #[test]
    fn level_and_slope_agree_with_the_reference() {
        let found = level_and_slope(&[1.0, 2.0, 4.0, 8.0], &[1.0, 1.1, 1.3, 1.7]).expect("valid");
        assert!((found.level - 0.222076).abs() < 5e-7, "{found:?}");
        assert!((found.slope_per_doubling - 0.175894).abs() < 5e-7, "{found:?}");
    }

    #[test]
    fn a_large_difference_at_one_point_is_found_there_only() {
        let parent: Vec<Vec<f64>> =
            (0..5).map(|i| vec![f64::from(i % 3) * 0.01, f64::from(i) * 0.01]).collect();
        let child: Vec<Vec<f64>> =
            (0..5).map(|i| vec![f64::from(i % 3) * 0.01, 1.0 + f64::from(i) * 0.01]).collect();
        let points = max_t(&parent, &child, &mut never).expect("valid");
        // 252 relabellings: only the two that separate the arms reach the largest statistic.
        assert!((points[1].p - 2.0 / 252.0).abs() < 1e-12, "{points:?}");
        assert!(points[0].p > 0.9 && points[0].difference.abs() < 1e-12, "{points:?}");
        assert!((points[1].difference - 1.0).abs() < 1e-12);
    }

    #[test]
    fn equal_boots_give_p_one_and_many_boots_are_drawn() {
        let same = vec![vec![1.0, 2.0]; 5];
        assert!(max_t(&same, &same, &mut never).expect("valid").iter().all(|point| point.p == 1.0));
        let shifted: Vec<Vec<f64>> = (0..8).map(|i| vec![1.0 + f64::from(i) * 1e-3]).collect();
        let base: Vec<Vec<f64>> = (0..8).map(|i| vec![f64::from(i) * 1e-3]).collect();
        let mut state = 1_usize;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let points = max_t(&base, &shifted, &mut below).expect("valid");
        assert!(points[0].p < 0.002 && points[0].p >= 1e-4, "{points:?}");
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(level_and_slope(&[1.0], &[1.0]).is_err());
        assert!(level_and_slope(&[2.0, 2.0], &[1.0, 3.0]).is_err());
        assert!(level_and_slope(&[1.0, 2.0], &[1.0, 0.0]).is_err());
        assert!(level_and_slope(&[1.0, 2.0], &[1.0, f64::NAN]).is_err());
        let boots = |value| vec![vec![value, 1.0]; 3];
        assert!(max_t(&boots(f64::NAN), &boots(1.0), &mut never).is_err());
        assert!(max_t(&boots(1.0)[..1], &boots(1.0), &mut never).is_err());
        assert!(max_t(&boots(1.0), &vec![vec![1.0]; 3], &mut never).is_err());
    }
}
