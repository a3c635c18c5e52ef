//! Many files of very different sizes in folders, as from unpacking an archive, up to the moment when
//! all are on the device. Read [`Untar`] first, then [`Layout`] for where they came to lie.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use kdelta_wire::FilesystemKind;
use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use crate::draw::log_uniform;
use crate::inventory;
use crate::round::{failed, open_root};
use crate::sys::names::Names;
use crate::sys::{namespace, space};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterError, ParameterInfo, PhaseInfo, Preset, Proof,
    RoundContext, ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock, sys,
};

const PHASE: &str = "untar";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "untar",
    title: "unpack an archive",
    summary: "Makes folders and writes files with sizes between two bounds, each doubling as likely, by path and \
              one after the other, then waits with syncfs until all are on the device.",
    source: "unpacking of source trees, which showed regressions of block allocation (ext4 mballoc): 20,000 files \
             of 1 to 256 KiB",
    scenarios: &[ScenarioInfo { name: "tree", summary: "folders with 100 files each", default: true }],
    parameters: &[
        ParameterInfo {
            name: "files",
            summary: "files",
            unit: "files",
            domain: Domain::Integer { default: 2_000, min: 1, max: 4_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "files_per_dir",
            summary: "files in each folder",
            unit: "files",
            domain: Domain::Integer { default: 100, min: 1, max: 1_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "min_bytes",
            summary: "smallest size",
            unit: "bytes",
            domain: Domain::Integer { default: 1 << 10, min: 1, max: 1 << 30 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "max_bytes",
            summary: "largest size",
            unit: "bytes",
            domain: Domain::Integer { default: 256 << 10, min: 1, max: 1 << 30 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "write_bytes",
            summary: "bytes of one write; the default is a record of tar(1)",
            unit: "bytes",
            domain: Domain::Integer { default: 10_240, min: 1, max: 16 << 20 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo {
        name: PHASE,
        operation: "one file opened, written and closed, with its part of the folders and of syncfs",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        MeasureInfo {
            name: "write_ticks",
            phase: PHASE,
            summary: "time until the last file was closed, for each file",
            unit: "ticks",
            better: Better::Lower,
            scenarios: &[],
        },
        MeasureInfo {
            name: "syncfs_ticks",
            phase: PHASE,
            summary: "time of the syncfs, for each file",
            unit: "ticks",
            better: Better::Lower,
            scenarios: &[],
        },
        MeasureInfo {
            name: "bytes",
            phase: PHASE,
            summary: "bytes of all files",
            unit: "bytes",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "extents",
            phase: PHASE,
            summary: "stretches of the device that the files lie in, by FIEMAP; absent on tmpfs",
            unit: "extents",
            better: Better::Lower,
            scenarios: &[],
        },
        MeasureInfo {
            name: "groups",
            phase: PHASE,
            summary: "block groups (ext4) or allocation groups (XFS) in which extents begin; absent elsewhere",
            unit: "groups",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "group_bytes",
            phase: PHASE,
            summary: "size of such a group: on XFS as it says, on ext4 what mke2fs makes without -g, eight blocks \
                      of blocks",
            unit: "bytes",
            better: Better::Neither,
            scenarios: &[],
        },
    ],
    checks: &[
        CheckInfo {
            name: "files",
            summary: "a walk afterwards finds every folder and file, and no other",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_check"),
        },
        CheckInfo {
            name: "writes",
            summary: "every write returned its whole length",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "tree", inject: "write:retval=7:when=3" },
        },
        CheckInfo {
            name: "bytes",
            summary: "the files have the sizes that were drawn",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "tree", inject: "write:retval=1024:when=1" },
        },
    ],
    refusals: &[],
    scale: "files",
    presets: &[
        Preset {
            name: "source",
            summary: "20,000 files of 1 to 256 KiB, some 900 MiB",
            values: &[
                ("files", Setting::Integer(20_000)),
                ("min_bytes", Setting::Integer(1 << 10)),
                ("max_bytes", Setting::Integer(256 << 10)),
            ],
        },
        Preset {
            name: "guest",
            summary: "2,000 files of 1 to 256 KiB, some 90 MiB",
            values: &[
                ("files", Setting::Integer(2_000)),
                ("min_bytes", Setting::Integer(1 << 10)),
                ("max_bytes", Setting::Integer(256 << 10)),
            ],
        },
        Preset {
            name: "quick",
            summary: "50 files of 1 to 8 KiB, for a first look",
            values: &[
                ("files", Setting::Integer(50)),
                ("files_per_dir", Setting::Integer(20)),
                ("min_bytes", Setting::Integer(1 << 10)),
                ("max_bytes", Setting::Integer(8 << 10)),
                ("write_bytes", Setting::Integer(1 << 10)),
            ],
        },
    ],
};

/// The workload `untar`.
pub(crate) struct Untar;

impl Workload for Untar {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let archive = Archive::draw(round)?;
        let mount_point = round.mount_point().to_owned();
        let root = open_root(&mount_point)?;
        sys::mkdir(root.as_fd(), c"tree").map_err(|errno| failed("mkdirat", &mount_point, errno))?;
        let top = mount_point.join("tree");
        let dir = sys::open_dir(root.as_fd(), c"tree").map_err(|errno| failed("openat", &top, errno))?;
        round.sync()?;
        let clock = round.clock();
        let files = archive.sizes.len() as u64;
        let (whole, [start, written, end]) = round.phase(PHASE, files, || {
            let start = clock::now(clock);
            let whole = archive
                .unpack(dir.as_fd())
                .map_err(|(call, path, errno)| failed(call, &top.join(&*path.to_string_lossy()), errno))?;
            let written = clock::now(clock);
            sys::syncfs(root.as_fd()).map_err(|errno| failed("syncfs", &mount_point, errno))?;
            Ok((whole, [start, written, clock::now(clock)]))
        })?;
        round.measure(PHASE, "write_ticks", (written - start) as f64 / files as f64);
        round.measure(PHASE, "syncfs_ticks", (end - written) as f64 / files as f64);
        archive.count(round);
        let layout = Layout::look(round, &archive, dir.as_fd())?;
        layout.report(round, root.as_fd())?;
        let found = inventory::take(round, &top)?;
        let all = |dirs, files, others| format!("{dirs} folders, {files} files, {others} others");
        round.check(
            "files",
            all(archive.dirs.len() as u64, files, 0),
            all(found.folders, found.files, found.symlinks + found.devices + found.others),
        );
        round.check("writes", archive.writes(), whole);
        round.check("bytes", archive.bytes(), found.bytes);
        round.measure(PHASE, "bytes", found.bytes as f64);
        Ok(())
    }
}

/// What is unpacked.
struct Archive {
    /// Folders, by the numbers of their paths.
    dirs: Vec<u32>,
    files_per_dir: usize,
    /// Sizes of the files.
    sizes: Vec<u64>,
    /// Number of the first file's path; the others follow.
    first_file: u32,
    paths: Names,
    block: Vec<u8>,
}

impl Archive {
    fn draw(round: &RoundContext) -> Result<Self, WorkloadError> {
        let (files, files_per_dir) = (round.integer("files")?, round.integer("files_per_dir")?);
        let (min, max) = (round.integer("min_bytes")?, round.integer("max_bytes")?);
        if min > max {
            let allowed = Domain::Integer { default: 1, min: 1, max };
            return Err(
                ParameterError::OutOfRange { name: "min_bytes", value: min, allowed, unit: "bytes" }.into()
            );
        }
        let mut rng = round.rng();
        let sizes: Vec<u64> = (0..files).map(|_| log_uniform(&mut rng, min, max)).collect();
        let mut block = vec![0; round.integer("write_bytes")?.min(max) as usize];
        rng.fill_bytes(&mut block);
        let mut paths = Names::with_capacity(files as usize, 16);
        let dir_count = files.div_ceil(files_per_dir);
        let dirs = (0..dir_count).map(|dir| paths.push(format!("d{dir:06}").as_bytes())).collect();
        let mut first_file = None;
        for file in 0..files {
            let path = paths.push(format!("d{:06}/f{file:07}", file / files_per_dir).as_bytes());
            first_file.get_or_insert(path);
        }
        let first_file = first_file.unwrap_or_default();
        Ok(Self { dirs, files_per_dir: files_per_dir as usize, sizes, first_file, paths, block })
    }

    fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    fn writes(&self) -> u64 {
        self.sizes.iter().map(|size| size.div_ceil(self.block.len() as u64)).sum()
    }

    /// Makes and writes everything, each folder before its first file; returns how many writes
    /// returned their whole length. Timed: nothing here but system calls and their arguments.
    fn unpack(&self, top: BorrowedFd<'_>) -> Result<u64, (&'static str, &std::ffi::CStr, Errno)> {
        let (mut whole, mut number) = (0, self.first_file);
        for (&dir, sizes) in self.dirs.iter().zip(self.sizes.chunks(self.files_per_dir)) {
            let path = self.paths.get(dir);
            sys::mkdir(top, path).map_err(|errno| ("mkdirat", path, errno))?;
            for &size in sizes {
                let path = self.paths.get(number);
                number += 1;
                let file = namespace::create_new(top, path).map_err(|errno| ("openat", path, errno))?;
                let mut left = size;
                while left > 0 {
                    let piece = &self.block[..left.min(self.block.len() as u64) as usize];
                    let written = sys::write(file.as_fd(), piece).map_err(|errno| ("write", path, errno))?;
                    whole += u64::from(written == piece.len());
                    left -= piece.len() as u64;
                }
                sys::close(file).map_err(|errno| ("close", path, errno))?;
            }
        }
        Ok(whole)
    }

    /// Claims the system calls of [`Self::unpack`].
    fn count(&self, round: &mut RoundContext) {
        let (dirs, files, writes) = (self.dirs.len() as u64, self.sizes.len() as u64, self.writes());
        for (call, count) in [("mkdirat", dirs), ("openat", files), ("write", writes), ("close", files)] {
            round.count(call, count, count);
        }
    }
}

/// Where the files came to lie.
struct Layout {
    /// Where on the device each extent begins; `None` where the filesystem does not tell.
    places: Option<Vec<u64>>,
}

impl Layout {
    /// Asks for the extents of every file (kernel `Documentation/filesystems/fiemap.rst`).
    fn look(round: &mut RoundContext, archive: &Archive, top: BorrowedFd<'_>) -> Result<Self, WorkloadError> {
        let mut places = Vec::with_capacity(archive.sizes.len());
        let (mut opened, mut asked, mut answered) = (0, 0, 0);
        let mut extents = Vec::new();
        let path = round.mount_point().to_owned();
        let mut known = true;
        for number in (archive.first_file..).take(archive.sizes.len()) {
            let file = namespace::open_for_reading(top, archive.paths.get(number))
                .map_err(|errno| failed("openat", &path, errno))?;
            opened += 1;
            extents.clear();
            let mut start = 0;
            loop {
                asked += 1;
                match space::extents(file.as_fd(), start, &mut extents) {
                    Ok(0) => break,
                    Ok(_) => {}
                    // tmpfs has no such operation, which ioctl(2) calls so or so.
                    Err(Errno::OPNOTSUPP | Errno::NOTTY) => {
                        known = false;
                        break;
                    }
                    Err(errno) => return Err(failed("ioctl(FS_IOC_FIEMAP)", &path, errno)),
                }
                answered += 1;
                match extents.last() {
                    Some(last) if !last.is_last() => start = last.logical + last.length,
                    _ => break,
                }
            }
            sys::close(file).map_err(|errno| failed("close", &path, errno))?;
            if !known {
                break;
            }
            places.extend(extents.iter().filter(|extent| extent.has_place()).map(|extent| extent.physical));
        }
        round.count("openat", opened, opened);
        round.count("close", opened, opened);
        round.count("ioctl", asked, answered);
        Ok(Self { places: known.then_some(places) })
    }

    fn report(&self, round: &mut RoundContext, root: BorrowedFd<'_>) -> Result<(), WorkloadError> {
        let Some(places) = &self.places else { return Ok(()) };
        round.measure(PHASE, "extents", places.len() as f64);
        if let Some(group_bytes) = group_bytes(round, root)? {
            let groups: HashSet<u64> = places.iter().map(|place| place / group_bytes).collect();
            round.measure(PHASE, "groups", groups.len() as f64);
            round.measure(PHASE, "group_bytes", group_bytes as f64);
        }
        Ok(())
    }
}

/// Bytes of an allocation group of the filesystem, if it has any. FIEMAP places are counted from the
/// device's beginning on ext4 and XFS; btrfs answers with logical addresses, which say nothing of that.
fn group_bytes(round: &RoundContext, root: BorrowedFd<'_>) -> Result<Option<u64>, WorkloadError> {
    match round.filesystem() {
        FilesystemKind::Xfs => space::xfs_group_bytes(root)
            .map(Some)
            .map_err(|errno| failed("ioctl(XFS_IOC_FSGEOMETRY_V1)", round.mount_point(), errno)),
        FilesystemKind::Ext4 => {
            let stat = space::statfs(root).map_err(|errno| failed("fstatfs", round.mount_point(), errno))?;
            let block = u64::try_from(stat.f_bsize).unwrap_or(4096);
            // One bit for each block in a bitmap of one block (mke2fs(8), -g).
            Ok(Some(8 * block * block))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use kdelta_wire::Round;

    use super::*;
    use crate::round::tests::request;
    use crate::{resolve, run};

    fn quick() -> Vec<(&'static str, Setting)> {
        INFO.preset("quick").expect("a preset").values.to_vec()
    }

    fn play(folder: &tempfile::TempDir, parameters: &[(&str, Setting)]) -> Result<Round, WorkloadError> {
        run(&request("untar/tree", folder.path(), parameters), None)
    }

    #[test]
    fn folders_and_files_have_what_was_drawn() {
        for folder in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")] {
            let Ok(folder) = folder else { continue };
            let round = play(&folder, &quick()).expect("runs");
            assert!(round.checks.iter().all(|check| check.passed), "{round:?}");
            assert_eq!(round.phases[0].ops, 50);
            assert_eq!(round.census["mkdirat"].attempted, 3);
            let measures = &round.phases[0].measures;
            assert!(measures["bytes"] >= 50.0 * 1024.0 && measures["bytes"] <= 50.0 * 8192.0);
            if let Some(extents) = measures.get("extents") {
                assert!(*extents >= 1.0, "{measures:?}");
            }
        }
    }

    #[test]
    fn groups_are_told_apart_by_where_extents_begin() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = request("untar/tree", folder.path(), &quick());
        request.filesystem = FilesystemKind::Ext4;
        let round = run(&request, None).expect("runs");
        let measures = &round.phases[0].measures;
        // The temporary folder may be on a filesystem that does not tell where files lie.
        if let Some(groups) = measures.get("groups") {
            assert!(*groups >= 1.0 && *groups <= measures["extents"], "{measures:?}");
            assert_eq!(measures["group_bytes"] as u64 % 4096, 0);
        }
    }

    #[test]
    fn a_file_too_many_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        play(&folder, &quick()).expect("runs");
        let scenario = &INFO.scenarios[0];
        let mut request = request("untar/tree", folder.path(), &quick());
        request.scenario.parameters =
            resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        let resolved = request.scenario.parameters.clone();
        let mut round = RoundContext::for_test(request, scenario, resolved);
        std::fs::write(folder.path().join("tree/d000001/stray"), "x").expect("a stray file");
        let found = inventory::take(&mut round, &folder.path().join("tree")).expect("a walk");
        assert_eq!((found.folders, found.files), (3, 51));
        round.check("files", 50, found.files);
        assert!(!round.finish().checks[0].passed);
    }

    #[test]
    fn bounds_in_the_wrong_order_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parameters = [("min_bytes", Setting::Integer(20)), ("max_bytes", Setting::Integer(10))];
        let error = play(&folder, &parameters).expect_err("refused").to_string();
        assert!(error.contains("min_bytes"), "{error}");
    }
}
