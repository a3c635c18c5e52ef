//! Frames: a length and a checksum before JSON text, so that a torn or garbled stream is noticed
//! and never half believed. Read [`Frame`] first, then [`encode`] and [`Decoder`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Largest body accepted, in bytes; a round is a few kilobytes.
pub const FRAME_LIMIT: usize = 4 << 20;
/// Marks the start of a frame; the digit is the framing's version.
const MAGIC: &[u8; 4] = b"KDF1";
/// Magic, body length (u32 LE), CRC-32 of the body (u32 LE).
const HEADER: usize = 12;

/// One message from the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "kebab-case")]
pub enum Frame {
    /// First frame of a boot.
    Hello(Hello),
    /// The filesystem of a scenario was made and mounted for its first round.
    Mounted {
        /// Scenario it belongs to.
        scenario: String,
        /// All that mkfs printed.
        mkfs_output: String,
        /// The line of `/proc/mounts`.
        mount_line: String,
    },
    /// One finished round.
    Round(Round),
    /// A round that did not finish, in a job that goes on all the same ([`crate::Job::trial`]).
    RoundFailed(RoundFailed),
    /// Something went wrong; no `Done` follows.
    Failure {
        /// What the init was doing.
        stage: String,
        /// What happened, with the values involved.
        message: String,
    },
    /// Every scenario ran to its end.
    Done,
}

/// Facts that only the guest can know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::JOB_VERSION`] of the init.
    pub version: u32,
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -v`.
    pub kernel_version: String,
    /// `/proc/cmdline`.
    pub cmdline: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// CPUs online.
    pub cpus: u32,
    /// `MemTotal` of `/proc/meminfo`, in KiB.
    pub memory_kib: u64,
    /// `/sys/devices/system/clocksource/clocksource0/current_clocksource`.
    pub clocksource: String,
}

/// One repetition of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// [`crate::ScenarioJob::id`].
    pub scenario: String,
    /// From 0, warm-up included.
    pub round: u32,
    /// Whether it is warm-up.
    pub warmup: bool,
    /// Parameter values really used, defaults included.
    pub parameters: crate::Parameters,
    /// Timed parts, in order.
    pub phases: Vec<Phase>,
    /// Proof that the workload did what it claims.
    pub checks: Vec<Check>,
    /// System calls attempted and succeeded, by name, setup and checks included.
    pub census: BTreeMap<String, OpCount>,
    /// What strace(1) wrote, when the scenario asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// A round that ended with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundFailed {
    /// [`crate::ScenarioJob::id`].
    pub scenario: String,
    /// From 0, warm-up included.
    pub round: u32,
    /// What happened.
    pub message: String,
}

/// Raw counters of one timed part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name, unique within the round.
    pub name: String,
    /// Operations it contains.
    pub ops: u64,
    /// Elapsed ticks of [`crate::Clock`].
    pub elapsed: u64,
    /// `CLOCK_PROCESS_CPUTIME_ID` of the round's process, in ns.
    pub cpu_ns: u64,
    /// `ru_utime` of getrusage(2), in ns.
    pub user_ns: u64,
    /// `ru_stime` of getrusage(2), in ns.
    pub system_ns: u64,
    /// `ru_nvcsw`.
    pub voluntary_switches: u64,
    /// `ru_nivcsw`.
    pub involuntary_switches: u64,
    /// `ru_minflt`.
    pub minor_faults: u64,
    /// `ru_majflt`.
    pub major_faults: u64,
    /// Whole-guest CPU time, kernel threads included.
    pub guest: GuestCpu,
    /// Context switches of the whole guest, `ctxt` of `/proc/stat`.
    pub guest_switches: u64,
    /// I/O of the device under the filesystem; absent without a device that counts.
    pub io: Option<BlockIo>,
    /// Time that tasks stalled; absent on kernels without `CONFIG_PSI`.
    pub pressure: Option<Pressure>,
    /// Pages made dirty and written back.
    pub pages: PageFlow,
    /// Threads or processes of a parallel phase, in their order; empty for one thread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Worker>,
    /// What the workload measured itself (percentiles, rates, event counts), by name; units and
    /// directions are in its description.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, f64>,
}

/// Difference of a block device's counters (kernel `Documentation/block/stat.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockIo {
    /// Reads completed.
    pub reads: u64,
    /// 512-byte sectors read.
    pub read_sectors: u64,
    /// Writes completed.
    pub writes: u64,
    /// 512-byte sectors written.
    pub written_sectors: u64,
    /// Milliseconds with a request in flight.
    pub busy_ms: u64,
}

/// Difference of `total=` in `/proc/pressure`, in microseconds (kernel `Documentation/accounting/psi.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// `some` of `cpu`.
    pub cpu_us: u64,
    /// `some` of `io`.
    pub io_us: u64,
    /// `some` of `memory`.
    pub memory_us: u64,
}

/// Dirty pages, from `/proc/vmstat`. The kernel gathers these counters per CPU and adds them up in
/// batches, so they are exact to about a hundred pages per CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageFlow {
    /// Pages made dirty during the phase (`nr_dirtied`).
    pub dirtied: u64,
    /// Pages written back during the phase (`nr_written`).
    pub written: u64,
    /// Pages dirty or under writeback when it began (`nr_dirty` + `nr_writeback`).
    pub dirty_before: u64,
    /// The same when it ended.
    pub dirty_after: u64,
}

/// One thread or process of a parallel phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Operations it did.
    pub ops: u64,
    /// Ticks from the phase's start to its first operation.
    pub started: u64,
    /// Ticks from its first operation to its end.
    pub elapsed: u64,
    /// Its CPU time, in ns.
    pub cpu_ns: u64,
}

/// Difference of the `cpu` line of `/proc/stat`, in clock ticks (1/100 s, proc_stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCpu {
    /// `user` + `nice`.
    pub user: u64,
    /// `system`.
    pub system: u64,
    /// `idle`.
    pub idle: u64,
    /// `iowait`.
    pub iowait: u64,
    /// `irq` + `softirq`.
    pub interrupt: u64,
    /// `steal`.
    pub steal: u64,
}

/// One semantic check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What is checked.
    pub name: String,
    /// What must be.
    pub expected: String,
    /// What was.
    pub actual: String,
    /// Whether they agree.
    pub passed: bool,
}

/// Operations counted by the workload itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCount {
    /// Calls made.
    pub attempted: u64,
    /// Calls that did what they should.
    pub succeeded: u64,
}

/// Why a stream could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Bytes that do not start a frame were skipped.
    Garbage {
        /// How many.
        bytes: usize,
    },
    /// A header announces more than [`FRAME_LIMIT`] bytes.
    TooLong {
        /// Announced length.
        bytes: usize,
    },
    /// The body's checksum is wrong.
    Checksum,
    /// The body is not the JSON of a frame.
    Body(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage { bytes } => write!(f, "{bytes} bytes on the result port start no frame"),
            Self::TooLong { bytes } => {
                write!(f, "a frame announces {bytes} bytes, more than {FRAME_LIMIT}")
            }
            Self::Checksum => f.write_str("a frame's checksum is wrong"),
            Self::Body(why) => write!(f, "a frame's body cannot be read: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The bytes of `frame`: header and JSON body.
///
/// # Errors
/// When the frame cannot be written as JSON.
pub fn encode(frame: &Frame) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(frame)?;
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Turns a stream of bytes, in pieces of any size, into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Takes the next bytes of the stream and returns what they complete, in order. After an
    /// error the decoder goes on at the next frame start.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Frame, FrameError>> {
        self.buffer.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(item) = self.next() {
            found.push(item);
        }
        found
    }

    /// Bytes held back because they do not complete a frame yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    fn next(&mut self) -> Option<Result<Frame, FrameError>> {
        let start = self.buffer.windows(MAGIC.len()).position(|bytes| bytes == MAGIC);
        let skip = match start {
            Some(position) => position,
            // The last three bytes may be the beginning of a start mark.
            None => self.buffer.len().saturating_sub(MAGIC.len() - 1),
        };
        let skipped: Vec<u8> = self.buffer.drain(..skip).collect();
        if !skipped.is_empty() {
            return Some(Err(FrameError::Garbage { bytes: skipped.len() }));
        }
        let length = word(&self.buffer, 4)? as usize;
        let checksum = word(&self.buffer, 8)?;
        if length > FRAME_LIMIT {
            self.buffer.drain(..MAGIC.len());
            return Some(Err(FrameError::TooLong { bytes: length }));
        }
        let body = self.buffer.get(HEADER..HEADER + length)?;
        if crc32fast::hash(body) != checksum {
            self.buffer.drain(..MAGIC.len());
            return Some(Err(FrameError::Checksum));
        }
        let frame = serde_json::from_slice(body).map_err(|error| FrameError::Body(error.to_string()));
        self.buffer.drain(..HEADER + length);
        Some(frame)
    }
}

/// The little-endian word at `at`, or `None` when it is not there yet.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(four))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failure(text: &str) -> Frame {
        Frame::Failure { stage: "mkfs".into(), message: text.into() }
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_frames() {
        let frames = [failure("a"), Frame::Done, failure("ü\n")];
        let stream: Vec<u8> = frames.iter().flat_map(|f| encode(f).expect("encodes")).collect();
        for piece in 1..stream.len() {
            let mut decoder = Decoder::default();
            let found: Vec<Frame> = stream
                .chunks(piece)
                .flat_map(|bytes| decoder.push(bytes))
                .map(|item| item.expect("a whole frame"))
                .collect();
            assert_eq!(found, frames);
            assert_eq!(decoder.pending(), 0);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_and_the_next_frame_is_still_read() {
        let mut stream = encode(&failure("first")).expect("encodes");
        stream[HEADER + 3] ^= 1;
        stream.extend(encode(&Frame::Done).expect("encodes"));
        let found = Decoder::default().push(&stream);
        assert_eq!(found.first(), Some(&Err(FrameError::Checksum)));
        assert_eq!(found.last(), Some(&Ok(Frame::Done)));
    }

    #[test]
    fn a_torn_frame_is_pending_and_not_believed() {
        let bytes = encode(&failure("torn")).expect("encodes");
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(&bytes[..bytes.len() - 1]), []);
        assert_eq!(decoder.pending(), bytes.len() - 1);
    }

    proptest! {
        #[test]
        fn no_input_makes_the_decoder_panic_or_grow_without_bound(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            prop_assert!(decoder.pending() <= bytes.len());
        }
    }
}
