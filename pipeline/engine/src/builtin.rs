//! The files of `configs/` that are compiled in, so that kdelta works from any folder. A name
//! without a slash or dot means one of these; anything else is a path.

use std::fs;

use camino::Utf8Path;
use kdelta_model::GuestShape;

/// Kernel configuration fragments, by name.
pub const FRAGMENTS: &[(&str, &str)] = &[
    ("guest", include_str!("../../../configs/kernel/guest.config")),
    ("tmpfs", include_str!("../../../configs/kernel/tmpfs.config")),
    ("xfs", include_str!("../../../configs/kernel/xfs.config")),
    ("ext4", include_str!("../../../configs/kernel/ext4.config")),
    ("btrfs", include_str!("../../../configs/kernel/btrfs.config")),
    ("disk-ram", include_str!("../../../configs/kernel/disk-ram.config")),
    ("disk-nvme", include_str!("../../../configs/kernel/disk-nvme.config")),
    ("disk-virtio-blk", include_str!("../../../configs/kernel/disk-virtio-blk.config")),
    ("lsm-smack", include_str!("../../../configs/kernel/lsm-smack.config")),
    ("lsm-selinux", include_str!("../../../configs/kernel/lsm-selinux.config")),
    ("preempt-dynamic", include_str!("../../../configs/kernel/preempt-dynamic.config")),
];

/// Guest shapes, by name.
pub const GUESTS: &[(&str, &str)] = &[
    ("tmpfs", include_str!("../../../configs/guests/tmpfs.yaml")),
    ("ram", include_str!("../../../configs/guests/ram.yaml")),
    ("nvme", include_str!("../../../configs/guests/nvme.yaml")),
    ("virtio-blk", include_str!("../../../configs/guests/virtio-blk.yaml")),
];

/// Why a named file could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// No such name.
    #[error(
        "there is no {kind} called {name:?}; known: {known}; for a file of your own give its path, such as ./{name}"
    )]
    Unknown {
        /// `kernel fragment` or `guest shape`.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A path that cannot be read.
    #[error("cannot read {kind} {path}: {source}")]
    Read {
        /// `kernel fragment` or `guest shape`.
        kind: &'static str,
        /// The path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A guest shape that is no guest shape.
    #[error("guest shape {name}: {source}")]
    Shape {
        /// Name or path.
        name: String,
        /// Where and why.
        source: serde_yaml::Error,
    },
}

/// Text of the fragment `name`; a path is taken relative to `folder`.
///
/// # Errors
/// When there is no such fragment.
pub fn fragment(name: &str, folder: &Utf8Path) -> Result<String, BuiltinError> {
    text("kernel fragment", FRAGMENTS, name, folder)
}

/// The guest shape `name`; a path is taken relative to `folder`.
///
/// # Errors
/// When there is no such shape or it is malformed.
pub fn guest(name: &str, folder: &Utf8Path) -> Result<GuestShape, BuiltinError> {
    let text = text("guest shape", GUESTS, name, folder)?;
    serde_yaml::from_str(&text).map_err(|source| BuiltinError::Shape { name: name.to_owned(), source })
}

/// Whether a name means a file rather than something built in.
#[must_use]
pub fn is_path(name: &str) -> bool {
    name.contains(['/', '.'])
}

fn text(
    kind: &'static str,
    table: &[(&str, &str)],
    name: &str,
    folder: &Utf8Path,
) -> Result<String, BuiltinError> {
    if let Some((_, text)) = table.iter().find(|(known, _)| *known == name) {
        return Ok((*text).to_owned());
    }
    if is_path(name) {
        let path = folder.join(name);
        return fs::read_to_string(&path).map_err(|source| BuiltinError::Read {
            kind,
            path: path.to_string(),
            source,
        });
    }
    let known: Vec<&str> = table.iter().map(|(known, _)| *known).collect();
    Err(BuiltinError::Unknown { kind, name: name.to_owned(), known: known.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_guest_is_well_formed() {
        for (name, _) in GUESTS {
            guest(name, Utf8Path::new(".")).expect(name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = guest("nvm", Utf8Path::new(".")).expect_err("unknown").to_string();
        assert!(error.contains("nvme") && error.contains("./nvm"), "{error}");
    }
}
