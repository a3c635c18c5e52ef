//! The system calls of the workloads, without allocation or error text, so that a timed loop holds
//! little else. Read [`Counters`] first; most calls are `rustix` calls made under a shorter name.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use kdelta_wire::GuestCpu;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use rustix::time::{ClockId, Timespec};

/// What [`kdelta_wire::Phase`] counts besides the clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// `CLOCK_PROCESS_CPUTIME_ID`.
    pub(crate) cpu_ns: u64,
    /// getrusage(2).
    pub(crate) usage: Usage,
    /// `/proc/stat`.
    pub(crate) guest: GuestCpu,
}

/// The part of `struct rusage` that is reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) minor_faults: u64,
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

/// getrusage(2) of this process.
pub(crate) fn usage() -> Result<Usage, Errno> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to a whole `rusage`, which the call writes.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
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
    })
}

/// The `cpu` line of `/proc/stat`, read from the open file `stat`.
pub(crate) fn guest_cpu(stat: BorrowedFd<'_>) -> Result<GuestCpu, Errno> {
    let mut text = [0_u8; 256];
    let length = rustix::io::pread(stat, &mut text, 0)?;
    parse_cpu_line(&text[..length]).ok_or(Errno::PROTO)
}

fn parse_cpu_line(text: &[u8]) -> Option<GuestCpu> {
    let line = text.split(|&byte| byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let mut next = || words.next()?.parse::<u64>().ok();
    let (user, nice, system, idle, iowait, irq, softirq, steal) =
        (next()?, next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    Some(GuestCpu { user: user + nice, system, idle, iowait, interrupt: irq + softirq, steal })
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
    fn the_cpu_line_is_read_by_position() {
        let cpu = parse_cpu_line(b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1").expect("a cpu line");
        let expected = GuestCpu { user: 3, system: 3, idle: 4, iowait: 5, interrupt: 13, steal: 8 };
        assert_eq!(cpu, expected);
        assert_eq!(parse_cpu_line(b"intr 1 2"), None);
        assert_eq!(parse_cpu_line(b"cpu 1 2 3"), None);
    }

    #[test]
    fn pinning_to_no_cpu_is_an_error() {
        assert_eq!(pin(usize::MAX), Err(Errno::INVAL));
    }
}
