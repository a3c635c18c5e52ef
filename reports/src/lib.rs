//! A run record to text that can be mailed, and back from JSON. A report is a pure function of
//! the record: no clock, no host, no environment, so any report can be made again later.
//!
//! Read [`text`] first, then `mail.rs` for the order of its sections.

mod mail;
mod number;
mod table;

pub use mail::{ReportError, summary, text};
