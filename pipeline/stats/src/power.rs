//! How many samples an effect needs, and how small an effect a number of samples can show.
//! Read [`needed_n`] first; both directions use the same formula.

use crate::looks::{Look, Schedule};
use crate::sample::{StatsError, check_parameter, check_positive};

/// `2 (z_a + z_b)^2` with z_a = 2.44, about the boundary of the middle looks at alpha .05, and z_b = 0.84 for 80 % power;
/// rounded to three digits as in the specification (section 4).
pub const SAMPLE_SIZE_FACTOR: f64 = 21.5;

/// How the noise of a comparison is measured and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Design {
    /// Two independent arms of n boots each; the sd is the pooled one inside an arm.
    TwoArms,
    /// n pairs (seeds); the sd is that of the paired differences, which already carries the noise of both arms.
    Paired,
}

impl Design {
    /// The variance of the estimate is `2 sd^2/n` with two arms and `sd^2/n` with pairs, hence half the factor for pairs.
    fn factor(self) -> f64 {
        match self {
            Self::TwoArms => SAMPLE_SIZE_FACTOR,
            Self::Paired => SAMPLE_SIZE_FACTOR / 2.0,
        }
    }
}

/// Sample size `n* = 2(z_a+z_b)^2 s^2/D^2` (half of it for pairs) at which a difference D is found in about 80 % of cases; boots per
/// side, or seeds. Not rounded; a normal approximation, so below about 8 it promises too much.
///
/// # Errors
/// A negative or non-finite `sd_log`, an `effect_log` that is 0 or not finite.
pub fn needed_n(sd_log: f64, effect_log: f64, design: Design) -> Result<f64, StatsError> {
    check_sd(sd_log)?;
    check_positive("size of the effect", effect_log.abs())?;
    let ratio = sd_log / effect_log;
    let n = design.factor() * ratio * ratio;
    check_parameter("needed sample size", n)?;
    Ok(n)
}

/// The smallest difference, as a log ratio, that n boots per side (or seeds) find in about 80 % of cases:
/// `D = s sqrt(2(z_a+z_b)^2/n)`, half the factor under the root for pairs. The inverse of [`needed_n`].
///
/// # Errors
/// A negative or non-finite `sd_log`, or `n = 0`.
pub fn minimum_detectable_log(sd_log: f64, n: usize, design: Design) -> Result<f64, StatsError> {
    check_sd(sd_log)?;
    if n == 0 {
        return Err(StatsError::Empty { what: "boots per side or seeds" });
    }
    Ok(sd_log * (design.factor() / n as f64).sqrt())
}

/// The first look of a schedule that finds a difference in about 80 % of cases; `Ok(None)` if none does.
///
/// # Errors
/// As [`needed_n`].
pub fn first_detecting_look(
    schedule: &Schedule,
    sd_log: f64,
    effect_log: f64,
    design: Design,
) -> Result<Option<Look>, StatsError> {
    let needed = needed_n(sd_log, effect_log, design)?;
    Ok(look_reaching(schedule, 0, needed))
}

/// The first look after `n` with at least `needed` samples.
pub(crate) fn look_reaching(schedule: &Schedule, n: usize, needed: f64) -> Option<Look> {
    let mut look = schedule.next_after(n)?;
    while (look.size as f64) < needed {
        look = schedule.next_after(look.size)?;
    }
    Some(look)
}

fn check_sd(sd_log: f64) -> Result<(), StatsError> {
    check_parameter("standard deviation", sd_log)?;
    if sd_log < 0.0 {
        return Err(StatsError::OutOfRange {
            what: "standard deviation",
            value: sd_log,
            expected: "0 or above",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looks::{BOOTS_PER_SIDE, SEEDS};
    use crate::sample::assert_close;
    use proptest::prelude::*;

    #[test]
    fn the_factor_is_that_of_the_two_quantiles() {
        assert_close(SAMPLE_SIZE_FACTOR, 2.0 * (2.44f64 + 0.84).powi(2), 0.05);
    }

    #[test]
    fn the_needed_size_of_reference_r3() {
        // 2.3137 comes from the unrounded sd and distance; these are printed to four digits.
        let n = needed_n(0.006078, 0.018527, Design::TwoArms).unwrap();
        assert_close(n, 2.3137, 1e-3);
    }

    #[test]
    fn the_first_look_that_can_show_an_effect() {
        let look = |sd, effect| {
            first_detecting_look(&BOOTS_PER_SIDE, sd, effect, Design::TwoArms).unwrap().map(|look| look.size)
        };
        assert_eq!(look(0.01, 0.02), Some(7)); // n* 5.4
        assert_eq!(look(0.02, 0.02), Some(22)); // n* 21.5
        assert_eq!(look(0.03, 0.02), Some(50)); // n* 48.4
        assert_eq!(look(0.04, 0.02), None); // n* 86
        assert_eq!(look(0.0, 0.02), Some(5));
        let seeds = first_detecting_look(&SEEDS, 0.005, 0.005, Design::Paired).unwrap();
        assert_eq!(seeds.unwrap().size, 12); // n* 10.75
    }

    #[test]
    fn bad_input_is_refused() {
        assert!(needed_n(-0.1, 0.1, Design::Paired).is_err());
        assert!(needed_n(0.1, 0.0, Design::Paired).is_err());
        assert!(needed_n(f64::NAN, 0.1, Design::Paired).is_err());
        assert!(needed_n(1e200, 1e-200, Design::Paired).is_err());
        assert!(minimum_detectable_log(0.1, 0, Design::Paired).is_err());
    }

    proptest! {
        #[test]
        fn both_directions_agree(sd in 1e-4f64..0.1, n in 1usize..100) {
            for design in [Design::TwoArms, Design::Paired] {
                let effect = minimum_detectable_log(sd, n, design).unwrap();
                prop_assert!((needed_n(sd, effect, design).unwrap() - n as f64).abs() < 1e-9 * n as f64);
                prop_assert_eq!(needed_n(sd, effect, design), needed_n(sd, -effect, design));
            }
        }
    }
}
