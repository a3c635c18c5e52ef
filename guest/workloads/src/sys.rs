//! The system calls of the workloads, without allocation or error text, so that a timed loop holds
//! little else. Most are `rustix` calls made under a shorter name; read [`create`] first.

pub(crate) mod blocks;
pub(crate) mod files;
pub(crate) mod ioctls;
pub(crate) mod names;
pub(crate) mod namespace;
pub(crate) mod notify;
pub(crate) mod pages;
pub(crate) mod ring;
pub(crate) mod space;

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use rustix::time::{ClockId, Timespec};

/// The part of `struct rusage` that is reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

impl Usage {
    /// What was used since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let (new, old) = (self.numbers(), before.numbers());
        Self::of(std::array::from_fn(|at| new[at].saturating_sub(old[at])))
    }

    /// Adds what another used.
    pub(crate) fn add(&mut self, other: Self) {
        let (own, other) = (self.numbers(), other.numbers());
        *self = Self::of(std::array::from_fn(|at| own[at] + other[at]));
    }

    /// Every field, in order.
    pub(crate) fn numbers(&self) -> [u64; 6] {
        [
            self.user_ns,
            self.system_ns,
            self.voluntary_switches,
            self.involuntary_switches,
            self.minor_faults,
            self.major_faults,
        ]
    }

    /// The inverse of [`Self::numbers`].
    pub(crate) fn of(numbers: [u64; 6]) -> Self {
        let [user_ns, system_ns, voluntary_switches, involuntary_switches, minor_faults, major_faults] =
            numbers;
        Self { user_ns, system_ns, voluntary_switches, involuntary_switches, minor_faults, major_faults }
    }
}

/// RDTSC.
///
/// No fence goes with it: under `-icount` QEMU executes one instruction after the other, and ends
/// the translated block at RDTSC so that the count is exact there. The compiler keeps its place
/// among system calls, as both are opaque to it.
#[inline]
pub(crate) fn time_stamp_counter() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU and touches no memory; kdelta does not forbid it
    // to itself (PR_SET_TSC).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// `CLOCK_MONOTONIC_RAW`, through the vDSO.
#[inline]
pub(crate) fn monotonic_raw_ns() -> u64 {
    nanoseconds(rustix::time::clock_gettime(ClockId::MonotonicRaw))
}

/// CPU time of this process.
pub(crate) fn process_cpu_ns() -> u64 {
    nanoseconds(rustix::time::clock_gettime(ClockId::ProcessCPUTime))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// CPU time of this thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(rustix::time::clock_gettime(ClockId::ThreadCPUTime))
}

/// getrusage(2) of this process and of its children that have ended.
pub(crate) fn usage() -> Result<Usage, Errno> {
    let mut usage = usage_of(libc::RUSAGE_SELF)?;
    usage.add(usage_of(libc::RUSAGE_CHILDREN)?);
    Ok(usage)
}

fn usage_of(who: libc::c_int) -> Result<Usage, Errno> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to a whole `rusage`, which the call writes.
    let result = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    if result != 0 {
        return Err(last_errno());
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let usage = unsafe { usage.assume_init() };
    let ns = |time: libc::timeval| {
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1_000
    };
    Ok(Usage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        voluntary_switches: usage.ru_nvcsw.unsigned_abs(),
        involuntary_switches: usage.ru_nivcsw.unsigned_abs(),
        minor_faults: usage.ru_minflt.unsigned_abs(),
        major_faults: usage.ru_majflt.unsigned_abs(),
    })
}

/// The error of the libc call that just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// CPUs online, at least 1.
pub(crate) fn online_cpus() -> usize {
    // SAFETY: sysconf(3) takes a number and touches no memory of ours.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Closes a descriptor in a forked child, which keeps it from being dropped.
pub(crate) fn close_inherited(file: &OwnedFd) {
    // SAFETY: the child leaves by `_exit`, so `file` is neither used nor dropped after this.
    unsafe { rustix::io::close(file.as_raw_fd()) }
}

/// Restricts this thread to `cpu` and returns the CPU it then runs on.
pub(crate) fn pin(cpu: usize) -> Result<usize, Errno> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(rustix::thread::sched_getcpu())
}

/// Makes room for `count` more open files than a process has by default.
pub(crate) fn allow_open_files(count: u64) -> Result<(), Errno> {
    // Standard streams, the mount point, /proc/stat and a file at a time, with room to spare.
    let wanted = count + 64;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
}

/// Opens a folder.
pub(crate) fn open_dir(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// mkdirat(2), mode 0777.
pub(crate) fn mkdir(at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o777))
}

/// openat(2) with `O_CREAT | O_RDWR | O_TRUNC`, mode 0666, as fs_mark does it.
#[inline]
pub(crate) fn create(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC;
    rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o666))
}

/// write(2).
#[inline]
pub(crate) fn write(file: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::io::write(file, bytes)
}

/// fsync(2).
#[inline]
pub(crate) fn fsync(file: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fsync(file)
}

/// close(2), whose error `Drop` would swallow.
#[inline]
pub(crate) fn close(file: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor was owned, and is used no more after this.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }
}

/// unlinkat(2).
#[inline]
pub(crate) fn unlink(at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    rustix::fs::unlinkat(at, name, rustix::fs::AtFlags::empty())
}

/// unlinkat(2) with `AT_REMOVEDIR`.
#[inline]
pub(crate) fn rmdir(at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    rustix::fs::unlinkat(at, name, rustix::fs::AtFlags::REMOVEDIR)
}

/// syncfs(2).
pub(crate) fn syncfs(file: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::syncfs(file)
}

/// setxattr(2), creating or replacing.
#[inline]
pub(crate) fn setxattr(path: &CStr, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

/// getxattr(2).
#[inline]
pub(crate) fn getxattr(path: &CStr, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
    rustix::fs::getxattr(path, name, value)
}

/// listxattr(2).
#[inline]
pub(crate) fn listxattr(path: &CStr, list: &mut [u8]) -> Result<usize, Errno> {
    rustix::fs::listxattr(path, list)
}

/// removexattr(2).
#[inline]
pub(crate) fn removexattr(path: &CStr, name: &CStr) -> Result<(), Errno> {
    rustix::fs::removexattr(path, name)
}

/// fsetxattr(2), creating or replacing.
#[inline]
pub(crate) fn fsetxattr(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
}

/// fgetxattr(2).
#[inline]
pub(crate) fn fgetxattr(file: BorrowedFd<'_>, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
    rustix::fs::fgetxattr(file, name, value)
}

/// flistxattr(2).
#[inline]
pub(crate) fn flistxattr(file: BorrowedFd<'_>, list: &mut [u8]) -> Result<usize, Errno> {
    rustix::fs::flistxattr(file, list)
}

/// `bytes` as a C string.
///
/// # Safety
/// The last byte of `bytes` is NUL and no other is.
#[inline]
pub(crate) unsafe fn c_str(bytes: &[u8]) -> &CStr {
    debug_assert!(CStr::from_bytes_with_nul(bytes).is_ok());
    // SAFETY: the caller promises exactly what this asks for.
    unsafe { CStr::from_bytes_with_nul_unchecked(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_to_no_cpu_is_an_error() {
        assert_eq!(pin(usize::MAX), Err(Errno::INVAL));
    }
}
