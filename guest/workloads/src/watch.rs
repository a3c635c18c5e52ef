//! What the workloads that watch files share: a thread that reads events, what it heard, the limits
//! of inotify, and numbered files. Read [`Listener`] first, then [`Heard`].

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::fs::FileType;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::round::{failed, open_root};
use crate::sys::{self, notify};
use crate::{Better, MeasureInfo, RoundContext, WorkloadError};

/// Bytes of one read of events. One with a name of up to 15 bytes takes 32, one without takes 16.
pub(crate) const EVENT_BYTES: usize = 64 << 10;
/// `wd`, `mask`, `cookie` and `len` of `struct inotify_event` (inotify(7)).
const HEADER_BYTES: usize = 16;

/// Events of one inotify instance, sorted by what they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Bits of the events that are wanted.
    mask: u32,
    /// Events of [`Self::mask`].
    pub(crate) wanted: u64,
    /// `IN_Q_OVERFLOW`: the queue was full, and events were lost.
    pub(crate) overflows: u64,
    /// `IN_IGNORED`: a watch was removed.
    pub(crate) ignored: u64,
    /// Anything else, and events of files that have no number.
    pub(crate) other: u64,
    /// For each number, whether a file of that number was in a wanted event.
    seen: Vec<bool>,
}

impl Heard {
    /// Nothing yet. Events of `mask` are wanted; with `files`, only of files that carry a number
    /// below it (see [`Names`]).
    pub(crate) fn nothing(mask: WatchFlags, files: usize) -> Self {
        Self { mask: mask.bits(), seen: vec![false; files], ..Self::default() }
    }

    /// Numbers that occurred in wanted events.
    pub(crate) fn files(&self) -> u64 {
        self.seen.iter().filter(|seen| **seen).count() as u64
    }

    /// Takes what a read returned: whole events, as the kernel hands out no others.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        while let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) {
            let word = |at: usize| {
                let word = header.get(at..at + 4).and_then(|word| word.try_into().ok());
                u32::from_ne_bytes(word.unwrap_or_default())
            };
            let (mask, length) = (word(4), word(12) as usize);
            let (name, rest) = rest.split_at(length.min(rest.len()));
            bytes = rest;
            if mask & ReadFlags::QUEUE_OVERFLOW.bits() != 0 {
                self.overflows += 1;
            } else if mask & ReadFlags::IGNORED.bits() != 0 {
                self.ignored += 1;
            } else if mask & self.mask == 0 {
                self.other += 1;
            } else if self.seen.is_empty() {
                self.wanted += 1;
            } else if let Some(seen) = number_of(name).and_then(|number| self.seen.get_mut(number)) {
                *seen = true;
                self.wanted += 1;
            } else {
                self.other += 1;
            }
        }
    }

    /// Takes all that is in the queue of `instance` now, and returns how many reads that took; each
    /// follows an ioctl, and one more ioctl finds the queue empty.
    pub(crate) fn drain(
        &mut self,
        instance: BorrowedFd<'_>,
        bytes: &mut [u8],
    ) -> Result<u64, (&'static str, Errno)> {
        let mut reads = 0;
        while notify::queued_bytes(instance).map_err(|errno| ("ioctl(FIONREAD)", errno))? > 0 {
            let length = notify::read(instance, bytes).map_err(|errno| ("read", errno))?;
            self.take(&bytes[..length]);
            reads += 1;
        }
        Ok(reads)
    }
}

/// The number in a name of [`Names`], which NULs follow.
fn number_of(name: &[u8]) -> Option<usize> {
    let digits = name.get(1..=DIGITS)?;
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + usize::from(digit - b'0')))
}

/// A thread that reads events until it is told to stop and the queue is empty. It blocks where
/// there are none.
#[derive(Debug)]
pub(crate) struct Listener {
    thread: Option<JoinHandle<Result<Heard, (&'static str, Errno)>>>,
    stop: Arc<OwnedFd>,
}

impl Listener {
    /// Starts to listen to `instance` at `post`, and returns once the thread is there.
    pub(crate) fn start(instance: OwnedFd, post: ListenerPost, heard: Heard) -> Result<Self, WorkloadError> {
        let lost = |call, errno| failed(call, Path::new("listener"), errno);
        let stop = Arc::new(notify::event().map_err(|errno| lost("eventfd2", errno))?);
        let (ready, there) = mpsc::channel();
        let ending = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("listener".to_owned())
            .spawn(move || {
                let turns = if post.shared { notify::wait_for_turns() } else { Ok(()) };
                let place = turns.and_then(|()| post.cpu.map_or(Ok(0), sys::pin));
                // Touched before the first event.
                let mut bytes = vec![1; EVENT_BYTES];
                let _ = ready.send(place);
                listen(instance.as_fd(), ending.as_fd(), heard, &mut bytes)
            })
            .map_err(|error| lost("clone3", Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
        let listener = Self { thread: Some(thread), stop };
        let place = there.recv().map_err(|_| lost("start", Errno::CHILD))?;
        let actual = place.map_err(|errno| lost("sched_setaffinity", errno))?;
        match post.cpu {
            Some(cpu) if actual != cpu => Err(WorkloadError::Unavailable {
                what: format!("CPU {cpu} for the listener, which runs on {actual},"),
                next: "let the scheduler use every CPU that is online",
            }),
            _ => Ok(listener),
        }
    }

    /// What was heard, once the queue is empty. Nothing that is watched may happen any more.
    pub(crate) fn finish(mut self) -> Result<Heard, WorkloadError> {
        let lost = |(call, errno)| failed(call, Path::new("listener"), errno);
        self.signal().map_err(|errno| lost(("write", errno)))?;
        let heard = self.thread.take().and_then(|thread| thread.join().ok());
        heard.unwrap_or(Err(("join", Errno::CHILD))).map_err(lost)
    }

    fn signal(&self) -> Result<(), Errno> {
        sys::write(self.stop.as_fd(), &1_u64.to_ne_bytes()).map(|_| ())
    }
}

impl Drop for Listener {
    /// After an error elsewhere: lets the thread end by itself.
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.signal();
        }
    }
}

fn listen(
    instance: BorrowedFd<'_>,
    stop: BorrowedFd<'_>,
    mut heard: Heard,
    bytes: &mut [u8],
) -> Result<Heard, (&'static str, Errno)> {
    let mut stopping = false;
    loop {
        match notify::read(instance, bytes) {
            Ok(length) => heard.take(&bytes[..length]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if stopping => return Ok(heard),
            Err(Errno::AGAIN) => {
                stopping = notify::wait_for_either(instance, stop).map_err(|errno| ("ppoll", errno))?;
            }
            Err(errno) => return Err(("read", errno)),
        }
    }
}

/// Where a listener runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerPost {
    cpu: Option<usize>,
    /// Whether a worker runs there too. The listener then waits for its turns: if it interrupted the
    /// worker whenever an event wakes it up, how often that happens would differ from round to
    /// round, and with it how many events are merged and what a write costs.
    shared: bool,
}

impl ListenerPost {
    /// On the CPU after those of `workers`, which begin with the round's.
    pub(crate) fn after(round: &RoundContext, workers: usize) -> Self {
        let online = sys::online_cpus();
        let cpu = round.cpu().map(|cpu| (cpu + workers) % online);
        Self { cpu, shared: cpu.is_some() && workers >= online }
    }

    /// Adds whether it is shared to the latest phase called `phase`.
    pub(crate) fn record(self, round: &mut RoundContext, phase: &str) {
        round.measure(phase, SHARED_CPU, f64::from(u8::from(self.shared)));
    }
}

const SHARED_CPU: &str = "listener_shares_cpu";

/// The measure that [`ListenerPost::record`] adds to `phase`.
pub(crate) const fn shared_cpu(phase: &'static str) -> MeasureInfo {
    MeasureInfo {
        name: SHARED_CPU,
        phase,
        summary: "1 if the listener's CPU is also a worker's; it then waits for its turns (SCHED_BATCH)",
        unit: "",
        better: Better::Neither,
        scenarios: &[],
    }
}

/// An inotify instance, or what to do about there being no more.
pub(crate) fn instance() -> Result<OwnedFd, WorkloadError> {
    notify::instance().map_err(|errno| match errno {
        Errno::MFILE => WorkloadError::Unavailable {
            what: "another inotify instance".to_owned(),
            next: "raise fs.inotify.max_user_instances or the limit of open files (ulimit -n)",
        },
        Errno::NOSYS => WorkloadError::Unavailable {
            what: "inotify".to_owned(),
            next: "use a kernel with CONFIG_INOTIFY_USER=y",
        },
        errno => failed("inotify_init1", Path::new("self"), errno),
    })
}

/// Watches `path`, or says what to do about there being no more watches.
pub(crate) fn watch(instance: &OwnedFd, path: &CStr, mask: WatchFlags) -> Result<i32, WorkloadError> {
    notify::add_watch(instance.as_fd(), path, mask).map_err(|errno| match errno {
        Errno::NOSPC => WorkloadError::Unavailable {
            what: "another inotify watch".to_owned(),
            next: "raise fs.inotify.max_user_watches",
        },
        errno => failed("inotify_add_watch", Path::new(&*path.to_string_lossy()), errno),
    })
}

/// A limit of inotify (inotify(7), `/proc` interfaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Instances,
    Watches,
    Queue,
}

impl Limit {
    /// Its name, which is that of the measure too.
    const fn name(self) -> &'static str {
        match self {
            Self::Instances => "max_user_instances",
            Self::Watches => "max_user_watches",
            Self::Queue => "max_queued_events",
        }
    }

    /// The measure that [`Self::record`] adds to `phase`.
    pub(crate) const fn measure(
        self,
        phase: &'static str,
        scenarios: &'static [&'static str],
    ) -> MeasureInfo {
        let (summary, unit) = match self {
            Self::Instances => ("the limit fs.inotify.max_user_instances", "instances"),
            Self::Watches => ("the limit fs.inotify.max_user_watches", "watches"),
            Self::Queue => ("the limit fs.inotify.max_queued_events", "events"),
        };
        MeasureInfo { name: self.name(), phase, summary, unit, better: Better::Neither, scenarios }
    }

    fn path(self) -> PathBuf {
        Path::new("/proc/sys/fs/inotify").join(self.name())
    }

    /// Its value now.
    pub(crate) fn read(self) -> Result<u64, WorkloadError> {
        let path = self.path();
        let text = std::fs::read_to_string(&path)
            .map_err(|error| failed("read", &path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        text.trim().parse().map_err(|_| failed("read", &path, Errno::PROTO))
    }

    /// Adds its value to the latest phase called `phase`.
    pub(crate) fn record(self, round: &mut RoundContext, phase: &str) -> Result<(), WorkloadError> {
        let value = self.read()?;
        round.measure(phase, self.name(), value as f64);
        Ok(())
    }

    /// Raises it to `wanted` if it is lower, until what is returned is dropped.
    pub(crate) fn at_least(self, wanted: u64) -> Result<Raised, WorkloadError> {
        let old = self.read()?;
        if old >= wanted {
            return Ok(Raised(None));
        }
        std::fs::write(self.path(), wanted.to_string()).map_err(|_| WorkloadError::Unavailable {
            what: format!("fs.inotify.{} of {wanted}, which is {old} and not ours to raise,", self.name()),
            next: "raise it with sysctl(8), or run as root",
        })?;
        Ok(Raised(Some((self, old))))
    }
}

/// A limit that goes back to what it was.
#[derive(Debug)]
pub(crate) struct Raised(Option<(Limit, u64)>);

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some((limit, old)) = self.0 {
            let _ = std::fs::write(limit.path(), old.to_string());
        }
    }
}

/// Digits of a numbered name.
const DIGITS: usize = 8;
/// A letter, the digits and NUL.
const NAME_BYTES: usize = DIGITS + 2;

/// Names of a letter and a number, from 0, in one buffer.
#[derive(Debug)]
pub(crate) struct Names(Vec<u8>);

impl Names {
    /// `count` names that begin with `letter`.
    pub(crate) fn new(letter: u8, count: u64) -> Self {
        let mut bytes = Vec::with_capacity(count as usize * NAME_BYTES);
        for number in 0..count {
            bytes.push(letter);
            bytes.extend((0..DIGITS as u32).rev().map(|at| b'0' + (number / 10_u64.pow(at) % 10) as u8));
            bytes.push(0);
        }
        Self(bytes)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len() / NAME_BYTES
    }

    /// The name of `number`.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> &CStr {
        let bytes = &self.0[number * NAME_BYTES..][..NAME_BYTES];
        // SAFETY: `new` wrote a letter, eight digits and then a NUL at every multiple of ten.
        unsafe { sys::c_str(bytes) }
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CStr> {
        (0..self.count()).map(|number| self.get(number))
    }
}

/// Makes the folder `name` in `parent` and opens it.
pub(crate) fn make_folder(parent: &OwnedFd, at: &Path, name: &CStr) -> Result<OwnedFd, WorkloadError> {
    let path = at.join(&*name.to_string_lossy());
    sys::mkdir(parent.as_fd(), name).map_err(|errno| failed("mkdirat", &path, errno))?;
    sys::open_dir(parent.as_fd(), name).map_err(|errno| failed("openat", &path, errno))
}

/// Entries of the folder at `path` that are no folders, by reading it.
pub(crate) fn count_files(path: &Path) -> Result<u64, WorkloadError> {
    let folder = open_root(path)?;
    let mut files = 0;
    notify::entries(folder.as_fd(), |_, kind| files += u64::from(kind != FileType::Directory))
        .map_err(|errno| failed("getdents64", path, errno))?;
    Ok(files)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use kdelta_wire::Round;

    use super::*;
    use crate::WorkloadInfo;

    /// Every phase of `round` has exactly the measures that `info` declares for `scenario`.
    pub(crate) fn assert_measures_declared(info: &'static WorkloadInfo, scenario: &str, round: &Round) {
        let scenario = info.scenario(scenario).expect("a scenario");
        for phase in &round.phases {
            let declared = info.measures_of(scenario).filter(|measure| measure.phase == phase.name);
            let declared: BTreeSet<&str> = declared.map(|measure| measure.name).collect();
            let measured: BTreeSet<&str> = phase.measures.keys().map(String::as_str).collect();
            assert_eq!(measured, declared, "{}/{} {}", info.name, scenario.name, phase.name);
        }
    }

    /// An event as the kernel writes it.
    pub(crate) fn event(mask: u32, name: &str) -> Vec<u8> {
        let length = if name.is_empty() { 0 } else { (name.len() + 1).next_multiple_of(HEADER_BYTES) };
        let mut bytes = Vec::new();
        for word in [1, mask, 0, length as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(name.bytes());
        bytes.resize(HEADER_BYTES + length, 0);
        bytes
    }

    #[test]
    fn events_are_sorted_by_what_they_say() {
        let modify = WatchFlags::MODIFY;
        let mut heard = Heard::nothing(modify, 3);
        let bytes: Vec<u8> = [
            event(modify.bits(), "f00000002"),
            event(modify.bits(), "f00000002"),
            event(modify.bits(), "f00000003"),
            event(modify.bits(), ""),
            event(WatchFlags::ATTRIB.bits(), "f00000000"),
            event(ReadFlags::QUEUE_OVERFLOW.bits(), ""),
            event(ReadFlags::IGNORED.bits(), ""),
        ]
        .concat();
        heard.take(&bytes);
        let Heard { wanted, overflows, ignored, other, .. } = heard;
        assert_eq!((wanted, overflows, ignored, other), (2, 1, 1, 3));
        assert_eq!(heard.files(), 1);
        heard.take(&bytes[..5]);
        assert_eq!(heard.other, 3, "half an event is none");
    }

    #[test]
    fn names_carry_their_number() {
        let names = Names::new(b'f', 1002);
        assert_eq!(names.count(), 1002);
        for number in [0, 7, 1001] {
            let name = names.get(number);
            assert_eq!(name.to_str(), Ok(format!("f{number:08}").as_str()));
            assert_eq!(number_of(name.to_bytes_with_nul()), Some(number));
        }
        assert_eq!(number_of(b"f12"), None);
        assert_eq!(number_of(b"f0000000x"), None);
    }

    #[test]
    fn a_listener_hears_what_happens_until_it_is_told_to_stop() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let instance = instance().expect("an instance");
        let path = crate::round::c_path(folder.path()).expect("a path");
        watch(&instance, &path, WatchFlags::CREATE).expect("a watch");
        let heard = Heard::nothing(WatchFlags::CREATE, 9);
        let listener =
            Listener::start(instance, ListenerPost { cpu: None, shared: true }, heard).expect("a listener");
        for name in ["f00000001", "f00000004", "stray"] {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        let heard = listener.finish().expect("what was heard");
        assert_eq!((heard.wanted, heard.files(), heard.other), (2, 2, 1));
    }

    #[test]
    fn a_limit_that_is_high_enough_is_left_alone() {
        let before = Limit::Queue.read().expect("a limit");
        assert!(before > 0);
        assert!(Limit::Queue.at_least(before).expect("is there").0.is_none());
        assert_eq!(Limit::Queue.read(), Ok(before));
    }
}
