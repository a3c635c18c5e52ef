//! Packages of a stated Debian release, on any host with apt-get, without root and without touching
//! the host's own package state. Read [`fetch`] first, which returns a [`FetchedPackage`].

use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::kernel::DebianPackage;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::archive::{self, ArchiveError};
use crate::fetch::digest_of;
use crate::layout::{Context, Lock, write_atomically};
use crate::process::{ProcessError, Program};

/// The release that programs for the guest are taken from: recent enough for `mkfs.xfs -n parent=1`.
pub const USERLAND_RELEASE: &str = "trixie";
/// Where a package without a release is looked for, in this order; the first that has it wins.
pub const RELEASES: [&str; 3] = ["trixie", "bookworm", "sid"];

/// Package lists are asked for at most this often, unless a package is not in them.
const LISTS_AGE: Duration = Duration::from_secs(24 * 3600);
/// Lists younger than this are believed when they do not have a package.
const LISTS_FRESH: Duration = Duration::from_secs(10 * 60);
const MIRROR: &str = "http://deb.debian.org/debian";
const SECURITY_MIRROR: &str = "http://deb.debian.org/debian-security";
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"];
/// The stages under which this reports.
const LISTS_STAGE: &str = "package lists";
const DOWNLOAD_STAGE: &str = "download";
/// Hooks of the host that would run after an update of *our* lists.
const APT_CONF: &str = "#clear APT::Update::Pre-Invoke;\n\
                        #clear APT::Update::Post-Invoke;\n\
                        #clear APT::Update::Post-Invoke-Success;\n";

/// A package that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedPackage {
    /// The .deb file.
    pub path: Utf8PathBuf,
    /// Package name.
    pub name: String,
    /// Its full version, with epoch.
    pub version: String,
    /// The release it was found in.
    pub release: String,
    /// SHA-256 of the file, as the signed package list has it.
    pub sha256: String,
}

impl FetchedPackage {
    /// `NAME=VERSION@RELEASE`, which asks for exactly this package again.
    #[must_use]
    pub fn pinned(&self) -> String {
        format!("{}={}@{}", self.name, self.version, self.release)
    }
}

/// Why a package did not come.
#[derive(Debug, Error)]
pub enum DebianError {
    /// There is no apt-get.
    #[error(
        "{package} is a Debian package, and apt-get is not installed here; install apt, or fetch the .deb \
         elsewhere (https://packages.debian.org) and give its path as deb:PATH, or a kernel as tarball:PATH"
    )]
    NoApt {
        /// What was asked for.
        package: String,
    },
    /// Debian's keys are missing.
    #[error(
        "Debian's archive keys are not on this host (looked for {looked_for}); \
         install the package debian-archive-keyring"
    )]
    NoKeyring {
        /// The file names.
        looked_for: String,
    },
    /// No release has it.
    #[error(
        "there is no package {package} in Debian {releases}; see https://packages.debian.org for its name{hint}"
    )]
    NotFound {
        /// What was asked for.
        package: String,
        /// Where it was looked for.
        releases: String,
        /// What else may help.
        hint: &'static str,
    },
    /// apt-get failed.
    #[error(
        "cannot {action}: {source}; check the network, and that the mirror in {sources} has Debian {release}"
    )]
    Apt {
        /// What was attempted.
        action: String,
        /// What apt-get said.
        source: Box<ProcessError>,
        /// The file that names the mirror.
        sources: Utf8PathBuf,
        /// The release.
        release: String,
    },
    /// apt-get said something that is not understood.
    #[error("apt-get announced {package} in an unknown way: `{said}`; report this as a bug of kdelta")]
    Answer {
        /// What was asked for.
        package: String,
        /// What it printed.
        said: String,
    },
    /// The package file is not readable.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file of the cache cannot be read or written.
    #[error("cannot {action} {path}: {source}; make room or choose another --cache folder")]
    Io {
        /// `write`, `create`.
        action: &'static str,
        /// Which file.
        path: Utf8PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The user asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

/// Fetches `package` into the cache and says which version of which release it is. A package
/// without a release is looked for in [`RELEASES`]. What was found is remembered: the same request
/// is answered offline from then on, unless it names no version and `refresh` is set.
///
/// # Errors
/// When no release has it, the network fails, or apt-get is missing.
pub fn fetch(
    ctx: &Context<'_>,
    package: &DebianPackage,
    refresh: bool,
) -> Result<FetchedPackage, DebianError> {
    let records = Records { folder: ctx.cache.downloads() };
    if (package.version.is_some() || !refresh)
        && let Some(known) = records.find(package)
    {
        return Ok(known);
    }
    let releases = match &package.release {
        Some(release) => vec![release.as_str()],
        None => RELEASES.to_vec(),
    };
    for release in &releases {
        let state = State::open(ctx, package, release)?;
        if let Some(offer) = state.look_up(ctx, package, refresh)? {
            let fetched = state.download(ctx, package, &offer)?;
            records.keep(package, &fetched)?;
            if package.release.is_none() {
                ctx.progress(
                    DOWNLOAD_STAGE,
                    offer.size,
                    Some(offer.size),
                    &format!("took {}", fetched.pinned()),
                );
            }
            return Ok(fetched);
        }
    }
    Err(DebianError::NotFound {
        package: package.to_string(),
        releases: releases.join(", "),
        hint: match package.version {
            Some(_) => {
                "; an archive keeps only the newest version: older ones are at https://snapshot.debian.org, to be given as deb:PATH"
            }
            None => "",
        },
    })
}

/// What was resolved earlier: one small file for each request.
struct Records {
    folder: Utf8PathBuf,
}

impl Records {
    fn path(&self, package: &DebianPackage) -> Utf8PathBuf {
        self.folder.join(format!("{package}.json"))
    }

    fn find(&self, package: &DebianPackage) -> Option<FetchedPackage> {
        let record: FetchedPackage = serde_json::from_slice(&fs::read(self.path(package)).ok()?).ok()?;
        // The cache may have been moved: the file lies beside its record.
        let path = self.folder.join(record.path.file_name()?);
        path.is_file().then_some(FetchedPackage { path, ..record })
    }

    fn keep(&self, asked: &DebianPackage, found: &FetchedPackage) -> Result<(), DebianError> {
        let record = serde_json::to_vec_pretty(found).unwrap_or_default();
        let exact = DebianPackage {
            name: found.name.clone(),
            version: Some(found.version.clone()),
            release: Some(found.release.clone()),
        };
        let any_release = DebianPackage { release: None, ..exact.clone() };
        for package in [asked, &exact, &any_release] {
            let path = self.path(package);
            write_atomically(&path, &record).map_err(|source| DebianError::Io {
                action: "write",
                path,
                source,
            })?;
        }
        Ok(())
    }
}

/// A package as apt-get announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    file: String,
    size: u64,
    sha256: String,
}

/// apt's state for one release, locked.
struct State {
    folder: Utf8PathBuf,
    release: String,
    _lock: Lock,
}

impl State {
    fn open(ctx: &Context<'_>, package: &DebianPackage, release: &str) -> Result<Self, DebianError> {
        let folder = ctx.cache.apt().join(release);
        let create =
            |path: &Utf8Path, source| DebianError::Io { action: "create", path: path.to_owned(), source };
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).map_err(|source| create(&folder, source))?;
        }
        let lock = folder.join("lock");
        let lock = Lock::acquire(&lock, ctx.cancel, || {
            ctx.progress(LISTS_STAGE, 0, None, "waiting for another kdelta that fetches packages");
        })
        .map_err(|source| create(&lock, source))?;
        let Some(keyring) = KEYRINGS.iter().find(|path| Utf8Path::new(path).is_file()) else {
            // Without the keys nothing can be fetched; without apt-get, keys would not help.
            return match Program::new("apt-get").arg("--version").output(ctx.cancel) {
                Err(ProcessError::Start { .. }) => Err(DebianError::NoApt { package: package.to_string() }),
                _ => Err(DebianError::NoKeyring { looked_for: KEYRINGS.join(", ") }),
            };
        };
        let sources = sources_file(release, &Mirrors::of_host(), keyring);
        for (name, text) in [("sources.list", sources.as_str()), ("apt.conf", APT_CONF), ("status", "")] {
            let path = folder.join(name);
            if fs::read(&path).ok().as_deref() != Some(text.as_bytes()) {
                write_atomically(&path, text.as_bytes()).map_err(|source| create(&path, source))?;
            }
        }
        Ok(Self { folder, release: release.to_owned(), _lock: lock })
    }

    fn apt_get(&self) -> Program {
        let file = |name: &str| self.folder.join(name);
        let mut program = Program::new("apt-get").arg("-c").arg(file("apt.conf").into_string());
        for (option, value) in [
            ("Dir::Etc::sourcelist", file("sources.list").into_string()),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::State::Lists", file("lists").into_string()),
            ("Dir::State::status", file("status").into_string()),
            ("Dir::Cache", file("cache").into_string()),
            // Images for containers switch these off, and then every call reads all lists again.
            ("Dir::Cache::pkgcache", "pkgcache.bin".into()),
            ("Dir::Cache::srcpkgcache", "srcpkgcache.bin".into()),
            ("Debug::NoLocking", "1".into()),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
            ("Acquire::Retries", "3".into()),
            // A list that could not be fetched is an error, not a warning.
            ("APT::Update::Error-Mode", "any".into()),
            ("APT::Architecture", "amd64".into()),
            ("APT::Architectures", "amd64".into()),
        ] {
            program = program.arg("-o").arg(format!("{option}={value}"));
        }
        if rustix::process::geteuid().is_root() {
            program = program.arg("-o").arg("APT::Sandbox::User=root");
        }
        program
    }

    /// What the release offers; `None` when it does not have the package.
    fn look_up(
        &self,
        ctx: &Context<'_>,
        package: &DebianPackage,
        refresh: bool,
    ) -> Result<Option<Offer>, DebianError> {
        let age = self.lists_age();
        let known = age.is_some();
        let mut updated = false;
        if age.is_none_or(|age| age > LISTS_AGE || (refresh && age > LISTS_FRESH)) {
            match self.update(ctx, package) {
                Ok(()) => updated = true,
                Err(error @ DebianError::Apt { .. }) if known => {
                    ctx.warn(format!("{error}; going on with the package lists of the last time"));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(offer) = self.ask(ctx, package)? {
            return Ok(Some(offer));
        }
        if !updated && self.lists_age().is_none_or(|age| age > LISTS_FRESH) {
            self.update(ctx, package)?;
            return self.ask(ctx, package);
        }
        Ok(None)
    }

    fn lists_age(&self) -> Option<Duration> {
        let written = fs::metadata(self.folder.join("updated")).ok()?.modified().ok()?;
        // Lists of another mirror are none at all; a stamp from the future has no age.
        let sources = fs::metadata(self.folder.join("sources.list")).ok()?.modified().ok()?;
        (written >= sources).then(|| SystemTime::now().duration_since(written).unwrap_or_default())
    }

    fn update(&self, ctx: &Context<'_>, package: &DebianPackage) -> Result<(), DebianError> {
        ctx.stage(LISTS_STAGE, &format!("Debian {}", self.release), || {
            self.apt_get().arg("update").output(ctx.cancel).map_err(|source| {
                self.apt_error(package, format!("update the package lists of {}", self.release), source)
            })?;
            let stamp = self.folder.join("updated");
            write_atomically(&stamp, b"").map_err(|source| DebianError::Io {
                action: "write",
                path: stamp.clone(),
                source,
            })?;
            Ok(((), String::new()))
        })
    }

    fn ask(&self, ctx: &Context<'_>, package: &DebianPackage) -> Result<Option<Offer>, DebianError> {
        let answer =
            self.apt_get().args(["download", "--print-uris"]).arg(wanted(package)).output(ctx.cancel);
        match answer {
            Ok(output) => match parse_offer(&output.text()) {
                Some(offer) => Ok(Some(offer)),
                None => Err(DebianError::Answer { package: package.to_string(), said: output.text() }),
            },
            Err(ProcessError::Failed { said, .. }) if is_not_found(&said) => Ok(None),
            Err(source) => Err(self.apt_error(package, format!("look up {package}"), source)),
        }
    }

    fn download(
        &self,
        ctx: &Context<'_>,
        package: &DebianPackage,
        offer: &Offer,
    ) -> Result<FetchedPackage, DebianError> {
        let path = ctx.cache.downloads().join(&offer.file);
        let present = digest_of(&path).is_ok_and(|file| file.sha256 == offer.sha256);
        if !present {
            ctx.stage(DOWNLOAD_STAGE, &format!("{} from Debian {}", offer.file, self.release), || {
                self.download_to(ctx, package, offer, &path)?;
                Ok::<_, DebianError>(((), format!("{:.1} MB", offer.size as f64 / 1e6)))
            })?;
        }
        let control = archive::deb_control(&path)?;
        let version = control_field(&control, "Version")
            .ok_or_else(|| DebianError::Answer { package: package.to_string(), said: control.clone() })?;
        Ok(FetchedPackage {
            path,
            name: package.name.clone(),
            version: version.to_owned(),
            release: self.release.clone(),
            sha256: offer.sha256.clone(),
        })
    }

    fn download_to(
        &self,
        ctx: &Context<'_>,
        package: &DebianPackage,
        offer: &Offer,
        path: &Utf8Path,
    ) -> Result<(), DebianError> {
        let write = |source| DebianError::Io { action: "write", path: path.to_owned(), source };
        let scratch = ctx.cache.scratch().map_err(write)?;
        let partial = self.folder.join("cache/archives/partial");
        let mut told = 0;
        let tick = || {
            // apt-get writes into one of the two, depending on its version.
            let done = folder_size(scratch.path()).max(folder_size(&partial)).min(offer.size);
            if done != told {
                told = done;
                ctx.progress(DOWNLOAD_STAGE, done, Some(offer.size), &offer.file);
            }
        };
        let log = self.folder.join("download.log");
        self.apt_get()
            .arg("download")
            .arg(wanted(package))
            .dir(scratch.path())
            .logged(&log, None, ctx.cancel, tick)
            .map_err(|source| self.apt_error(package, format!("download {package}"), source))?;
        let arrived = scratch.path().join(&offer.file);
        let found = digest_of(&arrived).map_err(write)?;
        if found.sha256 != offer.sha256 {
            let said = format!("{} with sha256 {} instead of {}", offer.file, found.sha256, offer.sha256);
            return Err(DebianError::Answer { package: package.to_string(), said });
        }
        fs::rename(&arrived, path).map_err(write)
    }

    fn apt_error(&self, package: &DebianPackage, action: String, source: ProcessError) -> DebianError {
        match source {
            ProcessError::Cancelled => DebianError::Cancelled,
            ProcessError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                DebianError::NoApt { package: package.to_string() }
            }
            source => DebianError::Apt {
                action,
                source: Box::new(source),
                sources: self.folder.join("sources.list"),
                release: self.release.clone(),
            },
        }
    }
}

/// Where the host gets Debian from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirrors {
    main: String,
    security: String,
}

impl Mirrors {
    fn of_host() -> Self {
        let mut texts = Vec::new();
        texts.extend(fs::read_to_string("/etc/apt/sources.list"));
        let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        let mut paths: Vec<_> = parts.map(|part| part.path()).collect();
        paths.sort();
        texts.extend(paths.iter().filter_map(|path| fs::read_to_string(path).ok()));
        Self::in_sources(&texts)
    }

    /// The first mirrors named in sources files of either syntax (sources.list(5)). A mirror is known
    /// by the last part of its address, as Debian's own layout has it.
    fn in_sources(texts: &[String]) -> Self {
        let (mut main, mut security) = (None, None);
        let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
        for line in
            lines.filter(|line| line.starts_with("deb ") || line.to_ascii_lowercase().starts_with("uris:"))
        {
            for uri in line.split_whitespace().filter(|word| word.starts_with("http")) {
                let uri = uri.trim_end_matches('/');
                if uri.ends_with("/debian") {
                    main.get_or_insert_with(|| uri.to_owned());
                } else if uri.ends_with("/debian-security") {
                    security.get_or_insert_with(|| uri.to_owned());
                }
            }
        }
        Self {
            main: main.unwrap_or_else(|| MIRROR.to_owned()),
            security: security.unwrap_or_else(|| SECURITY_MIRROR.to_owned()),
        }
    }
}

fn sources_file(release: &str, mirrors: &Mirrors, keyring: &str) -> String {
    let Mirrors { main, security } = mirrors;
    let line = |mirror: &str, suite: &str| format!("deb [signed-by={keyring}] {mirror} {suite} main\n");
    // sid, experimental and backports stand alone.
    if matches!(release, "sid" | "unstable" | "experimental") || release.contains("-backports") {
        return line(main, release);
    }
    [
        line(main, release),
        line(main, &format!("{release}-updates")),
        line(security, &format!("{release}-security")),
    ]
    .concat()
}

/// `NAME` or `NAME=VERSION`, as apt-get takes it.
fn wanted(package: &DebianPackage) -> String {
    DebianPackage { release: None, ..package.clone() }.to_string()
}

/// Reads `'URI' FILE SIZE SHA256:HEX`.
fn parse_offer(text: &str) -> Option<Offer> {
    let line = text.lines().find(|line| line.starts_with('\''))?;
    let mut words = line.rsplit_once("' ")?.1.split_whitespace();
    let (file, size, sum) = (words.next()?, words.next()?, words.next()?);
    let sha256 = sum.strip_prefix("SHA256:")?;
    let plain = file.ends_with(".deb") && !file.contains('/') && !file.starts_with('.');
    (plain && sha256.len() == 64).then_some(Offer {
        file: file.to_owned(),
        size: size.parse().ok()?,
        sha256: sha256.to_owned(),
    })
}

fn is_not_found(said: &str) -> bool {
    [
        "Unable to locate package",
        "was not found",
        "Can't find a source",
        "no installation candidate",
        "Can't select candidate",
    ]
    .iter()
    .any(|known| said.contains(known))
}

/// The value of a one-line field of a control file.
pub(crate) fn control_field<'t>(control: &'t str, name: &str) -> Option<&'t str> {
    let value = |line: &'t str| line.strip_prefix(name)?.strip_prefix(':');
    control.lines().find_map(value).map(str::trim)
}

fn folder_size(folder: &Utf8Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|it| it.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::tests::{Member, deb_of, tar_of};
    use crate::cancel::Cancel;
    use crate::event::Silent;
    use crate::layout::Cache;

    fn mirrors(texts: &[&str]) -> Mirrors {
        Mirrors::in_sources(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_host_s_mirror_is_found_in_both_syntaxes() {
        let expected = Mirrors {
            main: "http://m.example/debian".into(),
            security: "https://s.example/debian-security".into(),
        };
        let old = "# deb http://no.example/debian x main\n\
                   deb [arch=amd64] http://m.example/debian/ bookworm main\n\
                   deb https://s.example/debian-security bookworm-security main\n\
                   deb http://later.example/debian sid main\n";
        assert_eq!(mirrors(&[old]), expected);
        let new = "Types: deb\n# URIs: http://no.example/debian\nURIs: http://m.example/debian\nSuites: bookworm\n\n\
                   Types: deb\nURIs: https://s.example/debian-security/\nSuites: bookworm-security\n";
        assert_eq!(mirrors(&[new]), expected);
    }

    #[test]
    fn a_host_of_another_distribution_gets_debian_s_own_mirror() {
        let found = mirrors(&["deb http://archive.ubuntu.com/ubuntu noble main\n"]);
        assert_eq!(found, Mirrors { main: MIRROR.into(), security: SECURITY_MIRROR.into() });
    }

    #[test]
    fn a_stable_release_brings_its_updates_and_sid_stands_alone() {
        let mirrors = mirrors(&[]);
        assert_eq!(
            sources_file("trixie", &mirrors, "/k.gpg"),
            "deb [signed-by=/k.gpg] http://deb.debian.org/debian trixie main\n\
             deb [signed-by=/k.gpg] http://deb.debian.org/debian trixie-updates main\n\
             deb [signed-by=/k.gpg] http://deb.debian.org/debian-security trixie-security main\n"
        );
        assert_eq!(
            sources_file("sid", &mirrors, "/k.gpg"),
            "deb [signed-by=/k.gpg] http://deb.debian.org/debian sid main\n"
        );
    }

    #[test]
    fn an_offer_is_read_and_a_path_in_it_refused() {
        let sum = "b".repeat(64);
        let line =
            format!("'http://m/debian/pool/z/zlib1g_1.3_amd64.deb' zlib1g_1%3a1.3_amd64.deb 90 SHA256:{sum}");
        let expected = Offer { file: "zlib1g_1%3a1.3_amd64.deb".into(), size: 90, sha256: sum.clone() };
        assert_eq!(parse_offer(&format!("Reading lists...\n{line}\n")), Some(expected));
        assert_eq!(parse_offer(&format!("'http://m/x' ../x.deb 90 SHA256:{sum}")), None);
        assert_eq!(parse_offer("'http://m/x' x.deb 90 MD5Sum:12"), None);
        assert_eq!(parse_offer(""), None);
    }

    #[test]
    fn apt_s_ways_to_say_that_there_is_none_are_known() {
        assert!(is_not_found("E: Unable to locate package nosuch"));
        assert!(is_not_found("E: Version '1.2.3' for 'linux-image-cloud-amd64' was not found"));
        assert!(!is_not_found("E: Could not resolve host"));
    }

    #[test]
    fn a_request_that_was_answered_once_is_answered_offline() {
        let folder = tempfile::tempdir().expect("folder");
        let cache = Cache::open(Utf8Path::from_path(folder.path()).expect("UTF-8")).expect("cache");
        let cancel = Cancel::default();
        cancel.request();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let path = cache.downloads().join("p_2_amd64.deb");
        fs::write(&path, deb_of("Package: p\nVersion: 1:2\n", &tar_of(&[Member::File("./x", b"x")]), ""))
            .expect("deb");
        let found = FetchedPackage {
            path,
            name: "p".into(),
            version: "1:2".into(),
            release: "bookworm".into(),
            sha256: "0".repeat(64),
        };
        let asked: DebianPackage = "p".parse().expect("package");
        Records { folder: cache.downloads() }.keep(&asked, &found).expect("record");
        for request in ["p", "p=1:2", "p=1:2@bookworm"] {
            let package = request.parse().expect("package");
            assert_eq!(fetch(&ctx, &package, false).expect(request), found);
        }
        let pinned = found.pinned().parse().expect("package");
        assert_eq!(fetch(&ctx, &pinned, true).expect("an exact version needs no refresh"), found);
    }

    #[test]
    fn a_control_field_is_read() {
        let control = "Package: p\nVersion: 1:2-3\nDepends: a,\n b\n";
        assert_eq!(control_field(control, "Version"), Some("1:2-3"));
        assert_eq!(control_field(control, "Source"), None);
    }
}
