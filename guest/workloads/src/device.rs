//! Sequential writes of large blocks, which a device limits and a CPU does not. Read [`Device`]
//! first.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use kdelta_wire::{Clock, FilesystemKind};
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags};

use crate::budget::{self, Budget, TICKS_PER_SECOND};
use crate::dio::open_direct;
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::round::{c_path, failed};
use crate::sys::pages::Aligned;
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, Refusal, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock,
};

const DIRECT: &str = "direct";
const BUFFERED: &str = "buffered";
const WRITES: &str = "writes";
const SHORT: &str = "short writes";
const CONTENT: &str = "pieces with the right content";
/// Stamp of a piece that only the preparation wrote, plus its number.
const PREPARED: u64 = 1 << 63;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "device",
    title: "calibrate the device",
    summary: "Writes a file from its start to its end, again and again, in large pieces. Its rates say what the \
              device can do, by which other workloads are judged to be limited by it or not (rule M6); under \
              instruction counting they say nothing of the kind.",
    source: "kdelta's catalogue (W20), after Dave Chinner's objection that a create benchmark was throttled by disk \
             bandwidth",
    scenarios: &[
        ScenarioInfo { name: DIRECT, summary: "O_DIRECT, one write after the other", default: true },
        ScenarioInfo {
            name: BUFFERED,
            summary: "through the page cache; the time ends when fdatasync(2) has brought all of it to the device",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: budget::OPERATIONS,
            summary: "writes",
            unit: "writes",
            domain: Domain::Integer { default: 256, min: 1, max: 1 << 24 },
            scenarios: &[],
        },
        budget::SECONDS_PARAMETER,
        ParameterInfo {
            name: "write_kib",
            summary: "size of a write; 1024 measures bandwidth, 4 the writes that the device does in a second",
            unit: "blocks of 1 KiB",
            domain: Domain::Integer { default: 1024, min: 4, max: 16_384 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "file_mib",
            summary: "size of the file",
            unit: "MiB",
            // The largest write must fit.
            domain: Domain::Integer { default: 256, min: 16, max: 1 << 20 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo { name: WRITES, operation: "one write", primary: true, scenarios: &[] }],
    measures: &[
        MeasureInfo {
            name: "bandwidth",
            phase: WRITES,
            summary: "bytes in a second, or in 10^9 instructions",
            unit: "bytes/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "iops",
            phase: WRITES,
            summary: "writes in a second, or in 10^9 instructions",
            unit: "writes/s",
            better: Better::Higher,
            scenarios: &[],
        },
        latency("p50", "median time of a write"),
        latency("p99", "time that 99 % of writes do not exceed"),
        latency("p999", "time that 99.9 % of writes do not exceed"),
        latency("max", "longest time of a write"),
    ],
    checks: &[
        CheckInfo {
            name: SHORT,
            summary: "no write did less than it was given",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: BUFFERED, inject: "pwrite64:retval=512:when=3" },
        },
        CheckInfo {
            name: CONTENT,
            summary: "each piece of the file reads back as the last write for it wrote it",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: BUFFERED, inject: "pwrite64:retval=65536:when=3" },
        },
    ],
    refusals: &[Refusal {
        filesystems: &[FilesystemKind::Tmpfs],
        scenarios: &[],
        reason: "tmpfs has no device to calibrate",
    }],
    scale: budget::OPERATIONS,
    presets: &[
        Preset {
            name: "source",
            summary: "writes of 1 MiB for 30 s; the file must be larger than what the device caches",
            values: &[
                (budget::OPERATIONS, Setting::Integer(1 << 22)),
                (budget::SECONDS, Setting::Integer(30)),
                ("write_kib", Setting::Integer(1024)),
                ("file_mib", Setting::Integer(4096)),
            ],
        },
        Preset {
            name: "guest",
            summary: "256 writes of 1 MiB on 128 MiB",
            values: &[
                (budget::OPERATIONS, Setting::Integer(256)),
                (budget::SECONDS, Setting::Integer(0)),
                ("write_kib", Setting::Integer(1024)),
                ("file_mib", Setting::Integer(128)),
            ],
        },
        Preset {
            name: "quick",
            summary: "20 writes of 64 KiB on 16 MiB, for a first look",
            values: &[
                (budget::OPERATIONS, Setting::Integer(20)),
                ("write_kib", Setting::Integer(64)),
                ("file_mib", Setting::Integer(16)),
            ],
        },
    ],
};

const fn latency(name: &'static str, summary: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: WRITES, summary, unit: "ticks", better: Better::Lower, scenarios: &[] }
}

/// The workload `device`.
pub(crate) struct Device;

impl Workload for Device {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mut target = Target::prepare(round)?;
        let (budget, clock) = (round.budget()?, round.clock());
        let mut latencies = Latencies::with_capacity(round.integer(budget::OPERATIONS)? as usize);
        let writer = match round.scenario() {
            DIRECT => Some(open_direct(&target.path)?),
            _ => None,
        };
        round.sync()?;
        if writer.is_some() {
            // Otherwise each write would also take the page of the preparation out of the cache.
            rustix::fs::fadvise(&target.file, 0, None, Advice::DontNeed)
                .map_err(|errno| failed("fadvise64", &target.path, errno))?;
        }
        let good = round.counted_phase(WRITES, || {
            let good = target.write(writer.as_ref(), budget, clock, &mut latencies)?;
            Ok((target.writes, good))
        })?;
        let ticks = round.latest(WRITES).map_or(0, |phase| phase.elapsed);
        if ticks > 0 {
            let per_second = target.writes as f64 * TICKS_PER_SECOND as f64 / ticks as f64;
            round.measure(WRITES, "iops", per_second);
            round.measure(WRITES, "bandwidth", per_second * target.pattern.unit().len() as f64);
        }
        round.measure_latencies(WRITES, &latencies);
        round.check(SHORT, 0, target.writes - good);
        round.count("pwrite64", target.writes, good);
        target.prove(round)
    }
}

/// The file.
struct Target {
    path: PathBuf,
    file: OwnedFd,
    pattern: Pattern,
    buffer: Aligned,
    /// Pieces of the file.
    pieces: u64,
    /// Timed writes so far.
    writes: u64,
}

impl Target {
    /// Allocates and writes the file.
    fn prepare(round: &RoundContext) -> Result<Self, WorkloadError> {
        let path = round.mount_point().join("device");
        // O_DIRECT wants whole blocks of the device, which may be 4 KiB.
        let size = (round.integer("write_kib")? << 10).next_multiple_of(4096);
        let bytes = round.integer("file_mib")? << 20;
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&c_path(&path)?, flags, Mode::from_raw_mode(0o666))
            .map_err(|errno| failed("openat", &path, errno))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(|errno| failed("fallocate", &path, errno))?;
        let (pattern, pieces) = (Pattern::new(0xde, size as usize), bytes / size);
        pattern.fill(file.as_fd(), &path, pieces, |number| PREPARED + number)?;
        let mut buffer = Aligned::new(size as usize);
        buffer.get_mut().copy_from_slice(pattern.unit());
        Ok(Self { path, file, pattern, buffer, pieces, writes: 0 })
    }

    /// Writes until `budget` is used up, through `direct` if it is there, else through the cache and
    /// to the device; returns how many writes were whole. Timed.
    fn write(
        &mut self,
        direct: Option<&OwnedFd>,
        mut budget: Budget,
        clock: Clock,
        latencies: &mut Latencies,
    ) -> Result<u64, WorkloadError> {
        let file = direct.unwrap_or(&self.file);
        let length = self.buffer.get().len();
        let (mut good, mut place) = (0, 0);
        let mut last = clock::now(clock);
        while budget.next() {
            self.buffer.get_mut()[..8].copy_from_slice(&self.writes.to_le_bytes());
            let written = rustix::io::pwrite(file, self.buffer.get(), place * length as u64)
                .map_err(|errno| failed("pwrite64", &self.path, errno))?;
            good += u64::from(written == length);
            self.writes += 1;
            place = if place + 1 == self.pieces { 0 } else { place + 1 };
            let now = clock::now(clock);
            latencies.push(now - last);
            last = now;
        }
        if direct.is_none() {
            rustix::fs::fdatasync(file).map_err(|errno| failed("fdatasync", &self.path, errno))?;
        }
        Ok(good)
    }

    /// Checks every piece of the file.
    fn prove(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let found = self.pattern.stamps(self.file.as_fd(), &self.path, self.pieces)?.stamps;
        let last = |piece: u64| {
            if piece >= self.writes {
                return PREPARED + piece;
            }
            (self.writes - 1 - piece) / self.pieces * self.pieces + piece
        };
        let right = (0..).zip(&found).filter(|(piece, stamp)| last(*piece) == **stamp).count();
        round.check(CONTENT, self.pieces, right);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    #[test]
    fn pieces_are_written_in_turn_and_rates_follow() {
        for scenario in [DIRECT, BUFFERED] {
            for operations in [10, 300] {
                let folder = tempfile::tempdir().expect("a temporary folder");
                let values = [
                    (budget::OPERATIONS, Setting::Integer(operations)),
                    ("write_kib", Setting::Integer(100)),
                    ("file_mib", Setting::Integer(16)),
                ];
                let mut request = request(&format!("device/{scenario}"), folder.path(), &values);
                assert!(matches!(run(&request, None), Err(WorkloadError::Filesystem { .. })));
                request.filesystem = FilesystemKind::Ext4;
                let round = match run(&request, None) {
                    Err(WorkloadError::Unavailable { what, .. }) => return eprintln!("skipped: {what}"),
                    round => round.expect("runs"),
                };
                assert_sound(&round);
                let phase = &round.phases[0];
                assert_eq!((phase.ops, round.census["pwrite64"].attempted), (operations, operations));
                let (bandwidth, iops) = (phase.measures["bandwidth"], phase.measures["iops"]);
                assert!((bandwidth / iops - 102_400.0).abs() < 1e-6, "{bandwidth} {iops}");
            }
        }
    }
}
