//! Where the scatter of one arm's rounds comes from. Read [`variance_components`] first; [`lag_one`] says whether rounds
//! remember each other.

use crate::sample::{StatsError, check_at_least, check_positive, mean, sum_of_squares};

/// The scatter of rounds, split into boots and rounds (one-way analysis of variance).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VarianceComponents {
    /// Rounds of every boot.
    pub rounds: usize,
    /// Mean square between boots: R times the variance of the boot means.
    pub between: f64,
    /// Mean square within boots: the mean of their variances.
    pub within: f64,
    /// Variance of a boot beyond what its rounds explain; never below 0.
    pub boot: f64,
    /// Share of a round's variance that its boot explains (intraclass correlation), 0 to 1.
    pub intraclass: f64,
    /// By how much rounds taken as independent understate the variance of a mean: `1 + (R-1) ICC`.
    pub design_effect: f64,
}

/// Splits the scatter of boots with equally many rounds each.
///
/// # Errors
/// Fewer than two boots, fewer than two rounds, boots of different length, values that are not finite.
pub fn variance_components(boots: &[&[f64]]) -> Result<VarianceComponents, StatsError> {
    let rounds = rounds_of(boots, 2)?;
    let means: Vec<f64> = boots.iter().map(|boot| mean(boot)).collect();
    let r = rounds as f64;
    let between = r * sum_of_squares(&means) / (boots.len() as f64 - 1.0);
    let within = boots.iter().map(|boot| sum_of_squares(boot) / (r - 1.0)).sum::<f64>() / boots.len() as f64;
    let boot = ((between - within) / r).max(0.0);
    let intraclass = if boot + within > 0.0 { boot / (boot + within) } else { 0.0 };
    Ok(VarianceComponents {
        rounds,
        between,
        within,
        boot,
        intraclass,
        design_effect: 1.0 + (r - 1.0) * intraclass,
    })
}

impl VarianceComponents {
    /// Rounds per boot that give the most for the time (Kalibera & Jones 2013): `sqrt(c_boot/c_round * within/boot)`, at least
    /// 1; `None` when boots do not differ beyond their rounds, and more rounds are as good as more boots.
    ///
    /// # Errors
    /// A cost that is not above 0.
    pub fn best_rounds(&self, boot_cost: f64, round_cost: f64) -> Result<Option<f64>, StatsError> {
        check_positive("cost of a boot", boot_cost)?;
        check_positive("cost of a round", round_cost)?;
        Ok((self.boot > 0.0).then(|| (boot_cost / round_cost * self.within / self.boot).sqrt().max(1.0)))
    }
}

/// Autocorrelation of rounds at lag one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LagOne {
    /// Pooled over boots, about the boot means.
    pub raw: f64,
    /// `raw + 1/R`: what it is on average for independent rounds is taken off.
    pub corrected: f64,
    /// Above this the corrected value is more than chance: `max(0.2, 2/sqrt(B ))`.
    pub limit: f64,
    /// Rounds that carry information: `R (1-r)/(1+r)`, with r the corrected value, never below 1 or above R.
    pub effective_rounds: f64,
}

/// Autocorrelation of rounds at lag one, pooled over boots; `None` when no round differs from its boot's mean.
///
/// # Errors
/// No boot, fewer than three rounds, boots of different length, values that are not finite.
pub fn lag_one(boots: &[&[f64]]) -> Result<Option<LagOne>, StatsError> {
    let rounds = rounds_of(boots, 3)?;
    let (mut products, mut squares) = (0.0, 0.0);
    for boot in boots {
        let middle = mean(boot);
        products += boot.windows(2).map(|pair| (pair[0] - middle) * (pair[1] - middle)).sum::<f64>();
        squares += sum_of_squares(boot);
    }
    if squares <= 0.0 {
        return Ok(None);
    }
    let (r, b) = (rounds as f64, boots.len() as f64);
    let raw = products / squares;
    let corrected = raw + 1.0 / r;
    let bounded = corrected.clamp(0.0, 0.999);
    Ok(Some(LagOne {
        raw,
        corrected,
        limit: (2.0 / (b * (r - 1.0)).sqrt()).max(0.2),
        effective_rounds: (r * (1.0 - bounded) / (1.0 + bounded)).max(1.0),
    }))
}

fn rounds_of(boots: &[&[f64]], least: usize) -> Result<usize, StatsError> {
    let Some(first) = boots.first() else { return Err(StatsError::Empty { what: "boots" }) };
    for boot in boots {
        check_at_least("rounds of a boot", boot, least)?;
        if boot.len() != first.len() {
            return Err(StatsError::TooFew {
                what: "rounds of a boot",
                needed: first.len(),
                found: boot.len(),
            });
        }
    }
    if boots.len() < 2 && least == 2 {
        return Err(StatsError::TooFew { what: "boots", needed: 2, found: boots.len() });
    }
    Ok(first.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTS: [&[f64]; 3] =
        [&[10.0, 11.0, 10.0, 11.0], &[12.0, 12.0, 13.0, 13.0], &[9.0, 10.0, 9.0, 10.0]];

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 6e-7, "{value} {expected}");
    }

    /// Reference R12.
    #[test]
    fn components_agree_with_the_reference() {
        let parts = variance_components(&BOOTS).expect("valid");
        near(parts.between, 9.333333);
        near(parts.within, 0.333333);
        near(parts.boot, 2.25);
        near(parts.intraclass, 0.870968);
        near(parts.design_effect, 3.612903);
        near(parts.best_rounds(20.0, 2.0).expect("valid").expect("boots differ"), 1.217161);
        near(lag_one(&BOOTS).expect("valid").expect("rounds differ").raw, -0.416667);
    }

    #[test]
    fn boots_that_differ_no_more_than_rounds_have_no_variance_of_their_own() {
        let same: [&[f64]; 2] = [&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]];
        let parts = variance_components(&same).expect("valid");
        assert_eq!((parts.boot, parts.intraclass, parts.design_effect), (0.0, 0.0, 1.0));
        assert_eq!(parts.best_rounds(1.0, 1.0), Ok(None));
        let constant: [&[f64]; 2] = [&[1.0, 1.0, 1.0], &[2.0, 2.0, 2.0]];
        assert_eq!(lag_one(&constant), Ok(None));
        assert_eq!(variance_components(&constant).expect("valid").intraclass, 1.0);
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(variance_components(&[]).is_err());
        assert!(variance_components(&[&[1.0, 2.0]]).is_err());
        assert!(variance_components(&[&[1.0, 2.0], &[1.0]]).is_err());
        assert!(variance_components(&[&[1.0, f64::NAN], &[1.0, 2.0]]).is_err());
        assert!(lag_one(&[&[1.0, 2.0]]).is_err());
    }
}
