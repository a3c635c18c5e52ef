//! Where things are on this machine: cache, init, number of jobs. Read [`Settings`] first.

use std::env;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};
use kdelta_engine::layout::Cache;
use kdelta_engine::{Cancel, host, image};

use crate::args::Global;

/// Name of the guest's init.
const INIT: &str = "kdelta-init";

/// Settled places and the wish to stop.
#[derive(Debug)]
pub struct Settings {
    /// The cache.
    pub cache: Cache,
    /// Set by SIGINT and SIGTERM.
    pub cancel: Cancel,
    /// Parallel jobs.
    pub jobs: usize,
}

impl Settings {
    /// Opens the cache and catches signals.
    pub fn new(global: &Global) -> anyhow::Result<Self> {
        let root = cache_root(global)?;
        let cache = Cache::open(&root)
            .with_context(|| format!("cannot use {root} as the cache; name another with --cache"))?;
        let jobs = global.jobs.map_or_else(host::cpus, usize::from);
        Ok(Self { cache, cancel: cancel()?, jobs })
    }
}

/// Catches signals from now on.
pub fn cancel() -> anyhow::Result<Cancel> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(Cancel::with_flag(flag))
}

/// An environment variable that is there and not empty. Read here and not by clap, whose usage
/// messages would change with the environment.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where the cache is.
pub fn cache_root(global: &Global) -> anyhow::Result<Utf8PathBuf> {
    if let Some(root) = global.cache.clone().or_else(|| set("KDELTA_CACHE").map(Into::into)) {
        return Ok(root);
    }
    match (set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(cache), _) => Ok(Utf8PathBuf::from(cache).join("kdelta")),
        (None, Some(home)) => Ok(Utf8PathBuf::from(home).join(".cache/kdelta")),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set; name the cache with --cache DIR"),
    }
}

/// The guest's init: as told, beside this program, installed, or in the build tree.
pub fn init(global: &Global) -> anyhow::Result<Utf8PathBuf> {
    if let Some(path) = global.init.clone().or_else(|| set("KDELTA_INIT").map(Into::into)) {
        if !path.is_file() {
            bail!("--init {path}: there is no such file; build it with `make guest`");
        }
        return Ok(path);
    }
    let exe = env::current_exe().context("cannot tell where this program lies; name the init with --init")?;
    let exe = Utf8PathBuf::try_from(exe)?;
    let folder = exe.parent().unwrap_or(Utf8Path::new("."));
    let build_tree = format!("guest/target/x86_64-unknown-linux-gnu/guest/{INIT}");
    let candidates = [folder.join(INIT), folder.join("../lib/kdelta").join(INIT)]
        .into_iter()
        .chain(folder.ancestors().skip(1).map(|above| above.join(&build_tree)));
    let tried: Vec<Utf8PathBuf> = candidates.collect();
    // A plain `cargo build` leaves a dynamic kdelta-init beside kdelta, which no guest can run.
    let usable = |path: &&Utf8PathBuf| std::fs::read(path).is_ok_and(|bytes| image::is_static(&bytes));
    match tried.iter().find(usable) {
        Some(path) => Ok(path.clone()),
        None => bail!(
            "the guest's init is not built (looked for {} and the build tree); run `make guest`, or name it with --init",
            tried[0]
        ),
    }
}
