//! Which of many commits changed a level, from noisy boots at some of them. Read [`Levels`] and [`posterior`] first.

use crate::sample::{StatsError, check_parameter, check_positive, check_values};

/// Degrees of freedom of the Student-t noise: heavy enough that no single boot decides.
const NU: f64 = 3.0;

/// The two levels between which a history switches, on logs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Levels {
    /// Level before the culprit.
    pub good: f64,
    /// Step from the good to the bad level; its sign is the direction of the change.
    pub step: f64,
    /// Scale of the noise of one boot, above 0.
    pub scale: f64,
}

/// Log likelihood ratio of bad over good for one log boot value: `2 ln(1+(r/s)^2/3) - 2 ln(1+((r-step)/s)^2/3)`.
///
/// # Errors
/// A value that is not finite, a scale that is not above 0.
pub fn log_likelihood_ratio(value: f64, levels: &Levels) -> Result<f64, StatsError> {
    check_parameter("boot value", value)?;
    check_values("levels", &[levels.good, levels.step])?;
    check_positive("scale", levels.scale)?;
    let term =
        |distance: f64| (NU + 1.0) / 2.0 * (distance / levels.scale).powi(2).mul_add(1.0 / NU, 1.0).ln();
    let residual = value - levels.good;
    Ok(term(residual) - term(residual - levels.step))
}

/// Probability of each candidate to be the first bad commit. `weights` are prior weights (not negative);
/// `evidence` lists each tested commit as the sum of its boots' log likelihood ratios and, for every
/// candidate, whether that commit contains it.
///
/// # Errors
/// No candidate, weights that are all 0 or not finite, evidence whose lists differ in length from the candidates.
pub fn posterior(weights: &[f64], evidence: &[(f64, Vec<bool>)]) -> Result<Vec<f64>, StatsError> {
    check_values("prior weights", weights)?;
    if weights.iter().any(|weight| *weight < 0.0) || weights.iter().all(|weight| *weight == 0.0) {
        return Err(StatsError::OutOfRange {
            what: "prior weights",
            value: 0.0,
            expected: "not negative, and one above 0",
        });
    }
    let mut logs: Vec<f64> = weights.iter().map(|weight| weight.ln()).collect();
    for (ratio, contains) in evidence {
        check_parameter("log likelihood ratio", *ratio)?;
        if contains.len() != logs.len() {
            let (needed, found) = (logs.len(), contains.len());
            return Err(StatsError::TooFew { what: "candidates of the evidence", needed, found });
        }
        logs.iter_mut().zip(contains).filter(|(_, contains)| **contains).for_each(|(log, _)| *log += ratio);
    }
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let raw: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = raw.iter().sum();
    Ok(raw.into_iter().map(|value| value / sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference R13.
    #[test]
    fn five_linear_commits_agree_with_the_reference() {
        let levels = Levels { good: 0.0, step: 0.05, scale: 0.03 };
        let observations = [(2, 0.01), (2, -0.02), (4, 0.06), (3, 0.045), (3, 0.20)];
        let expected = [-0.857991, -1.793492, 1.621860, 1.100798, 1.054710];
        let mut evidence = Vec::new();
        for ((commit, value), expected) in observations.into_iter().zip(expected) {
            let ratio = log_likelihood_ratio(value, &levels).expect("valid");
            assert!((ratio - expected).abs() < 6e-7, "{ratio} {expected}");
            evidence.push((ratio, (1..=5).map(|candidate| candidate <= commit).collect()));
        }
        let found = posterior(&[1.0; 5], &evidence).expect("valid");
        for (value, expected) in found.iter().zip([0.055122, 0.055122, 0.781360, 0.090516, 0.017880]) {
            assert!((value - expected).abs() < 6e-7, "{found:?}");
        }
        let mut bad = 0.0;
        for (value, expected) in found.iter().zip([0.055122, 0.110244, 0.891604, 0.982120, 1.0]) {
            bad += value;
            assert!((bad - expected).abs() < 6e-7, "{bad} {expected}");
        }
    }

    #[test]
    fn a_far_outlier_decides_nothing_and_a_commit_without_weight_is_never_guilty() {
        let levels = Levels { good: 0.0, step: 0.05, scale: 0.03 };
        assert!(log_likelihood_ratio(50.0, &levels).expect("valid").abs() < 0.01);
        let found = posterior(&[0.0, 1.0], &[(100.0, vec![true, false])]).expect("valid");
        assert_eq!(found, [0.0, 1.0]);
        assert!(posterior(&[0.0], &[]).is_err() && posterior(&[], &[]).is_err());
        assert!(posterior(&[1.0, f64::NAN], &[]).is_err());
        assert!(posterior(&[1.0], &[(0.0, vec![])]).is_err());
        assert!(log_likelihood_ratio(0.0, &Levels { scale: 0.0, ..levels }).is_err());
    }
}
