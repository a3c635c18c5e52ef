//! Random choices that are made before a timed loop. Read [`below`] first.

use rand_chacha::rand_core::Rng;

/// A number below `bound`, which is not 0; its bias of `bound` in 2^64 is far below notice.
pub(crate) fn below(rng: &mut impl Rng, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// A size between `min` and `max`, both included, whose logarithm is uniform.
pub(crate) fn log_uniform(rng: &mut impl Rng, min: u64, max: u64) -> u64 {
    // 53 bits, so that every value is a float and none is 1.
    let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let (low, high) = ((min as f64).ln(), ((max + 1) as f64).ln());
    ((low + unit * (high - low)).exp() as u64).clamp(min, max)
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn every_number_below_the_bound_is_drawn_about_as_often() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut seen = [0_u32; 7];
        for _ in 0..7_000 {
            seen[below(&mut rng, 7) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (900..1100).contains(count)), "{seen:?}");
    }

    #[test]
    fn each_doubling_of_a_log_uniform_size_is_drawn_about_as_often() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut octaves = [0_u32; 8];
        for _ in 0..8_000 {
            let size = log_uniform(&mut rng, 1 << 10, 256 << 10);
            assert!((1 << 10..=256 << 10).contains(&size));
            octaves[((size.ilog2() - 10) as usize).min(7)] += 1;
        }
        assert!(octaves.iter().all(|count| (850..1150).contains(count)), "{octaves:?}");
        assert_eq!(log_uniform(&mut rng, 5, 5), 5);
    }
}
