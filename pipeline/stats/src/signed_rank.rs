//! One sample of paired differences: the exact Wilcoxon signed-rank distribution, the median of Walsh averages and its interval.
//! Read [`SignedRankDistribution`] for the null distribution and [`WalshAverages`] for the estimate.

use crate::mann_whitney::ROUNDING_SLACK;
use crate::sample::{Interval, StatsError, check_level, check_values, median_of_sorted};

/// Most differences the exact distribution is counted for: the 2^n sign patterns must fit a `u128`.
pub const MAX_PAIRS: usize = 126;

/// Most differences whose sign patterns are enumerated one by one: 2^20, about a million sums.
pub const MAX_SIGN_FLIPS: usize = 20;

/// Exact distribution of the signed-rank sum W+ under symmetry about 0, for untied or tied ranks.
///
/// Ranks are stored doubled, so that the half-integer midranks of ties stay integers; `W` below is in doubled units
/// only where a name says so.
#[derive(Debug, Clone, PartialEq)]
pub struct SignedRankDistribution {
    /// `cumulative[w2] = P(2 W+ <= w2)`.
    cumulative: Vec<f64>,
}

impl SignedRankDistribution {
    /// The distribution for the ranks `1 ..= n`, without ties or zeros. (Wilcoxon 1945.)
    ///
    /// # Errors
    /// [`StatsError::Empty`] for 0, [`StatsError::TooMany`] above [`MAX_PAIRS`].
    pub fn untied(n: usize) -> Result<Self, StatsError> {
        if n > MAX_PAIRS {
            return Err(too_many(n));
        }
        let doubled: Vec<usize> = (1..=n).map(|rank| 2 * rank).collect();
        Self::from_doubled_ranks(&doubled)
    }

    /// The distribution conditional on any given ranks, by dynamic programming over the sum of the doubled ranks:
    /// each rank is added with probability 1/2. Give midranks for ties and leave the ranks of zeros out.
    ///
    /// # Errors
    /// [`StatsError::Empty`], [`StatsError::TooMany`] above [`MAX_PAIRS`] ranks, [`StatsError::OutOfRange`] for a
    /// doubled rank above `2 * MAX_PAIRS`.
    pub fn from_doubled_ranks(doubled_ranks: &[usize]) -> Result<Self, StatsError> {
        if doubled_ranks.is_empty() {
            return Err(StatsError::Empty { what: "signed ranks" });
        }
        if doubled_ranks.len() > MAX_PAIRS {
            return Err(too_many(doubled_ranks.len()));
        }
        if let Some(rank) = doubled_ranks.iter().find(|rank| **rank > 2 * MAX_PAIRS) {
            return Err(StatsError::OutOfRange {
                what: "doubled rank",
                value: *rank as f64,
                expected: "at most 252",
            });
        }
        let mut patterns = vec![0u128; doubled_ranks.iter().sum::<usize>() + 1];
        patterns[0] = 1;
        let mut reached = 0;
        for rank in doubled_ranks {
            reached += rank;
            for sum in (*rank..=reached).rev() {
                patterns[sum] += patterns[sum - rank];
            }
        }
        let all: u128 = patterns.iter().sum();
        let cumulative = patterns
            .iter()
            .scan(0u128, |below, count| {
                *below += count;
                Some(*below as f64 / all as f64)
            })
            .collect();
        Ok(Self { cumulative })
    }

    /// `P(W+ <= w)` for a whole rank sum.
    #[must_use]
    pub fn cdf(&self, w: usize) -> f64 {
        self.cdf_doubled(w.saturating_mul(2))
    }

    /// `P(2 W+ <= w2)`; 1 from the largest sum on.
    #[must_use]
    pub fn cdf_doubled(&self, w2: usize) -> f64 {
        self.cumulative.get(w2).copied().unwrap_or(1.0)
    }

    /// The largest whole `w` with `2 P(W+ <= w) <= alpha`; `Ok(None)` if even 0 is too likely.
    ///
    /// # Errors
    /// An `alpha` that is not strictly between 0 and 1.
    pub fn critical(&self, alpha: f64) -> Result<Option<usize>, StatsError> {
        check_level("alpha", alpha)?;
        let limit = alpha * (1.0 + ROUNDING_SLACK);
        let allowed = self.cumulative.partition_point(|p| 2.0 * p <= limit);
        // Entries 0, 2, 4, ... are whole sums; with `allowed` entries the last whole one is (allowed-1)/2.
        Ok(allowed.checked_sub(1).map(|last| last / 2))
    }

    /// `min(1, 2 P(W+ <= w))` for the smaller of the two rank sums.
    #[must_use]
    pub fn two_sided_p(&self, w: usize) -> f64 {
        (2.0 * self.cdf(w)).min(1.0)
    }
}

/// The signed-rank test with midranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignedRankTest {
    /// Differences given.
    pub n: usize,
    /// Differences that are not 0.
    pub nonzero: usize,
    /// The smaller of the positive and the negative rank sum.
    pub w: f64,
    /// Exact two-sided p-value, conditional on the ties and zeros.
    pub p: f64,
}

/// Exact two-sided signed-rank test of "symmetric about 0".
///
/// Ties in |d| share their midrank. Zeros are ranked with the others, then left out of both sums (Pratt 1959), so that
/// many unchanged pairs still weaken the evidence. The distribution is the exact one given those ranks; all zeros give p = 1.
///
/// # Errors
/// Empty input, a value that is not finite, more than [`MAX_PAIRS`] differences.
pub fn signed_rank_test(differences: &[f64]) -> Result<SignedRankTest, StatsError> {
    check_values("paired differences", differences)?;
    let n = differences.len();
    if n > MAX_PAIRS {
        return Err(too_many(n));
    }
    let mut ordered = differences.to_vec();
    ordered.sort_by(|a, b| a.abs().total_cmp(&b.abs()));

    let mut ranks = Vec::with_capacity(n);
    let (mut positive2, mut negative2) = (0usize, 0usize);
    let mut below = 0;
    for tied in ordered.chunk_by(|a, b| a.abs() == b.abs()) {
        // Mean of the ranks below+1 ..= below+len, doubled.
        let doubled = 2 * below + tied.len() + 1;
        below += tied.len();
        for d in tied.iter().filter(|d| **d != 0.0) {
            ranks.push(doubled);
            if *d > 0.0 {
                positive2 += doubled;
            } else {
                negative2 += doubled;
            }
        }
    }
    let smaller2 = positive2.min(negative2);
    let p = if ranks.is_empty() {
        1.0
    } else {
        let null = SignedRankDistribution::from_doubled_ranks(&ranks)?;
        (2.0 * null.cdf_doubled(smaller2)).min(1.0)
    };
    Ok(SignedRankTest { n, nonzero: ranks.len(), w: smaller2 as f64 / 2.0, p })
}

/// The means of all pairs `i <= j` of the differences, sorted: the source of the estimate and of its closed interval.
#[derive(Debug, Clone, PartialEq)]
pub struct WalshAverages {
    sorted: Vec<f64>,
    null: SignedRankDistribution,
}

impl WalshAverages {
    /// Computes the `n(n+1)/2` averages. (Hodges & Lehmann 1963.)
    ///
    /// # Errors
    /// Empty input, a value that is not finite, more than [`MAX_PAIRS`] differences.
    pub fn new(differences: &[f64]) -> Result<Self, StatsError> {
        check_values("paired differences", differences)?;
        let null = SignedRankDistribution::untied(differences.len())?;
        let mut sorted = Vec::with_capacity(differences.len() * (differences.len() + 1) / 2);
        for (i, a) in differences.iter().enumerate() {
            sorted.extend(differences[i..].iter().map(|b| a / 2.0 + b / 2.0));
        }
        sorted.sort_by(f64::total_cmp);
        Ok(Self { sorted, null })
    }

    /// The one-sample Hodges-Lehmann estimate, in the unit of the differences.
    #[must_use]
    pub fn median(&self) -> f64 {
        median_of_sorted(&self.sorted)
    }

    /// The closed interval `[w_(k+1), w_(M-k)]`, k the critical W at the two-sided level `alpha`; `Ok(None)` if n is too
    /// small for that level. Its coverage is at least `1 - alpha` with ties as well.
    ///
    /// # Errors
    /// An `alpha` that is not strictly between 0 and 1.
    pub fn interval(&self, alpha: f64) -> Result<Option<Interval>, StatsError> {
        let ends = self.null.critical(alpha)?.and_then(|k| {
            let low = self.sorted.get(k)?;
            let high = self.sorted.get(self.sorted.len().checked_sub(k + 1)?)?;
            (low <= high).then_some(Interval { low: *low, high: *high })
        });
        Ok(ends)
    }

    /// Two-sided p of "centre 0" that agrees with [`Self::interval`]: `p <= alpha` exactly if that interval excludes 0.
    /// A Walsh average of 0 counts against rejection; an estimate of 0 gives 1.
    #[must_use]
    pub fn p(&self) -> f64 {
        let centre = self.median();
        let against = if centre > 0.0 {
            self.sorted.iter().filter(|w| **w <= 0.0).count()
        } else if centre < 0.0 {
            self.sorted.iter().filter(|w| **w >= 0.0).count()
        } else {
            return 1.0;
        };
        self.null.two_sided_p(against)
    }
}

/// Exact two-sided sign-flip p of the mean: the share of the 2^n sign patterns whose |sum| is at least the observed one.
/// (Fisher 1935.) Sums equal up to rounding count as at least as large.
///
/// # Errors
/// Empty input, a value that is not finite, more than [`MAX_SIGN_FLIPS`] differences.
pub fn sign_flip_p(differences: &[f64]) -> Result<f64, StatsError> {
    check_values("paired differences", differences)?;
    let n = differences.len();
    if n > MAX_SIGN_FLIPS {
        return Err(StatsError::TooMany {
            what: "differences to flip one by one",
            limit: MAX_SIGN_FLIPS,
            found: n,
        });
    }
    let scale: f64 = differences.iter().map(|d| d.abs()).sum();
    let observed = differences.iter().sum::<f64>().abs() - scale * ROUNDING_SLACK;
    let patterns = 1u32 << n;
    let extreme = (0..patterns)
        .filter(|pattern| {
            let sum: f64 = differences
                .iter()
                .enumerate()
                .map(|(i, d)| if pattern >> i & 1 == 1 { -d } else { *d })
                .sum();
            sum.abs() >= observed
        })
        .count();
    Ok(extreme as f64 / f64::from(patterns))
}

fn too_many(found: usize) -> StatsError {
    StatsError::TooMany { what: "paired differences", limit: MAX_PAIRS, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::assert_close;
    use proptest::prelude::*;

    const R6: [f64; 8] = [0.0041, 0.0038, 0.0052, 0.0029, 0.0047, 0.0035, 0.0044, 0.0040];

    #[test]
    fn reference_r6() {
        let test = signed_rank_test(&R6).unwrap();
        assert_eq!(test.w, 0.0);
        assert_close(test.p, 0.007812, 1e-6);
        let walsh = WalshAverages::new(&R6).unwrap();
        assert_close(walsh.median(), 0.004075, 5e-10);
        assert_eq!(walsh.p(), test.p);
        let interval = walsh.interval(0.008333).unwrap().unwrap();
        assert_close(interval.low, 0.0029, 1e-12);
        assert_close(interval.high, 0.0052, 1e-12);
        assert_close(sign_flip_p(&R6).unwrap(), 0.007812, 1e-6);
    }

    #[test]
    fn critical_w_of_the_seed_looks() {
        for (n, alpha, expected) in [
            (8, 0.008333, 0),
            (12, 0.011881, 7),
            (18, 0.013508, 29),
            (27, 0.014445, 88),
            (40, 0.015215, 230),
            (60, 0.015546, 588),
        ] {
            let null = SignedRankDistribution::untied(n).unwrap();
            assert_eq!(null.critical(alpha).unwrap(), Some(expected), "n = {n}");
        }
    }

    #[test]
    fn seven_pairs_cannot_reach_the_first_look() {
        let null = SignedRankDistribution::untied(7).unwrap();
        assert_eq!(null.critical(0.008333), Ok(None));
        assert_eq!(null.two_sided_p(0), 2.0 / 128.0);
    }

    #[test]
    fn tied_ranks_agree_with_enumerating_every_sign_pattern() {
        let data = [1.0, -1.0, 1.0, 2.0, 0.0, 3.0, 3.0, -2.0, 3.0];
        // Doubled midranks of |d|: the zero has rank 1, the three 1s 3, the two 2s 5.5, the three 3s 8.
        let ranks = [6usize, 6, 6, 11, 11, 16, 16, 16];
        let mut extreme = 0;
        for pattern in 0u32..1 << ranks.len() {
            let plus: usize = (0..ranks.len()).filter(|i| pattern >> i & 1 == 1).map(|i| ranks[i]).sum();
            extreme += usize::from(plus <= 17);
        }
        let test = signed_rank_test(&data).unwrap();
        assert_eq!((test.n, test.nonzero, test.w), (9, 8, 8.5));
        assert_close(test.p, 2.0 * extreme as f64 / 256.0, 1e-15);
    }

    #[test]
    fn all_zeros_are_no_evidence() {
        assert_eq!(signed_rank_test(&[0.0, -0.0, 0.0]).unwrap().p, 1.0);
        assert_eq!(WalshAverages::new(&[0.0; 9]).unwrap().p(), 1.0);
        assert_eq!(sign_flip_p(&[0.0; 9]).unwrap(), 1.0);
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(signed_rank_test(&[]).is_err());
        assert!(WalshAverages::new(&[f64::NAN]).is_err());
        assert!(SignedRankDistribution::untied(0).is_err());
        assert!(SignedRankDistribution::untied(MAX_PAIRS + 1).is_err());
        assert!(SignedRankDistribution::from_doubled_ranks(&[usize::MAX]).is_err());
        assert!(sign_flip_p(&[1.0; 21]).is_err());
        let largest = SignedRankDistribution::untied(MAX_PAIRS).unwrap();
        assert_eq!(largest.cdf(MAX_PAIRS * (MAX_PAIRS + 1) / 2), 1.0);
    }

    fn differences() -> impl Strategy<Value = Vec<f64>> {
        // Coarse values, so that ties and zeros occur.
        prop::collection::vec((-6i32..12).prop_map(|d| f64::from(d) / 8.0), 1..25)
    }

    proptest! {
        #[test]
        fn swapping_the_sides_negates(d in differences(), alpha in 0.001f64..0.3) {
            let swapped: Vec<f64> = d.iter().map(|x| -x).collect();
            let (one, other) = (WalshAverages::new(&d).unwrap(), WalshAverages::new(&swapped).unwrap());
            prop_assert_eq!(one.median(), -other.median());
            prop_assert_eq!(one.p(), other.p());
            let flipped = other.interval(alpha).unwrap().map(|i| i.negated());
            prop_assert_eq!(one.interval(alpha).unwrap(), flipped);
            prop_assert_eq!(signed_rank_test(&d).unwrap().p, signed_rank_test(&swapped).unwrap().p);
        }

        #[test]
        fn p_and_interval_agree(d in differences(), alpha in 0.001f64..0.3) {
            let walsh = WalshAverages::new(&d).unwrap();
            let excluded = walsh.interval(alpha).unwrap().is_some_and(|i| i.excludes_zero());
            prop_assert_eq!(excluded, walsh.p() <= alpha);
        }

        #[test]
        fn without_ties_both_p_values_are_the_same(d in prop::collection::vec(-1f64..2.0, 1..25)) {
            let mut sizes: Vec<f64> = d.iter().map(|x| x.abs()).collect();
            sizes.sort_by(f64::total_cmp);
            prop_assume!(sizes.windows(2).all(|w| w[0] < w[1]) && sizes[0] > 0.0);
            let walsh = WalshAverages::new(&d).unwrap();
            prop_assume!(walsh.median() != 0.0);
            // The Walsh count on the far side of the median may be the larger rank sum only when both p are near 1.
            let test = signed_rank_test(&d).unwrap();
            prop_assert!((walsh.p() - test.p).abs() < 1e-12 || (walsh.p() > 0.9 && test.p > 0.9));
        }

        #[test]
        fn shifting_shifts_and_scaling_scales(d in prop::collection::vec(-1f64..1.0, 1..25), shift in -2f64..2.0, scale in 0.1f64..10.0) {
            let moved: Vec<f64> = d.iter().map(|x| x * scale + shift).collect();
            let expected = WalshAverages::new(&d).unwrap().median() * scale + shift;
            prop_assert!((WalshAverages::new(&moved).unwrap().median() - expected).abs() < 1e-9);
        }
    }
}
