//! Sharing ranges of one file with another, call by call: cloning and deduplication. Read [`Remap`]
//! first.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use kdelta_wire::FilesystemKind;
use rustix::io::Errno;

use crate::pattern::Pattern;
use crate::round::{failed, open_root};
use crate::sys::blocks::{self, Deduped, Extent};
use crate::{
    CheckInfo, Domain, ParameterInfo, PhaseInfo, Preset, ProductLimit, Proof, Refusal, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, sys,
};

/// Bytes that ranges are a multiple of: the block size of XFS and btrfs on x86-64.
const BLOCK: usize = 4096;
const CLONE: &str = "clone";
const DEDUPE: &str = "dedupe";
const RETURNS: &str = "calls that returned what they should";
const CONTENT: &str = "blocks with the right content";
const SHARED: &str = "bytes shared";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "remap",
    title: "share ranges of files",
    summary: "Lets one file share the blocks of another, range after range from the first to the last; only the \
              loop of ioctl calls is timed.",
    source: "Chengfeng Lin's validation of a btrfs patch about the inhibition of writeback and its \
             reproducer (linux-regression-evidence, btrfs-remap-writeback-inhibition-v2)",
    scenarios: &[
        ScenarioInfo {
            name: CLONE,
            summary: "FICLONERANGE from a file of data into an empty file of the same size",
            default: true,
        },
        ScenarioInfo {
            name: DEDUPE,
            summary: "FIDEDUPERANGE of two files with the same content",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "operations",
            summary: "ranges, one call for each",
            unit: "calls",
            domain: Domain::Integer { default: 10_000, min: 1, max: 1 << 22 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "range_blocks",
            summary: "length of a range",
            unit: "blocks of 4096 bytes",
            // A range of more than 16 MiB is deduplicated in part only, by some filesystems.
            domain: Domain::Integer { default: 1, min: 1, max: 4096 },
            scenarios: &[],
        },
    ],
    limits: &[ProductLimit {
        parameters: &["operations", "range_blocks"],
        max: 1 << 23,
        reason: "the blocks of each of the two files; 2^23 are 32 GiB",
    }],
    phases: &[PhaseInfo { name: "calls", operation: "one range shared", primary: true, scenarios: &[] }],
    measures: &[],
    checks: &[
        CheckInfo {
            name: RETURNS,
            summary: "every call succeeded; deduplication also answered `same` and the whole length of the range",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("an_answer_that_is_not_the_whole_range_is_not_right"),
        },
        CheckInfo {
            name: CONTENT,
            summary: "the target reads back, block by block, as the source was written",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_range_that_is_not_shared_fails_the_checks"),
        },
        CheckInfo {
            name: SHARED,
            summary: "the extent maps of both files (FIEMAP) name the same place of the device for the same offset",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_range_that_is_not_shared_fails_the_checks"),
        },
    ],
    refusals: &[
        Refusal {
            filesystems: &[FilesystemKind::Tmpfs],
            scenarios: &[],
            reason: "tmpfs files cannot share their pages",
        },
        Refusal {
            filesystems: &[FilesystemKind::Ext4],
            scenarios: &[],
            reason: "ext4 files cannot share blocks",
        },
    ],
    scale: "operations",
    presets: &[
        Preset {
            name: "source",
            summary: "the reproducer's arguments `10000 4096`",
            values: &[("operations", Setting::Integer(10_000)), ("range_blocks", Setting::Integer(1))],
        },
        Preset {
            name: "guest",
            summary: "as the reproducer, which needs 80 MiB of the device",
            values: &[("operations", Setting::Integer(10_000)), ("range_blocks", Setting::Integer(1))],
        },
        Preset {
            name: "quick",
            summary: "200 ranges, for a first look",
            values: &[("operations", Setting::Integer(200)), ("range_blocks", Setting::Integer(1))],
        },
    ],
};

/// The workload `remap`.
pub(crate) struct Remap;

impl Workload for Remap {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let operations = round.integer("operations")?;
        let range = round.integer("range_blocks")? * BLOCK as u64;
        let files = Files::prepare(round, operations * range)?;
        round.sync()?;
        let (source, target) = (files.source.as_fd(), files.target.as_fd());
        let good = round.phase("calls", operations, || {
            let good = if files.dedupe {
                repeat(operations, range, |offset| {
                    Ok(is_whole(blocks::dedupe_range(source, target, offset, range)?, range))
                })
            } else {
                repeat(operations, range, |offset| {
                    blocks::clone_range(target, source, offset, range).map(|()| true)
                })
            };
            good.map_err(|errno| files.failed(errno))
        })?;
        round.check(RETURNS, operations, good);
        let calls = files.prove(round)?;
        round.count("ioctl", operations + calls, good + calls);
        Ok(())
    }
}

/// Calls `share` with the offset of each range, and returns how often it did as it should.
#[inline]
fn repeat(
    operations: u64,
    range: u64,
    mut share: impl FnMut(u64) -> Result<bool, Errno>,
) -> Result<u64, Errno> {
    let mut good = 0;
    for number in 0..operations {
        good += u64::from(share(number * range)?);
    }
    Ok(good)
}

/// Whether the whole range is shared now.
#[inline]
fn is_whole(answer: Deduped, range: u64) -> bool {
    answer == Deduped { status: 0, bytes: range }
}

/// The two files.
struct Files {
    dedupe: bool,
    bytes: u64,
    pattern: Pattern,
    source: OwnedFd,
    source_path: PathBuf,
    target: OwnedFd,
    target_path: PathBuf,
}

impl Files {
    /// Both files of `bytes` bytes, on the device.
    fn prepare(round: &mut RoundContext, bytes: u64) -> Result<Self, WorkloadError> {
        let dedupe = round.scenario() == DEDUPE;
        // Seeds of the reproducer.
        let pattern = Pattern::new(if dedupe { 0x71 } else { 0x51 }, BLOCK);
        let root = open_root(round.mount_point())?;
        let make = |name: &str| {
            let path = round.mount_point().join(name);
            let name = CString::new(name).unwrap_or_default();
            let file = sys::create(root.as_fd(), &name).map_err(|errno| failed("openat", &path, errno))?;
            Ok::<_, WorkloadError>((file, path))
        };
        let ((source, source_path), (target, target_path)) = (make("remap-source")?, make("remap-target")?);
        let mut writes = 0;
        let mut fill = |file: BorrowedFd<'_>, path: &Path| {
            writes += pattern.fill(file, path, bytes / BLOCK as u64, |number| number)?;
            sys::fsync(file).map_err(|errno| failed("fsync", path, errno))
        };
        fill(source.as_fd(), &source_path)?;
        if dedupe {
            fill(target.as_fd(), &target_path)?;
        } else {
            rustix::fs::ftruncate(&target, bytes)
                .map_err(|errno| failed("ftruncate", &target_path, errno))?;
        }
        round.count("write", writes, writes);
        Ok(Self { dedupe, bytes, pattern, source, source_path, target, target_path })
    }

    /// Checks what the target reads back and where it is; returns the ioctl(2) calls that it took.
    fn prove(&self, round: &mut RoundContext) -> Result<u64, WorkloadError> {
        let count = self.bytes / BLOCK as u64;
        let found = self.pattern.stamps(self.target.as_fd(), &self.target_path, count)?;
        round.count("pread64", found.calls, found.calls);
        let right = (0..).zip(&found.stamps).filter(|(number, stamp)| number == *stamp).count();
        round.check(CONTENT, count, right);
        let map = |file: &OwnedFd, path: &Path| {
            blocks::extents(file.as_fd(), self.bytes)
                .map_err(|errno| failed("ioctl(FS_IOC_FIEMAP)", path, errno))
        };
        let (source, target) = (map(&self.source, &self.source_path)?, map(&self.target, &self.target_path)?);
        round.check(SHARED, self.bytes, shared_bytes(&source.extents, &target.extents));
        Ok(source.calls + target.calls)
    }

    #[cold]
    fn failed(&self, errno: Errno) -> WorkloadError {
        let (call, path) = if self.dedupe {
            ("ioctl(FIDEDUPERANGE)", &self.source_path)
        } else {
            ("ioctl(FICLONERANGE)", &self.target_path)
        };
        match errno {
            Errno::OPNOTSUPP | Errno::NOTTY => WorkloadError::Unavailable {
                what: format!("{call} on {}", path.display()),
                next: "use btrfs, or XFS made with `-m reflink=1`",
            },
            errno => failed(call, path, errno),
        }
    }
}

/// Bytes that two files have at the same offset and in the same place. Extents are in the order of
/// their offsets and do not overlap.
fn shared_bytes(one: &[Extent], other: &[Extent]) -> u64 {
    let end = |extent: &Extent| extent.logical + extent.length;
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut shared = 0;
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let (start, stop) = (a.logical.max(b.logical), end(a).min(end(b)));
        let place = |extent: &Extent| extent.physical.wrapping_sub(extent.logical);
        if start < stop && place(a) == place(b) {
            shared += stop - start;
        }
        if end(a) <= end(b) {
            one.next();
        } else {
            other.next();
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{find, resolve, run};

    #[test]
    fn an_answer_that_is_not_the_whole_range_is_not_right() {
        let lies = [Deduped { status: 1, bytes: 0 }, Deduped { status: 0, bytes: 100 }];
        let mut answers = lies.iter().chain([&Deduped { status: 0, bytes: 4096 }]).cycle();
        let good = repeat(6, 4096, |_| Ok(is_whole(*answers.next().expect("endless"), 4096)));
        assert_eq!(good, Ok(2));
        let mut offsets = Vec::new();
        let all = repeat(3, 8192, |offset| {
            offsets.push(offset);
            Ok(true)
        });
        assert_eq!(all, Ok(3));
        assert_eq!(offsets, [0, 8192, 16_384]);
    }

    #[test]
    fn extents_share_where_offset_and_place_agree() {
        let source = [Extent::new(0, 1000, 100), Extent::new(100, 5000, 300)];
        for (target, shared) in [
            (vec![Extent::new(0, 1000, 100), Extent::new(100, 5000, 300)], 400),
            (vec![Extent::new(0, 1000, 50), Extent::new(50, 1050, 20), Extent::new(350, 5250, 100)], 120),
            (vec![Extent::new(0, 1001, 100), Extent::new(200, 5000, 300)], 0),
            (vec![], 0),
        ] {
            assert_eq!(shared_bytes(&source, &target), shared, "{target:?}");
            assert_eq!(shared_bytes(&target, &source), shared, "{target:?}");
        }
    }

    /// The checks of a target whose blocks are copies, one of them of another block, so that nothing
    /// is shared; this is what is there when a filesystem says yes and does nothing.
    #[test]
    fn a_range_that_is_not_shared_fails_the_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = request("remap/clone", folder.path(), &[("operations", Setting::Integer(8))]);
        request.filesystem = FilesystemKind::Xfs;
        let parameters = resolve(&INFO, &INFO.scenarios[0], &request.scenario.parameters).expect("allowed");
        let scenario = find("remap/clone").expect("known").scenario;
        let mut round = RoundContext::for_test(request, scenario, parameters);
        let files = Files::prepare(&mut round, 8 * BLOCK as u64).expect("files");
        let number = |number: u64| if number == 5 { 4 } else { number };
        files.pattern.fill(files.target.as_fd(), &files.target_path, 8, number).expect("writes");
        match files.prove(&mut round) {
            Err(WorkloadError::Call { call: "ioctl(FS_IOC_FIEMAP)", .. }) => {
                eprintln!("skipped: no extent maps here");
            }
            other => assert!(other.expect("reads") >= 2),
        }
        let checks = round.finish().checks;
        let check = |name| checks.iter().find(|check| check.name == name);
        let content = check(CONTENT).expect("made");
        assert_eq!((content.actual.as_str(), content.passed), ("7", false));
        assert!(check(SHARED).is_none_or(|check| !check.passed && check.actual == "0"), "{checks:?}");
    }

    /// Needs a filesystem that shares blocks; elsewhere the error says so.
    #[test]
    fn ranges_are_shared_or_the_error_says_where_they_can_be() {
        for scenario in [CLONE, DEDUPE] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let values = [("operations", Setting::Integer(20)), ("range_blocks", Setting::Integer(2))];
            let mut request = request(&format!("remap/{scenario}"), folder.path(), &values);
            for filesystem in [FilesystemKind::Tmpfs, FilesystemKind::Ext4] {
                request.filesystem = filesystem;
                assert!(matches!(run(&request, None), Err(WorkloadError::Filesystem { .. })));
            }
            request.filesystem = FilesystemKind::Btrfs;
            match run(&request, None) {
                Err(WorkloadError::Unavailable { what, next }) => {
                    eprintln!("skipped: {what}");
                    assert!(next.contains("btrfs"));
                }
                round => {
                    let round = round.expect("runs");
                    assert_sound(&round);
                    assert_eq!((round.phases[0].ops, round.census["ioctl"].attempted), (20, 22));
                }
            }
        }
    }
}
