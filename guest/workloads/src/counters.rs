//! What is read before and after every timed part. Read [`Meter`] first; every file stays open, so
//! that a reading is a few pread(2) calls.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kdelta_wire::{BlockIo, GuestCpu, PageFlow, Phase, Pressure};
use rustix::io::Errno;

use crate::WorkloadError;
use crate::round::failed;
use crate::sys::{self, Usage};

/// Longest `/proc/stat` or `/proc/vmstat` that is read; the former grows with CPUs and interrupts.
const TEXT_BYTES: usize = 256 << 10;

/// Open counters of the kernel and of the device under a filesystem.
#[derive(Debug)]
pub(crate) struct Meter {
    stat: File,
    vmstat: File,
    device: Option<File>,
    pressure: Option<[File; 3]>,
    text: Vec<u8>,
}

/// All counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    cpu_ns: u64,
    usage: Usage,
    guest: GuestCpu,
    guest_switches: u64,
    pages: [u64; 4],
    io: Option<BlockIo>,
    pressure: Option<Pressure>,
}

impl Meter {
    /// Opens what this kernel has, for the filesystem mounted at or above `folder`.
    pub(crate) fn open(folder: &Path) -> Result<Self, WorkloadError> {
        let open = |path: &str| {
            let path = Path::new(path);
            File::open(path)
                .map_err(|error| failed("open", path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))
        };
        let pressure = ["cpu", "io", "memory"].map(|what| File::open(format!("/proc/pressure/{what}")).ok());
        let [Some(cpu), Some(io), Some(memory)] = pressure else {
            let (stat, vmstat) = (open("/proc/stat")?, open("/proc/vmstat")?);
            return Ok(Self {
                stat,
                vmstat,
                device: device(folder),
                pressure: None,
                text: vec![0; TEXT_BYTES],
            });
        };
        let mut meter = Self {
            stat: open("/proc/stat")?,
            vmstat: open("/proc/vmstat")?,
            device: device(folder),
            pressure: Some([cpu, io, memory]),
            text: vec![0; TEXT_BYTES],
        };
        // The file exists also where pressure is switched off (psi=0), and then cannot be read.
        if meter.read_pressure().is_err() {
            meter.pressure = None;
        }
        Ok(meter)
    }

    /// The counters before a timed part: the workload's own come last.
    pub(crate) fn before(&mut self) -> Result<Reading, WorkloadError> {
        let pressure = self.read_pressure()?;
        let io = self.read_io()?;
        let pages = self.read_pages()?;
        let (guest, guest_switches) = self.read_stat()?;
        let usage = read_usage()?;
        Ok(Reading { pressure, io, pages, guest, guest_switches, usage, cpu_ns: sys::process_cpu_ns() })
    }

    /// The counters after a timed part, in the opposite order.
    pub(crate) fn after(&mut self) -> Result<Reading, WorkloadError> {
        let cpu_ns = sys::process_cpu_ns();
        let usage = read_usage()?;
        let (guest, guest_switches) = self.read_stat()?;
        let pages = self.read_pages()?;
        let io = self.read_io()?;
        Ok(Reading { cpu_ns, usage, guest, guest_switches, pages, io, pressure: self.read_pressure()? })
    }

    fn read_stat(&mut self) -> Result<(GuestCpu, u64), WorkloadError> {
        let text = read(&self.stat, &mut self.text, "/proc/stat")?;
        let cpu = parse_cpu_line(text);
        let switches = field(text, "ctxt ");
        cpu.zip(switches).ok_or_else(|| failed("read", Path::new("/proc/stat"), Errno::PROTO))
    }

    /// `nr_dirty`, `nr_writeback`, `nr_dirtied`, `nr_written`; 0 for one that this kernel lacks.
    fn read_pages(&mut self) -> Result<[u64; 4], WorkloadError> {
        let text = read(&self.vmstat, &mut self.text, "/proc/vmstat")?;
        Ok(["nr_dirty ", "nr_writeback ", "nr_dirtied ", "nr_written "]
            .map(|name| field(text, name).unwrap_or(0)))
    }

    fn read_io(&mut self) -> Result<Option<BlockIo>, WorkloadError> {
        let Some(device) = &self.device else { return Ok(None) };
        let text = read(device, &mut self.text, "/sys/dev/block/*/stat")?;
        Ok(parse_block_stat(text))
    }

    fn read_pressure(&mut self) -> Result<Option<Pressure>, WorkloadError> {
        let Some(files) = &self.pressure else { return Ok(None) };
        let mut totals = [0_u64; 3];
        for (total, file) in totals.iter_mut().zip(files) {
            let text = read(file, &mut self.text, "/proc/pressure")?;
            *total = parse_pressure(text).unwrap_or(0);
        }
        let [cpu_us, io_us, memory_us] = totals;
        Ok(Some(Pressure { cpu_us, io_us, memory_us }))
    }

    /// `pgpgin`: KiB read from block devices, by every read of the machine, RAM disks included
    /// (`submit_bio` of `block/blk-core.c`).
    pub(crate) fn kib_read(&mut self) -> Result<u64, WorkloadError> {
        let text = read(&self.vmstat, &mut self.text, "/proc/vmstat")?;
        field(text, "pgpgin ").ok_or_else(|| failed("read", Path::new("/proc/vmstat"), Errno::PROTO))
    }

    /// Pages dirty or under writeback now.
    pub(crate) fn dirty_pages(&mut self) -> Result<u64, WorkloadError> {
        let [dirty, writeback, ..] = self.read_pages()?;
        Ok(dirty + writeback)
    }
}

impl Reading {
    /// What happened since `before`, as a phase without name, operations and elapsed time.
    pub(crate) fn since(&self, before: &Self) -> Phase {
        let (new, old) = (self.usage, before.usage);
        let [dirty, writeback, dirtied, written] = self.pages;
        Phase {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            user_ns: new.user_ns.saturating_sub(old.user_ns),
            system_ns: new.system_ns.saturating_sub(old.system_ns),
            voluntary_switches: new.voluntary_switches.saturating_sub(old.voluntary_switches),
            involuntary_switches: new.involuntary_switches.saturating_sub(old.involuntary_switches),
            minor_faults: new.minor_faults.saturating_sub(old.minor_faults),
            major_faults: new.major_faults.saturating_sub(old.major_faults),
            guest: cpu_difference(self.guest, before.guest),
            guest_switches: self.guest_switches.saturating_sub(before.guest_switches),
            io: self.io.zip(before.io).map(|(new, old)| io_difference(new, old)),
            pressure: self.pressure.zip(before.pressure).map(|(new, old)| Pressure {
                cpu_us: new.cpu_us.saturating_sub(old.cpu_us),
                io_us: new.io_us.saturating_sub(old.io_us),
                memory_us: new.memory_us.saturating_sub(old.memory_us),
            }),
            pages: PageFlow {
                dirtied: dirtied.saturating_sub(before.pages[2]),
                written: written.saturating_sub(before.pages[3]),
                dirty_before: before.pages[0] + before.pages[1],
                dirty_after: dirty + writeback,
            },
            ..Phase::default()
        }
    }
}

fn read_usage() -> Result<Usage, WorkloadError> {
    sys::usage().map_err(|errno| failed("getrusage", Path::new("self"), errno))
}

fn read<'a>(file: &File, text: &'a mut [u8], path: &str) -> Result<&'a [u8], WorkloadError> {
    let mut length = 0;
    loop {
        let piece = rustix::io::pread(file.as_fd(), &mut text[length..], length as u64)
            .map_err(|errno| failed("read", Path::new(path), errno))?;
        length += piece;
        if piece == 0 || length == text.len() {
            return Ok(&text[..length]);
        }
    }
}

/// The counters of the device under `folder`, if there is one: `st_dev` names it, except on btrfs,
/// where the source of the mount does (proc_pid_mountinfo(5)).
fn device(folder: &Path) -> Option<File> {
    let by_number = |number: u64| {
        File::open(format!("/sys/dev/block/{}:{}/stat", libc::major(number), libc::minor(number))).ok()
    };
    let folder = folder.canonicalize().ok()?;
    let number = std::fs::metadata(&folder).ok()?.st_dev();
    by_number(number).or_else(|| {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        by_number(std::fs::metadata(mount_source(&mounts, &folder)?).ok()?.st_rdev())
    })
}

/// Source of the innermost mount that holds `folder`.
fn mount_source(mountinfo: &str, folder: &Path) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = Path::new(before.split(' ').nth(4)?);
        let source = after.split(' ').nth(1)?;
        folder.starts_with(point).then_some((point.components().count(), source))
    });
    // The last of several mounts on one folder is the visible one.
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, source)| PathBuf::from(source))
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

/// The number after `name` at the start of a line.
fn field(text: &[u8], name: &str) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(name.as_bytes()))?;
    number(&line[name.len()..])
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

fn parse_block_stat(text: &[u8]) -> Option<BlockIo> {
    let words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let at = |index: usize| numbers.get(index).copied();
    Some(BlockIo {
        reads: at(0)?,
        read_sectors: at(2)?,
        writes: at(4)?,
        written_sectors: at(6)?,
        busy_ms: at(9)?,
    })
}

/// `total=` of the `some` line.
fn parse_pressure(text: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"some "))?;
    let word = line.split(|&byte| byte == b' ').find_map(|word| word.strip_prefix(b"total="))?;
    number(word)
}

fn cpu_difference(new: GuestCpu, old: GuestCpu) -> GuestCpu {
    GuestCpu {
        user: new.user.saturating_sub(old.user),
        system: new.system.saturating_sub(old.system),
        // proc_stat(5): iowait may go down, and idle with it.
        idle: new.idle.saturating_sub(old.idle),
        iowait: new.iowait.saturating_sub(old.iowait),
        interrupt: new.interrupt.saturating_sub(old.interrupt),
        steal: new.steal.saturating_sub(old.steal),
    }
}

fn io_difference(new: BlockIo, old: BlockIo) -> BlockIo {
    BlockIo {
        reads: new.reads.saturating_sub(old.reads),
        read_sectors: new.read_sectors.saturating_sub(old.read_sectors),
        writes: new.writes.saturating_sub(old.writes),
        written_sectors: new.written_sectors.saturating_sub(old.written_sectors),
        busy_ms: new.busy_ms.saturating_sub(old.busy_ms),
    }
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
    fn counters_are_found_by_name_and_position() {
        let vmstat = b"nr_dirtied 7\nnr_dirty 3\nnr_dirty_threshold 9\n";
        assert_eq!(field(vmstat, "nr_dirty "), Some(3));
        assert_eq!(field(vmstat, "nr_written "), None);
        let stat = b"   1  2  3  4  5  6  7  8  9  10  11  12 13 14 15 16 17\n";
        let io = BlockIo { reads: 1, read_sectors: 3, writes: 5, written_sectors: 7, busy_ms: 10 };
        assert_eq!(parse_block_stat(stat), Some(io));
        assert_eq!(parse_block_stat(b"1 2"), None);
        let pressure = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=42\nfull avg10=0.00 total=7\n";
        assert_eq!(parse_pressure(pressure), Some(42));
    }

    #[test]
    fn the_innermost_and_last_mount_holds_a_folder() {
        let mountinfo = "1 0 0:1 / / rw - ext4 /dev/vda rw\n\
            2 1 0:2 / /mnt/test rw shared:1 - btrfs /dev/ram0 rw\n\
            3 1 0:3 / /mnt/test rw - btrfs /dev/ram1 rw\n\
            4 1 0:4 / /mnt/testing rw - tmpfs tmpfs rw\n";
        let source = |folder: &str| mount_source(mountinfo, Path::new(folder));
        assert_eq!(source("/mnt/test/a"), Some("/dev/ram1".into()));
        assert_eq!(source("/mnt"), Some("/dev/vda".into()));
    }

    #[test]
    fn a_difference_never_goes_below_zero() {
        let mut meter = Meter::open(&std::env::temp_dir()).expect("counters");
        let before = meter.before().expect("a reading");
        let phase = meter.after().expect("a reading").since(&before);
        assert!(phase.cpu_ns > 0 && phase.cpu_ns < 1_000_000_000, "{phase:?}");
        let reversed = before.since(&meter.before().expect("a reading"));
        assert_eq!((reversed.cpu_ns, reversed.guest), (0, GuestCpu::default()));
    }
}
