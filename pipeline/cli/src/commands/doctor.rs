//! `kdelta doctor`: what this machine lacks, and the command that mends it.

use camino::Utf8Path;
use kdelta_engine::doctor::{self, Check, Health};
use kdelta_engine::event::Silent;
use kdelta_engine::vm::Qemu;
use kdelta_engine::{Context, kernel};

use crate::args::Global;
use crate::exit::Exit;
use crate::settings::{self, Settings};
use crate::terminal::say;

/// Prints one line for each check; ends with host trouble when something needed is missing.
pub fn run(global: &Global) -> anyhow::Result<Exit> {
    let mut checks = doctor::examine(&settings::cache_root(global)?);
    match settings::init(global) {
        Ok(path) => {
            checks.push(doctor::check_kvm(probe(global, &path)?));
            checks.push(Check::good("guest init", path.to_string()));
        }
        Err(error) => checks.push(Check::bad("guest init", format!("{error:#}"), "make guest")),
    }
    for check in &checks {
        let word = match check.health {
            Health::Good => "ok",
            Health::Limited => "note",
            Health::Missing => "MISSING",
        };
        say(format!("{word:>8}  {}: {}", check.name, check.found))?;
        if let Some(remedy) = &check.remedy {
            say(format!("{:>8}  -> {remedy}", ""))?;
        }
    }
    let missing = checks.iter().any(|check| check.health == Health::Missing);
    Ok(if missing { Exit::Host } else { Exit::NoRegression })
}

/// Boots the newest kernel of the store under KVM, if there is one.
fn probe(global: &Global, init: &Utf8Path) -> anyhow::Result<Option<Result<(), String>>> {
    let settings = Settings::new(global)?;
    let Some(kernel) = kernel::newest(&settings.cache) else { return Ok(None) };
    let qemu = match Qemu::find(&settings.cancel) {
        Ok(qemu) => qemu,
        Err(error) => return Ok(Some(Err(error.to_string()))),
    };
    let ctx =
        Context { cache: &settings.cache, events: &Silent, cancel: &settings.cancel, jobs: settings.jobs };
    Ok(Some(kdelta_engine::probe::kvm(&ctx, &qemu, &kernel, init)?))
}
