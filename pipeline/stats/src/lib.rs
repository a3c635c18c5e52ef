//! Statistics
mod looks;
mod mann_whitney;
mod midmean;
mod sample;
mod signed_rank;
pub use looks::*;
pub use mann_whitney::*;
pub use midmean::*;
pub use sample::*;
pub use signed_rank::*;
