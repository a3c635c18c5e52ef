//! The 2x2 question "did the change alter what a feature costs?": feature off and on, before and after the change.
//! Read [`analyze_factorial`] first; [`feature_cost`], [`interaction_ratio`] and [`share_recovered`] describe single cell values.

use crate::sample::{
    Interval, StatsError, check_at_least, check_level, check_parameter, check_positive, mean, sum_of_squares,
};
use crate::welch::{student_quantile, student_two_sided_p};

/// One block: the four cells measured next to each other, in random order. Boot values, in the unit of the metric, above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactorialBlock {
    /// Feature off, before the change.
    pub before_off: f64,
    /// Feature on, before the change.
    pub before_on: f64,
    /// Feature off, after the change.
    pub after_off: f64,
    /// Feature on, after the change.
    pub after_on: f64,
}

/// A contrast of the cells, one value per block.
#[derive(Debug, Clone, PartialEq)]
pub struct Contrast {
    /// The log contrast of each block; input for [`summarize_pairs`](crate::summarize_pairs) from 8 blocks on.
    pub per_block: Vec<f64>,
    /// Mean over the blocks.
    pub mean_log: f64,
    /// Degrees of freedom: blocks - 1.
    pub df: usize,
    /// t statistic of "mean 0"; `None` if all blocks agree exactly, because zero variance never yields p = 0.
    pub t: Option<f64>,
    /// Two-sided p of `t`.
    pub p: Option<f64>,
    /// t interval of the mean at `1 - alpha`.
    pub interval_log: Option<Interval>,
}

/// The three lines a 2x2 report prints, each with its interval.
#[derive(Debug, Clone, PartialEq)]
pub struct FactorialSummary {
    /// `ln(on/off)` before the change.
    pub overhead_before: Contrast,
    /// `ln(on/off)` after the change.
    pub overhead_after: Contrast,
    /// `overhead_after - overhead_before`: the interaction I. Positive means that the change made the feature raise the value more.
    pub interaction: Contrast,
}

/// Overheads and interaction `I = (on - off)_after - (on - off)_before` on logs, one value per block, with a paired t test
/// (spec section 5). The t test assumes about normal block values; with 8 blocks or more let the signed-rank procedure decide.
///
/// # Errors
/// Fewer than two blocks, a cell that is not a finite number above 0, `alpha` not between 0 and 1.
pub fn analyze_factorial(blocks: &[FactorialBlock], alpha: f64) -> Result<FactorialSummary, StatsError> {
    let mut before = Vec::with_capacity(blocks.len());
    let mut after = Vec::with_capacity(blocks.len());
    for block in blocks {
        before.push(log_ratio(block.before_off, block.before_on)?);
        after.push(log_ratio(block.after_off, block.after_on)?);
    }
    let interaction = before.iter().zip(&after).map(|(b, a)| a - b).collect();
    Ok(FactorialSummary {
        overhead_before: contrast(before, alpha)?,
        overhead_after: contrast(after, alpha)?,
        interaction: contrast(interaction, alpha)?,
    })
}

/// What a feature adds, as a fraction of the value without it: `on/off - 1`. A cost for a metric where lower is better; negative if
/// the feature lowers the value.
///
/// # Errors
/// A cell that is not a finite number above 0.
pub fn feature_cost(off: f64, on: f64) -> Result<f64, StatsError> {
    Ok(log_ratio(off, on)?.exp_m1())
}

/// `(on/off after) / (on/off before)`: 1 if the change did not alter the feature's relative cost.
///
/// # Errors
/// A cell that is not a finite number above 0.
pub fn interaction_ratio(cells: &FactorialBlock) -> Result<f64, StatsError> {
    let before = log_ratio(cells.before_off, cells.before_on)?;
    let after = log_ratio(cells.after_off, cells.after_on)?;
    Ok((after - before).exp())
}

/// Share of a feature's cost that the change removed: `1 - cost_after/cost_before`. 1 means all of it, 0 none, negative that the
/// cost grew. Unstable when `cost_before` is small against its own error: print it only beside the interaction's interval.
///
/// # Errors
/// A cost that is not finite, or `cost_before` of 0, of which there is no share.
pub fn share_recovered(cost_before: f64, cost_after: f64) -> Result<f64, StatsError> {
    check_parameter("cost before", cost_before)?;
    check_parameter("cost after", cost_after)?;
    if cost_before == 0.0 {
        return Err(StatsError::OutOfRange {
            what: "cost before",
            value: cost_before,
            expected: "other than 0",
        });
    }
    let share = 1.0 - cost_after / cost_before;
    check_parameter("share recovered", share)?;
    Ok(share)
}

fn log_ratio(off: f64, on: f64) -> Result<f64, StatsError> {
    check_positive("cell with the feature off", off)?;
    check_positive("cell with the feature on", on)?;
    Ok(on.ln() - off.ln())
}

fn contrast(per_block: Vec<f64>, alpha: f64) -> Result<Contrast, StatsError> {
    check_at_least("factorial blocks", &per_block, 2)?;
    check_level("alpha", alpha)?;
    let n = per_block.len();
    let df = n - 1;
    let mean_log = mean(&per_block);
    let se = (sum_of_squares(&per_block) / df as f64 / n as f64).sqrt();
    let all_equal = per_block.iter().all(|value| *value == per_block[0]);
    let mut result = Contrast { per_block, mean_log, df, t: None, p: None, interval_log: None };
    if !all_equal && se > 0.0 {
        let t = mean_log / se;
        let half = student_quantile(1.0 - alpha / 2.0, df as f64)? * se;
        result.t = Some(t);
        result.p = Some(student_two_sided_p(t, df as f64)?);
        result.interval_log = Some(Interval { low: mean_log - half, high: mean_log + half });
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::assert_close;
    use proptest::prelude::*;

    fn r10() -> Vec<FactorialBlock> {
        let cells = [
            [10.0, 11.0, 10.1, 11.9],
            [10.2, 11.3, 10.0, 11.7],
            [9.9, 10.8, 10.2, 12.1],
            [10.1, 11.1, 9.9, 11.6],
        ];
        cells.map(block).to_vec()
    }

    fn block([before_off, before_on, after_off, after_on]: [f64; 4]) -> FactorialBlock {
        FactorialBlock { before_off, before_on, after_off, after_on }
    }

    #[test]
    fn reference_r10() {
        let found = analyze_factorial(&r10(), 0.05).unwrap().interaction;
        for (value, expected) in found.per_block.iter().zip([0.068693, 0.054589, 0.083806, 0.064061]) {
            assert_close(*value, expected, 5e-7);
        }
        assert_close(found.mean_log, 0.067787, 5e-7);
        assert_close(found.t.unwrap(), 11.125112, 5e-7);
        assert_close(found.p.unwrap(), 0.001556, 5e-7);
        assert_eq!(found.df, 3);
        assert!(found.interval_log.unwrap().excludes_zero());
    }

    #[test]
    fn the_three_lines_add_up() {
        let found = analyze_factorial(&r10(), 0.05).unwrap();
        let difference = found.overhead_after.mean_log - found.overhead_before.mean_log;
        assert_close(found.interaction.mean_log, difference, 1e-12);
    }

    #[test]
    fn cells_as_costs() {
        assert_close(feature_cost(100.0, 112.0).unwrap(), 0.12, 1e-12);
        assert_close(share_recovered(0.12, 0.03).unwrap(), 0.75, 1e-12);
        assert_close(share_recovered(0.12, 0.18).unwrap(), -0.5, 1e-12);
        let ratio = interaction_ratio(&block([100.0, 112.0, 100.0, 103.0])).unwrap();
        assert_close(ratio, 1.03 / 1.12, 1e-12);
    }

    #[test]
    fn blocks_that_agree_exactly_have_no_p() {
        let found = analyze_factorial(&[block([1.0, 2.0, 1.0, 2.0]); 3], 0.05).unwrap();
        assert_eq!((found.interaction.t, found.interaction.p), (None, None));
        assert_eq!(found.interaction.mean_log, 0.0);
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(analyze_factorial(&[], 0.05).is_err());
        assert!(analyze_factorial(&r10()[..1], 0.05).is_err());
        assert!(analyze_factorial(&r10(), 1.0).is_err());
        assert!(analyze_factorial(&[block([0.0, 1.0, 1.0, 1.0]); 2], 0.05).is_err());
        assert!(feature_cost(f64::NAN, 1.0).is_err());
        assert!(feature_cost(1.0, -1.0).is_err());
        assert!(share_recovered(0.0, 0.1).is_err());
        assert!(interaction_ratio(&block([1.0, 1.0, 1.0, f64::INFINITY])).is_err());
    }

    proptest! {
        #[test]
        fn swapping_before_and_after_negates(values in prop::collection::vec(prop::array::uniform4(1f64..10.0), 2..9), scale in 0.01f64..100.0) {
            let blocks: Vec<FactorialBlock> = values.iter().copied().map(block).collect();
            let swapped: Vec<FactorialBlock> =
                values.iter().map(|[a, b, c, d]| block([*c, *d, *a, *b])).collect();
            let scaled: Vec<FactorialBlock> = values.iter().map(|v| block(v.map(|x| x * scale))).collect();
            let one = analyze_factorial(&blocks, 0.05).unwrap().interaction;
            let other = analyze_factorial(&swapped, 0.05).unwrap().interaction;
            let unit = analyze_factorial(&scaled, 0.05).unwrap().interaction;
            prop_assert_eq!(one.mean_log, -other.mean_log);
            prop_assert_eq!(one.p, other.p);
            prop_assert!((one.mean_log - unit.mean_log).abs() < 1e-9);
            if let (Some(p), Some(interval)) = (one.p, one.interval_log) {
                prop_assume!((p - 0.05).abs() > 1e-6);
                prop_assert_eq!(p <= 0.05, interval.excludes_zero());
            }
        }
    }
}
