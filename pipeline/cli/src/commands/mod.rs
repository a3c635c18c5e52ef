//! One file for each command.

pub mod compare;
pub mod doctor;
pub mod report;
pub mod run;
pub mod workloads;
