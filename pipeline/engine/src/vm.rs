//! Boots guests. Read [`Guest`] and [`BootSpec`] first; [`Qemu`] alone knows QEMU's command line.
//!
//! A guest tells its stages on the console (synchronous, so that instruction counts stay exact)
//! and its results through a virtio-serial port after the last round; the second serial line is
//! the fallback for kernels without virtio. QEMU writes all three to files, which are read while
//! they grow: nothing is lost when either side dies.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{Arm, MeasureMode, Outcome, ScenarioSetup};
use kdelta_wire::{
    DISK_SERIAL, Decoder, DiskKind, Frame, Hello, LOG_SERIAL, RESULT_PORT, Round, RoundFailed,
};

use crate::cancel::Cancel;
use crate::console::{self, Console};
use crate::process::{ProcessError, Program, Running, last_lines};

/// How often the files of a guest are looked at.
const POLL: Duration = Duration::from_millis(20);
/// How often the console is searched.
const SCAN: Duration = Duration::from_millis(200);
/// Time given to a panicking kernel to print its trace before QEMU is killed.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Clock ticks of `/proc/PID/stat` (proc_pid_stat(5); 100 on every Linux of this architecture).
const TICKS_PER_SECOND: f64 = 100.0;
/// Console and results of a boot need less than this, in bytes; with less free, QEMU's writes may
/// have been dropped.
const LEAST_SPACE: u64 = 4 << 20;
/// The program.
pub const QEMU: &str = "qemu-system-x86_64";

/// Something that boots a kernel and brings back what the init said.
pub trait Guest: Sync {
    /// Boots once. `on_stage` hears each stage that the init announces.
    ///
    /// # Errors
    /// When the user asked to stop. Everything else, host trouble included, is an [`Outcome`].
    fn boot(
        &self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<BootResult, ProcessError>;
}

/// One boot to do.
#[derive(Clone, Debug)]
pub struct BootSpec<'a> {
    /// Kernel, machine and disk.
    pub arm: &'a Arm,
    /// vmlinux or bzImage.
    pub kernel: &'a Utf8Path,
    /// Ticks of the kernel's timer per second, when known.
    pub kernel_hz: Option<u32>,
    /// Initramfs with the job in it.
    pub initramfs: &'a Utf8Path,
    /// How time is measured.
    pub mode: MeasureMode,
    /// Seed of the guest's randomness.
    pub seed: u64,
    /// Folder for console, results and disk; exists and is ours alone.
    pub folder: &'a Utf8Path,
    /// How long each part may take.
    pub deadlines: Deadlines,
    /// Host CPUs to run on; any when empty.
    pub pins: &'a [usize],
    /// Memory of the host that the guest sees as a PCI device.
    pub window: Option<Window<'a>>,
}

/// A file that the guest sees as the memory of a PCI device: no interrupt and no thread of the host
/// comes between, so that reading it leaves instruction counts exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'a> {
    /// The file.
    pub path: &'a Utf8Path,
    /// Its size: a power of two, as PCI wants it.
    pub bytes: u64,
    /// Whether what the guest writes goes into the file.
    pub writable: bool,
}

/// Host CPU time that QEMU may use without the guest reaching the next stage. CPU time, because a
/// loaded host is no fault of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Until the init runs.
    pub boot: Duration,
    /// For each stage after that.
    pub stage: Duration,
    /// A guest that waits for nothing uses no CPU; in wall time a deadline is this many times longer.
    pub wall_factor: u32,
}

impl Default for Deadlines {
    /// A guest reaches its init in a second; a round of the largest preset takes two minutes.
    fn default() -> Self {
        Self { boot: Duration::from_secs(60), stage: Duration::from_secs(600), wall_factor: 20 }
    }
}

/// What came of a boot.
#[derive(Clone, Debug, PartialEq)]
pub struct BootResult {
    /// How it ended.
    pub outcome: Outcome,
    /// First frame.
    pub hello: Option<Hello>,
    /// How filesystems were made.
    pub setups: Vec<ScenarioSetup>,
    /// Every round.
    pub rounds: Vec<Round>,
    /// Rounds that failed in a job that went on all the same.
    pub failed_rounds: Vec<RoundFailed>,
    /// What the console told.
    pub console: Console,
    /// CPU time QEMU took, in seconds.
    pub host_cpu_seconds: f64,
    /// CPU time QEMU took until the init spoke, in seconds.
    pub init_cpu_seconds: Option<f64>,
    /// Wall time, in seconds.
    pub wall_seconds: f64,
}

/// QEMU on this host.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// First line of `--version`.
    pub version: String,
}

/// Why QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{QEMU} cannot be used: {0}")]
pub struct QemuMissing(#[from] ProcessError);

impl Qemu {
    /// Asks QEMU for its version.
    ///
    /// # Errors
    /// When it is not installed or does not run.
    pub fn find(cancel: &Cancel) -> Result<Self, QemuMissing> {
        let output = Program::new(QEMU).arg("--version").output(cancel)?;
        Ok(Self { version: output.text().lines().next().unwrap_or_default().to_owned() })
    }
}

/// The kernel command line of a boot.
#[must_use]
pub fn cmdline(spec: &BootSpec) -> String {
    let mut words: Vec<String> =
        ["console=ttyS0", "loglevel=5", "panic=-1", "oops=panic"].map(str::to_owned).to_vec();
    if spec.mode == MeasureMode::Instructions {
        // Virtual time runs at one instruction a nanosecond: the TSC's frequency is known, and
        // calibrating timers against each other would only burn instructions (docs/guests.md).
        words.extend(
            [
                "nokaslr",
                "norandmaps",
                "randomize_kstack_offset=off",
                "random.trust_cpu=off",
                "nolapic_timer",
                "no_timer_check",
                "tsc=reliable",
                "tsc_early_khz=1000000",
                "cryptomgr.notests=1",
            ]
            .map(str::to_owned),
        );
        if let Some(hz) = spec.kernel_hz.filter(|hz| *hz > 0) {
            words.push(format!("lpj={}", 1_000_000_000 / hz));
        }
        if spec.arm.guest.cpus > 1 {
            words.push("cpu_init_udelay=0".to_owned());
        }
    }
    if let (DiskKind::Ram, Some(size)) = (spec.arm.guest.disk.kind, spec.arm.guest.disk.capacity()) {
        let disks = if spec.arm.filesystem.log.is_some() { 2 } else { 1 };
        words.push(format!("brd.rd_nr={disks} brd.rd_size={}", size.kib()));
    }
    words.extend(spec.arm.guest.cmdline.iter().cloned());
    words.join(" ")
}

/// QEMU's arguments for a boot.
#[must_use]
pub fn arguments(spec: &BootSpec) -> Vec<String> {
    let guest = &spec.arm.guest;
    let file = |name: &str| escaped(&spec.folder.join(name));
    let mut list: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-bios", "qboot.rom"]);
    add(&["-machine", "q35,i8042=off,sata=off,smbus=off,usb=off,vmport=off,graphics=off,hpet=on"]);
    match spec.mode {
        MeasureMode::Instructions => {
            add(&["-accel", "tcg", "-icount", "shift=0,sleep=off"]);
            // Without +rdrand nearly half of a tmpfs create is random-number work; with -cpu max
            // memset and memcpy become loops of counted instructions.
            add(&["-cpu", "qemu64,+rdrand"]);
            add(&["-rtc", &format!("base={},clock=vm", start_date(spec.seed))]);
        }
        MeasureMode::Wall => add(&["-accel", "kvm", "-cpu", "host"]),
    }
    add(&["-seed", &spec.seed.to_string()]);
    add(&["-smp", &guest.cpus.to_string(), "-m", &format!("{}M", guest.memory.mib())]);
    if guest.cpus > 1 && spec.mode == MeasureMode::Instructions {
        // Each CPU gets an HPET channel of its own as its timer.
        add(&[
            "-global",
            "hpet.msi=on",
            "-global",
            &format!("hpet.timers={}", (guest.cpus * 2).clamp(3, 32)),
        ]);
    }
    add(&["-kernel", spec.kernel.as_str(), "-initrd", spec.initramfs.as_str(), "-append", &cmdline(spec)]);
    add(&["-chardev", &format!("file,id=console,path={}", file(CONSOLE)), "-serial", "chardev:console"]);
    add(&["-chardev", &format!("file,id=fallback,path={}", file(FALLBACK)), "-serial", "chardev:fallback"]);
    add(&["-chardev", &format!("file,id=results,path={}", file(RESULTS))]);
    // With an ioeventfd the main loop's thread takes a virtio kick, at a moment of the host's own:
    // counts would differ by 0.02 %. Without it the vCPU does, and counts are exact.
    let kick = if spec.mode == MeasureMode::Instructions { ",ioeventfd=off" } else { "" };
    add(&["-device", &format!("virtio-serial-pci,id=ports,max_ports=2{kick}")]);
    add(&["-device", &format!("virtserialport,bus=ports.0,chardev=results,name={RESULT_PORT}")]);
    if let Some(Window { path, bytes, writable }) = spec.window {
        let access = if writable { "" } else { ",readonly=on" };
        let path = escaped(path);
        add(&[
            "-object",
            &format!("memory-backend-file,id=window,share=on{access},size={bytes},mem-path={path}"),
        ]);
        add(&["-device", "ivshmem-plain,memdev=window"]);
    }
    let (cache, aio) = (guest.disk.cache.name(), guest.disk.aio.name());
    for disk in backed_disks(spec.arm) {
        let BackedDisk { id, serial, file: name, .. } = disk;
        let front = match guest.disk.kind {
            DiskKind::Nvme => format!("nvme,drive={id},serial={serial}"),
            _ => format!("virtio-blk-pci,drive={id},serial={serial}{kick}"),
        };
        let path = file(name);
        add(&["-drive", &format!("if=none,id={id},format=raw,cache={cache},aio={aio},file={path}")]);
        add(&["-device", &front]);
    }
    list
}

/// A disk that is a file on the host.
struct BackedDisk {
    id: &'static str,
    serial: &'static str,
    file: &'static str,
    bytes: u64,
}

/// The disks of `arm` that are files on the host, that of an external log last.
fn backed_disks(arm: &Arm) -> Vec<BackedDisk> {
    let (DiskKind::Nvme | DiskKind::VirtioBlk, Some(size)) = (arm.guest.disk.kind, arm.guest.disk.capacity())
    else {
        return Vec::new();
    };
    let test = BackedDisk { id: "disk", serial: DISK_SERIAL, file: DISK, bytes: size.bytes() };
    let log = arm.filesystem.log.as_ref();
    let log = log.map(|log| BackedDisk { id: "log", serial: LOG_SERIAL, file: LOG_DISK, bytes: log.bytes });
    [test].into_iter().chain(log).collect()
}

const CONSOLE: &str = "console.log";
const RESULTS: &str = "results.bin";
const FALLBACK: &str = "results-serial.bin";
const DISK: &str = "disk.raw";
const LOG_DISK: &str = "log.raw";

/// QEMU splits option values at commas; a doubled comma stands for one.
fn escaped(path: &Utf8Path) -> String {
    path.as_str().replace(',', ",,")
}

/// The date a guest believes it is: seeds start seconds apart, so that nothing depends on the
/// clock's lower digits.
fn start_date(seed: u64) -> String {
    let seconds = seed % 86_400;
    format!("2026-01-01T{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

impl Guest for Qemu {
    fn boot(
        &self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<BootResult, ProcessError> {
        let started = Instant::now();
        let mut watch = Watch::new(spec);
        let outcome = match prepare(spec) {
            Err(message) => Outcome::HostFailed { message },
            Ok(()) => watch.run(spec, cancel, on_stage)?,
        };
        // A disk image may be gigabytes; what it held is void after the boot.
        for name in [DISK, LOG_DISK] {
            let _ = fs::remove_file(spec.folder.join(name));
        }
        Ok(BootResult {
            outcome,
            hello: watch.hello,
            setups: watch.setups,
            rounds: watch.rounds,
            failed_rounds: watch.failed_rounds,
            console: watch.console,
            host_cpu_seconds: watch.cpu_seconds,
            init_cpu_seconds: watch.init_cpu_seconds,
            wall_seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// Makes the disk images and removes what an earlier try left.
fn prepare(spec: &BootSpec) -> Result<(), String> {
    for name in [CONSOLE, RESULTS, FALLBACK, DISK, LOG_DISK] {
        let path = spec.folder.join(name);
        if path.exists() {
            fs::remove_file(&path).map_err(|error| format!("cannot remove {path}: {error}"))?;
        }
    }
    for disk in backed_disks(spec.arm) {
        let path = spec.folder.join(disk.file);
        File::create(&path)
            .and_then(|file| file.set_len(disk.bytes))
            .map_err(|error| format!("cannot make disk image {path} of {} bytes: {error}", disk.bytes))?;
    }
    Ok(())
}

/// What is known of a running guest.
struct Watch {
    console_path: Utf8PathBuf,
    ports: [Port; 2],
    hello: Option<Hello>,
    setups: Vec<ScenarioSetup>,
    rounds: Vec<Round>,
    failed_rounds: Vec<RoundFailed>,
    console: Console,
    cpu_seconds: f64,
    init_cpu_seconds: Option<f64>,
}

/// A file of frames that grows.
struct Port {
    path: Utf8PathBuf,
    offset: u64,
    decoder: Decoder,
}

impl Port {
    fn new(path: Utf8PathBuf) -> Self {
        Self { path, offset: 0, decoder: Decoder::default() }
    }

    /// Frames that were added since the last call.
    fn read(&mut self) -> Result<Vec<Frame>, String> {
        let mut bytes = Vec::new();
        let added = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_end(&mut bytes)
        });
        match added {
            Ok(count) => self.offset += count as u64,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read {}: {error}", self.path)),
        }
        self.decoder.push(&bytes).into_iter().map(|item| item.map_err(|error| error.to_string())).collect()
    }
}

impl Watch {
    fn new(spec: &BootSpec) -> Self {
        Self {
            console_path: spec.folder.join(CONSOLE),
            ports: [Port::new(spec.folder.join(RESULTS)), Port::new(spec.folder.join(FALLBACK))],
            hello: None,
            setups: Vec::new(),
            rounds: Vec::new(),
            failed_rounds: Vec::new(),
            console: Console::default(),
            cpu_seconds: 0.0,
            init_cpu_seconds: None,
        }
    }

    fn run(
        &mut self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<Outcome, ProcessError> {
        let log = spec.folder.join("qemu.log");
        let program = if spec.pins.is_empty() {
            Program::new(QEMU)
        } else {
            let list: Vec<String> = spec.pins.iter().map(ToString::to_string).collect();
            Program::new("taskset").arg("-c").arg(list.join(",")).arg(QEMU)
        };
        let qemu = match program.args(arguments(spec)).start(&log) {
            Ok(qemu) => qemu,
            Err(error) => return Ok(Outcome::HostFailed { message: error.to_string() }),
        };
        let mut next_scan = Instant::now();
        let mut dying: Option<Instant> = None;
        let mut moved = (Instant::now(), 0.0);
        loop {
            let ended = qemu.wait(POLL)?;
            self.account(&qemu);
            if let Some(outcome) = self.frames() {
                qemu.kill();
                self.look();
                return Ok(self.blame_kernel_first(outcome));
            }
            if ended.is_some() || Instant::now() >= next_scan {
                let before = self.console.stage.clone();
                self.look();
                next_scan = Instant::now() + SCAN;
                if self.console.stage != before {
                    moved = (Instant::now(), self.cpu_seconds);
                    self.init_cpu_seconds.get_or_insert(self.cpu_seconds);
                    on_stage(self.console.stage.as_deref().unwrap_or_default());
                }
            }
            if let Some((success, status)) = ended {
                return Ok(self.explain_end(success, &status, &log));
            }
            if cancel.is_requested() {
                return Err(ProcessError::Cancelled);
            }
            if let Some(finding) = self.console.fatal() {
                let since = *dying.get_or_insert_with(Instant::now);
                if since.elapsed() > LAST_WORDS {
                    return Ok(Outcome::KernelFailed { message: finding.title.clone() });
                }
            }
            let limit = if self.console.stage.is_none() { spec.deadlines.boot } else { spec.deadlines.stage };
            let late = self.cpu_seconds - moved.1 > limit.as_secs_f64()
                || moved.0.elapsed() > limit.saturating_mul(spec.deadlines.wall_factor);
            if late {
                qemu.kill();
                self.look();
                let stage = self.console.stage.clone().unwrap_or_else(|| "boot".to_owned());
                let outcome = Outcome::TimedOut { stage, after_seconds: limit.as_secs() };
                return Ok(self.blame_kernel_first(outcome));
            }
        }
    }

    /// Takes new frames; `Some` when the guest said its last word.
    fn frames(&mut self) -> Option<Outcome> {
        let mut new = Vec::new();
        for port in &mut self.ports {
            match port.read() {
                Ok(frames) => new.extend(frames),
                Err(message) => {
                    return Some(Outcome::HostFailed { message: format!("result port: {message}") });
                }
            }
        }
        for frame in new {
            match frame {
                Frame::Hello(hello) => self.hello = Some(hello),
                Frame::Mounted { scenario, mkfs_output, mount_line } => {
                    self.setups.push(ScenarioSetup { scenario, mkfs_output, mount_line });
                }
                Frame::Round(round) => self.rounds.push(round),
                Frame::RoundFailed(failed) => self.failed_rounds.push(failed),
                Frame::Failure { stage, message } => {
                    return Some(Outcome::WorkloadFailed { message: format!("{stage}: {message}") });
                }
                Frame::Done => return Some(Outcome::Completed),
            }
        }
        None
    }

    fn look(&mut self) {
        self.console = console::scan(&fs::read(&self.console_path).unwrap_or_default());
    }

    /// What the kernel complained of explains everything that came after.
    fn blame_kernel_first(&self, outcome: Outcome) -> Outcome {
        match self.console.fatal() {
            Some(finding) => Outcome::KernelFailed { message: finding.title.clone() },
            None => outcome,
        }
    }

    /// QEMU ended before the guest was done.
    fn explain_end(&self, success: bool, status: &str, log: &Utf8Path) -> Outcome {
        let said = last_lines(&fs::read(log).unwrap_or_default());
        if !success {
            return self.blame_kernel_first(Outcome::HostFailed {
                message: format!("QEMU ended with {status}: {said}"),
            });
        }
        if let Some(folder) = self.console_path.parent()
            && let Ok(stat) = rustix::fs::statvfs(folder.as_std_path())
            && stat.f_bavail.saturating_mul(stat.f_frsize) < LEAST_SPACE
        {
            let message = format!("the disk of {folder} is full: results may be lost; make room and resume");
            return Outcome::HostFailed { message };
        }
        let tail = last_lines(&fs::read(&self.console_path).unwrap_or_default());
        let message = format!("the guest ended without results; end of its console:\n{tail}");
        self.blame_kernel_first(match &self.console.stage {
            None => Outcome::BootFailed { message },
            Some(stage) => Outcome::WorkloadFailed { message: format!("{stage}: {message}") },
        })
    }

    /// CPU time of QEMU, from fields 14 and 15 of `/proc/PID/stat`.
    fn account(&mut self, qemu: &Running) {
        let Some(pid) = qemu.pid() else { return };
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return };
        let after_name = text.rsplit(')').next().unwrap_or_default();
        let ticks: f64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum();
        self.cpu_seconds = self.cpu_seconds.max(ticks / TICKS_PER_SECOND);
    }
}

#[cfg(test)]
mod tests;
