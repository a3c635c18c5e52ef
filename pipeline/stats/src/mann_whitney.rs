//! The exact null distribution of the Mann-Whitney statistic U, its critical values and p-values.
//! Read [`UDistribution`] first; it is symmetric in the two sample sizes by construction and uses no normal approximation.

use crate::sample::{StatsError, check_level, check_values};

/// Most values in both samples together. C(130, 65) = 9.5e37 is the largest central binomial
/// coefficient of an even total that still fits an `i128` (1.7e38), in which the orderings are counted exactly.
pub const MAX_TOTAL: usize = 130;

/// Relative slack when an attained probability is compared with a level, so that a level typed
/// as `2/252` is reached by the ordering it was computed from; far below the spacing of attainable levels.
pub(crate) const ROUNDING_SLACK: f64 = 1e-12;

/// Exact distribution of U for sample sizes n and m when both samples come from one continuous distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct UDistribution {
    /// `cumulative[u] = P(U <= u)` for `u` in `0 ..= n*m`.
    cumulative: Vec<f64>,
}

impl UDistribution {
    /// Counts the orderings: the number with `U = u` is the coefficient of `q^u` in the Gaussian
    /// binomial `prod_{i=1..n} (1 - q^(m+i)) / (1 - q^i)`, built up in exact integers.
    /// (Mann & Whitney 1947; Andrews, The Theory of Partitions, ch. 3.)
    ///
    /// # Errors
    /// [`StatsError::Empty`] if a size is 0, [`StatsError::TooMany`] above [`MAX_TOTAL`] together.
    pub fn new(n: usize, m: usize) -> Result<Self, StatsError> {
        if n == 0 || m == 0 {
            return Err(StatsError::Empty { what: "Mann-Whitney sample" });
        }
        let total = n.saturating_add(m);
        if total > MAX_TOTAL {
            return Err(StatsError::TooMany {
                what: "Mann-Whitney samples together",
                limit: MAX_TOTAL,
                found: total,
            });
        }
        let counts = orderings_by_u(n.min(m), n.max(m));
        let all: i128 = counts.iter().sum();
        let cumulative = counts
            .iter()
            .scan(0i128, |below, count| {
                *below += count;
                Some(*below as f64 / all as f64)
            })
            .collect();
        Ok(Self { cumulative })
    }

    /// The number of pairs `n*m`, the largest value of U.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.cumulative.len() - 1
    }

    /// `P(U <= u)`; 1 from `n*m` on.
    #[must_use]
    pub fn cdf(&self, u: usize) -> f64 {
        self.cumulative.get(u).copied().unwrap_or(1.0)
    }

    /// The largest `u` with `2 P(U <= u) <= alpha`; `Ok(None)` if even `u = 0` is too likely.
    ///
    /// # Errors
    /// An `alpha` that is not strictly between 0 and 1.
    pub fn critical(&self, alpha: f64) -> Result<Option<usize>, StatsError> {
        check_level("alpha", alpha)?;
        let limit = alpha * (1.0 + ROUNDING_SLACK);
        let allowed = self.cumulative.partition_point(|p| 2.0 * p <= limit);
        Ok(allowed.checked_sub(1))
    }

    /// `min(1, 2 P(U <= u))` for the smaller of the two U statistics.
    #[must_use]
    pub fn two_sided_p(&self, u: usize) -> f64 {
        (2.0 * self.cdf(u)).min(1.0)
    }
}

/// The two-sample test on raw values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Pairs in which the second sample is larger, ties counted half; in `0 ..= n*m`.
    pub u: f64,
    /// Exact two-sided p-value. Ties count against rejection: a tied pair is added to the smaller side in full.
    pub p: f64,
}

/// Exact two-sided Mann-Whitney test of `second` against `first`. Swapping the samples changes `u` to `n*m - u` and leaves `p`.
///
/// # Errors
/// An empty sample, a value that is not finite, or more than [`MAX_TOTAL`] values.
pub fn mann_whitney(first: &[f64], second: &[f64]) -> Result<MannWhitney, StatsError> {
    check_values("first sample", first)?;
    check_values("second sample", second)?;
    let null = UDistribution::new(first.len(), second.len())?;
    let (mut above, mut below) = (0usize, 0usize);
    for a in first {
        above += second.iter().filter(|b| *b > a).count();
        below += second.iter().filter(|b| *b < a).count();
    }
    let ties = null.pairs() - above - below;
    Ok(MannWhitney { u: above as f64 + ties as f64 / 2.0, p: null.two_sided_p(above.min(below) + ties) })
}

/// Coefficients of the Gaussian binomial `[n+m choose n]` in `q`, lowest power first.
fn orderings_by_u(n: usize, m: usize) -> Vec<i128> {
    let mut counts = vec![0i128; n * m + 1];
    counts[0] = 1;
    for i in 1..=n {
        // Times (1 - q^(m+i)), from the top so that each factor is used once.
        for u in (m + i..counts.len()).rev() {
            counts[u] -= counts[u - m - i];
        }
        // Divided by (1 - q^i): a running sum with stride i.
        for u in i..counts.len() {
            counts[u] += counts[u - i];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::assert_close;
    use proptest::prelude::*;

    fn critical(n: usize, m: usize, alpha: f64) -> Option<usize> {
        UDistribution::new(n, m).unwrap().critical(alpha).unwrap()
    }

    #[test]
    fn reference_r4_critical_values() {
        assert_eq!(critical(5, 6, 0.008333), Some(0));
        assert_eq!(critical(7, 6, 0.008333), Some(3));
        for (n, expected) in [(4, 0), (5, 2), (7, 8), (10, 23), (15, 64), (22, 158)] {
            assert_eq!(critical(n, n, 0.05), Some(expected), "n = {n}");
        }
    }

    #[test]
    fn three_against_three_cannot_go_under_one_in_ten() {
        assert_eq!(critical(3, 3, 0.0999), None);
        assert_eq!(critical(3, 3, 0.1), Some(0));
        assert_close(UDistribution::new(4, 4).unwrap().two_sided_p(0), 0.0286, 5e-5);
    }

    #[test]
    fn the_counts_agree_with_enumerating_every_ordering() {
        for (n, m) in [(1, 1), (1, 5), (5, 1), (3, 4), (4, 3), (6, 5), (2, 9)] {
            let mut expected = vec![0u32; n * m + 1];
            for mask in 0u32..1 << (n + m) {
                if mask.count_ones() as usize != n {
                    continue;
                }
                let (mut u, mut others) = (0, 0);
                for position in 0..n + m {
                    if mask >> position & 1 == 1 {
                        u += others;
                    } else {
                        others += 1;
                    }
                }
                expected[u] += 1;
            }
            let all: u32 = expected.iter().sum();
            let null = UDistribution::new(n, m).unwrap();
            let mut below = 0;
            for (u, count) in expected.iter().enumerate() {
                below += count;
                assert_close(null.cdf(u), f64::from(below) / f64::from(all), 1e-15);
            }
        }
    }

    #[test]
    fn the_largest_supported_sizes_are_exact() {
        for (n, m) in [(60, 60), (65, 65), (129, 1), (50, 60)] {
            let null = UDistribution::new(n, m).unwrap();
            assert_eq!(null.cdf(n * m), 1.0);
            let below_half = null.cdf((n * m - 1) / 2);
            let from_half = null.cdf(n * m / 2);
            // P(U <= x) + P(U <= nm-1-x) = 1 by the symmetry of U about nm/2.
            assert_close(below_half + from_half, 1.0, 1e-14);
        }
        assert!(UDistribution::new(66, 65).is_err());
        assert!(UDistribution::new(usize::MAX, 1).is_err());
        assert!(UDistribution::new(0, 3).is_err());
    }

    #[test]
    fn five_clear_pairs_reach_p_one_in_126() {
        let a = [100.0, 101.2, 99.5, 100.8, 100.3];
        let b = [103.1, 102.2, 103.9, 102.6, 103.4];
        let test = mann_whitney(&a, &b).unwrap();
        assert_eq!(test.u, 25.0);
        assert_close(test.p, 0.007937, 5e-7);
    }

    #[test]
    fn identical_samples_have_p_one() {
        assert_eq!(mann_whitney(&[1.0, 1.0], &[1.0, 1.0]).unwrap().p, 1.0);
        assert!(mann_whitney(&[], &[1.0]).is_err());
        assert!(mann_whitney(&[1.0], &[f64::NAN]).is_err());
    }

    proptest! {
        #[test]
        fn swapping_the_sizes_changes_nothing(n in 1usize..12, m in 1usize..12) {
            prop_assert_eq!(UDistribution::new(n, m), UDistribution::new(m, n));
        }

        #[test]
        fn swapping_the_samples_keeps_p(
            a in prop::collection::vec(0i32..15, 1..9), b in prop::collection::vec(0i32..15, 1..9),
        ) {
            let a: Vec<f64> = a.into_iter().map(f64::from).collect();
            let b: Vec<f64> = b.into_iter().map(f64::from).collect();
            let forward = mann_whitney(&a, &b).unwrap();
            let back = mann_whitney(&b, &a).unwrap();
            prop_assert_eq!(forward.p, back.p);
            prop_assert_eq!(forward.u + back.u, (a.len() * b.len()) as f64);
        }

        #[test]
        fn the_critical_value_is_the_last_one_allowed(n in 1usize..20, m in 1usize..20, alpha in 0.0001f64..0.5) {
            let null = UDistribution::new(n, m).unwrap();
            match null.critical(alpha).unwrap() {
                Some(u) => prop_assert!(null.two_sided_p(u) <= alpha && 2.0 * null.cdf(u + 1) > alpha),
                None => prop_assert!(2.0 * null.cdf(0) > alpha),
            }
        }
    }
}
