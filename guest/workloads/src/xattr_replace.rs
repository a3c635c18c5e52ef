//! Replacing the value of an attribute that lies inside of the inode. Read [`XattrReplace`] first.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use kdelta_wire::FilesystemKind;
use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use crate::round::{failed, lost, open_root};
use crate::sys::ioctls::BulkRequest;
use crate::{
    CheckInfo, Domain, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext, ScenarioInfo, Setting,
    Workload, WorkloadError, WorkloadInfo, sys,
};

const PHASE: &str = "replace";
const VALUES: &str = "values";
const INLINE: &str = "attributes inside of inodes";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "xattr-replace",
    title: "replace attribute values",
    summary: "Gives files that have one small attribute another value of it, by fsetxattr(2) on open files; \
              only the loop of these calls is timed.",
    source: "Christoph Hellwig and Darrick Wong on replacing short attributes in place, in the mails to \
             linux-xfs about faster parent pointers",
    scenarios: &[
        ScenarioInfo {
            name: "same-size",
            summary: "another value of the same size, once for every file",
            default: true,
        },
        ScenarioInfo { name: "grown", summary: "a longer value, once for every file", default: true },
        ScenarioInfo {
            name: "update",
            summary: "values of one size, `turns` times for every file, as a program that keeps state in one",
            default: false,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "files",
            summary: "files, all open",
            unit: "files",
            domain: Domain::Integer { default: 10_000, min: 1, max: 400_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "value_bytes",
            summary: "size of the first value; the default fits into the inodes of XFS (512 bytes) and ext4 (256)",
            unit: "bytes",
            domain: Domain::Integer { default: 32, min: 1, max: 1024 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "grow_bytes",
            summary: "by how much the second value is longer",
            unit: "bytes",
            domain: Domain::Integer { default: 16, min: 1, max: 1024 },
            scenarios: &["grown"],
        },
        ParameterInfo {
            name: "turns",
            summary: "passes over all files",
            unit: "turns",
            domain: Domain::Integer { default: 10, min: 1, max: 1_000_000 },
            scenarios: &["update"],
        },
        ParameterInfo {
            name: "namespace",
            summary: "namespace of the attribute; tmpfs has user attributes since linux 6.6 only",
            unit: "",
            domain: Domain::Choice { default: "user", choices: &["user", "trusted"] },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo { name: PHASE, operation: "one fsetxattr", primary: true, scenarios: &[] }],
    measures: &[],
    checks: &[
        CheckInfo {
            name: VALUES,
            summary: "every file has the value that was set last",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "same-size", inject: "fsetxattr:retval=0:when=30" },
        },
        CheckInfo {
            name: INLINE,
            summary: "XFS, as root: of every 1000th file, the attribute is inside of the inode",
            scenarios: &[],
            filesystems: &[FilesystemKind::Xfs],
            proof: Proof::Test("an_attribute_in_a_block_of_its_own_fails_the_check"),
        },
    ],
    refusals: &[],
    scale: "files",
    presets: &[
        Preset {
            name: "source",
            // 512 MiB of ext4 have 32,768 inodes.
            summary: "20,000 files; the mails name no numbers",
            values: &[("files", Setting::Integer(20_000))],
        },
        Preset {
            name: "guest",
            summary: "5,000 files, which fit a guest of 1 GiB; ten turns in `update`",
            values: &[("files", Setting::Integer(5_000)), ("turns", Setting::Integer(10))],
        },
        Preset {
            name: "quick",
            summary: "20 files, for a first look",
            values: &[("files", Setting::Integer(20)), ("turns", Setting::Integer(3))],
        },
    ],
};

/// The workload `xattr-replace`.
pub(crate) struct XattrReplace;

impl Workload for XattrReplace {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let files = Files::make(round)?;
        round.sync()?;
        files.replace(round)?;
        files.verify(round)?;
        files.close(round)
    }
}

/// Open files with an attribute each.
struct Files {
    files: Vec<OwnedFd>,
    name: CString,
    /// Values for the first and every second turn, and for those between.
    values: [Vec<u8>; 2],
    turns: u64,
}

impl Files {
    fn make(round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let count = round.integer("files")?;
        let root = open_root(round.mount_point())?;
        let path = round.mount_point().to_owned();
        sys::allow_open_files(count).map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", &path, errno))?;
        let turns = round.integer("turns").unwrap_or(1);
        let size = round.integer("value_bytes")? as usize;
        let grown = size + round.integer("grow_bytes").unwrap_or(0) as usize;
        let mut rng = round.rng();
        let mut value = |size| {
            let mut bytes = vec![0; size];
            rng.fill_bytes(&mut bytes);
            bytes
        };
        let first = value(size);
        let values = [value(grown), value(grown)];
        let name = CString::new(format!("{}.kdelta", round.choice("namespace")?)).unwrap_or_default();
        let mut files = Vec::with_capacity(count as usize);
        for number in 0..count as usize {
            let file_name = CString::new(file_name(number)).unwrap_or_default();
            let file =
                sys::create(root.as_fd(), &file_name).map_err(|errno| failed("openat", &path, errno))?;
            sys::fsetxattr(file.as_fd(), &name, &first).map_err(|errno| match errno {
                Errno::OPNOTSUPP => WorkloadError::NoAttributes { name: name.to_string_lossy().into_owned() },
                errno => failed("fsetxattr", &path, errno),
            })?;
            files.push(file);
        }
        for call in ["openat", "fsetxattr", "close"] {
            round.count(call, count, count);
        }
        Ok(Self { files, name, values, turns })
    }

    fn replace(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let path = round.mount_point().to_owned();
        let calls = self.files.len() as u64 * self.turns;
        round.phase(PHASE, calls, || {
            for turn in 0..self.turns {
                let value = &self.values[(turn & 1) as usize];
                for file in &self.files {
                    sys::fsetxattr(file.as_fd(), &self.name, value)
                        .map_err(|errno| failed("fsetxattr", &path, errno))?;
                }
            }
            Ok(())
        })?;
        round.count("fsetxattr", calls, calls);
        Ok(())
    }

    fn verify(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let last = &self.values[((self.turns - 1) & 1) as usize];
        let (mut right, mut forks) = (0, Vec::new());
        let mut value = vec![0; last.len() + 1];
        for (number, file) in self.files.iter().enumerate() {
            let length = sys::fgetxattr(file.as_fd(), &self.name, &mut value);
            right += u64::from(length.is_ok_and(|length| value.get(..length) == Some(&last[..])));
            if number % 1000 == 0 && round.filesystem() == FilesystemKind::Xfs {
                forks.extend(fork(round, file, number)?);
            }
        }
        let files = self.files.len() as u64;
        round.count("fgetxattr", files, right);
        round.check(VALUES, files, right);
        check_inline(round, &forks);
        Ok(())
    }

    fn close(self, round: &RoundContext) -> Result<(), WorkloadError> {
        for file in self.files {
            sys::close(file).map_err(|errno| failed("close", round.mount_point(), errno))?;
        }
        Ok(())
    }
}

/// Where the attribute fork of the XFS inode of file `number` begins and how many extents it has, if
/// the kernel tells.
fn fork(
    round: &mut RoundContext,
    file: &OwnedFd,
    number: usize,
) -> Result<Option<(u16, u32)>, WorkloadError> {
    let path = round.mount_point().join(file_name(number));
    let inode = std::fs::symlink_metadata(&path).map_err(|error| lost("statx", &path, &error))?.ino();
    let mut request = BulkRequest::of_inode(inode);
    let answer = request.next(file.as_fd());
    round.count("statx", 1, 1);
    round.count("ioctl", 1, u64::from(answer.is_ok()));
    let of_file = request.records().find(|record| record.ino == inode);
    Ok(of_file.map(|record| (record.fork_offset, record.attribute_extents)))
}

fn file_name(number: usize) -> String {
    format!("f{number:06}")
}

/// Checks attribute forks, of which there are none on another filesystem.
fn check_inline(round: &mut RoundContext, forks: &[(u16, u32)]) {
    if forks.is_empty() {
        return;
    }
    let inline = forks.iter().filter(|(offset, extents)| *offset > 0 && *extents == 0).count();
    round.check(INLINE, forks.len(), inline);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
    }

    #[test]
    fn every_file_has_its_last_value_and_every_call_is_counted() {
        for (scenario, turns) in [("same-size", 1), ("grown", 1), ("update", 3)] {
            let folder = folder();
            let name = format!("xattr-replace/{scenario}");
            let quick = INFO.preset("quick").expect("a preset");
            let mut request = request(&name, folder.path(), &[]);
            request.scenario.parameters = quick.parameters(&INFO, INFO.scenario(scenario).expect("known"));
            let round = run(&request, None).expect("runs");
            assert_sound(&round);
            assert_eq!(round.phases[0].ops, 20 * turns, "{name}");
            assert_eq!(round.census["fsetxattr"].attempted, 20 * (turns + 1), "{name}");
        }
    }

    #[test]
    fn an_attribute_in_a_block_of_its_own_fails_the_check() {
        let request = request("xattr-replace/grown", &std::env::temp_dir(), &[]);
        let scenario = INFO.scenario("grown").expect("known");
        let mut round = RoundContext::for_test(request, scenario, Default::default());
        check_inline(&mut round, &[]);
        check_inline(&mut round, &[(15, 0), (15, 0)]);
        check_inline(&mut round, &[(15, 0), (15, 1)]);
        check_inline(&mut round, &[(15, 0), (0, 0)]);
        let checks = round.finish().checks;
        assert_eq!(checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn a_folder_that_takes_no_files_is_an_error() {
        let error = run(&request("xattr-replace/grown", std::path::Path::new("/proc/self"), &[]), None);
        assert!(matches!(error, Err(WorkloadError::Call { call: "openat", .. })), "{error:?}");
    }
}
