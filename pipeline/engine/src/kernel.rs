//! Makes kernels: one tree, one object folder for each configuration, the parent built first and
//! the child incrementally on top, the results kept by fingerprint. Read [`Kernel`] and [`make`]
//! first.

use std::fs;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{ConfigBase, Digest, KernelIdentity, KernelRequest};
use kdelta_wire::ModuleJob;
use object::{Object, ObjectSection};

use crate::builtin::{self, BuiltinError};
use crate::kconfig::{self, KconfigError};
use crate::layout::{self, Cache, Context, Lock};
use crate::modules::{self, Module, ModuleError};
use crate::patch::{self, Patch, PatchError};
use crate::process::{ProcessError, Program};
use crate::source::{self, ReadyKernel, SourceError, SourceTree};

/// Raised whenever a build with the same inputs would give other bits.
const RECIPE: &str = "kdelta-kernel-1";
/// Kbuild's stamps, fixed so that the same source gives the same bits (Documentation/kbuild,
/// "Reproducible builds").
const STAMPS: [(&str, &str); 4] = [
    ("KBUILD_BUILD_USER", "kdelta"),
    ("KBUILD_BUILD_HOST", "kdelta"),
    ("KBUILD_BUILD_TIMESTAMP", "1970-01-01"),
    ("KBUILD_BUILD_VERSION", "1"),
];
/// Options that change performance enough to make numbers unrepresentative.
const DEBUG_OPTIONS: [&str; 12] = [
    "KASAN",
    "KCSAN",
    "KMSAN",
    "UBSAN",
    "PROVE_LOCKING",
    "LOCKDEP",
    "LOCK_STAT",
    "DEBUG_KMEMLEAK",
    "SLUB_DEBUG_ON",
    "DEBUG_VM",
    "DEBUG_PAGEALLOC",
    "XFS_DEBUG",
];
/// A full build of a small kernel takes minutes, one of a distribution's configuration hours.
const BUILD_DEADLINE: Duration = Duration::from_secs(6 * 3600);
/// Architecture folder of the kernel source.
const SOURCE_ARCH: &str = "x86";

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// vmlinux or bzImage.
    pub image: Utf8PathBuf,
    /// What it is.
    pub identity: KernelIdentity,
    /// Its final configuration; `None` for a ready-made kernel.
    pub config: Option<String>,
    /// Modules to load in the guest, in this order.
    pub modules: Vec<Module>,
}

/// Why a kernel could not be made.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A patch cannot be read or does not apply.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A fragment cannot be read.
    #[error(transparent)]
    Fragment(#[from] BuiltinError),
    /// A fragment is malformed.
    #[error(transparent)]
    Kconfig(#[from] KconfigError),
    /// A module is missing.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// make or the compiler failed.
    #[error("building {what} failed (full log: {log}): {source}")]
    Build {
        /// Which kernel, at which step.
        what: String,
        /// The whole output.
        log: Utf8PathBuf,
        /// The end of it.
        source: ProcessError,
    },
    /// Options that were asked for are not in the final configuration.
    #[error(
        "{what}: the configuration lost options that were asked for:\n{reasons}\nadd what is missing to kernel.options in the experiment (--config on the command line), or do not ask for them"
    )]
    Dropped {
        /// Which kernel.
        what: String,
        /// One paragraph each.
        reasons: String,
    },
    /// Patches on a kernel that is not compiled.
    #[error(
        "{source_name} is a ready-made kernel: patches, configuration and placebo need a source, such as debian:linux-source-6.12"
    )]
    NotCompiled {
        /// The source.
        source_name: String,
    },
    /// `base: source` and no `.config` in it.
    #[error(
        "{source_name} has no .config of its own; choose another base: allnoconfig, defconfig or file:PATH"
    )]
    NoConfig {
        /// The source.
        source_name: String,
    },
    /// A file of the cache or the build cannot be used.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// vmlinux or a stored identity cannot be understood.
    #[error("{path} cannot be understood: {message}; delete it and try again")]
    Malformed {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        message: String,
    },
    /// Stopped or not startable.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Whose fault a failed kernel is: it decides the exit code and what a bisection does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// What was asked for cannot be: a patch, a configuration, a source that does not exist.
    User,
    /// The source does not compile.
    Kernel,
    /// This machine or the network: a missing program, a full disk, a download that failed.
    Host,
}

impl KernelError {
    /// Whose fault it is.
    #[must_use]
    pub fn owner(&self) -> Owner {
        match self {
            Self::Build { source: ProcessError::Failed { .. }, .. } => Owner::Kernel,
            Self::Patch(_) | Self::Fragment(_) | Self::Kconfig(_) | Self::Dropped { .. } => Owner::User,
            Self::NotCompiled { .. } | Self::NoConfig { .. } | Self::Module(_) => Owner::User,
            Self::Source(error) if error.is_about_the_request() => Owner::User,
            Self::Build { .. }
            | Self::Source(_)
            | Self::File { .. }
            | Self::Malformed { .. }
            | Self::Process(_) => Owner::Host,
        }
    }
}

/// Where relative names start, and whether the network may be asked again.
#[derive(Clone, Copy, Debug)]
pub struct MakeOptions<'a> {
    /// Folder that relative fragment paths start from.
    pub folder: &'a Utf8Path,
    /// Ask for newer packages even when an earlier answer is cached.
    pub refresh: bool,
    /// Modules that a ready-made kernel needs for its disk, filesystem and result port.
    pub modules: &'a [String],
}

/// Makes the kernel `request` asks for, or finds it in the store. `label` names it in progress
/// and errors.
///
/// # Errors
/// When the source, a patch, the configuration or the build fails.
pub fn make(
    ctx: &Context,
    label: &str,
    request: &KernelRequest,
    options: MakeOptions,
) -> Result<Kernel, KernelError> {
    if !request.source.is_compiled() {
        return ready_made(ctx, request, options);
    }
    let patches = patch::read(ctx, &request.patches)?;
    let tree = source::prepare(ctx, &request.source, options.refresh)?;
    let recipe = Recipe::new(request, &tree, patches, &toolchain(ctx)?, options.folder)?;
    let target = ctx.cache.kernels().join(&recipe.fingerprint);
    let detail = format!("{} [{}]", tree.described, &recipe.fingerprint[..12]);
    ctx.stage(&format!("kernel {label}"), &detail, || {
        if target.is_dir() {
            return Ok((load(&target)?, "from the store".to_owned()));
        }
        let kernel = build(ctx, label, request, &tree, &recipe, &target)?;
        Ok((kernel, "built".to_owned()))
    })
}

/// Finds out in seconds what would stop [`make`] after minutes: a source that does not exist, a
/// fragment that cannot be read, a patch that does not apply.
///
/// # Errors
/// As [`make`], but for the build itself.
pub fn check(ctx: &Context, request: &KernelRequest, options: MakeOptions) -> Result<(), KernelError> {
    if !request.source.is_compiled() {
        return Ok(());
    }
    let patches = patch::read(ctx, &request.patches)?;
    let tree = source::prepare(ctx, &request.source, options.refresh)?;
    let recipe = Recipe::new(request, &tree, patches, &toolchain(ctx)?, options.folder)?;
    if !recipe.patches.is_empty() && !ctx.cache.kernels().join(&recipe.fingerprint).is_dir() {
        patch::apply(ctx, &tree.folder, &recipe.patches)?;
        patch::restore(&tree.folder)?;
    }
    Ok(())
}

/// Everything that decides the bits of a build.
struct Recipe {
    patches: Vec<Patch>,
    config: Vec<kconfig::OptionRequest>,
    config_key: String,
    base_file: Option<String>,
    fingerprint: String,
}

impl Recipe {
    fn new(
        request: &KernelRequest,
        tree: &SourceTree,
        patches: Vec<Patch>,
        toolchain: &str,
        folder: &Utf8Path,
    ) -> Result<Self, KernelError> {
        // Later fragments win, so their order counts where two set one option to different values, and
        // only there: what is hashed is the merged list, sorted by name. Other orders and repetitions
        // of the same fragments give the same fingerprint.
        let mut config = Vec::new();
        for name in &request.fragments {
            config.extend(kconfig::parse(&builtin::fragment(name, folder)?, name)?);
        }
        config.extend(kconfig::parse(&request.options.join("\n"), "kernel.options")?);
        let config = kconfig::merge(config);
        let base_file = match &request.base {
            ConfigBase::File(path) => Some(read_text(&folder.join(path))?),
            ConfigBase::Source => match &tree.config {
                Some(path) => Some(read_text(path)?),
                None => return Err(KernelError::NoConfig { source_name: tree.described.clone() }),
            },
            ConfigBase::Allnoconfig | ConfigBase::Defconfig => None,
        };
        let mut hash = blake3::Hasher::new();
        for part in [RECIPE, &request.base.to_string(), base_file.as_deref().unwrap_or_default(), toolchain] {
            field(&mut hash, part);
        }
        for option in &config {
            field(&mut hash, &format!("{}={}", option.name, option.value));
        }
        let config_key = hash.finalize().to_hex()[..16].to_owned();
        field(&mut hash, &tree.digest.0);
        field(&mut hash, &patch::digest(&patches).unwrap_or_default().0);
        field(&mut hash, if request.placebo { "placebo" } else { "" });
        for (name, value) in STAMPS {
            field(&mut hash, &format!("{name}={value}"));
        }
        let fingerprint = hash.finalize().to_hex().to_string();
        Ok(Self { patches, config, config_key, base_file, fingerprint })
    }
}

/// Length-prefixed, so that no two lists of fields hash alike.
fn field(hash: &mut blake3::Hasher, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

/// Builds in the shared tree and publishes the result as `target`.
fn build(
    ctx: &Context,
    label: &str,
    request: &KernelRequest,
    tree: &SourceTree,
    recipe: &Recipe,
    target: &Utf8Path,
) -> Result<Kernel, KernelError> {
    let sources = tree.folder.join("tree");
    let objects = ctx.cache.objects().join(format!("{}-{}", tree.key, recipe.config_key));
    fs::create_dir_all(&objects).map_err(|source| file_error("create", &objects, source))?;
    let mut patches = recipe.patches.clone();
    patch::restore(&tree.folder)?;
    if request.placebo {
        patches.push(placebo(&sources)?);
    }
    patch::apply(ctx, &tree.folder, &patches)?;

    let maker = Maker { ctx, label, sources: &sources, objects: &objects, lock: &tree.lock };
    let config = configure(&maker, request, recipe)?;
    maker.build_vmlinux(&config)?;

    let image = objects.join("vmlinux");
    let release = read_text(&objects.join("include/config/kernel.release"))?.trim().to_owned();
    let bytes = fs::read(&image).map_err(|source| file_error("read", &image, source))?;
    let identity = KernelIdentity {
        source: tree.described.clone(),
        source_digest: tree.digest.clone(),
        commit: tree.commit.clone(),
        patches: recipe.patches.iter().map(|patch| patch.subject.clone()).collect(),
        patch_digest: patch::digest(&recipe.patches),
        config_digest: Some(digest_of(config.as_bytes())),
        release,
        compiler: option_value(&config, "CC_VERSION_TEXT"),
        build_stamp: "kdelta@kdelta, 1970-01-01, #1".to_owned(),
        build_id: build_id(&bytes),
        image_digest: digest_of(&bytes),
        placebo: request.placebo,
        debug_options: debug_options(&config),
    };
    let scratch =
        ctx.cache.scratch().map_err(|source| file_error("create a folder in", ctx.cache.root(), source))?;
    let write = |name: &str, content: &[u8]| {
        let path = scratch.path().join(name);
        fs::write(&path, content).map_err(|source| file_error("write", &path, source))
    };
    write("vmlinux", &bytes)?;
    write("config", config.as_bytes())?;
    write(
        "System.map",
        &fs::read(objects.join("System.map")).map_err(|source| file_error("read", &objects, source))?,
    )?;
    write("identity.json", &serde_json::to_vec_pretty(&identity).map_err(|error| malformed(target, error))?)?;
    scratch.publish(target).map_err(|source| file_error("publish", target, source))?;
    load(target)
}

/// The kernel kept at `folder`.
fn load(folder: &Utf8Path) -> Result<Kernel, KernelError> {
    let path = folder.join("identity.json");
    let identity = serde_json::from_str(&read_text(&path)?).map_err(|error| malformed(&path, error))?;
    Ok(Kernel {
        image: folder.join("vmlinux"),
        identity,
        config: Some(read_text(&folder.join("config"))?),
        modules: Vec::new(),
    })
}

/// A kernel that somebody else compiled.
fn ready_made(ctx: &Context, request: &KernelRequest, options: MakeOptions) -> Result<Kernel, KernelError> {
    if request.placebo || !request.patches.is_empty() {
        return Err(KernelError::NotCompiled { source_name: request.source.to_string() });
    }
    let ReadyKernel { image, described, digest, modules, release } =
        source::ready_made(ctx, &request.source, options.refresh)?;
    let modules = match &modules {
        Some(folder) => modules::load_order(folder, options.modules)?,
        None => Vec::new(),
    };
    let bytes = fs::read(&image).map_err(|source| file_error("read", &image, source))?;
    // The ELF file inside a bzImage boots through PVH, without the real-mode and decompression code.
    let (image, bytes) = match source::extract_vmlinux(&bytes) {
        Ok(vmlinux) if boots_through_pvh(&vmlinux) => {
            let path = ctx.cache.kernels().join(format!("{}.vmlinux", digest_of(&bytes)));
            if !path.exists() {
                layout::write_atomically(&path, &vmlinux)
                    .map_err(|source| file_error("write", &path, source))?;
            }
            (path, vmlinux)
        }
        _ => (image, bytes),
    };
    let identity = KernelIdentity {
        source: described,
        source_digest: digest,
        commit: None,
        patches: Vec::new(),
        patch_digest: None,
        config_digest: None,
        release: release.unwrap_or_else(|| "see uname -r of the boots".to_owned()),
        compiler: "not recorded (ready-made kernel)".to_owned(),
        build_stamp: "not recorded (ready-made kernel)".to_owned(),
        build_id: build_id(&bytes),
        image_digest: digest_of(&bytes),
        placebo: false,
        debug_options: Vec::new(),
    };
    Ok(Kernel { image, identity, config: None, modules })
}

/// Runs make in one tree with one object folder.
struct Maker<'a> {
    ctx: &'a Context<'a>,
    label: &'a str,
    sources: &'a Utf8Path,
    objects: &'a Utf8Path,
    lock: &'a Lock,
}

impl Maker<'_> {
    fn make(&self, step: &str, arguments: &[&str], tick: impl FnMut(&Utf8Path)) -> Result<(), KernelError> {
        let mut tick = tick;
        let log = self.objects.join(format!("kdelta-{step}.log"));
        let mut program = Program::new("make")
            .dir(self.sources)
            .arg(format!("O={}", self.objects))
            .arg("ARCH=x86_64")
            // Set and empty: kbuild adds no "+" or "-dirty" to the release of a git tree.
            .arg("LOCALVERSION=")
            .args(arguments.iter().copied())
            .deadline(BUILD_DEADLINE);
        for (name, value) in STAMPS {
            program = program.env(name, value);
        }
        for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "KCFLAGS", "KBUILD_OUTPUT", "CROSS_COMPILE"] {
            program = program.env_remove(name);
        }
        program.logged(&log, Some(self.lock.file()), self.ctx.cancel, || tick(&log)).map_err(|source| {
            match source {
                ProcessError::Cancelled => KernelError::Process(ProcessError::Cancelled),
                source => KernelError::Build {
                    what: format!("kernel {} ({step})", self.label),
                    log: log.clone(),
                    source,
                },
            }
        })
    }

    /// Compiles and links, telling how many steps are done. The number of steps of a first build
    /// is estimated from the number of options that are on (2.7 steps each for small kernels).
    fn build_vmlinux(&self, config: &str) -> Result<(), KernelError> {
        let stage = format!("kernel {}", self.label);
        let options = config.lines().filter(|line| line.ends_with("=y")).count() as u64;
        let first = !self.objects.join("vmlinux").exists();
        let total = first.then_some(options * 27 / 10);
        let jobs = format!("-j{}", self.ctx.jobs);
        self.make("build", &[&jobs, "vmlinux"], |log| {
            let done = fs::read_to_string(log)
                .map_or(0, |text| text.lines().filter(|line| is_step(line)).count() as u64);
            self.ctx.progress(&stage, done, total.map(|total| total.max(done)), "compiling");
        })
    }
}

/// Whether a line of make's output is a finished step: `  CC      fs/open.o`.
fn is_step(line: &str) -> bool {
    line.starts_with("  ")
        && line
            .trim_start()
            .split(' ')
            .next()
            .is_some_and(|word| word.chars().all(|c| c.is_ascii_uppercase()))
}

/// Makes `.config`, checks that every requested option survived, and returns it.
fn configure(maker: &Maker, request: &KernelRequest, recipe: &Recipe) -> Result<String, KernelError> {
    let wanted: String =
        recipe.config.iter().map(|option| format!("CONFIG_{}={}\n", option.name, option.value)).collect();
    let fragment = maker.objects.join("kdelta.config");
    let config = maker.objects.join(".config");
    let write = |path: &Utf8Path, text: &str| {
        fs::write(path, text).map_err(|source| file_error("write", path, source))
    };
    write(&fragment, &wanted)?;
    match &request.base {
        // With KCONFIG_ALLCONFIG, options that the fragments make visible stay off unless asked for.
        ConfigBase::Allnoconfig => {
            maker.make("config", &[&format!("KCONFIG_ALLCONFIG={fragment}"), "allnoconfig"], |_| {})?;
        }
        base => {
            let text = match (base, &recipe.base_file) {
                (ConfigBase::Defconfig, _) | (_, None) => {
                    maker.make("defconfig", &["defconfig"], |_| {})?;
                    read_text(&config)?
                }
                (_, Some(text)) => text.clone(),
            };
            let asked = |line: &&str| !recipe.config.iter().any(|option| sets(line, &option.name));
            let kept: String = text.lines().filter(asked).flat_map(|line| [line, "\n"]).collect();
            write(&config, &format!("{kept}{wanted}"))?;
            maker.make("config", &["olddefconfig"], |_| {})?;
        }
    }
    let text = read_text(&config)?;
    let dropped = kconfig::dropped(&recipe.config, &text);
    if dropped.is_empty() {
        return Ok(text);
    }
    let mut reasons = Vec::new();
    for lost in &dropped {
        let request = &lost.request;
        let actual = lost.actual.as_deref().unwrap_or("not set");
        reasons.push(format!(
            "  CONFIG_{}={} (asked for by {}) is {actual}",
            request.name, request.value, request.origin
        ));
        let why = kconfig::explain(maker.sources, SOURCE_ARCH, &text, &request.name);
        reasons.extend(why.into_iter().map(|why| format!("    {why}")));
    }
    Err(KernelError::Dropped { what: format!("kernel {}", maker.label), reasons: reasons.join("\n") })
}

/// Whether a line of a configuration speaks of `name`.
fn sets(line: &str, name: &str) -> bool {
    let line = line.strip_prefix("# ").unwrap_or(line);
    line.strip_prefix("CONFIG_")
        .and_then(|rest| rest.strip_prefix(name))
        .is_some_and(|rest| rest.starts_with('=') || rest.starts_with(" is not set"))
}

/// A patch that shifts code, data and free memory and does nothing: what moves under it is the
/// chaotic part of an exact difference (statistics.md, section 6.5).
fn placebo(sources: &Utf8Path) -> Result<Patch, KernelError> {
    let path = "init/main.c";
    let text = read_text(&sources.join(path))?;
    let lines: Vec<&str> = text.lines().collect();
    let context = &lines[lines.len().saturating_sub(3)..];
    let added = [
        "",
        "/* kdelta placebo: shifts code and data, does nothing. */",
        "static char kdelta_placebo_data[12352] __used = { 1 };",
        "static noinline void __used kdelta_placebo_text(void)",
        "{",
        "\tasm volatile(\".skip 4160, 0x90\");",
        "}",
    ];
    let start = lines.len() - context.len() + 1;
    let mut diff = format!(
        "--- a/{path}\n+++ b/{path}\n@@ -{start},{} +{start},{} @@\n",
        context.len(),
        context.len() + added.len()
    );
    diff.extend(context.iter().map(|line| format!(" {line}\n")));
    diff.extend(added.iter().map(|line| format!("+{line}\n")));
    Ok(Patch { subject: "placebo".to_owned(), origin: "kdelta's own".to_owned(), text: diff })
}

/// First lines of `gcc --version` and `ld --version`.
fn toolchain(ctx: &Context) -> Result<String, KernelError> {
    let mut lines = Vec::new();
    for program in ["gcc", "ld"] {
        let output = Program::new(program).arg("--version").output(ctx.cancel)?;
        lines.push(output.text().lines().next().unwrap_or_default().to_owned());
    }
    Ok(lines.join("\n"))
}

/// Value of an option of a configuration, without quotes; empty when not set.
fn option_value(config: &str, name: &str) -> String {
    let line = config.lines().find(|line| sets(line, name));
    line.and_then(|line| line.split_once('='))
        .map_or(String::new(), |(_, value)| value.trim_matches('"').to_owned())
}

fn debug_options(config: &str) -> Vec<String> {
    let on = |name: &&str| config.lines().any(|line| line == format!("CONFIG_{name}=y"));
    DEBUG_OPTIONS.iter().filter(|name| on(name)).map(|name| (*name).to_owned()).collect()
}

/// The GNU build id in the ELF notes of `vmlinux`, in hexadecimal.
fn build_id(vmlinux: &[u8]) -> Option<String> {
    let file = object::File::parse(vmlinux).ok()?;
    let id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
    let id = id.or_else(|| build_id_note(file.section_by_name(".notes")?.data().ok()?))?;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Finds note type 3 (NT_GNU_BUILD_ID) of owner "GNU" in a notes section (elf(5)).
fn build_id_note(mut notes: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize, notes: &[u8]| -> Option<usize> {
        Some(u32::from_le_bytes(notes.get(at..at + 4)?.try_into().ok()?) as usize)
    };
    loop {
        let (name, size, kind) = (word(0, notes)?, word(4, notes)?, word(8, notes)?);
        let start = 12 + name.next_multiple_of(4);
        let content = notes.get(start..start.checked_add(size)?)?;
        if kind == 3 && notes.get(12..12 + name)? == b"GNU\0" {
            return Some(content.to_vec());
        }
        notes = notes.get(start + size.next_multiple_of(4)..)?;
    }
}

/// Whether an ELF kernel has the note that QEMU needs to start it directly: type 18
/// (XEN_ELFNOTE_PHYS32_ENTRY) of owner "Xen" (include/xen/interface/elfnote.h).
fn boots_through_pvh(vmlinux: &[u8]) -> bool {
    let pattern = [4_u8, 0, 0, 0, 8, 0, 0, 0, 18, 0, 0, 0, b'X', b'e', b'n', 0];
    let short = [4_u8, 0, 0, 0, 4, 0, 0, 0, 18, 0, 0, 0, b'X', b'e', b'n', 0];
    vmlinux.windows(16).any(|bytes| bytes == pattern || bytes == short)
}

/// The modules as the init is told to load them.
#[must_use]
pub fn module_jobs(modules: &[Module]) -> Vec<ModuleJob> {
    modules
        .iter()
        .map(|module| ModuleJob { file: format!("{}.ko", module.name), optional: module.optional })
        .collect()
}

/// The kernel that was published last in the store, if any can be read.
#[must_use]
pub fn newest(cache: &Cache) -> Option<Kernel> {
    let mut folders: Vec<(std::time::SystemTime, Utf8PathBuf)> = cache
        .kernels()
        .read_dir_utf8()
        .ok()?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.into_path())))
        .collect();
    folders.sort();
    folders.into_iter().rev().find_map(|(_, folder)| load(&folder).ok())
}

/// BLAKE3 in hexadecimal.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest(blake3::hash(bytes).to_hex().to_string())
}

fn read_text(path: &Utf8Path) -> Result<String, KernelError> {
    fs::read_to_string(path).map_err(|source| file_error("read", path, source))
}

fn file_error(action: &'static str, path: &Utf8Path, source: std::io::Error) -> KernelError {
    KernelError::File { action, path: path.to_owned(), source }
}

fn malformed(path: &Utf8Path, error: serde_json::Error) -> KernelError {
    KernelError::Malformed { path: path.to_owned(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;

    #[test]
    fn fragments_have_one_fingerprint_in_any_order_unless_they_contradict_each_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Utf8Path::from_path(dir.path()).expect("UTF-8");
        for (name, text) in [
            ("a.config", "CONFIG_A=y\n"),
            ("b.config", "CONFIG_B=y\n"),
            ("off.config", "# CONFIG_A is not set\n"),
        ] {
            fs::write(folder.join(name), text).expect("write");
        }
        let fingerprint = |fragments: &[&str]| {
            let tree = SourceTree {
                folder: folder.to_owned(),
                key: "tree".to_owned(),
                described: "dir:/src/linux".to_owned(),
                digest: digest_of(b"a tree"),
                commit: None,
                config: None,
                lock: Lock::acquire(&folder.join("lock"), &Cancel::default(), || ()).expect("a lock"),
            };
            let request = KernelRequest {
                source: "dir:/src/linux".parse().expect("a source"),
                patches: Vec::new(),
                base: ConfigBase::default(),
                fragments: fragments.iter().map(|name| (*name).to_owned()).collect(),
                options: Vec::new(),
                placebo: false,
            };
            let recipe = Recipe::new(&request, &tree, Vec::new(), "gcc", folder).expect("a recipe");
            (recipe.config_key, recipe.fingerprint)
        };
        let one = fingerprint(&["guest", "./a.config", "./b.config"]);
        assert_eq!(fingerprint(&["./b.config", "./a.config", "guest"]), one);
        assert_eq!(fingerprint(&["guest", "./a.config", "./a.config", "./b.config", "guest"]), one);
        assert_ne!(fingerprint(&["guest", "./a.config"]), one);
        let (off, on) = (["./a.config", "./off.config"], ["./off.config", "./a.config"]);
        assert_ne!(fingerprint(&off), fingerprint(&on), "the last one wins");
        assert_eq!(fingerprint(&on), fingerprint(&["./a.config"]));
    }
}
