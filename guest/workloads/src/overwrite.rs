//! Writing over a file that is in the page cache, call by call. Read [`Overwrite`] first, then
//! `laps`.

use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use kdelta_wire::Clock;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::round::{failed, open_root};
use crate::shape::{self, Inspector};
use crate::sys::pages::{Mapping, PAGE};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock, sys,
};

const WRITE: &str = "write";
const PWRITE: &str = "pwrite";
const WRITEV: &str = "writev";
const RETURNS: &str = "calls that wrote all bytes";
const SIZE: &str = "size of the file";
const CONTENT: &str = "places with the last bytes written there";
const RESIDENT: &str = "pages in the page cache";
/// Most buffers of one writev; libMicro's default is 10.
const VECTORS: usize = 16;
/// Stamp of a place that only the preparation wrote, plus its number.
const PREPARED: u64 = 1 << 63;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "overwrite",
    title: "overwrite cached data",
    summary: "Writes over a file whose pages are in memory and dirty, place after place from its start to its end and \
              again; nothing is extended or synced.",
    source: "libMicro's cases write, pwrite and writev (write_n1k, write_n10k, writev_n1k and the like)",
    scenarios: &[
        ScenarioInfo {
            name: WRITE,
            summary: "write(2), with an lseek(2) to the start after each lap",
            default: true,
        },
        ScenarioInfo { name: PWRITE, summary: "pwrite(2)", default: true },
        ScenarioInfo {
            name: WRITEV,
            summary: "writev(2) of `vectors` buffers, with an lseek(2) to the start after each lap",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "operations",
            summary: "calls of the timed loop",
            unit: "calls",
            domain: Domain::Integer { default: 65_536, min: 1, max: 1 << 26 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "size",
            summary: "bytes of one buffer",
            unit: "bytes",
            domain: Domain::Integer { default: 1024, min: 8, max: 65_536 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "vectors",
            summary: "buffers of one call",
            unit: "buffers",
            domain: Domain::Integer { default: 10, min: 1, max: VECTORS as u64 },
            scenarios: &[WRITEV],
        },
        ParameterInfo {
            name: "file_mib",
            summary: "size of the file",
            unit: "MiB",
            // One call must fit: 16 buffers of 64 KiB are 1 MiB.
            domain: Domain::Integer { default: 4, min: 1, max: 4096 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo { name: "calls", operation: "one call", primary: true, scenarios: &[] }],
    measures: &[
        latency("p50", "median time of a call"),
        latency("p99", "time that 99 % of calls do not exceed"),
        latency("p999", "time that 99.9 % of calls do not exceed"),
        latency("max", "longest time of a call"),
        fact(
            "folio_bytes",
            "mean size of the file's folios before the first call; missing where /proc/kpageflags cannot be read, which \
             needs root",
            "bytes",
        ),
        fact("thp_mode", "transparent huge pages: 0 never or none, 1 on request, 2 always", ""),
    ],
    checks: &[
        CheckInfo {
            name: RETURNS,
            summary: "every call returned the number of bytes it was given",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: PWRITE, inject: "pwrite64:retval=100:when=400" },
        },
        CheckInfo {
            name: SIZE,
            summary: "the file is as long as before",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: WRITE, inject: "lseek:retval=0" },
        },
        CheckInfo {
            name: CONTENT,
            summary: "each place of the file reads back as the last call for it wrote it",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: PWRITE, inject: "pwrite64:retval=1024:when=1500" },
        },
        CheckInfo {
            name: RESIDENT,
            summary: "mincore(2) finds the whole file in memory before the first call and after the last",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_with_a_hole_is_not_resident"),
        },
    ],
    refusals: &[],
    scale: "operations",
    presets: &[
        Preset {
            name: "source",
            summary: "calls of 1 KiB, or 10 of these, on 1 MiB",
            values: &[
                ("operations", Setting::Integer(100_000)),
                ("size", Setting::Integer(1024)),
                ("vectors", Setting::Integer(10)),
                ("file_mib", Setting::Integer(1)),
            ],
        },
        Preset {
            name: "source-10k",
            summary: "calls of 10 KiB, or 10 of these, on 64 MiB",
            values: &[
                ("operations", Setting::Integer(100_000)),
                ("size", Setting::Integer(10_240)),
                ("vectors", Setting::Integer(10)),
                ("file_mib", Setting::Integer(64)),
            ],
        },
        Preset {
            name: "guest",
            summary: "65,536 calls of 1 KiB, or 10 of these, on 4 MiB",
            values: &[
                ("operations", Setting::Integer(65_536)),
                ("size", Setting::Integer(1024)),
                ("vectors", Setting::Integer(10)),
                ("file_mib", Setting::Integer(4)),
            ],
        },
        Preset {
            name: "quick",
            summary: "1100 calls of 1 KiB, or 10 of these, on 1 MiB, for a first look",
            values: &[
                ("operations", Setting::Integer(1100)),
                ("size", Setting::Integer(1024)),
                ("vectors", Setting::Integer(10)),
                ("file_mib", Setting::Integer(1)),
            ],
        },
    ],
};

const fn latency(name: &'static str, summary: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: "calls", summary, unit: "ticks", better: Better::Lower, scenarios: &[] }
}

const fn fact(name: &'static str, summary: &'static str, unit: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: "calls", summary, unit, better: Better::Neither, scenarios: &[] }
}

/// The workload `overwrite`.
pub(crate) struct Overwrite;

impl Workload for Overwrite {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let operations = round.integer("operations")?;
        let mut fixture = Fixture::prepare(round)?;
        let folio_bytes = fixture.folio_bytes()?;
        let mut latencies = Latencies::with_capacity(operations as usize);
        let clock = round.clock();
        round.sync()?;
        // One lap untimed, so that every page is dirty before the first timed call.
        let mut unmeasured = Latencies::with_capacity(fixture.places as usize);
        let first = fixture.laps(round.scenario(), 0, fixture.places, clock, &mut unmeasured)?;
        let before = fixture.resident()?;
        let scenario = round.scenario();
        let places = fixture.places;
        let done = round.phase("calls", operations, || {
            fixture.laps(scenario, places, operations, clock, &mut latencies)
        })?;
        let after = fixture.resident()?;
        round.measure_latencies("calls", &latencies);
        if let Some(bytes) = folio_bytes {
            round.measure("calls", "folio_bytes", bytes);
        }
        round.measure("calls", "thp_mode", shape::transparent_huge_pages());
        let calls = places + operations;
        let good = first.good + done.good;
        round.check(RETURNS, calls, good);
        let call = if scenario == PWRITE { "pwrite64" } else { scenario };
        round.count(call, calls, good);
        let seeks = first.seeks + done.seeks;
        if seeks > 0 {
            round.count("lseek", seeks, seeks);
        }
        fixture.prove(round, calls, before, after)
    }
}

/// The file and what is written to it.
struct Fixture {
    file: OwnedFd,
    path: PathBuf,
    bytes: u64,
    pattern: Pattern,
    /// The bytes of one call.
    buffer: Vec<u8>,
    /// Bytes of one of its parts.
    size: usize,
    /// Calls that fit into the file, one after the other.
    places: u64,
}

/// What a loop did.
struct Done {
    good: u64,
    seeks: u64,
}

impl Fixture {
    fn prepare(round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let path = round.mount_point().join("overwrite");
        let size = round.integer("size")? as usize;
        let vectors = if round.scenario() == WRITEV { round.integer("vectors")? as usize } else { 1 };
        let bytes = round.integer("file_mib")? << 20;
        let pattern = Pattern::new(0x0f, size * vectors);
        let places = bytes / (size * vectors) as u64;
        let root = open_root(round.mount_point())?;
        let name = CString::new("overwrite").unwrap_or_default();
        let file = sys::create(root.as_fd(), &name).map_err(|errno| failed("openat", &path, errno))?;
        let mut writes = pattern.fill(file.as_fd(), &path, places, |number| PREPARED + number)?;
        let rest = vec![0; (bytes % (size * vectors) as u64) as usize];
        if !rest.is_empty() {
            sys::write(file.as_fd(), &rest).map_err(|errno| failed("write", &path, errno))?;
            writes += 1;
        }
        rewind(&file).map_err(|errno| failed("lseek", &path, errno))?;
        round.count("write", writes, writes);
        round.count("lseek", 1, 1);
        let buffer = pattern.unit().to_vec();
        Ok(Self { file, path, bytes, pattern, buffer, size, places })
    }

    /// Makes `count` calls from the start of the file on, of which `number` came before.
    fn laps(
        &mut self,
        scenario: &str,
        number: u64,
        count: u64,
        clock: Clock,
        latencies: &mut Latencies,
    ) -> Result<Done, WorkloadError> {
        let (places, length) = (self.places, self.buffer.len() as u64);
        let (file, size) = (self.file.as_fd(), self.size);
        let loops = Loop { places, number, count, clock };
        let buffer = &mut self.buffer;
        match scenario {
            PWRITE => loops.run(
                buffer,
                latencies,
                || Ok(0),
                |bytes, place| {
                    rustix::io::pwrite(file, bytes, place * length).map_err(|errno| ("pwrite64", errno))
                },
            ),
            WRITEV => loops.run(
                buffer,
                latencies,
                || rewind(&self.file).map(|()| 1),
                |bytes, _| {
                    let mut vectors = [IoSlice::new(&[]); VECTORS];
                    let mut used = 0;
                    for (vector, part) in vectors.iter_mut().zip(bytes.chunks_exact(size)) {
                        *vector = IoSlice::new(part);
                        used += 1;
                    }
                    rustix::io::writev(file, &vectors[..used]).map_err(|errno| ("writev", errno))
                },
            ),
            _ => loops.run(
                buffer,
                latencies,
                || rewind(&self.file).map(|()| 1),
                |bytes, _| sys::write(file, bytes).map_err(|errno| ("write", errno)),
            ),
        }
        .map_err(|(call, errno)| failed(call, &self.path, errno))
    }

    /// Pages of the file that are in memory.
    fn resident(&self) -> Result<u64, WorkloadError> {
        let lost = |call| move |errno| failed(call, &self.path, errno);
        let mapping = Mapping::of_file(self.file.as_fd(), self.bytes as usize).map_err(lost("mmap"))?;
        mapping.resident().map_err(lost("mincore"))
    }

    /// Mean size of the folios that hold the file, where it can be known.
    fn folio_bytes(&self) -> Result<Option<f64>, WorkloadError> {
        let Ok(inspector) = Inspector::open() else { return Ok(None) };
        let mapping = Mapping::of_file(self.file.as_fd(), self.bytes as usize)
            .map_err(|errno| failed("mmap", &self.path, errno))?;
        // Reading also makes every page up to date, and maps it.
        mapping.first_bytes().for_each(drop);
        match inspector.folios(&mapping.range()) {
            Ok(folios) => Ok(folios.mean_bytes()),
            Err(WorkloadError::Unavailable { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks the file after `calls` calls.
    fn prove(
        &self,
        round: &mut RoundContext,
        calls: u64,
        before: u64,
        after: u64,
    ) -> Result<(), WorkloadError> {
        let pages = self.bytes / PAGE as u64;
        round.check(RESIDENT, format!("{pages}, then {pages}"), format!("{before}, then {after}"));
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| failed("fstat", &self.path, errno))?;
        round.check(SIZE, self.bytes, stat.st_size);
        let found = self.pattern.stamps(self.file.as_fd(), &self.path, self.places)?.stamps;
        let right = (0..)
            .zip(&found)
            .filter(|(place, stamp)| last_call(*place, self.places, calls) == **stamp)
            .count();
        round.check(CONTENT, self.places, right);
        Ok(())
    }
}

/// The stamp of a place after `calls` calls, the first lap of which began at the start of the file;
/// each later loop begins there again, which a whole number of laps before it makes the same.
fn last_call(place: u64, places: u64, calls: u64) -> u64 {
    if place >= calls {
        return PREPARED + place;
    }
    (calls - 1 - place) / places * places + place
}

/// Goes back to the start of the file.
fn rewind(file: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::seek(file, SeekFrom::Start(0)).map(drop)
}

/// Calls over a file of `places`, numbered from `number` on.
#[derive(Clone, Copy)]
struct Loop {
    places: u64,
    number: u64,
    count: u64,
    clock: Clock,
}

impl Loop {
    /// Calls `write` with the buffer, stamped with the call's number, and the place. After each lap
    /// `turn` goes back to the start, and returns how many calls that took.
    #[inline(always)]
    fn run(
        self,
        buffer: &mut [u8],
        latencies: &mut Latencies,
        mut turn: impl FnMut() -> Result<u64, Errno>,
        mut write: impl FnMut(&[u8], u64) -> Result<usize, (&'static str, Errno)>,
    ) -> Result<Done, (&'static str, Errno)> {
        let mut done = Done { good: 0, seeks: 0 };
        let mut place = 0;
        let mut last = clock::now(self.clock);
        for number in self.number..self.number + self.count {
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            let written = write(buffer, place)?;
            done.good += u64::from(written == buffer.len());
            let now = clock::now(self.clock);
            latencies.push(now - last);
            last = now;
            place += 1;
            if place == self.places {
                place = 0;
                done.seeks += turn().map_err(|errno| ("lseek", errno))?;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    #[test]
    fn every_call_and_size_leaves_the_last_bytes_in_every_place() {
        for (scenario, size, operations) in [
            (WRITE, 1024, 2500),
            (PWRITE, 1024, 30),
            (PWRITE, 10_240, 250),
            (WRITEV, 1000, 333),
            (WRITEV, 10_240, 11),
        ] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let values = [
                ("operations", Setting::Integer(operations)),
                ("size", Setting::Integer(size)),
                ("file_mib", Setting::Integer(1)),
            ];
            let request = request(&format!("overwrite/{scenario}"), folder.path(), &values);
            let round = run(&request, None).expect("runs");
            assert_sound(&round);
            assert_eq!(round.phases[0].ops, operations);
            let places = (1 << 20) / (size * if scenario == WRITEV { 10 } else { 1 });
            let call = if scenario == PWRITE { "pwrite64" } else { scenario };
            let prepared =
                if scenario == WRITE { round.census["write"].attempted - places - operations } else { 0 };
            assert_eq!(round.census[call].attempted, places + operations + prepared, "{scenario} {size}");
            for measure in ["p50", "p99", "p999", "max", "thp_mode"] {
                assert!(round.phases[0].measures.contains_key(measure), "{measure}");
            }
        }
    }

    #[test]
    fn the_last_call_for_a_place_is_known() {
        let after = |calls| (0..3).map(|place| last_call(place, 3, calls)).collect::<Vec<_>>();
        assert_eq!(after(2), [0, 1, PREPARED + 2]);
        assert_eq!(after(3), [0, 1, 2]);
        assert_eq!(after(4), [3, 1, 2]);
        assert_eq!(after(9), [6, 7, 8]);
    }

    #[test]
    fn a_file_with_a_hole_is_not_resident() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = request("overwrite/pwrite", folder.path(), &[]);
        let scenario = INFO.scenario(PWRITE).expect("exists");
        let parameters = crate::resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        let mut round = RoundContext::for_test(request, scenario, parameters);
        let mut fixture = Fixture::prepare(&mut round).expect("a file");
        assert_eq!(fixture.resident(), Ok(1024));
        fixture.bytes *= 2;
        rustix::fs::ftruncate(&fixture.file, fixture.bytes).expect("grows");
        assert_eq!(fixture.resident(), Ok(1024));
        fixture.prove(&mut round, 0, 1024, 1024).expect("reads");
        let checks = round.finish().checks;
        let resident = checks.iter().find(|check| check.name == RESIDENT).expect("made");
        assert_eq!((resident.expected.as_str(), resident.passed), ("2048, then 2048", false));
    }
}
