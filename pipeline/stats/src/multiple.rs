//! Several tests in one report. Read [`holm`] (for verdicts) and [`benjamini_hochberg`] (for exploratory metrics) first.

use crate::sample::{StatsError, check_parameter};

/// p-values after Holm (1979): at most `alpha` of all families contain one wrong rejection, whatever the
/// dependence. In the order given, each at most 1.
///
/// # Errors
/// A p-value that is not between 0 and 1.
pub fn holm(p: &[f64]) -> Result<Vec<f64>, StatsError> {
    let order = ascending(p)?;
    let mut adjusted = vec![0.0; p.len()];
    let mut least = 0.0f64;
    for (rank, index) in order.iter().enumerate() {
        least = least.max((p.len() - rank) as f64 * p[*index]).min(1.0);
        adjusted[*index] = least;
    }
    Ok(adjusted)
}

/// p-values after Benjamini & Hochberg (1995): of all rejections at most the share `q` is wrong on average, for
/// independent tests. In the order given, each at most 1.
///
/// # Errors
/// A p-value that is not between 0 and 1.
pub fn benjamini_hochberg(p: &[f64]) -> Result<Vec<f64>, StatsError> {
    let order = ascending(p)?;
    let mut adjusted = vec![0.0; p.len()];
    let mut most = 1.0f64;
    for (rank, index) in order.iter().enumerate().rev() {
        most = most.min(p.len() as f64 / (rank + 1) as f64 * p[*index]);
        adjusted[*index] = most;
    }
    Ok(adjusted)
}

fn ascending(p: &[f64]) -> Result<Vec<usize>, StatsError> {
    for value in p {
        check_parameter("p", *value)?;
        if !(0.0..=1.0).contains(value) {
            return Err(StatsError::OutOfRange { what: "p", value: *value, expected: "0 to 1" });
        }
    }
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    Ok(order)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(actual: &[f64], expected: &[f64]) {
        assert!(actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12), "{actual:?}");
    }

    /// Reference R9.
    #[test]
    fn both_agree_with_the_reference() {
        let p = [0.001, 0.008, 0.039, 0.041, 0.30];
        close(&holm(&p).expect("valid"), &[0.005, 0.032, 0.117, 0.117, 0.3]);
        close(&benjamini_hochberg(&p).expect("valid"), &[0.005, 0.02, 0.05125, 0.05125, 0.3]);
    }

    #[test]
    fn what_is_no_p_value_is_refused() {
        for bad in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
            assert!(holm(&[0.5, bad]).is_err() && benjamini_hochberg(&[bad]).is_err());
        }
        assert_eq!(holm(&[]), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn adjustment_never_lowers_a_p_value_and_keeps_the_order(p in proptest::collection::vec(0.0f64..=1.0, 1..12)) {
            for adjusted in [holm(&p).expect("valid"), benjamini_hochberg(&p).expect("valid")] {
                for (i, value) in adjusted.iter().enumerate() {
                    prop_assert!(*value >= p[i] && *value <= 1.0);
                    prop_assert!(p.iter().zip(&adjusted).all(|(q, other)| q < &p[i] || other >= value));
                }
            }
        }
    }
}
