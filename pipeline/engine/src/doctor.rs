//! Looks at the machine: programs, KVM, memory, disk. Read [`examine`] first; it changes nothing.

use std::fs;
use std::time::Duration;

use camino::Utf8Path;

use crate::cancel::Cancel;
use crate::host;
use crate::process::Program;
use crate::vm::QEMU;

/// A first kernel tree with its objects and a run need about this much, in GiB.
const DISK_GIB: u64 = 8;
/// A guest of 1 GiB beside a compiler, in MiB.
const MEMORY_MIB: u64 = 3 * 1024;

/// Programs that building and booting need, with the Debian package of each.
pub const PROGRAMS: &[(&str, &str)] = &[
    (QEMU, "qemu-system-x86"),
    ("make", "make"),
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl-base"),
    ("git", "git"),
    ("apt-get", "apt"),
    ("taskset", "util-linux"),
];

/// Headers that a kernel build needs, with the Debian package of each. objtool reads ELF files
/// through libelf (tools/objtool/Makefile).
pub const HEADERS: &[(&str, &str)] =
    &[("/usr/include/libelf.h", "libelf-dev"), ("/usr/include/gelf.h", "libelf-dev")];

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// As it should be.
    Good,
    /// Works, with a limit that is worth knowing.
    Limited,
    /// Must be mended before a run.
    Missing,
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it is.
    pub health: Health,
    /// What was found.
    pub found: String,
    /// What mends it.
    pub remedy: Option<String>,
}

impl Check {
    /// Something in order.
    pub fn good(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), health: Health::Good, found: found.into(), remedy: None }
    }

    /// Something that must be mended.
    pub fn bad(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), health: Health::Missing, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn limited(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), health: Health::Limited, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// Looks at everything; `cache` need not exist.
#[must_use]
pub fn examine(cache: &Utf8Path) -> Vec<Check> {
    let mut checks: Vec<Check> =
        PROGRAMS.iter().map(|(program, package)| check_program(program, package)).collect();
    for (header, package) in HEADERS {
        checks.push(match fs::metadata(header) {
            Ok(_) => Check::good(*header, "present"),
            Err(_) => Check::bad(*header, "missing", install(package)),
        });
    }
    let memory = host::facts().memory_mib;
    checks.push(match memory {
        enough if enough >= MEMORY_MIB => Check::good("memory", format!("{enough} MiB")),
        little => Check::limited(
            "memory",
            format!("{little} MiB, {MEMORY_MIB} are comfortable"),
            "run one guest at a time: --jobs 1",
        ),
    });
    checks.push(check_disk(cache));
    checks
}

fn check_program(program: &str, package: &str) -> Check {
    let asked =
        Program::new(program).arg("--version").deadline(Duration::from_secs(10)).output(&Cancel::default());
    match asked {
        Ok(output) => Check::good(program, output.text().lines().next().unwrap_or_default().to_owned()),
        Err(error) => Check::bad(program, error.to_string(), install(package)),
    }
}

fn install(package: &str) -> String {
    format!("apt-get install {package}")
}

/// What the KVM probe said; `None` when no kernel is in the store to boot yet.
#[must_use]
pub fn check_kvm(answer: Option<Result<(), String>>) -> Check {
    const REMEDY: &str = "nothing to do for `measure: instructions`, which needs no KVM";
    match answer {
        Some(Ok(())) => Check::good("kvm", "a probe guest booted: wall time can be measured"),
        Some(Err(why)) => Check::limited("kvm", format!("no wall time here: {why}"), REMEDY),
        None => Check::limited(
            "kvm",
            "not probed: that takes a kernel to boot, and none is in the store yet",
            "run `make demo` (or any experiment), then `kdelta doctor` again",
        ),
    }
}

fn check_disk(cache: &Utf8Path) -> Check {
    let existing = cache.ancestors().find(|folder| folder.exists()).unwrap_or(Utf8Path::new("/"));
    match rustix::fs::statvfs(existing.as_std_path()) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize) >> 30;
            let found = format!("{free} GiB free for the cache {cache}");
            match free {
                enough if enough >= DISK_GIB => Check::good("disk", found),
                _ => Check::bad(
                    "disk",
                    format!("{found}, {DISK_GIB} are needed"),
                    "name a folder with more space: --cache DIR",
                ),
            }
        }
        Err(error) => Check::bad(
            "disk",
            format!("cannot look at {existing}: {error}"),
            "name another folder: --cache DIR",
        ),
    }
}
