//! Several threads or processes that do one timed part together. Read [`crew`] first; every worker
//! is on its CPU and waits at a gate before the clock starts.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};

use kdelta_wire::{Clock, Worker};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use crate::round::failed;
use crate::sys::Usage;
use crate::{WorkloadError, clock, sys};

/// What workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crew {
    /// Threads of the round's process: they share its descriptors and memory.
    Threads,
    /// Processes forked from it: each has its own, and what it changes in memory is lost.
    Processes,
    /// As processes, but each begins as soon as it is forked and waits for no other.
    Forked,
}

/// What one worker did.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Operations.
    pub(crate) ops: u64,
    /// Numbers to hand back to the round (latencies, counts).
    pub(crate) values: Vec<u64>,
}

impl Share {
    /// So many operations and no numbers.
    pub(crate) fn of(ops: u64) -> Self {
        Self { ops, values: Vec::new() }
    }
}

/// What came of all workers, in their order.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) workers: Vec<Worker>,
    pub(crate) values: Vec<Vec<u64>>,
    /// Workers that ran on the CPU they were put on.
    pub(crate) in_place: usize,
    /// What processes used together; nothing for threads, whose use the round's process counts.
    pub(crate) usage: Usage,
}

/// What a worker is told.
pub(crate) struct Post {
    /// Its number, from 0.
    pub(crate) number: usize,
    /// CPU that it belongs on; `None` leaves it to the scheduler.
    pub(crate) cpu: Option<usize>,
}

/// Starts one worker per element of `members`, waits until each is at the gate, calls `timed` with a
/// function that opens the gate and returns when all are done, and gathers what they did.
///
/// # Errors
/// The first worker's error, by number.
pub(crate) fn crew<M: Send>(
    kind: Crew,
    clock: Clock,
    posts: &[Option<usize>],
    members: &mut [M],
    body: impl Fn(&mut M, &Post) -> Result<Share, WorkloadError> + Sync,
    timed: impl FnOnce(&mut dyn FnMut() -> Result<(), WorkloadError>) -> Result<(), WorkloadError>,
) -> Result<Outcome, WorkloadError> {
    let posts: Vec<Post> = members
        .iter()
        .enumerate()
        .map(|(number, _)| Post { number, cpu: posts.get(number).copied().flatten() })
        .collect();
    let reports = match kind {
        Crew::Threads => threads(clock, &posts, members, &body, timed)?,
        Crew::Processes | Crew::Forked => processes(kind, clock, &posts, members, &body, timed)?,
    };
    let mut outcome = Outcome::default();
    for report in reports {
        let Report { worker, values, in_place, usage } = report?;
        outcome.usage.add(usage);
        outcome.in_place += usize::from(in_place);
        outcome.workers.push(worker);
        outcome.values.push(values);
    }
    Ok(outcome)
}

struct Report {
    worker: Worker,
    values: Vec<u64>,
    in_place: bool,
    usage: Usage,
}

/// Puts the calling thread on its CPU; whether it got there.
fn take_post(post: &Post) -> Result<bool, WorkloadError> {
    let Some(cpu) = post.cpu else { return Ok(true) };
    let actual = sys::pin(cpu).map_err(|errno| failed("sched_setaffinity", Path::new("self"), errno))?;
    Ok(actual == cpu)
}

/// Runs `body` and measures the worker.
fn work<M>(
    clock: Clock,
    phase_start: &dyn Fn() -> u64,
    member: &mut M,
    post: &Post,
    body: &impl Fn(&mut M, &Post) -> Result<Share, WorkloadError>,
) -> Result<(Worker, Vec<u64>), WorkloadError> {
    let cpu = sys::thread_cpu_ns();
    let first = clock::now(clock);
    let result = catch_unwind(AssertUnwindSafe(|| body(member, post)));
    let last = clock::now(clock);
    let cpu_ns = sys::thread_cpu_ns().saturating_sub(cpu);
    let Share { ops, values } = result.unwrap_or_else(|_| {
        Err(WorkloadError::Worker { number: post.number, message: "panicked".to_owned() })
    })?;
    let started = first.saturating_sub(phase_start());
    Ok((Worker { ops, started, elapsed: last.saturating_sub(first), cpu_ns }, values))
}

type Reports = Vec<Result<Report, WorkloadError>>;

fn threads<M: Send>(
    clock: Clock,
    posts: &[Post],
    members: &mut [M],
    body: &(impl Fn(&mut M, &Post) -> Result<Share, WorkloadError> + Sync),
    timed: impl FnOnce(&mut dyn FnMut() -> Result<(), WorkloadError>) -> Result<(), WorkloadError>,
) -> Result<Reports, WorkloadError> {
    // Ready, go, done, leave: the main thread takes part in each.
    let gate = Barrier::new(members.len() + 1);
    let start = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let handles: Vec<_> = posts
            .iter()
            .zip(members)
            .map(|(post, member)| {
                let (gate, start) = (&gate, &start);
                scope.spawn(move || {
                    let in_place = take_post(post);
                    gate.wait();
                    gate.wait();
                    let done = in_place.and_then(|in_place| {
                        let (worker, values) =
                            work(clock, &|| start.load(Ordering::Relaxed), member, post, body)?;
                        Ok(Report { worker, values, in_place, usage: Usage::default() })
                    });
                    gate.wait();
                    gate.wait();
                    done
                })
            })
            .collect();
        gate.wait();
        let mut open = || {
            start.store(clock::now(clock), Ordering::Relaxed);
            gate.wait();
            gate.wait();
            Ok(())
        };
        let result = timed(&mut open);
        gate.wait();
        let reports = handles
            .into_iter()
            .enumerate()
            .map(|(number, handle)| {
                handle.join().unwrap_or_else(|_| {
                    Err(WorkloadError::Worker { number, message: "ended without a result".to_owned() })
                })
            })
            .collect();
        result.map(|()| reports)
    })
}

/// A forked worker, from its parent's side.
struct Child {
    pid: Pid,
    report: OwnedFd,
}

fn processes<M: Send>(
    kind: Crew,
    clock: Clock,
    posts: &[Post],
    members: &mut [M],
    body: &(impl Fn(&mut M, &Post) -> Result<Share, WorkloadError> + Sync),
    timed: impl FnOnce(&mut dyn FnMut() -> Result<(), WorkloadError>) -> Result<(), WorkloadError>,
) -> Result<Reports, WorkloadError> {
    // Tests are threads of one process: a child of another crew would inherit the pipes of this one
    // and keep them open, and both would wait for each other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pipe = || rustix::pipe::pipe().map_err(|errno| failed("pipe", Path::new("worker"), errno));
    // Nobody writes into these: closing the writing end releases every reader at once.
    let (go_read, go_write) = pipe()?;
    let (leave_read, leave_write) = pipe()?;
    let (ready_read, ready_write) = pipe()?;
    let (done_read, done_write) = pipe()?;
    let mut children = Vec::with_capacity(members.len());
    let mut fork_error = None;
    let mut start = clock::now(clock);
    for (post, member) in posts.iter().zip(members.iter_mut()) {
        let (report_read, report_write) = pipe()?;
        // SAFETY: the round's process has one thread, so the child may go on as usual; it leaves by
        // `_exit` and never returns from here.
        match unsafe { libc::fork() } {
            -1 => {
                let error = std::io::Error::last_os_error();
                fork_error = Some(failed(
                    "fork",
                    Path::new("worker"),
                    Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
                ));
                break;
            }
            0 => {
                sys::close_inherited(&go_write);
                sys::close_inherited(&leave_write);
                let result = take_post(post).and_then(|in_place| {
                    let _ = rustix::io::write(&ready_write, b"r");
                    if kind != Crew::Forked {
                        wait_for_end(&go_read);
                    }
                    let lost = |errno| failed("getrusage", Path::new("self"), errno);
                    let before = sys::usage().map_err(lost)?;
                    let (worker, values) = work(clock, &|| 0, member, post, body)?;
                    let usage = sys::usage().map_err(lost)?.since(&before);
                    Ok(Report { worker, values, in_place, usage })
                });
                let _ = rustix::io::write(&done_write, b"d");
                let _ = send(report_write, &result);
                wait_for_end(&leave_read);
                // SAFETY: `_exit` runs no destructor, which would touch what belongs to the parent.
                unsafe { libc::_exit(0) }
            }
            pid => {
                if let Some(pid) = Pid::from_raw(pid) {
                    children.push(Child { pid, report: report_read });
                }
            }
        }
    }
    drop((ready_write, done_write, go_read, leave_read));
    // A child that died before writing makes these reads end early, as no writer is left then.
    read_count(&ready_read, children.len());
    let mut go = Some(go_write);
    let mut reports = Vec::new();
    let mut open = || {
        if kind != Crew::Forked {
            start = clock::now(clock);
        }
        drop(go.take());
        read_count(&done_read, children.len());
        Ok(())
    };
    let result = match fork_error {
        None => timed(&mut open),
        Some(error) => Err(error),
    };
    drop(go);
    for (number, child) in children.iter_mut().enumerate() {
        reports.push(receive(&child.report, number, start));
    }
    drop(leave_write);
    for child in &children {
        let _ = rustix::process::waitpid(Some(child.pid), WaitOptions::empty());
    }
    result.map(|()| reports)
}

/// Returns when the last writing end of `pipe` is closed.
fn wait_for_end(pipe: &OwnedFd) {
    let mut byte = [0];
    while rustix::io::read(pipe, &mut byte) == Err(Errno::INTR) {}
}

/// Reads `count` bytes one by one, so that the number of calls does not depend on timing, or fewer
/// when no writer is left.
fn read_count(pipe: &OwnedFd, count: usize) {
    let mut seen = 0;
    let mut byte = [0];
    while seen < count {
        match rustix::io::read(pipe, &mut byte) {
            Ok(0) => return,
            Ok(_) => seen += 1,
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// First number of a report that holds a result; anything else is followed by an error's text.
const GOOD: u64 = 1;

fn send(pipe: OwnedFd, result: &Result<Report, WorkloadError>) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    match result {
        Ok(Report { worker, values, in_place, usage }) => {
            let head =
                [GOOD, u64::from(*in_place), worker.ops, worker.started, worker.elapsed, worker.cpu_ns];
            bytes.extend(
                head.iter().chain(&usage.numbers()).chain(values).flat_map(|number| number.to_le_bytes()),
            );
        }
        Err(error) => {
            bytes.extend(0_u64.to_le_bytes());
            bytes.extend(error.to_string().as_bytes());
        }
    }
    std::fs::File::from(pipe).write_all(&bytes)
}

fn receive(pipe: &OwnedFd, number: usize, start: u64) -> Result<Report, WorkloadError> {
    let lost = |message: String| WorkloadError::Worker { number, message };
    let mut bytes = Vec::new();
    let copy = pipe.try_clone().map_err(|error| lost(error.to_string()))?;
    std::fs::File::from(copy).read_to_end(&mut bytes).map_err(|error| lost(error.to_string()))?;
    let mut numbers =
        bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
    if numbers.next() != Some(GOOD) {
        let text = bytes.get(8..).map(String::from_utf8_lossy).unwrap_or_default();
        return Err(lost(if text.is_empty() {
            "ended without a result".to_owned()
        } else {
            text.into_owned()
        }));
    }
    let mut next = || numbers.next().ok_or_else(|| lost("sent half a result".to_owned()));
    let (in_place, ops, first, elapsed, cpu_ns) = (next()? == 1, next()?, next()?, next()?, next()?);
    let usage = Usage::of([next()?, next()?, next()?, next()?, next()?, next()?]);
    let worker = Worker { ops, started: first.saturating_sub(start), elapsed, cpu_ns };
    Ok(Report { worker, values: numbers.collect(), in_place, usage })
}

/// CPUs for `count` workers, one after the other beginning with `first`, over all CPUs that are
/// online; none when nothing is pinned.
pub(crate) fn posts(first: Option<usize>, count: usize) -> Vec<Option<usize>> {
    let Some(first) = first else { return vec![None; count] };
    let online = sys::online_cpus();
    (0..count).map(|number| Some((first + number) % online)).collect()
}

/// Whether this thread may run on `cpu` only.
#[cfg(test)]
fn is_pinned_to(cpu: usize) -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.count() == 1 && set.is_set(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: Crew, members: &mut [u64], fail: Option<usize>) -> Result<Outcome, WorkloadError> {
        let post = vec![None; members.len()];
        crew(
            kind,
            Clock::Nanoseconds,
            &post,
            members,
            |member, post| {
                if fail == Some(post.number) {
                    return Err(failed("open", Path::new("/x"), Errno::NOSPC));
                }
                *member += 1;
                Ok(Share { ops: *member, values: vec![post.number as u64, 7] })
            },
            |open| open(),
        )
    }

    #[test]
    fn every_worker_reports_in_order() {
        for kind in [Crew::Threads, Crew::Processes, Crew::Forked] {
            let mut members = [10, 20, 30];
            let outcome = run(kind, &mut members, None).expect("runs");
            assert_eq!(outcome.workers.iter().map(|worker| worker.ops).collect::<Vec<_>>(), [11, 21, 31]);
            assert_eq!(outcome.values, [[0, 7], [1, 7], [2, 7]], "{kind:?}");
            assert_eq!(outcome.in_place, 3);
            // Processes work on copies.
            assert_eq!(members[0], if kind == Crew::Threads { 11 } else { 10 });
        }
    }

    #[test]
    fn a_workers_error_is_the_crews_error() {
        for kind in [Crew::Threads, Crew::Processes, Crew::Forked] {
            let error = run(kind, &mut [1, 2], Some(1)).expect_err("fails").to_string();
            assert!(error.contains("open on /x failed: no storage space"), "{error}");
        }
    }

    #[test]
    fn a_worker_stays_on_its_cpu() {
        let cpu = rustix::thread::sched_getcpu();
        let outcome = crew(
            Crew::Threads,
            Clock::Nanoseconds,
            &[Some(cpu)],
            &mut [()],
            |(), _| Ok(Share { ops: u64::from(is_pinned_to(cpu)), values: Vec::new() }),
            |open| open(),
        );
        let outcome = outcome.expect("runs");
        assert_eq!((outcome.in_place, outcome.workers[0].ops), (1, 1));
    }
}
