//! Changing the protection of shared memory that is dirty, on base pages and on what is left of huge
//! pages. Read [`Mprotect`] first, then `toggle`; every number comes with a proof of the memory's shape.

use std::path::Path;

use kdelta_wire::Clock;
use rustix::io::Errno;

use crate::round::failed;
use crate::shape::{Folios, Inspector, Smaps};
use crate::sys::pages::{Advice, Mapping, PAGE};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock,
};

const SHARED_DIRTY: &str = "shared-dirty";
const SINGLE: &str = "single";
const REVERSE: &str = "reverse";
/// Phase of each scenario: what counts as its cost differs.
const TOGGLE: &str = "toggle";
const PROTECT: &str = "protect";
const PROTECT_RESTORE: &str = "protect-restore";
const COLLAPSED: &str = "memory in huge pages before they are split";
const PAGE_TABLES: [&str; 2] = ["page tables before", "page tables after"];
const FOLIOS: [&str; 2] = ["folios before", "folios after"];
const PERMISSIONS: &str = "permissions follow mprotect";
const TOUCHED: &str = "pages with every touch";
const MAPPINGS: &str = "mappings of base pages";
/// Bytes of a huge page on x86-64.
const HUGE: usize = 2 << 20;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "mprotect",
    title: "protect shared memory",
    summary: "Takes write permission from shared anonymous memory that was written to, gives it back and writes \
              again. No file is involved, so that it runs the same beside every filesystem.",
    source: "Chengfeng Lin's report of an mprotect slowdown since v6.17, with its follow-ups and the reverse \
             gate for candidate fixes (linux-regression-evidence, mprotect-shared-dirty-toggle)",
    scenarios: &[
        ScenarioInfo {
            name: SHARED_DIRTY,
            summary: "one mapping of base pages: read only, writable, a byte written to each page, over and over",
            default: true,
        },
        ScenarioInfo {
            name: SINGLE,
            summary: "a new mapping each time, made read only once; only that call is timed",
            default: true,
        },
        ScenarioInfo {
            name: REVERSE,
            summary: "huge pages whose page tables were split, which a fix for base pages must not slow down; \
                      timed are both calls without the touch",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "iterations",
            summary: "turns of the timed loop",
            unit: "iterations",
            domain: Domain::Integer { default: 1000, min: 1, max: 1 << 20 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "warmup",
            summary: "turns before the timed ones",
            unit: "iterations",
            domain: Domain::Integer { default: 10, min: 0, max: 10_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "mapping_mib",
            summary: "size of the mapping",
            unit: "MiB",
            domain: Domain::Integer { default: 64, min: 1, max: 16_384 },
            scenarios: &[SHARED_DIRTY],
        },
        ParameterInfo {
            name: "single_mib",
            summary: "size of each new mapping",
            unit: "MiB",
            domain: Domain::Integer { default: 64, min: 1, max: 16_384 },
            scenarios: &[SINGLE],
        },
        ParameterInfo {
            name: "huge_pages",
            summary: "huge pages of the mapping",
            unit: "pages of 2 MiB",
            domain: Domain::Integer { default: 1, min: 1, max: 8192 },
            scenarios: &[REVERSE],
        },
        ParameterInfo {
            name: "folios",
            summary: "whether the size of folios is proved by /proc/kpageflags, which needs root; without it only \
                      the page tables are",
            unit: "",
            domain: Domain::Choice { default: "checked", choices: &["checked", "unchecked"] },
            scenarios: &[SHARED_DIRTY, SINGLE],
        },
    ],
    limits: &[],
    phases: &[
        PhaseInfo {
            name: TOGGLE,
            operation: "one page made read only, made writable and written to",
            primary: true,
            scenarios: &[SHARED_DIRTY],
        },
        PhaseInfo {
            name: PROTECT,
            operation: "one page made read only; making and removing the mapping is not in the elapsed time, but in the \
                        other counters",
            primary: true,
            scenarios: &[SINGLE],
        },
        PhaseInfo {
            name: PROTECT_RESTORE,
            operation: "one page made read only and writable; writing to it is not in the elapsed time, but in the other \
                        counters",
            primary: true,
            scenarios: &[REVERSE],
        },
    ],
    measures: &[
        step("protect", TOGGLE, "mprotect(PROT_READ), for each page", SHARED_ONLY),
        step("restore", TOGGLE, "mprotect(PROT_READ | PROT_WRITE), for each page", SHARED_ONLY),
        step("touch", TOGGLE, "writing one byte, for each page", SHARED_ONLY),
        step("setup", PROTECT, "mapping, writing and looking at the shape, for each page", &[SINGLE]),
        step("unmap", PROTECT, "munmap, for each page", &[SINGLE]),
        step("protect", PROTECT_RESTORE, "mprotect(PROT_READ), for each page", &[REVERSE]),
        step("restore", PROTECT_RESTORE, "mprotect(PROT_READ | PROT_WRITE), for each page", &[REVERSE]),
        step("touch", PROTECT_RESTORE, "writing one byte, for each page", &[REVERSE]),
    ],
    checks: &[
        CheckInfo {
            name: COLLAPSED,
            summary: "the mapping was in huge pages before its page tables were split",
            scenarios: &[REVERSE],
            filesystems: &[],
            proof: Proof::Test("memory_of_another_shape_fails_the_gate"),
        },
        CheckInfo {
            name: PAGE_TABLES[0],
            summary: "smaps shows one mapping in entries of 4 kB, nothing huge, and nothing that may become huge",
            scenarios: &[SHARED_DIRTY, REVERSE],
            filesystems: &[],
            proof: Proof::Test("memory_of_another_shape_fails_the_gate"),
        },
        CheckInfo {
            name: PAGE_TABLES[1],
            summary: "the same after the last turn",
            scenarios: &[SHARED_DIRTY, REVERSE],
            filesystems: &[],
            proof: Proof::Test("memory_of_another_shape_fails_the_gate"),
        },
        CheckInfo {
            name: FOLIOS[0],
            summary: "kpageflags shows every page present, and of the size that the scenario is about: base pages, or \
                      one head and 511 tails for each huge page",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("memory_of_another_shape_fails_the_gate"),
        },
        CheckInfo {
            name: FOLIOS[1],
            summary: "the same after the last turn",
            scenarios: &[SHARED_DIRTY, REVERSE],
            filesystems: &[],
            proof: Proof::Test("memory_of_another_shape_fails_the_gate"),
        },
        CheckInfo {
            name: PERMISSIONS,
            summary: "smaps shows `r--s` after the first call of a turn and `rw-s` after the second",
            scenarios: &[SHARED_DIRTY, REVERSE],
            filesystems: &[],
            proof: Proof::Injection { scenario: SHARED_DIRTY, inject: "mprotect:retval=0" },
        },
        CheckInfo {
            name: TOUCHED,
            summary: "the first byte of each page counts as many writes as there were turns",
            scenarios: &[SHARED_DIRTY, REVERSE],
            filesystems: &[],
            proof: Proof::Test("a_turn_that_was_left_out_fails_the_check"),
        },
        CheckInfo {
            name: MAPPINGS,
            summary: "smaps showed each new mapping in entries of 4 kB, with nothing huge, before its call, and \
                      read only after it",
            scenarios: &[SINGLE],
            filesystems: &[],
            proof: Proof::Injection { scenario: SINGLE, inject: "mprotect:retval=0" },
        },
    ],
    refusals: &[],
    scale: "iterations",
    presets: &[
        Preset {
            name: "source",
            summary: "values of the report: 64 MiB, 10 turns to warm up and 1000 timed ones",
            values: &[
                ("iterations", Setting::Integer(1000)),
                ("warmup", Setting::Integer(10)),
                ("mapping_mib", Setting::Integer(64)),
                ("single_mib", Setting::Integer(64)),
                ("huge_pages", Setting::Integer(1)),
            ],
        },
        Preset {
            name: "source-gates",
            summary: "values of the follow-up with single calls and of the reverse gate: 5 turns to warm up and \
                      200 timed ones",
            values: &[
                ("iterations", Setting::Integer(200)),
                ("warmup", Setting::Integer(5)),
                ("mapping_mib", Setting::Integer(64)),
                ("single_mib", Setting::Integer(64)),
                ("huge_pages", Setting::Integer(1)),
            ],
        },
        Preset {
            name: "guest",
            summary: "the report's mapping and a tenth of its turns",
            values: &[
                ("iterations", Setting::Integer(100)),
                ("warmup", Setting::Integer(5)),
                ("mapping_mib", Setting::Integer(64)),
                ("single_mib", Setting::Integer(4)),
                ("huge_pages", Setting::Integer(16)),
            ],
        },
        Preset {
            name: "quick",
            summary: "20 turns over 1 or 2 MiB, for a first look",
            values: &[
                ("iterations", Setting::Integer(20)),
                ("warmup", Setting::Integer(2)),
                ("mapping_mib", Setting::Integer(1)),
                ("single_mib", Setting::Integer(1)),
                ("huge_pages", Setting::Integer(1)),
            ],
        },
    ],
};

const SHARED_ONLY: &[&str] = &[SHARED_DIRTY];

/// Ticks of one step of a turn.
const fn step(
    name: &'static str,
    phase: &'static str,
    summary: &'static str,
    scenarios: &'static [&'static str],
) -> MeasureInfo {
    MeasureInfo { name, phase, summary, unit: "ticks", better: Better::Lower, scenarios }
}

/// The workload `mprotect`.
pub(crate) struct Mprotect;

impl Workload for Mprotect {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mut inspector = Inspector::open()?;
        match round.scenario() {
            SINGLE => single(round, &mut inspector),
            REVERSE => {
                let huge_pages = round.integer("huge_pages")?;
                let (mapping, calls) = split_huge_pages(round, &mut inspector, huge_pages as usize)?;
                let whole = huge_pages * (HUGE / PAGE) as u64;
                let folios =
                    Folios { present: whole, heads: huge_pages, tails: whole - huge_pages, huge: whole };
                toggle(round, &mut inspector, mapping, Some(folios), calls)
            }
            _ => {
                let mut mapping = map(round.integer("mapping_mib")? << 20, PAGE)?;
                mapping.write_touch();
                let folios = base_folios(round, mapping.pages())?;
                toggle(round, &mut inspector, mapping, folios, 0)
            }
        }
    }
}

/// What kpageflags must show for `pages` base pages, unless it is not asked.
fn base_folios(round: &RoundContext, pages: usize) -> Result<Option<Folios>, WorkloadError> {
    let folios = Folios { present: pages as u64, ..Folios::default() };
    Ok((round.choice("folios")? == "checked").then_some(folios))
}

fn map(bytes: u64, alignment: usize) -> Result<Mapping, WorkloadError> {
    Mapping::shared(bytes as usize, alignment).map_err(|errno| memory("mmap", errno))
}

#[cold]
fn memory(call: &'static str, errno: Errno) -> WorkloadError {
    failed(call, Path::new("shared memory"), errno)
}

/// Ticks that the steps of all turns took.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    protect: u64,
    restore: u64,
    touch: u64,
}

/// `turns` times: takes write permission away, gives it back, writes to each page.
fn turns(mapping: &mut Mapping, turns: u64, clock: Clock) -> Result<Steps, Errno> {
    let mut steps = Steps::default();
    for _ in 0..turns {
        let start = clock::now(clock);
        mapping.protect(false)?;
        let protected = clock::now(clock);
        mapping.protect(true)?;
        let restored = clock::now(clock);
        mapping.write_touch();
        let touched = clock::now(clock);
        steps.protect += protected - start;
        steps.restore += restored - protected;
        steps.touch += touched - restored;
    }
    Ok(steps)
}

/// Times [`turns`] over `mapping`, each page of which was written to once. Its page tables must have
/// base pages only, before and after, and its folios be `folios`. Before, mprotect(2) was called
/// `calls` times.
fn toggle(
    round: &mut RoundContext,
    inspector: &mut Inspector,
    mut mapping: Mapping,
    folios: Option<Folios>,
    calls: u64,
) -> Result<(), WorkloadError> {
    let (iterations, warmup) = (round.integer("iterations")?, round.integer("warmup")?);
    let clock = round.clock();
    gate(round, inspector, &mapping, folios, 0)?;
    turns(&mut mapping, warmup, clock).map_err(|errno| memory("mprotect", errno))?;
    round.sync()?;
    let pages = mapping.pages() as u64;
    let ops = iterations * pages;
    let reverse = round.scenario() == REVERSE;
    let phase = if reverse { PROTECT_RESTORE } else { TOGGLE };
    let steps = round.phase(phase, ops, || {
        turns(&mut mapping, iterations, clock).map_err(|errno| memory("mprotect", errno))
    })?;
    if reverse {
        round.time_operations(phase, steps.protect + steps.restore);
    }
    for (name, ticks) in [("protect", steps.protect), ("restore", steps.restore), ("touch", steps.touch)] {
        round.measure(phase, name, ticks as f64 / ops as f64);
    }
    check_touches(round, &mapping, 1 + warmup + iterations);
    gate(round, inspector, &mapping, folios, 1)?;
    let mut permissions = |writable| {
        mapping.protect(writable).map_err(|errno| memory("mprotect", errno))?;
        Ok::<_, WorkloadError>(inspector.smaps(&mapping.range())?.permissions)
    };
    let found = format!("{} {}", permissions(false)?, permissions(true)?);
    round.check(PERMISSIONS, "r--s rw-s", found);
    let calls = calls + 2 * (warmup + iterations + 1);
    round.count("mprotect", calls, calls);
    Ok(())
}

/// Checks the shape of `mapping` before (0) or after (1) the timed part.
fn gate(
    round: &mut RoundContext,
    inspector: &mut Inspector,
    mapping: &Mapping,
    folios: Option<Folios>,
    when: usize,
) -> Result<(), WorkloadError> {
    let range = mapping.range();
    round.check(PAGE_TABLES[when], Smaps::base_pages(true), inspector.smaps(&range)?);
    if let Some(folios) = folios {
        round.check(FOLIOS[when], folios, inspector.folios(&range)?);
    }
    Ok(())
}

/// Checks that each page was written to `writes` times, modulo 256.
fn check_touches(round: &mut RoundContext, mapping: &Mapping, writes: u64) {
    let right = mapping.first_bytes().filter(|byte| *byte == writes as u8).count();
    round.check(TOUCHED, mapping.pages(), right);
}

/// Huge pages whose page table entries are split while the folios are not, each page written to
/// once; and the mprotect(2) calls that it took.
fn split_huge_pages(
    round: &mut RoundContext,
    inspector: &mut Inspector,
    huge_pages: usize,
) -> Result<(Mapping, u64), WorkloadError> {
    let mut mapping = map((huge_pages * HUGE) as u64, HUGE)?;
    mapping.advise(Advice::Huge).map_err(|errno| no_huge_pages("MADV_HUGEPAGE", errno))?;
    mapping.write_touch();
    // The kernel gives up for now when a page is busy (madvise(2): EAGAIN, EBUSY).
    let collapse = || mapping.advise(Advice::Collapse);
    collapse()
        .or_else(|_| collapse())
        .or_else(|_| collapse())
        .map_err(|errno| no_huge_pages("MADV_COLLAPSE", errno))?;
    // Collapsing may leave the range unmapped: reading maps the huge pages.
    mapping.first_bytes().for_each(drop);
    check_collapsed(round, inspector, &mapping)?;
    // A change of one page splits the entry of its huge page, and leaves the others unmapped.
    let mut calls = 0;
    for huge_page in 0..huge_pages {
        for writable in [false, true] {
            mapping
                .protect_page(huge_page * (HUGE / PAGE) + 1, writable)
                .map_err(|errno| memory("mprotect", errno))?;
            calls += 1;
        }
    }
    mapping.advise(Advice::NotHuge).map_err(|errno| no_huge_pages("MADV_NOHUGEPAGE", errno))?;
    mapping.first_bytes().for_each(drop);
    Ok((mapping, calls))
}

fn check_collapsed(
    round: &mut RoundContext,
    inspector: &mut Inspector,
    mapping: &Mapping,
) -> Result<(), WorkloadError> {
    let huge_kb = inspector.smaps(&mapping.range())?.huge_kb;
    round.check(COLLAPSED, format!("{} kB", mapping.range().len() >> 10), format!("{huge_kb} kB"));
    Ok(())
}

#[cold]
fn no_huge_pages(call: &'static str, errno: Errno) -> WorkloadError {
    WorkloadError::Unavailable {
        what: format!("a huge page of shared memory (madvise({call}): errno {})", errno.raw_os_error()),
        next: "boot linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE, 2 MiB of free memory in one piece for each \
               page, and no `deny` in /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    }
}

/// Times one mprotect(2) of each of many new mappings.
fn single(round: &mut RoundContext, inspector: &mut Inspector) -> Result<(), WorkloadError> {
    let (iterations, warmup) = (round.integer("iterations")?, round.integer("warmup")?);
    let bytes = round.integer("single_mib")? << 20;
    let (clock, pages) = (round.clock(), bytes / PAGE as u64);
    if let Some(folios) = base_folios(round, pages as usize)? {
        let mapping = fresh(bytes)?;
        round.check(FOLIOS[0], folios, inspector.folios(&mapping.range())?);
    }
    for _ in 0..warmup {
        one_mapping(inspector, bytes, clock)?;
    }
    round.sync()?;
    let ops = iterations * pages;
    let (mut setup, mut protect, mut unmap, mut good) = (0, 0, 0, 0);
    round.phase(PROTECT, ops, || {
        for _ in 0..iterations {
            let one = one_mapping(inspector, bytes, clock)?;
            setup += one.setup;
            protect += one.protect;
            unmap += one.unmap;
            good += u64::from(one.shaped);
        }
        Ok(())
    })?;
    round.time_operations(PROTECT, protect);
    for (name, ticks) in [("setup", setup), ("unmap", unmap)] {
        round.measure(PROTECT, name, ticks as f64 / ops as f64);
    }
    round.check(MAPPINGS, iterations, good);
    round.count("mprotect", warmup + iterations, warmup + iterations);
    Ok(())
}

/// A new mapping whose pages were written to.
fn fresh(bytes: u64) -> Result<Mapping, WorkloadError> {
    let mut mapping = map(bytes, PAGE)?;
    // As the source does it; a kernel without huge pages answers EINVAL, and then there are none.
    let _ = mapping.advise(Advice::NotHuge);
    mapping.write_touch();
    Ok(mapping)
}

/// Ticks of the life of one mapping, and whether it had the shape it must have.
struct One {
    setup: u64,
    protect: u64,
    unmap: u64,
    shaped: bool,
}

fn one_mapping(inspector: &mut Inspector, bytes: u64, clock: Clock) -> Result<One, WorkloadError> {
    let start = clock::now(clock);
    let mapping = fresh(bytes)?;
    let before = inspector.smaps(&mapping.range())?;
    let ready = clock::now(clock);
    mapping.protect(false).map_err(|errno| memory("mprotect", errno))?;
    let protected = clock::now(clock);
    let after = inspector.smaps(&mapping.range())?;
    let looked = clock::now(clock);
    mapping.unmap().map_err(|errno| memory("munmap", errno))?;
    let end = clock::now(clock);
    let shaped = before == Smaps::base_pages(true) && after == Smaps::base_pages(false);
    Ok(One { setup: ready - start, protect: protected - ready, unmap: end - looked, shaped })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::{find, resolve, run};

    fn round(scenario: &str, values: &[(&str, Setting)]) -> Result<kdelta_wire::Round, WorkloadError> {
        let mut parameters: Vec<_> = INFO.preset("quick").expect("exists").values.to_vec();
        parameters.extend(values);
        let info = INFO.scenario(scenario).expect("exists");
        parameters.retain(|(name, _)| INFO.parameters_of(info).any(|parameter| parameter.name == *name));
        run(&request(&format!("mprotect/{scenario}"), &std::env::temp_dir(), &parameters), None)
    }

    fn context(scenario: &str) -> RoundContext {
        let name = format!("mprotect/{scenario}");
        let request = request(&name, &std::env::temp_dir(), &[]);
        let scenario = find(&name).expect("known").scenario;
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        RoundContext::for_test(request, scenario, parameters)
    }

    #[test]
    fn every_scenario_runs_and_its_checks_pass() {
        for (scenario, phase, pages, calls) in
            [(SHARED_DIRTY, TOGGLE, 256, 46), (SINGLE, PROTECT, 256, 22), (REVERSE, PROTECT_RESTORE, 512, 48)]
        {
            let round = match round(scenario, &[]) {
                Err(WorkloadError::Unavailable { what, .. }) => {
                    eprintln!("skipped: {what}");
                    continue;
                }
                round => round.expect("runs"),
            };
            assert_sound(&round);
            let timed = &round.phases[0];
            assert_eq!((timed.name.as_str(), timed.ops), (phase, 20 * pages), "{scenario}");
            assert_eq!(round.census["mprotect"].attempted, calls, "{scenario}");
            let declared: BTreeSet<&str> = INFO
                .measures_of(INFO.scenario(scenario).expect("exists"))
                .map(|measure| measure.name)
                .collect();
            assert!(timed.measures.keys().map(String::as_str).eq(declared), "{scenario}: {timed:?}");
        }
    }

    #[test]
    fn the_size_of_folios_need_not_be_checked() {
        for scenario in [SHARED_DIRTY, SINGLE] {
            let round = round(scenario, &[("folios", Setting::Text("unchecked"))]).expect("runs");
            assert_sound(&round);
            assert!(round.checks.iter().all(|check| !check.name.starts_with("folios")));
        }
    }

    /// A mapping that was not written to, one with a page of other permissions, and, where there are
    /// huge pages, one of these.
    #[test]
    fn memory_of_another_shape_fails_the_gate() {
        let mut inspector = Inspector::open().expect("smaps");
        let failures = |round: RoundContext| {
            let checks = round.finish().checks;
            checks.into_iter().filter(|check| !check.passed).map(|check| check.name).collect::<Vec<_>>()
        };
        let pages = HUGE / PAGE;
        let folios = Folios { present: pages as u64, ..Folios::default() };

        let mut round = context(SHARED_DIRTY);
        let mapping = map(HUGE as u64, PAGE).expect("memory");
        match gate(&mut round, &mut inspector, &mapping, Some(folios), 0) {
            Ok(()) => assert!(failures(round).contains(&FOLIOS[0].to_owned())),
            Err(error) => eprintln!("skipped: {error}"),
        }

        let mut round = context(SHARED_DIRTY);
        mapping.protect_page(3, false).expect("protects");
        gate(&mut round, &mut inspector, &mapping, None, 1).expect("reads");
        check_collapsed(&mut round, &mut inspector, &mapping).expect("reads");
        assert_eq!(failures(round), [PAGE_TABLES[1], COLLAPSED]);

        let mut round = context(REVERSE);
        match split_huge_pages(&mut round, &mut inspector, 1) {
            Ok((mapping, _)) => match gate(&mut round, &mut inspector, &mapping, Some(folios), 1) {
                Ok(()) => assert_eq!(failures(round), [FOLIOS[1]]),
                Err(error) => eprintln!("skipped: {error}"),
            },
            Err(error) => eprintln!("skipped: {error}"),
        }
    }

    #[test]
    fn a_turn_that_was_left_out_fails_the_check() {
        let mut round = context(SHARED_DIRTY);
        let mut mapping = map(16 * PAGE as u64, PAGE).expect("memory");
        mapping.write_touch();
        turns(&mut mapping, 5, Clock::Nanoseconds).expect("runs");
        check_touches(&mut round, &mapping, 6);
        check_touches(&mut round, &mapping, 7);
        let checks = round.finish().checks;
        assert_eq!(checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false]);
    }
}
