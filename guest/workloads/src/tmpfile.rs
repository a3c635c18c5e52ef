//! Opening many files that have no name, and closing them in a given order. Read [`Tmpfile`] first.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use kdelta_wire::FilesystemKind;
use rand_chacha::rand_core::Rng;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::round::{failed, open_root};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, sys,
};

const UNLINKED: &str = "open files without a name";
const CLOSED: &str = "descriptors left open";
const REVERSE: &str = "reverse";
const RANDOM: &str = "random";
/// Phases of each step, and the share of the files that it takes. Several sizes in one round tell
/// whether the time of one close depends on how many files are open.
const STEPS: [(&str, &str, u64); 3] =
    [("open-quarter", "close-quarter", 4), ("open-half", "close-half", 2), ("open", "close", 1)];

static INFO: WorkloadInfo = WorkloadInfo {
    name: "tmpfile",
    title: "files without a name",
    summary: "Opens files with O_TMPFILE in one folder, all of them open at once, and closes them, which removes \
              them; done with a quarter, a half and all of the files, so that a time that grows faster than their \
              number shows as an exponent above 1.",
    source: "kdelta's catalogue (W14): lists of unlinked inodes that a filesystem keeps, and searches on removal",
    scenarios: &[
        ScenarioInfo { name: "same", summary: "closed in the order they were opened in", default: true },
        ScenarioInfo { name: REVERSE, summary: "the last one opened is closed first", default: true },
        ScenarioInfo { name: RANDOM, summary: "closed in an order drawn from the seed", default: true },
    ],
    parameters: &[ParameterInfo {
        name: "files",
        summary: "files open at once in the last step; fs.nr_open and fs.file-max must allow them",
        unit: "files",
        domain: Domain::Integer { default: 20_000, min: 4, max: 1_000_000 },
        scenarios: &[],
    }],
    limits: &[],
    phases: &[
        phase(STEPS[0].0, "one of a quarter of the files opened", false),
        phase(STEPS[0].1, "one of a quarter of the files closed", false),
        phase(STEPS[1].0, "one of half of the files opened", false),
        phase(STEPS[1].1, "one of half of the files closed", false),
        phase(STEPS[2].0, "one file opened", false),
        phase(STEPS[2].1, "one file closed", true),
        phase(
            "quiesce",
            "one file closed before; the time is syncfs and, in a guest, unmount, which waits for what removal left \
             to do",
            false,
        ),
    ],
    measures: &[exponent("open"), exponent("close")],
    checks: &[
        CheckInfo {
            name: UNLINKED,
            summary: "the descriptors of each step are of as many inodes, none of which has a name",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_that_has_a_name_or_is_open_twice_fails_the_check"),
        },
        CheckInfo {
            name: CLOSED,
            summary: "after each step /proc/self/fd lists no descriptor of a file in the folder",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "same", inject: "close:retval=0:when=150" },
        },
    ],
    refusals: &[],
    scale: "files",
    presets: &[
        Preset {
            name: "source",
            summary: "the catalogue's 20,000 files, to be doubled up to the limit of open files",
            values: &[("files", Setting::Integer(20_000))],
        },
        Preset {
            name: "guest",
            summary: "8000 files, some 12 MiB of the guest's memory",
            values: &[("files", Setting::Integer(8_000))],
        },
        Preset {
            name: "quick",
            summary: "400 files, for a first look",
            values: &[("files", Setting::Integer(400))],
        },
    ],
};

const fn phase(name: &'static str, operation: &'static str, primary: bool) -> PhaseInfo {
    PhaseInfo { name, operation, primary, scenarios: &[] }
}

const fn exponent(phase: &'static str) -> MeasureInfo {
    MeasureInfo {
        name: "exponent",
        phase,
        summary: "slope of log(time of all files) over log(files) through the three steps: 1 is a constant time for \
                  each file, 2 a time that grows with their number",
        unit: "",
        better: Better::Lower,
        scenarios: &[],
    }
}

/// The workload `tmpfile`.
pub(crate) struct Tmpfile;

impl Workload for Tmpfile {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let files = round.integer("files")?;
        let folder = Folder::open(round, files)?;
        let mut rng = round.rng();
        let (mut total, mut unlinked, mut left) = (0, 0, 0);
        for (open, close, share) in STEPS {
            let count = files / share;
            let order = order(round.scenario(), count as usize, &mut rng);
            let mut handles: Vec<Option<OwnedFd>> = (0..count).map(|_| None).collect();
            folder.drain(round)?;
            round.phase(open, count, || folder.open_all(&mut handles))?;
            unlinked += count_unlinked(handles.iter().flatten().map(AsFd::as_fd), &folder.path)?;
            round.phase(close, count, || folder.close_all(&mut handles, &order))?;
            left += open_files_in(&folder.path)?;
            total += count;
        }
        round.check(UNLINKED, total, unlinked);
        round.check(CLOSED, 0, left);
        for call in ["openat", "fstat", "close"] {
            round.count(call, total, total);
        }
        for (phase, points) in [("open", STEPS.map(|step| step.0)), ("close", STEPS.map(|step| step.1))] {
            let points = points.map(|name| {
                round.latest(name).map_or((0.0, 0.0), |phase| (phase.ops as f64, phase.elapsed as f64))
            });
            if let Some(slope) = log_slope(&points) {
                round.measure(phase, "exponent", slope);
            }
        }
        drop(folder);
        round.quiesce(files)
    }
}

/// Where the files are.
struct Folder {
    handle: OwnedFd,
    path: PathBuf,
    xfs: bool,
}

impl Folder {
    /// The mount point, with room for `files` descriptors.
    fn open(round: &RoundContext, files: u64) -> Result<Self, WorkloadError> {
        let path = round.mount_point().to_owned();
        sys::allow_open_files(files).map_err(|errno| match errno {
            Errno::PERM => WorkloadError::Unavailable {
                what: format!("room for {files} open files"),
                next: "set `files` lower, or raise the hard limit (`ulimit -Hn`) and fs.nr_open",
            },
            errno => failed("setrlimit(RLIMIT_NOFILE)", &path, errno),
        })?;
        let handle = open_root(&path)?;
        // The kernel doubles the table of descriptors when it is full, which would fall into some
        // steps and not into others: a high descriptor makes it large at once, and it stays so.
        let high = rustix::io::fcntl_dupfd_cloexec(&handle, handle.as_raw_fd() + files as i32)
            .map_err(|errno| failed("fcntl(F_DUPFD_CLOEXEC)", &path, errno))?;
        drop(high);
        Ok(Self { handle, path, xfs: round.filesystem() == FilesystemKind::Xfs })
    }

    /// Waits until nothing is left of earlier steps.
    fn drain(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        if self.xfs {
            match sys::blocks::xfs_wait_for_inodegc(self.handle.as_fd()) {
                // Only root may; elsewhere than in a guest others write as well, and nothing is drained.
                Ok(()) | Err(Errno::PERM | Errno::NOTTY) => {}
                Err(errno) => return Err(failed("ioctl(XFS_IOC_FREE_EOFBLOCKS)", &self.path, errno)),
            }
        }
        round.sync()
    }

    /// Opens a file for each handle. Timed.
    fn open_all(&self, handles: &mut [Option<OwnedFd>]) -> Result<(), WorkloadError> {
        for handle in handles {
            *handle = Some(open_unnamed(self.handle.as_fd()).map_err(|errno| self.failed(errno))?);
        }
        Ok(())
    }

    /// Closes the handles in this order. Timed.
    fn close_all(&self, handles: &mut [Option<OwnedFd>], order: &[u32]) -> Result<(), WorkloadError> {
        for &number in order {
            if let Some(handle) = handles[number as usize].take() {
                sys::close(handle).map_err(|errno| failed("close", &self.path, errno))?;
            }
        }
        Ok(())
    }

    #[cold]
    fn failed(&self, errno: Errno) -> WorkloadError {
        match errno {
            // A kernel that does not know the flag sees a folder opened for writing (open(2), BUGS).
            Errno::OPNOTSUPP | Errno::ISDIR => WorkloadError::Unavailable {
                what: format!("O_TMPFILE on {}", self.path.display()),
                next: "use tmpfs, xfs, ext4 or btrfs of linux 3.16 or newer",
            },
            errno => failed("openat(O_TMPFILE)", &self.path, errno),
        }
    }
}

/// openat(2) with `O_TMPFILE`.
#[inline]
fn open_unnamed(folder: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, c".", OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600))
}

/// The order to close `count` files in.
fn order(scenario: &str, count: usize, rng: &mut impl Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    match scenario {
        REVERSE => order.reverse(),
        // Fisher and Yates; the bias of 2^32 over fewer than 2^20 is far below notice.
        RANDOM => {
            for at in (1..count).rev() {
                let other = (u64::from(rng.next_u32()) * (at as u64 + 1)) >> 32;
                order.swap(at, other as usize);
            }
        }
        _ => {}
    }
    order
}

/// Distinct inodes of `files` that have no name.
fn count_unlinked<'a>(
    files: impl Iterator<Item = BorrowedFd<'a>>,
    path: &Path,
) -> Result<u64, WorkloadError> {
    let mut inodes = Vec::new();
    for file in files {
        let stat = rustix::fs::fstat(file).map_err(|errno| failed("fstat", path, errno))?;
        if stat.st_nlink == 0 {
            inodes.push(stat.st_ino);
        }
    }
    inodes.sort_unstable();
    inodes.dedup();
    Ok(inodes.len() as u64)
}

/// Descriptors of this process that are of a file in `folder`, with or without a name.
fn open_files_in(folder: &Path) -> Result<u64, WorkloadError> {
    let path = Path::new("/proc/self/fd");
    let lost =
        |error: std::io::Error| failed("getdents", path, Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let folder = folder.canonicalize().map_err(lost)?;
    let mut count = 0;
    for entry in std::fs::read_dir(path).map_err(lost)? {
        // Another thread may have closed it since.
        let Ok(target) = std::fs::read_link(entry.map_err(lost)?.path()) else { continue };
        count += u64::from(target.parent() == Some(&folder));
    }
    Ok(count)
}

/// Least squares slope of log(y) over log(x); `None` unless all are above 0 and two x differ.
fn log_slope(points: &[(f64, f64)]) -> Option<f64> {
    if points.iter().any(|&(x, y)| x <= 0.0 || y <= 0.0) {
        return None;
    }
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |pick: fn(&(f64, f64)) -> f64| logs.iter().map(pick).sum::<f64>() / logs.len() as f64;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (variance > 0.0).then_some(covariance / variance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    #[test]
    fn every_order_opens_and_closes_every_file() {
        for scenario in INFO.scenarios {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let request = request(
                &format!("tmpfile/{}", scenario.name),
                folder.path(),
                &[("files", Setting::Integer(42))],
            );
            let round = match run(&request, None) {
                Err(WorkloadError::Unavailable { what, .. }) => return eprintln!("skipped: {what}"),
                round => round.expect("runs"),
            };
            assert_sound(&round);
            let ops: Vec<u64> = round.phases.iter().map(|phase| phase.ops).collect();
            assert_eq!(ops, [10, 10, 21, 21, 42, 42, 42]);
            assert!(round.census.values().all(|count| count.attempted == 73), "{:?}", round.census);
            assert!(round.phases[4].measures.contains_key("exponent"));
            assert!(round.phases[5].measures.contains_key("exponent"));
            assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
        }
    }

    #[test]
    fn orders_are_what_they_are_called() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = request("tmpfile/random", folder.path(), &[]);
        let scenario = INFO.scenario(RANDOM).expect("exists");
        let round = RoundContext::for_test(request, scenario, kdelta_wire::Parameters::new());
        let draw = |name| order(name, 50, &mut round.rng());
        let same: Vec<u32> = (0..50).collect();
        assert_eq!(draw("same"), same);
        assert!(draw(REVERSE).iter().rev().eq(&same));
        let random = draw(RANDOM);
        assert_ne!(random, same);
        assert_eq!(random, draw(RANDOM));
        let mut sorted = random;
        sorted.sort_unstable();
        assert_eq!(sorted, same);
    }

    #[test]
    fn a_file_that_has_a_name_or_is_open_twice_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let handle = open_root(folder.path()).expect("opens");
        let Ok(unnamed) = open_unnamed(handle.as_fd()) else {
            return eprintln!("skipped: no O_TMPFILE here");
        };
        let again = unnamed.try_clone().expect("duplicates");
        let named = std::fs::File::create(folder.path().join("x")).expect("creates");
        let files = [unnamed.as_fd(), again.as_fd(), named.as_fd()];
        assert_eq!(count_unlinked(files.into_iter(), folder.path()), Ok(1));
    }

    #[test]
    fn the_exponent_is_that_of_the_power_law() {
        for exponent in [0.5, 1.0, 2.0] {
            let points = [5_000.0_f64, 10_000.0, 20_000.0].map(|x| (x, 3.0 * x.powf(exponent)));
            let slope = log_slope(&points).expect("a slope");
            assert!((slope - exponent).abs() < 1e-9, "{slope}");
        }
        assert_eq!(log_slope(&[(1.0, 0.0), (2.0, 1.0)]), None);
        assert_eq!(log_slope(&[(2.0, 1.0), (2.0, 3.0)]), None);
    }
}
