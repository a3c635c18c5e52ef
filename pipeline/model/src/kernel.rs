//! Where a kernel comes from and what was built. Read [`KernelRequest`] first, then
//! [`KernelIdentity`].

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ParseError, text_value};

/// A kernel as asked for: source, patches and configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRequest {
    /// Where the source or the ready-made kernel comes from.
    pub source: KernelSource,
    /// Applied on top, in order.
    pub patches: Vec<PatchSource>,
    /// What the configuration starts from.
    pub base: ConfigBase,
    /// Names of fragments in `configs/kernel/`, or paths, merged in order.
    pub fragments: Vec<String>,
    /// Single options that win over the fragments, as `CONFIG_FOO=y`.
    pub options: Vec<String>,
    /// Whether this is the placebo: the same source, with a change that does nothing.
    pub placebo: bool,
}

/// Where a kernel comes from, written as `kind:place`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelSource {
    /// `debian:linux-source-6.12`: a source package of Debian.
    Debian(DebianPackage),
    /// `tarball:PATH` or `tarball:URL#sha256=HEX`.
    Tarball {
        /// Path or URL.
        location: String,
        /// Required for a URL, checked for a path when given.
        sha256: Option<String>,
    },
    /// `git:REPOSITORY#REVISION`; the repository is a local path or a URL.
    Git {
        /// Path or URL.
        repository: String,
        /// Anything that `git rev-parse` knows.
        revision: String,
    },
    /// `dir:PATH`: a source tree, read and never written.
    Dir {
        /// The tree.
        path: String,
    },
    /// `image:PATH`: a bzImage or vmlinux.
    Image {
        /// The file.
        path: String,
    },
    /// `deb:PATH.deb` or `deb:linux-image-6.12.57-cloud-amd64`: a kernel package.
    Deb(DebLocation),
}

/// A package by name, with an optional version and release: `NAME[=VERSION][@RELEASE]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DebianPackage {
    /// Package name.
    pub name: String,
    /// Exact version; the newest when absent.
    pub version: Option<String>,
    /// Release such as `trixie`; the first that has the package when absent.
    pub release: Option<String>,
}

/// A kernel package as a file or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DebLocation {
    /// A file that exists already.
    File(String),
    /// A package to download.
    Package(DebianPackage),
}

impl KernelSource {
    /// The same source with relative paths starting from `folder`.
    #[must_use]
    pub fn under(&self, folder: &str) -> Self {
        match self {
            Self::Tarball { location, sha256 } => {
                Self::Tarball { location: place_under(folder, location), sha256: sha256.clone() }
            }
            Self::Git { repository, revision } => {
                Self::Git { repository: place_under(folder, repository), revision: revision.clone() }
            }
            Self::Dir { path } => Self::Dir { path: place_under(folder, path) },
            Self::Image { path } => Self::Image { path: place_under(folder, path) },
            Self::Deb(DebLocation::File(path)) => Self::Deb(DebLocation::File(place_under(folder, path))),
            other => other.clone(),
        }
    }

    /// Whether it is compiled here (and so takes patches and a configuration).
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        !matches!(self, Self::Image { .. } | Self::Deb(_))
    }
}

impl FromStr for DebianPackage {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (rest, release) = split_optional(text, '@');
        let (name, version) = split_optional(rest, '=');
        let legal = |part: &str, extra: &str| {
            !part.is_empty()
                && part.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
        };
        let fits = legal(name, "+.-")
            && version.is_none_or(|version| legal(version, "+.-~:"))
            && release.is_none_or(|release| legal(release, ".-"));
        if !fits {
            return Err(ParseError::new("a Debian package NAME[=VERSION][@RELEASE]", text));
        }
        Ok(Self {
            name: name.to_owned(),
            version: version.map(str::to_owned),
            release: release.map(str::to_owned),
        })
    }
}

impl fmt::Display for DebianPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(version) = &self.version {
            write!(f, "={version}")?;
        }
        if let Some(release) = &self.release {
            write!(f, "@{release}")?;
        }
        Ok(())
    }
}

impl FromStr for KernelSource {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || {
            ParseError::new(
                "a kernel: debian:linux-source-6.12, tarball:PATH, tarball:URL#sha256=HEX, \
                 git:REPOSITORY#REVISION, dir:PATH, image:PATH, deb:PATH or deb:PACKAGE",
                text,
            )
        };
        let (kind, place) = text.split_once(':').ok_or_else(wrong)?;
        if place.is_empty() {
            return Err(wrong());
        }
        match kind {
            "debian" => Ok(Self::Debian(place.parse()?)),
            "tarball" => {
                let (location, fragment) = split_optional(place, '#');
                let sha256 = match fragment {
                    None => None,
                    Some(fragment) => {
                        let digest = fragment.strip_prefix("sha256=").unwrap_or_default();
                        if digest.len() != 64 || !digest.chars().all(|c| c.is_ascii_hexdigit()) {
                            return Err(ParseError::new("sha256= and 64 hexadecimal digits", fragment));
                        }
                        Some(digest.to_ascii_lowercase())
                    }
                };
                if is_url(location) && sha256.is_none() {
                    return Err(ParseError::new(
                        "a tarball URL with its checksum: tarball:URL#sha256=HEX",
                        text,
                    ));
                }
                Ok(Self::Tarball { location: location.to_owned(), sha256 })
            }
            "git" => {
                let (repository, revision) = place.rsplit_once('#').ok_or_else(|| {
                    ParseError::new("a repository and a revision: git:REPOSITORY#REVISION", text)
                })?;
                if repository.is_empty() || revision.is_empty() || revision.starts_with('-') {
                    return Err(ParseError::new("git:REPOSITORY#REVISION", text));
                }
                Ok(Self::Git { repository: repository.to_owned(), revision: revision.to_owned() })
            }
            "dir" => Ok(Self::Dir { path: place.to_owned() }),
            "image" => Ok(Self::Image { path: place.to_owned() }),
            "deb" if place.ends_with(".deb") => Ok(Self::Deb(DebLocation::File(place.to_owned()))),
            "deb" => Ok(Self::Deb(DebLocation::Package(place.parse()?))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(package) => write!(f, "debian:{package}"),
            Self::Tarball { location, sha256: None } => write!(f, "tarball:{location}"),
            Self::Tarball { location, sha256: Some(digest) } => {
                write!(f, "tarball:{location}#sha256={digest}")
            }
            Self::Git { repository, revision } => write!(f, "git:{repository}#{revision}"),
            Self::Dir { path } => write!(f, "dir:{path}"),
            Self::Image { path } => write!(f, "image:{path}"),
            Self::Deb(DebLocation::File(path)) => write!(f, "deb:{path}"),
            Self::Deb(DebLocation::Package(package)) => write!(f, "deb:{package}"),
        }
    }
}

text_value!(
    KernelSource,
    "KernelSource",
    "a kernel: debian:linux-source-6.12, tarball:PATH, tarball:URL#sha256=HEX, git:REPOSITORY#REVISION, dir:PATH, image:PATH or deb:PACKAGE"
);

/// Where patches come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PatchSource {
    /// A patch file, an mbox, or a directory of them (order of its `series` file, else by name).
    Path(String),
    /// `git:REPOSITORY#A..B`: the commits of a range, oldest first.
    GitRange {
        /// Path or URL.
        repository: String,
        /// `A..B`.
        range: String,
    },
}

impl PatchSource {
    /// The same patches with relative paths starting from `folder`.
    #[must_use]
    pub fn under(&self, folder: &str) -> Self {
        match self {
            Self::Path(path) => Self::Path(place_under(folder, path)),
            Self::GitRange { repository, range } => {
                Self::GitRange { repository: place_under(folder, repository), range: range.clone() }
            }
        }
    }
}

impl FromStr for PatchSource {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::new("a patch file, mbox, directory or git:REPOSITORY#A..B", text));
        }
        let Some(place) = text.strip_prefix("git:") else {
            return Ok(Self::Path(text.to_owned()));
        };
        match place.rsplit_once('#') {
            Some((repository, range))
                if !repository.is_empty() && range.contains("..") && !range.starts_with('-') =>
            {
                Ok(Self::GitRange { repository: repository.to_owned(), range: range.to_owned() })
            }
            _ => Err(ParseError::new("a range of commits: git:REPOSITORY#A..B", text)),
        }
    }
}

impl fmt::Display for PatchSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::GitRange { repository, range } => write!(f, "git:{repository}#{range}"),
        }
    }
}

text_value!(
    PatchSource,
    "PatchSource",
    "a patch file, an mbox, a directory of patches, or git:REPOSITORY#A..B"
);

/// What a kernel configuration starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConfigBase {
    /// `make allnoconfig`: the smallest kernel, the default.
    #[default]
    Allnoconfig,
    /// `make defconfig`.
    Defconfig,
    /// `source`: the `.config` that lies in the source tree.
    Source,
    /// `file:PATH`.
    File(String),
}

impl FromStr for ConfigBase {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "allnoconfig" => Ok(Self::Allnoconfig),
            "defconfig" => Ok(Self::Defconfig),
            "source" => Ok(Self::Source),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Self::File(path.to_owned())),
                _ => Err(ParseError::new("allnoconfig, defconfig, source or file:PATH", text)),
            },
        }
    }
}

impl fmt::Display for ConfigBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allnoconfig => f.write_str("allnoconfig"),
            Self::Defconfig => f.write_str("defconfig"),
            Self::Source => f.write_str("source"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

text_value!(ConfigBase, "ConfigBase", "allnoconfig, defconfig, source or file:PATH");

/// A hexadecimal BLAKE3 or git digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Digest(pub String);

impl Digest {
    /// The first 12 digits, as reports show it.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Everything that says which kernel was measured; two kernels with equal identities are the same
/// bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelIdentity {
    /// The source as asked for, with the version that was found.
    pub source: String,
    /// Digest of the source before patches: archive, git tree, or content of a directory.
    pub source_digest: Digest,
    /// Commit, when the source is a git revision.
    pub commit: Option<String>,
    /// Subjects of the patches applied, or their file names.
    pub patches: Vec<String>,
    /// Digest of the patches' text; `None` without patches.
    pub patch_digest: Option<Digest>,
    /// Digest of the final configuration; `None` for a ready-made kernel.
    pub config_digest: Option<Digest>,
    /// `KERNELRELEASE`, as `uname -r` prints it.
    pub release: String,
    /// First line of `gcc --version`, or what the package says.
    pub compiler: String,
    /// `KBUILD_BUILD_USER@HOST, timestamp, #version` of the build.
    pub build_stamp: String,
    /// GNU build id of vmlinux, when it has one.
    pub build_id: Option<String>,
    /// Digest of the file that QEMU boots.
    pub image_digest: Digest,
    /// Whether it is the placebo build.
    pub placebo: bool,
    /// Debug options found on that distort performance (KASAN, lockdep and their kind).
    pub debug_options: Vec<String>,
}

/// Whether a location is fetched over the network rather than read from a path.
#[must_use]
pub fn is_url(location: &str) -> bool {
    location.contains("://")
}

/// A location that starts from `folder`; URLs, `host:path` of git and absolute paths stay.
fn place_under(folder: &str, location: &str) -> String {
    let remote = is_url(location) || location.split('/').next().is_some_and(|first| first.contains(':'));
    if remote || location.starts_with('/') {
        return location.to_owned();
    }
    format!("{}/{}", folder.trim_end_matches('/'), location.trim_start_matches("./"))
}

/// Splits at the last `mark`, when there is one.
fn split_optional(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.rsplit_once(mark) {
        Some((head, tail)) => (head, Some(tail)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str) {
        let source: KernelSource = text.parse().expect(text);
        assert_eq!(source.to_string(), text);
    }

    #[test]
    fn every_kind_of_source_reads_and_writes_the_same_text() {
        let digest = "0".repeat(64);
        round_trip("debian:linux-source-6.12");
        round_trip("debian:linux-source-6.12=6.12.57-1@trixie");
        round_trip("tarball:/tmp/linux.tar.xz");
        round_trip(&format!("tarball:https://example.org/linux.tar.xz#sha256={digest}"));
        round_trip("git:/src/linux#v6.12^");
        round_trip("git:https://example.org/linux.git#v6.12");
        round_trip("dir:/src/linux");
        round_trip("image:/boot/vmlinuz");
        round_trip("deb:linux-image-6.12.57+deb13-cloud-amd64@trixie");
        round_trip("deb:./linux-image.deb");
    }

    #[test]
    fn a_source_that_cannot_be_is_refused_with_what_was_given() {
        for text in [
            "",
            "linux",
            "debian:",
            "debian:../x",
            "ftp:x",
            "git:/src/linux",
            "git:/src#--upload-pack=x",
            "tarball:https://example.org/linux.tar.xz",
            "tarball:x#sha256=12",
            "debian:a b",
        ] {
            let error = text.parse::<KernelSource>().expect_err(text);
            assert!(error.to_string().contains(" is not "), "{error}");
        }
    }

    #[test]
    fn relative_places_start_from_a_folder_and_others_stay() {
        let under = |text: &str| text.parse::<KernelSource>().expect(text).under("/e").to_string();
        assert_eq!(under("dir:linux"), "dir:/e/linux");
        assert_eq!(under("git:../linux#v6.12"), "git:/e/../linux#v6.12");
        assert_eq!(under("git:host:linux.git#v6.12"), "git:host:linux.git#v6.12");
        assert_eq!(under("deb:./linux-image.deb"), "deb:/e/linux-image.deb");
        assert_eq!(under("image:/boot/vmlinuz"), "image:/boot/vmlinuz");
        assert_eq!(under("debian:linux-source-6.12"), "debian:linux-source-6.12");
        let patch = |text: &str| text.parse::<PatchSource>().expect(text).under("/e/").to_string();
        assert_eq!(patch("a.patch"), "/e/a.patch");
        assert_eq!(patch("git:linux#a..b"), "git:/e/linux#a..b");
    }

    #[test]
    fn a_patch_is_a_path_or_a_range() {
        assert_eq!("a.patch".parse(), Ok(PatchSource::Path("a.patch".into())));
        assert_eq!("git:/r#a..b".parse::<PatchSource>().expect("range").to_string(), "git:/r#a..b");
        assert!("git:/r#a".parse::<PatchSource>().is_err());
    }
}
