//! When to look at accumulating data, and how small p must be at each look so that all looks together keep their level.
//! Read [`Schedule`] first; [`BOOTS_PER_SIDE`] and [`SEEDS`] are the two schedules kdelta uses.

use statrs::function::erf::erfc;

use crate::sample::{StatsError, check_level, check_parameter};

/// Levels at which the nominal p-values are tabulated; anything between is interpolated.
pub const ALPHAS: [f64; 9] = [1e-6, 1e-4, 0.001, 0.005, 0.01, 0.02, 0.05, 0.10, 0.20];

/// Simpson intervals per look in [`nominal_levels`]; doubling it moves no printed digit of the tables.
const GRID: usize = 400;

/// Halvings of the bracket of a boundary: 20 / 2^60 is below the rounding of an `f64`.
const BISECTIONS: usize = 60;

/// Table rows used to interpolate between two of them.
const NODES: usize = 6;

/// The widest boundary searched for, in standard deviations; its tail is about 1e-88.
const WIDEST_Z: f64 = 20.0;

/// One completed look of a [`Schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// 1 for the first look.
    pub number: usize,
    /// Sample size at which the look is due (boots per side, or seeds).
    pub size: usize,
}

/// Sample sizes of the looks with the nominal two-sided p-value of each level at each look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Sample size of each look, increasing.
    pub sizes: &'static [usize],
    /// Share of alpha spent up to and including each look; the last is 1.
    pub shares: &'static [f64],
    /// `nominal[i][k]`: two-sided p allowed at look k (0-based) by the level `ALPHAS[i]`.
    pub nominal: &'static [&'static [f64]; ALPHAS.len()],
}

/// A/B comparisons: information is counted in boots per side. Each level has its row, to six
/// digits; a test recomputes them with [`nominal_levels`].
pub const BOOTS_PER_SIDE: Schedule = Schedule {
    sizes: &[5, 7, 10, 15, 22, 33, 50],
    shares: &[1.0 / 6.0, 1.0 / 3.0, 0.5, 2.0 / 3.0, 0.8, 0.9, 1.0],
    nominal: &[
        &[1.66667e-7, 1.87532e-7, 1.88541e-7, 1.84444e-7, 1.50406e-7, 1.1184e-7, 1.09579e-7],
        &[1.66667e-5, 2.02108e-5, 2.07479e-5, 2.02823e-5, 1.67594e-5, 1.2472e-5, 1.20365e-5],
        &[0.000166667, 0.000213872, 0.000224584, 0.000220947, 0.000184998, 0.000138322, 0.000132058],
        &[0.000833333, 0.00112538, 0.00121193, 0.00120595, 0.00102566, 0.000773451, 0.000732521],
        &[0.00166667, 0.00230943, 0.00252317, 0.00253074, 0.00217321, 0.00164914, 0.00155718],
        &[0.00333333, 0.00475199, 0.00528225, 0.00535468, 0.00465494, 0.00356368, 0.00335762],
        &[8.33333e-3, 1.23932e-2, 1.41731e-2, 1.46538e-2, 1.30227e-2, 1.01471e-2, 9.55850e-3],
        &[1.66667e-2, 2.56978e-2, 3.01905e-2, 3.18775e-2, 2.89949e-2, 2.30616e-2, 2.18124e-2],
        &[0.0333333, 0.0535015, 0.0649683, 0.0705893, 0.0663037, 0.0544233, 0.0521132],
    ],
};

/// Paired comparisons over seeds: information is counted in seeds. Computed
/// and tested as [`BOOTS_PER_SIDE`].
pub const SEEDS: Schedule = Schedule {
    sizes: &[8, 12, 18, 27, 40, 60],
    shares: &[1.0 / 6.0, 1.0 / 3.0, 0.5, 2.0 / 3.0, 5.0 / 6.0, 1.0],
    nominal: &[
        &[1.66667e-7, 1.81681e-7, 1.83542e-7, 1.83905e-7, 1.85013e-7, 1.84130e-7],
        &[1.66667e-5, 1.94235e-5, 1.99856e-5, 2.01536e-5, 2.03713e-5, 2.02680e-5],
        &[1.66667e-4, 2.04906e-4, 2.15130e-4, 2.18949e-4, 2.22636e-4, 2.21960e-4],
        &[8.33333e-4, 1.07703e-3, 1.15707e-3, 1.19235e-3, 1.22247e-3, 1.22429e-3],
        &[1.66667e-3, 2.21023e-3, 2.40643e-3, 2.49972e-3, 2.57706e-3, 2.59022e-3],
        &[3.33333e-3, 4.54969e-3, 5.03449e-3, 5.28405e-3, 5.48798e-3, 5.54530e-3],
        &[8.33333e-3, 1.18815e-2, 1.35082e-2, 1.44454e-2, 1.52155e-2, 1.55463e-2],
        &[1.66667e-2, 2.46815e-2, 2.88025e-2, 3.14094e-2, 3.36043e-2, 3.48053e-2],
        &[3.33333e-2, 5.15276e-2, 6.21211e-2, 6.95579e-2, 7.61235e-2, 8.05956e-2],
    ],
};

/// Nominal two-sided p-values that spend `cumulative_alpha[k]` of the error rate up to look k, for Brownian motion
/// observed at `sizes`: the recursion of Armitage, McPherson & Rowe (1969) with the spending rule of Lan & DeMets (1983),
/// the density of the not-yet-stopped process carried from look to look by Simpson's rule.
///
/// # Errors
/// Empty or unequal lists, sizes that do not increase from at least 1, cumulative alphas that do not increase within (0, 1).
pub fn nominal_levels(sizes: &[usize], cumulative_alpha: &[f64]) -> Result<Vec<f64>, StatsError> {
    check_plan(sizes, cumulative_alpha)?;
    let mut levels = Vec::with_capacity(sizes.len());
    let mut alive: Vec<GridPoint> = vec![GridPoint { position: 0.0, mass: 1.0 }];
    let (mut last_size, mut last_alpha) = (0usize, 0.0);
    for (size, alpha) in sizes.iter().zip(cumulative_alpha) {
        let step_sd = ((size - last_size) as f64).sqrt();
        let root = (*size as f64).sqrt();
        let z = boundary(&alive, step_sd, root, alpha - last_alpha);
        levels.push(2.0 * upper_tail(z));
        alive = carry(&alive, step_sd, z * root);
        (last_size, last_alpha) = (*size, *alpha);
    }
    Ok(levels)
}

impl Schedule {
    /// The last look completed with `size` boots per side (or seeds); `None` before the first.
    #[must_use]
    pub fn completed(&self, size: usize) -> Option<Look> {
        let number = self.sizes.partition_point(|due| *due <= size);
        let due = self.sizes.get(number.checked_sub(1)?)?;
        Some(Look { number, size: *due })
    }

    /// The first look due strictly after `size`; `None` from the last look on.
    #[must_use]
    pub fn next_after(&self, size: usize) -> Option<Look> {
        let index = self.sizes.partition_point(|due| *due <= size);
        let due = self.sizes.get(index)?;
        Some(Look { number: index + 1, size: *due })
    }

    /// The largest nominal two-sided p that the level `alpha` allows at a look: a table row where there is one, else
    /// the inverse of [`Self::alpha_reached`], so that the two never contradict each other.
    ///
    /// # Errors
    /// [`StatsError::OutOfRange`] for a look the schedule does not have or an `alpha` outside the table (1e-6 to 0.2).
    pub fn nominal_p(&self, look: Look, alpha: f64) -> Result<f64, StatsError> {
        check_level("alpha", alpha)?;
        let column = self.column(look)?;
        let upper = ALPHAS.partition_point(|row| *row < alpha);
        if ALPHAS.get(upper) == Some(&alpha) {
            return Ok(column[upper]);
        }
        if upper == 0 || upper == ALPHAS.len() {
            return Err(StatsError::OutOfRange {
                what: "alpha",
                value: alpha,
                expected: "0.000001 to 0.2, the range of the table of looks",
            });
        }
        let (mut low, mut high) = (column[upper - 1], column[upper]);
        for _ in 0..BISECTIONS {
            let middle = 0.5 * (low + high);
            if interpolate(&column, middle) <= alpha {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The smallest alpha whose rule is met by `p` at one look, by interpolation of the table on log-log axes, accurate to five
    /// digits. Outside the table the outermost segment is continued, up to 1; such values are far from any decision.
    ///
    /// # Errors
    /// [`StatsError::OutOfRange`] for an unknown look or a `p` outside `0 < p <= 1`: no p-value of this crate is 0.
    pub fn alpha_reached(&self, look: Look, p: f64) -> Result<f64, StatsError> {
        check_parameter("p", p)?;
        if p <= 0.0 || p > 1.0 {
            return Err(StatsError::OutOfRange { what: "p", value: p, expected: "above 0 and at most 1" });
        }
        Ok(interpolate(&self.column(look)?, p).min(1.0))
    }

    /// Repeated p-value: the minimum of [`Self::alpha_reached`] over the looks taken so far, each given with its nominal
    /// p. It may be compared with alpha, or corrected over several metrics, at any look. (Jennison & Turnbull 1989.)
    ///
    /// # Errors
    /// [`StatsError::Empty`] without a look, else as [`Self::alpha_reached`].
    pub fn repeated_p(&self, looks: &[(Look, f64)]) -> Result<f64, StatsError> {
        if looks.is_empty() {
            return Err(StatsError::Empty { what: "looks taken" });
        }
        looks.iter().try_fold(1.0f64, |least, (look, p)| Ok(least.min(self.alpha_reached(*look, *p)?)))
    }

    /// The nominal p of every tabulated level at one look.
    fn column(&self, look: Look) -> Result<[f64; ALPHAS.len()], StatsError> {
        let unknown = StatsError::OutOfRange {
            what: "look number",
            value: look.number as f64,
            expected: "a look of the schedule",
        };
        let index = look.number.checked_sub(1).ok_or(unknown)?;
        let mut column = [0.0; ALPHAS.len()];
        for (cell, row) in column.iter_mut().zip(self.nominal) {
            *cell = *row.get(index).ok_or(unknown)?;
        }
        Ok(column)
    }
}

/// Alpha at `p` from one column of nominal p-values, on log-log axes. Inside the table by the polynomial through the
/// [`NODES`] nearest rows (a straight line per segment is off by up to 0.2 %), outside by the outermost segment.
fn interpolate(column: &[f64; ALPHAS.len()], p: f64) -> f64 {
    let upper = column.partition_point(|row| *row < p);
    if let (Some(row), Some(alpha)) = (column.get(upper), ALPHAS.get(upper))
        && *row == p
    {
        return *alpha;
    }
    let nodes = match upper {
        0 => 0..2,
        _ if upper == column.len() => upper - 2..upper,
        _ => {
            let start = upper.saturating_sub(NODES / 2).min(column.len() - NODES);
            start..start + NODES
        }
    };
    let (x, rows, alphas) = (p.ln(), &column[nodes.clone()], &ALPHAS[nodes]);
    let mut log_alpha = 0.0;
    for (i, (row, alpha)) in rows.iter().zip(alphas).enumerate() {
        let weight: f64 = rows
            .iter()
            .enumerate()
            .filter(|(j, _)| *j != i)
            .map(|(_, other)| (x - other.ln()) / (row / other).ln())
            .product();
        log_alpha += weight * alpha.ln();
    }
    log_alpha.exp()
}

/// A grid position of the partial sum with its density times its Simpson weight.
struct GridPoint {
    position: f64,
    mass: f64,
}

/// The z at which the probability of leaving at this look, not having left before, equals `spend`.
fn boundary(alive: &[GridPoint], step_sd: f64, root_size: f64, spend: f64) -> f64 {
    let (mut low, mut high) = (0.0, WIDEST_Z);
    for _ in 0..BISECTIONS {
        let z = 0.5 * (low + high);
        let leaves: f64 = alive
            .iter()
            .map(|point| {
                let up = upper_tail((z * root_size - point.position) / step_sd);
                let down = upper_tail((z * root_size + point.position) / step_sd);
                point.mass * (up + down)
            })
            .sum();
        if leaves > spend {
            low = z;
        } else {
            high = z;
        }
    }
    0.5 * (low + high)
}

/// The density inside the boundary after one more step of the process.
fn carry(alive: &[GridPoint], step_sd: f64, bound: f64) -> Vec<GridPoint> {
    let width = 2.0 * bound / GRID as f64;
    let scale = 1.0 / (step_sd * (2.0 * std::f64::consts::PI).sqrt());
    (0..=GRID)
        .map(|i| {
            let position = -bound + width * i as f64;
            let density: f64 = alive
                .iter()
                .map(|from| {
                    let z = (position - from.position) / step_sd;
                    from.mass * scale * (-0.5 * z * z).exp()
                })
                .sum();
            let weight = match i {
                0 | GRID => 1.0,
                _ if i.is_multiple_of(2) => 2.0,
                _ => 4.0,
            };
            GridPoint { position, mass: density * weight * width / 3.0 }
        })
        .collect()
}

/// Upper tail of the standard normal distribution.
fn upper_tail(z: f64) -> f64 {
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

fn check_plan(sizes: &[usize], cumulative_alpha: &[f64]) -> Result<(), StatsError> {
    if sizes.is_empty() {
        return Err(StatsError::Empty { what: "look sizes" });
    }
    if sizes.len() != cumulative_alpha.len() {
        return Err(StatsError::TooFew {
            what: "cumulative alphas",
            needed: sizes.len(),
            found: cumulative_alpha.len(),
        });
    }
    let mut last_size = 0;
    for size in sizes {
        if *size <= last_size {
            return Err(StatsError::OutOfRange {
                what: "look size",
                value: *size as f64,
                expected: "larger than the one before",
            });
        }
        last_size = *size;
    }
    let mut last_alpha = 0.0;
    for alpha in cumulative_alpha {
        check_level("cumulative alpha", *alpha)?;
        if *alpha <= last_alpha {
            return Err(StatsError::OutOfRange {
                what: "cumulative alpha",
                value: *alpha,
                expected: "larger than the one before",
            });
        }
        last_alpha = *alpha;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mann_whitney::UDistribution;
    use crate::sample::assert_close;
    use proptest::prelude::*;

    fn look(schedule: &Schedule, number: usize) -> Look {
        Look { number, size: schedule.sizes[number - 1] }
    }

    #[test]
    fn the_recursion_reproduces_every_printed_row() {
        for schedule in [BOOTS_PER_SIDE, SEEDS] {
            for (alpha, row) in ALPHAS.iter().zip(schedule.nominal) {
                let spent: Vec<f64> = schedule.shares.iter().map(|share| share * alpha).collect();
                let computed = nominal_levels(schedule.sizes, &spent).unwrap();
                for (found, printed) in computed.iter().zip(*row) {
                    assert_close(*found, *printed, printed * 5.1e-6);
                }
            }
        }
    }

    #[test]
    fn reference_r4_boundaries_in_standard_deviations() {
        let expected = [2.638257, 2.500745, 2.452847, 2.440823, 2.483147, 2.570776, 2.591405];
        let spent: Vec<f64> = BOOTS_PER_SIDE.shares.iter().map(|share| share * 0.05).collect();
        let levels = nominal_levels(BOOTS_PER_SIDE.sizes, &spent).unwrap();
        for (z, level) in expected.iter().zip(levels) {
            assert_close(2.0 * upper_tail(*z), level, 2e-8);
        }
    }

    #[test]
    fn reference_r5_repeated_p() {
        for (number, p, expected) in
            [(1, 0.001, 0.006000), (2, 0.01, 0.040748), (3, 0.001, 0.004166), (4, 0.02, 0.066093)]
        {
            let found = BOOTS_PER_SIDE.repeated_p(&[(look(&BOOTS_PER_SIDE, number), p)]).unwrap();
            assert_close(found, expected, 6e-7);
        }
    }

    #[test]
    fn the_interpolated_level_agrees_with_the_recursion() {
        for (number, p) in [(2, 0.0085), (4, 0.04), (5, 0.0006), (7, 0.02)] {
            let here = look(&BOOTS_PER_SIDE, number);
            let alpha = BOOTS_PER_SIDE.alpha_reached(here, p).unwrap();
            let spent: Vec<f64> = BOOTS_PER_SIDE.shares[..number].iter().map(|share| share * alpha).collect();
            let levels = nominal_levels(&BOOTS_PER_SIDE.sizes[..number], &spent).unwrap();
            assert_close(levels[number - 1] / p, 1.0, 2e-5);
        }
    }

    #[test]
    fn critical_values_of_the_table_of_looks() {
        let at_05 = [0, 5, 17, 54, 136, 345, 875];
        let at_10 = [1, 6, 21, 60, 149, 367, 917];
        for (k, size) in BOOTS_PER_SIDE.sizes.iter().enumerate() {
            let null = UDistribution::new(*size, *size).unwrap();
            let here = look(&BOOTS_PER_SIDE, k + 1);
            for (alpha, expected) in [(0.05, at_05[k]), (0.10, at_10[k])] {
                let nominal = BOOTS_PER_SIDE.nominal_p(here, alpha).unwrap();
                assert_eq!(null.critical(nominal), Ok(Some(expected)), "n = {size}");
            }
        }
        let first = UDistribution::new(5, 5).unwrap();
        assert_close(first.two_sided_p(0), 0.007937, 5e-7);
    }

    #[test]
    fn the_first_look_spends_exactly_its_share() {
        let first = look(&BOOTS_PER_SIDE, 1);
        assert_close(BOOTS_PER_SIDE.nominal_p(first, 0.03).unwrap(), 0.005, 1e-6);
        assert_eq!(BOOTS_PER_SIDE.alpha_reached(first, 1.0), Ok(1.0));
        assert!(BOOTS_PER_SIDE.nominal_p(first, 0.3).is_err());
        assert!(BOOTS_PER_SIDE.nominal_p(first, 1e-7).is_err());
        assert!(BOOTS_PER_SIDE.alpha_reached(first, 0.0).is_err());
        assert!(BOOTS_PER_SIDE.alpha_reached(first, 1e-30).unwrap() > 0.0);
        assert!(BOOTS_PER_SIDE.repeated_p(&[]).is_err());
        let none = Look { number: 0, size: 0 };
        let eighth = Look { number: 8, size: 80 };
        assert!(BOOTS_PER_SIDE.nominal_p(none, 0.05).is_err());
        assert!(BOOTS_PER_SIDE.nominal_p(eighth, 0.05).is_err());
    }

    #[test]
    fn between_looks_the_last_completed_one_counts() {
        assert_eq!(SEEDS.completed(7), None);
        assert_eq!(SEEDS.completed(8), Some(look(&SEEDS, 1)));
        assert_eq!(SEEDS.completed(17), Some(look(&SEEDS, 2)));
        assert_eq!(SEEDS.completed(500), Some(look(&SEEDS, 6)));
        assert_eq!(SEEDS.next_after(0), Some(look(&SEEDS, 1)));
        assert_eq!(SEEDS.next_after(8), Some(look(&SEEDS, 2)));
        assert_eq!(SEEDS.next_after(60), None);
    }

    #[test]
    fn an_impossible_plan_is_refused() {
        assert!(nominal_levels(&[], &[]).is_err());
        assert!(nominal_levels(&[5], &[]).is_err());
        assert!(nominal_levels(&[5, 5], &[0.01, 0.02]).is_err());
        assert!(nominal_levels(&[0, 5], &[0.01, 0.02]).is_err());
        assert!(nominal_levels(&[5, 7], &[0.02, 0.02]).is_err());
        assert!(nominal_levels(&[5], &[f64::NAN]).is_err());
    }

    proptest! {
        #[test]
        fn a_level_and_its_nominal_p_are_inverse(number in 1usize..=6, log_alpha in -13.8f64..-1.61) {
            let alpha = log_alpha.exp();
            for schedule in [BOOTS_PER_SIDE, SEEDS] {
                let here = look(&schedule, number);
                let back = schedule.alpha_reached(here, schedule.nominal_p(here, alpha).unwrap()).unwrap();
                prop_assert!((back / alpha - 1.0).abs() < 1e-9);
            }
        }

        #[test]
        fn a_larger_p_never_reaches_a_smaller_alpha(number in 1usize..=6, log_p in -40f64..0.0, step in 1e-6f64..1.0) {
            for schedule in [BOOTS_PER_SIDE, SEEDS] {
                let here = look(&schedule, number);
                let p = log_p.exp();
                let larger = (p * step.exp()).min(1.0);
                prop_assert!(schedule.alpha_reached(here, p).unwrap() <= schedule.alpha_reached(here, larger).unwrap());
            }
        }

        #[test]
        fn more_looks_never_raise_the_repeated_p(p in prop::collection::vec(1e-9f64..1.0, 1..7)) {
            let taken: Vec<(Look, f64)> = p.iter().enumerate().map(|(k, p)| (look(&BOOTS_PER_SIDE, k + 1), *p)).collect();
            let mut last = 1.0;
            for k in 1..=taken.len() {
                let now = BOOTS_PER_SIDE.repeated_p(&taken[..k]).unwrap();
                prop_assert!(now <= last && now > 0.0);
                last = now;
            }
        }
    }
}
