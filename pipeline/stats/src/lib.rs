//! The statistics of kdelta: numbers in, numbers out.
//!
//! Every function here is a pure function of its arguments: no files, no clock, no domain types, no randomness of its own. The same
//! input gives the same bits. Bad input (nothing, NaN, infinity) is a [`StatsError`], never a panic.
//!
//! A comparison of two kernels goes through these steps:
//!
//! 1. [`boot_value`]: the rounds of one boot become one number. Boots, or seeds, are what n counts.
//! 2. [`compare_ab`] for boots, [`summarize_pairs`] for seeds, [`compare_sandwich`] for parent-child-parent,
//!    [`analyze_factorial`] for a feature off and on before and after.
//! 3. [`decide_ab`], [`decide_paired`], [`decide_sandwich`]: estimate and intervals become a [`Call`].
//!
//! Differences are natural-log ratios child to parent unless a name says otherwise; [`log_to_percent`] is for printing.

mod ab;
mod components;
mod counts;
mod culprit;
mod diagnostics;
mod factorial;
mod looks;
mod mann_whitney;
mod midmean;
mod multiple;
mod paired;
mod power;
mod sample;
mod sandwich;
mod scan;
mod signed_rank;
mod sweep;
mod theil_sen;
mod verdict;
mod welch;

pub use ab::{
    AbSettings, AbSummary, Boot, MIN_BOOTS_PER_ARM_AND_SESSION, Resolution, compare_ab, resolution,
};
pub use components::{LagOne, VarianceComponents, lag_one, variance_components};
pub use counts::{CountSummary, LARGE_COUNT, MOST_EVENTS, compare_counts};
pub use culprit::{Levels, log_likelihood_ratio, posterior};
pub use diagnostics::{
    FLAG_P, FLAG_SPREAD, Flag, Modes, Outliers, Spread, first_round, modes, outlying_boots,
    rarest_excluded_mode, session_drift, spread,
};
pub use factorial::{
    Contrast, FactorialBlock, FactorialSummary, analyze_factorial, feature_cost, interaction_ratio,
    share_recovered,
};
pub use looks::{ALPHAS, BOOTS_PER_SIDE, Look, SEEDS, Schedule, nominal_levels};
pub use mann_whitney::{MAX_TOTAL, MannWhitney, UDistribution, mann_whitney};
pub use midmean::{BootValue, boot_value, midmean};
pub use multiple::{benjamini_hochberg, holm};
pub use paired::{PairedSettings, PairedSummary, summarize_pairs};
pub use power::{Design, SAMPLE_SIZE_FACTOR, first_detecting_look, minimum_detectable_log, needed_n};
pub use sample::{Interval, StatsError, log_to_percent, median, percent_to_log};
pub use sandwich::{LARGEST_CONTROL_SHARE, SandwichSummary, compare_sandwich};
pub use scan::{ALARM, LEAST_AFTER, LEAST_BEFORE, Shift, scan};
pub use signed_rank::{
    MAX_PAIRS, MAX_SIGN_FLIPS, SignedRankDistribution, SignedRankTest, WalshAverages, sign_flip_p,
    signed_rank_test,
};
pub use sweep::{EXACT_BOOTS, LevelAndSlope, RELABELLINGS, SweepPoint, level_and_slope, max_t};
pub use theil_sen::{TimedValue, theil_sen};
pub use verdict::{
    Call, Decision, Evidence, NeedsMore, VerdictSettings, decide, decide_ab, decide_paired, decide_sandwich,
    needs_more,
};
pub use welch::{Welch, student_quantile, student_two_sided_p, welch};
