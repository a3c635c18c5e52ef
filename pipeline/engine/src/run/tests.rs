//! Runs on a simulated guest: everything from the first boot to the record, but for QEMU.

use std::sync::atomic::{AtomicUsize, Ordering};

use kdelta_model::MeasureMode::{Instructions, Wall};
use kdelta_model::{Metric, Verdict};

use super::*;
use crate::cancel::Cancel;
use crate::event::{Event, EventSink, Silent};
use crate::layout::Cache;
use crate::testing::{FACTORIAL, Script, SimulatedGuest, TWO_ARMS, digest, identity, record};

/// A folder with the files that boots need, and a run to do in it.
struct Bench {
    _dir: tempfile::TempDir,
    root: Utf8PathBuf,
    cache: Cache,
    cancel: Cancel,
    session: RunRecord,
    made: Made,
}

impl Bench {
    fn new(yaml: &str, mode: MeasureMode) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let root = Utf8PathBuf::try_from(dir.path().to_owned()).expect("UTF-8");
        let (kernel, image) = (root.join("vmlinux"), root.join("image.cpio"));
        fs::write(&kernel, "a kernel").expect("write");
        fs::write(&image, "an archive").expect("write");
        let session = record(yaml, mode);
        let kernels = session.plan.kernels.iter().map(|request| Kernel {
            image: kernel.clone(),
            identity: identity(request),
            config: Some("CONFIG_HZ=250\n".to_owned()),
            modules: Vec::new(),
        });
        let images = session.plan.kernels.iter().map(|_| GuestImage {
            path: image.clone(),
            digest: digest("initramfs"),
            init_digest: digest("init"),
            userland: Vec::new(),
        });
        let made = Made { kernels: kernels.collect(), images: images.collect(), aged: Vec::new() };
        let cache = Cache::open(&root.join("cache")).expect("a cache");
        Self { _dir: dir, root, cache, cancel: Cancel::default(), session, made }
    }

    fn two() -> Self {
        Self::new(TWO_ARMS, Instructions)
    }

    fn folder(&self) -> Utf8PathBuf {
        self.root.join("run")
    }

    fn start(&self, guest: &dyn Guest, jobs: usize) -> Result<RunRecord, RunError> {
        let folder = RunFolder::create(&self.folder(), &self.session)?;
        self.go(guest, jobs, &folder, Vec::new(), &Silent)
    }

    /// Goes on as [`resume`] does, with kernels that are still there.
    fn resume(&self, guest: &dyn Guest, jobs: usize) -> Result<RunRecord, RunError> {
        let (folder, session, boots) = RunFolder::reopen(&self.folder())?;
        assert_eq!(session, self.session);
        let again = Bench::two();
        let ctx = Context { cache: &again.cache, events: &Silent, cancel: &again.cancel, jobs };
        boot_and_judge(&ctx, guest, &folder, session, boots, &self.made)
    }

    fn go(
        &self,
        guest: &dyn Guest,
        jobs: usize,
        folder: &RunFolder,
        done: Vec<BootRecord>,
        events: &dyn EventSink,
    ) -> Result<RunRecord, RunError> {
        let ctx = Context { cache: &self.cache, events, cancel: &self.cancel, jobs };
        boot_and_judge(&ctx, guest, folder, self.session.clone(), done, &self.made)
    }

    fn journal_lines(&self) -> usize {
        fs::read_to_string(self.folder().join("journal.jsonl")).expect("a journal").lines().count()
    }
}

/// Counts of a tmpfs whose listing got 3 % dearer, with a scatter that the seed decides.
fn model(arm: &Arm, seed: u64, _: &Metric) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let scatter = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1_u64 << 24) as f64;
    let effect = if arm.name.starts_with("child") { 1.03 } else { 1.0 };
    (800.0 + scatter) * effect
}

fn works(_: &Arm, _: u64, _: usize) -> Option<Outcome> {
    None
}

fn host_failed() -> Option<Outcome> {
    Some(Outcome::HostFailed { message: "QEMU ended with signal 9".to_owned() })
}

fn panics() -> Option<Outcome> {
    Some(Outcome::KernelFailed { message: "Kernel panic - not syncing: planted".to_owned() })
}

/// A record without what differs from one run to the next: moments and the load of this host.
fn timeless(mut record: RunRecord) -> RunRecord {
    for boot in &mut record.boots {
        (boot.started_seconds, boot.load_before, boot.steal_percent) = (0.0, 0.0, 0.0);
    }
    record
}

#[test]
fn every_boot_is_journaled_and_the_planted_change_is_found() {
    let bench = Bench::two();
    let guest = SimulatedGuest::new(&model, &works);
    let record = bench.start(&guest, 1).expect("a record");
    assert_eq!((guest.tries(), record.boots.len(), bench.journal_lines()), (26, 26, 26));
    assert_eq!(record.comparisons[0].verdict, Verdict::Regression { beyond_margin: true });
    let estimate = record.comparisons[0].estimate.as_ref().expect("an estimate");
    assert!((estimate.percent - 3.0).abs() < 0.001, "{estimate:?}");
    assert_eq!(crate::journal::read_finished(&bench.folder()).expect("record.json"), record);
    let (_, session, boots) = RunFolder::reopen(&bench.folder()).expect("the run");
    assert_eq!((session.boots.len(), boots.len()), (0, 26));
    let left: Vec<_> = fs::read_dir(bench.folder().join("boots/0000")).expect("a folder").collect();
    assert!(left.is_empty(), "the initramfs of a boot is removed after it");
}

#[test]
fn the_number_of_workers_changes_nothing() {
    let run = |jobs: usize| {
        let bench = Bench::two();
        timeless(bench.start(&SimulatedGuest::new(&model, &works), jobs).expect("a record"))
    };
    let one = run(1);
    assert_eq!(run(2), one);
    assert_eq!(run(7), one);
}

#[test]
fn a_host_that_fails_twice_is_tried_again_and_leaves_no_trace() {
    let script = |arm: &Arm, seed: u64, number: usize| {
        if arm.name == "child" && seed == 3 && number <= 2 { host_failed() } else { None }
    };
    let bench = Bench::two();
    let guest = SimulatedGuest::new(&model, &script);
    let record = bench.start(&guest, 1).expect("a record");
    assert_eq!((guest.tries(), bench.journal_lines()), (28, 26));
    assert!(record.boots.iter().all(|boot| boot.outcome == Outcome::Completed));
    let clean = Bench::two().start(&SimulatedGuest::new(&model, &works), 1).expect("a record");
    assert_eq!(timeless(record), timeless(clean));
}

#[test]
fn a_host_that_keeps_failing_costs_its_boots_and_never_the_verdict() {
    let script = |arm: &Arm, seed: u64, _: usize| {
        if arm.name == "child" && seed >= 3 { host_failed() } else { None }
    };
    let bench = Bench::two();
    let guest = SimulatedGuest::new(&model, &script);
    let record = bench.start(&guest, 2).expect("a record");
    assert_eq!(guest.tries(), 26 + 5 * 2, "three tries each, and no arm is given up for it");
    assert_eq!(record.comparisons[0].estimate.as_ref().map(|estimate| estimate.n), Some(3));
    assert!(!matches!(record.comparisons[0].verdict, Verdict::Invalid { .. }));
    let caveat = "5 boots failed by fault of the host and are not evidence about any kernel.";
    assert!(record.caveats.iter().any(|line| line == caveat), "{:?}", record.caveats);
}

#[test]
fn a_boot_that_the_host_spoiled_is_made_good_by_resuming() {
    let script = |arm: &Arm, seed: u64, _: usize| {
        if arm.name == "child" && seed == 3 { host_failed() } else { None }
    };
    let bench = Bench::two();
    bench.start(&SimulatedGuest::new(&model, &script), 1).expect("a record");
    let guest = SimulatedGuest::new(&model, &works);
    let record = bench.resume(&guest, 1).expect("a record");
    assert_eq!((guest.tries(), record.boots.len(), bench.journal_lines()), (1, 26, 27));
    let clean = Bench::two().start(&SimulatedGuest::new(&model, &works), 1).expect("a record");
    assert_eq!(timeless(record), timeless(clean));
    let idle = SimulatedGuest::new(&model, &works);
    bench.resume(&idle, 1).expect("a record");
    assert_eq!(idle.tries(), 0, "nothing is left to do");
}

#[test]
fn an_arm_that_fails_twice_is_booted_no_more_and_its_pair_is_void() {
    let script: &Script = &|arm, _, _| if arm.name == "child" { panics() } else { None };
    let bench = Bench::two();
    let guest = SimulatedGuest::new(&model, script);
    let record = bench.start(&guest, 1).expect("a record");
    let children = record.boots.iter().filter(|boot| boot.arm == 1).count();
    assert_eq!((children, record.boots.len(), guest.tries()), (2, 19, 19));
    let reason = "boots fail on child (boot 1): the kernel failed: Kernel panic - not syncing: planted";
    for comparison in &record.comparisons {
        assert_eq!(comparison.verdict, Verdict::Invalid { reason: reason.to_owned() });
    }
    assert!(record.caveats[0].starts_with("7 planned boots were not done"), "{:?}", record.caveats);
    let many = Bench::two().start(&SimulatedGuest::new(&model, script), 4).expect("a record");
    assert_eq!(many.comparisons[0].verdict, record.comparisons[0].verdict);
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_judgement() {
    for (jobs, at) in [(1, 1), (1, 10), (3, 12), (2, 26)] {
        let bench = Bench::two();
        let error = bench
            .start(&SimulatedGuest::new(&model, &works).cancelled_at(at), jobs)
            .expect_err("interrupted");
        let RunError::Interrupted { done, total, folder } = error else { panic!("{error}") };
        assert_eq!((done, total), (bench.journal_lines(), 26));
        assert_eq!(folder, bench.folder());
        assert!(done < at && done + jobs >= at, "{done} boots, cancelled at try {at} of {jobs} workers");
        let rest = SimulatedGuest::new(&model, &works);
        let resumed = bench.resume(&rest, jobs).expect("a record");
        assert_eq!(rest.tries(), 26 - done, "no boot is done twice");
        let whole = Bench::two().start(&SimulatedGuest::new(&model, &works), 1).expect("a record");
        assert_eq!(timeless(resumed), timeless(whole), "cancelled at {at} with {jobs}");
    }
}

#[test]
fn the_message_of_an_interruption_says_how_to_go_on() {
    let bench = Bench::two();
    let guest = SimulatedGuest::new(&model, &works).cancelled_at(5);
    let error = bench.start(&guest, 1).expect_err("interrupted").to_string();
    let folder = bench.folder();
    assert_eq!(error, format!("interrupted after 4 of 26 boots; go on with: kdelta run --resume {folder}"));
    let error = RunError::Interrupted { done: 1, total: 2, folder: "my runs/a".into() }.to_string();
    assert_eq!(error, "interrupted after 1 of 2 boots; go on with: kdelta run --resume 'my runs/a'");
}

#[test]
fn failures_before_an_interruption_still_count() {
    let script: &Script = &|arm, _, _| if arm.name == "child" { panics() } else { None };
    let bench = Bench::two();
    bench.start(&SimulatedGuest::new(&model, script).cancelled_at(3), 1).expect_err("interrupted");
    let record = bench.resume(&SimulatedGuest::new(&model, script), 1).expect("a record");
    assert_eq!(record.boots.iter().filter(|boot| boot.arm == 1).count(), 2);
}

#[test]
fn a_two_by_two_on_several_workers_has_its_table() {
    let bench = Bench::new(FACTORIAL, Instructions);
    let cost = |arm: &Arm, _: u64, _: &Metric| match (arm.levels["kernel"].as_str(), arm.kernel) {
        _ if arm.levels["parent pointers"] == "parent=0" => 100.0,
        ("unpatched", _) => 110.0,
        _ => 105.0,
    };
    let record = bench.start(&SimulatedGuest::new(&cost, &works), 2).expect("a record");
    assert_eq!(record.factorials.len(), 2, "elapsed and system time");
    assert_eq!(record.factorials[0].recovered_percent.map(f64::round), Some(50.0));
}

/// Counts guests that run at one time.
struct Crowd<'a> {
    inner: SimulatedGuest<'a>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Guest for Crowd<'_> {
    fn boot(
        &self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<vm::BootResult, ProcessError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        assert!(!spec.pins.is_empty(), "wall time is measured on CPUs of its own");
        let result = self.inner.boot(spec, cancel, on_stage);
        self.now.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

#[test]
fn wall_time_is_measured_one_guest_at_a_time() {
    let bench = Bench::new(TWO_ARMS, Wall);
    let guest = Crowd {
        inner: SimulatedGuest::new(&model, &works),
        now: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    };
    let record = bench.start(&guest, 8).expect("a record");
    assert_eq!((guest.most.into_inner(), record.boots.len()), (1, 12));
}

#[test]
fn a_run_folder_that_cannot_be_written_ends_the_run() {
    let bench = Bench::two();
    let folder = RunFolder::create(&bench.folder(), &bench.session).expect("a folder");
    fs::remove_dir(bench.folder().join("boots")).expect("remove");
    fs::write(bench.folder().join("boots"), "in the way").expect("write");
    let guest = SimulatedGuest::new(&model, &works);
    let error = bench.go(&guest, 2, &folder, Vec::new(), &Silent).expect_err("no folder");
    assert!(matches!(error, RunError::Journal(JournalError::File { .. })), "{error}");
    assert_eq!(guest.tries(), 0);
}

/// Keeps what it is told.
#[derive(Default)]
struct Heard(Mutex<Vec<Event>>);

impl EventSink for Heard {
    fn emit(&self, event: Event) {
        self.0.lock().expect("no panic elsewhere").push(event);
    }
}

#[test]
fn progress_counts_up_and_names_what_runs_and_what_failed() {
    let script: &Script = &|arm, _, _| if arm.name == "child" { panics() } else { None };
    let bench = Bench::two();
    let folder = RunFolder::create(&bench.folder(), &bench.session).expect("a folder");
    let heard = Heard::default();
    bench.go(&SimulatedGuest::new(&model, script), 1, &folder, Vec::new(), &heard).expect("a record");
    let events = heard.0.into_inner().expect("no panic elsewhere");
    let progress = |event: &Event| match event {
        Event::StageProgress { done, total, detail, .. } => Some((*done, *total, detail.clone())),
        _ => None,
    };
    let steps: Vec<_> = events.iter().filter_map(progress).collect();
    assert!(steps.iter().any(|(.., detail)| detail == "parent, seed 0: settle"), "{steps:?}");
    assert!(steps.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{steps:?}");
    assert_eq!(steps.last().map(|(done, total, _)| (*done, *total)), Some((19, Some(26))));
    let warnings = events.iter().filter(|event| matches!(event, Event::Warning { .. })).count();
    assert_eq!(warnings, 2, "one for each failed boot");
}

#[test]
fn a_job_differs_between_seeds_and_never_between_arms() {
    let bench = Bench::two();
    let of = |arm: usize, seed: u64| {
        let arm = &bench.session.plan.arms[arm];
        job(arm, seed, Instructions, &bench.made.kernels[arm.kernel])
    };
    assert_eq!(of(0, 5), of(1, 5), "the guest does not know its side");
    let settles: BTreeSet<u64> = (0..8).map(|seed| of(0, seed).settle_us).collect();
    assert_eq!(settles.len(), 8, "each seed meets the timer tick at another phase");
    assert!(
        settles
            .iter()
            .all(|us| (SETTLE_INSTRUCTIONS_US..SETTLE_INSTRUCTIONS_US + PHASE_SPREAD_US).contains(us))
    );
    assert!(of(0, u64::MAX).settle_us < SETTLE_INSTRUCTIONS_US + PHASE_SPREAD_US);
}

#[test]
fn a_ready_made_kernel_gets_the_modules_of_its_disk_and_filesystem_once() {
    let plan = record(FACTORIAL, Instructions).plan;
    let arms: Vec<&Arm> = plan.arms.iter().collect();
    assert_eq!(wanted_modules(&arms), ["virtio_pci", "virtio_console", "brd", "xfs"]);
    let plan = record(TWO_ARMS, Instructions).plan;
    assert_eq!(wanted_modules(&[&plan.arms[0]]), ["virtio_pci", "virtio_console"]);
}

#[test]
fn configurations_are_compared_line_by_line_but_for_the_local_version() {
    let mut bench = Bench::two();
    let config = |lines: &str| Some(format!("# Linux/x86 6.12.57 Kernel Configuration\n{lines}"));
    bench.made.kernels[0].config = config("CONFIG_LOCALVERSION=\"-a\"\nCONFIG_A=y\n# CONFIG_B is not set\n");
    bench.made.kernels[1].config = config("CONFIG_LOCALVERSION=\"-b\"\nCONFIG_A=y\nCONFIG_B=y\n");
    let differences = config_differences(&bench.session.plan, &bench.made.kernels);
    assert_eq!(differences.len(), 1);
    assert_eq!(differences[0].lines, ["-# CONFIG_B is not set", "+CONFIG_B=y"]);
    bench.made.kernels[1].config = None;
    assert!(config_differences(&bench.session.plan, &bench.made.kernels).is_empty());
}

#[test]
fn a_dry_run_of_auto_is_planned_as_instructions() {
    for (measure, mode) in [("auto", Instructions), ("instructions", Instructions), ("wall", Wall)] {
        let loaded = crate::testing::loaded(&format!("{TWO_ARMS}measure: {measure}\n")).expect("yaml");
        assert_eq!(dry_run(&loaded).expect("a plan").mode, mode, "{measure}");
    }
    let counts = boots_by_purpose(&record(TWO_ARMS, Instructions).plan);
    let expected = [("determinism check", 2), ("placebo", 8), ("sample", 16)];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
}

/// Keeps the window that each boot was given.
struct Windows<'a> {
    inner: SimulatedGuest<'a>,
    seen: Mutex<Vec<(String, Option<Utf8PathBuf>)>>,
}

impl Guest for Windows<'_> {
    fn boot(
        &self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<vm::BootResult, ProcessError> {
        assert!(spec.window.is_none_or(|window| !window.writable), "rounds only read an image");
        let window = spec.window.map(|window| window.path.to_owned());
        self.seen.lock().expect("no panic elsewhere").push((spec.arm.name.clone(), window));
        self.inner.boot(spec, cancel, on_stage)
    }
}

#[test]
fn boots_of_an_arm_that_starts_from_an_image_are_given_it_and_the_reader_is_told() {
    let child = "{name: child, filesystem: {type: xfs, aged: {workload: create}}}";
    let yaml = TWO_ARMS.replace("{name: child, kernel: {patches: [slow.patch]}}", child);
    let mut bench = Bench::new(&format!("{yaml}boots: 1\nrepeats: 0\n"), Instructions);
    let record = kdelta_model::AgedRecord {
        digest: digest("a used filesystem"),
        bytes: 4096,
        kernel: digest("a kernel"),
        mkfs_output: String::new(),
        mount_line: String::new(),
    };
    let path = bench.root.join("image");
    bench.made.aged =
        vec![None, Some(AgedImage { path: path.clone(), window: 1 << 14, record: record.clone() })];
    let arms = [0, 1].map(|arm| arm_record(&bench.session.plan, arm, &bench.made));
    assert_eq!(arms.each_ref().map(|arm| arm.aged.clone()), [None, Some(record.clone())]);
    let object = "memory-backend-file,id=window,share=on,readonly=on,size=16384,mem-path=AGED";
    assert!(arms[1].qemu_arguments.iter().any(|word| word == object), "{:?}", arms[1].qemu_arguments);
    let kernel = &bench.made.kernels[0];
    let job = |arm: usize| job(&bench.session.plan.arms[arm], 1, Instructions, kernel);
    assert_eq!((job(0).image, job(1).image), (None, Some(ImageUse::Restore)));

    bench.session.arms = arms.to_vec();
    let guest = Windows { inner: SimulatedGuest::new(&model, &works), seen: Mutex::default() };
    let finished = bench.start(&guest, 1).expect("a record");
    let seen = guest.seen.into_inner().expect("no panic elsewhere");
    assert_eq!(seen, [("parent".to_owned(), None), ("child".to_owned(), Some(path))]);
    let caveat = format!("Rounds start from a used filesystem (image {}): ", record.digest.short());
    assert!(finished.caveats.iter().any(|line| line.starts_with(&caveat)), "{:?}", finished.caveats);
}
