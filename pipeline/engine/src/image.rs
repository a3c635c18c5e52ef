//! The guest's initramfs: init, mkfs programs and modules, kept by fingerprint; the job is added
//! per boot. Read [`make`] first.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::Digest;
use kdelta_wire::{FilesystemKind, JOB_PATH, Job, MODULE_DIR};
use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::initramfs::{self, Content, Entry, InitramfsError};
use crate::kernel::digest_of;
use crate::layout::Context;
use crate::modules::Module;
use crate::userland::{self, Tool, UserlandError};

/// An initramfs that lacks only its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestImage {
    /// The archive.
    pub path: Utf8PathBuf,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Digest of the init inside it.
    pub init_digest: Digest,
    /// Debian packages of its programs, with versions.
    pub userland: Vec<String>,
}

/// Why an initramfs could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The init is missing.
    #[error(
        "cannot read the guest's init {path}: {source}; build it with `make guest`, or name it with --init"
    )]
    Init {
        /// Where it was looked for.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The init needs a dynamic loader, which no guest has.
    #[error(
        "{path} is not a static executable, and a guest has no dynamic loader; build the init with `make guest`"
    )]
    NotStatic {
        /// The init.
        path: Utf8PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The guest's programs cannot be had.
    #[error(transparent)]
    Userland(#[from] UserlandError),
    /// The archive cannot be written.
    #[error(transparent)]
    Archive(#[from] InitramfsError),
    /// The job cannot be written as JSON.
    #[error("the job cannot be written: {0}")]
    Job(#[from] serde_json::Error),
}

/// Makes the initramfs for `filesystems` and `modules`, or finds it in the cache.
///
/// # Errors
/// When the init or a program is missing, or the archive cannot be written.
pub fn make(
    ctx: &Context,
    init: &Utf8Path,
    filesystems: &BTreeSet<FilesystemKind>,
    modules: &[Module],
    refresh: bool,
) -> Result<GuestImage, ImageError> {
    make_with(ctx, init, filesystems, &[], modules, refresh)
}

/// As [`make`], with `tools` besides.
///
/// # Errors
/// As [`make`].
pub fn make_with(
    ctx: &Context,
    init: &Utf8Path,
    filesystems: &BTreeSet<FilesystemKind>,
    tools: &[Tool],
    modules: &[Module],
    refresh: bool,
) -> Result<GuestImage, ImageError> {
    let program = fs::read(init).map_err(|source| ImageError::Init { path: init.to_owned(), source })?;
    if !is_static(&program) {
        return Err(ImageError::NotStatic { path: init.to_owned() });
    }
    let init_digest = digest_of(&program);
    let mut key = blake3::Hasher::new();
    key.update(init_digest.0.as_bytes());
    let mut entries = vec![Entry { path: "/init".into(), mode: 0o755, content: Content::Bytes(program) }];
    let kinds: Vec<FilesystemKind> = filesystems.iter().copied().collect();
    let userland = userland::collect_with(ctx, &kinds, tools, refresh)?;
    key.update(userland.digest.0.as_bytes());
    for file in userland.files {
        entries.push(Entry { path: file.guest, mode: file.mode, content: Content::Host(file.host) });
    }
    for module in modules {
        let path = Utf8PathBuf::from(format!("{MODULE_DIR}/{}.ko", module.name));
        key.update(path.as_str().as_bytes());
        key.update(blake3::hash(&module.bytes).as_bytes());
        entries.push(Entry { path, mode: 0o644, content: Content::Bytes(module.bytes.clone()) });
    }
    let path = ctx.cache.images().join(format!("{}.cpio", key.finalize().to_hex()));
    if !path.exists() {
        initramfs::write(ctx, &entries, &path)?;
    }
    let bytes =
        fs::read(&path).map_err(|source| ImageError::File { action: "read", path: path.clone(), source })?;
    Ok(GuestImage { digest: digest_of(&bytes), path, init_digest, userland: userland.packages })
}

/// Whether `program` is an ELF executable that asks for no dynamic loader (PT_INTERP, elf(5)).
#[must_use]
pub fn is_static(program: &[u8]) -> bool {
    let Ok(header) = FileHeader64::<Endianness>::parse(program) else { return false };
    let Ok(endian) = header.endian() else { return false };
    let Ok(segments) = header.program_headers(endian, program) else { return false };
    !segments.is_empty() && segments.iter().all(|segment| segment.p_type(endian) != PT_INTERP)
}

/// Writes `image` with `job` added as a second archive, which the kernel unpacks after the first
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
///
/// # Errors
/// When the file cannot be written.
pub fn with_job(image: &GuestImage, job: &Job, out: &Utf8Path) -> Result<(), ImageError> {
    let text = serde_json::to_vec(job)?;
    let segment =
        initramfs::segment(&[Entry { path: JOB_PATH.into(), mode: 0o644, content: Content::Bytes(text) }])?;
    let error = |action| move |source| ImageError::File { action, path: out.to_owned(), source };
    fs::copy(&image.path, out).map_err(error("copy the initramfs to"))?;
    let mut file = File::options().append(true).open(out).map_err(error("open"))?;
    file.write_all(&segment).map_err(error("write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_a_loader_is_told_from_one_that_does_not() {
        let ours = fs::read("/proc/self/exe").expect("this test");
        assert!(!is_static(&ours), "tests are linked dynamically");
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b"\x7fELF"));
        assert!(!is_static(&[]));
    }
}
