//! `kdelta doctor`: what this machine lacks, and the command that mends it.

use kdelta_engine::doctor::{self, Health};

use crate::args::Global;
use crate::exit::Exit;
use crate::settings;

/// Prints one line for each check; ends with host trouble when something needed is missing.
pub fn run(global: &Global) -> anyhow::Result<Exit> {
    let cache = settings::cache_root(global)?;
    let init = settings::init(global);
    let mut checks = doctor::examine(&cache);
    checks.push(match init {
        Ok(path) => doctor::Check::good("guest init", path.to_string()),
        Err(error) => doctor::Check::bad("guest init", format!("{error:#}"), "make guest"),
    });
    for check in &checks {
        let word = match check.health {
            Health::Good => "ok",
            Health::Limited => "note",
            Health::Missing => "MISSING",
        };
        println!("{word:>8}  {}: {}", check.name, check.found);
        if let Some(remedy) = &check.remedy {
            println!("{:>8}  -> {remedy}", "");
        }
    }
    let missing = checks.iter().any(|check| check.health == Health::Missing);
    Ok(if missing { Exit::Host } else { Exit::NoRegression })
}
