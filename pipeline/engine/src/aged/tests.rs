//! Images made by a guest that writes what it is told into its window, but for QEMU.

use std::sync::Mutex;

use kdelta_model::MeasureMode::Instructions;
use kdelta_wire::Extent;

use super::*;
use crate::cancel::Cancel;
use crate::event::Silent;
use crate::layout::Cache;
use crate::testing::{SimulatedGuest, TWO_ARMS, digest, identity, plan};

/// A guest that leaves an image of one block in its window, filled with `byte`.
struct Maker<'a> {
    inner: SimulatedGuest<'a>,
    byte: u8,
    /// Whether a check of its first round fails.
    lies: bool,
    /// What each boot was given: arm, mount options, seed.
    boots: Mutex<Vec<(String, Vec<String>, u64)>>,
}

impl<'a> Maker<'a> {
    fn new(inner: SimulatedGuest<'a>, byte: u8) -> Self {
        Self { inner, byte, lies: false, boots: Mutex::default() }
    }

    fn boots(&self) -> usize {
        self.boots.lock().expect("no panic elsewhere").len()
    }
}

impl Guest for Maker<'_> {
    fn boot(
        &self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<BootResult, ProcessError> {
        let window = spec.window.expect("a window");
        assert!(window.writable && window.bytes.is_power_of_two(), "{window:?}");
        let capacity = spec.arm.guest.disk.capacity().expect("a disk").bytes();
        let header = ImageHeader { capacity, data: 4096, extents: 1 };
        let mut image = vec![0; 4096];
        image[..ImageHeader::BYTES].copy_from_slice(&header.encode());
        image.extend([self.byte; 4096]);
        image.extend(Extent { offset: 8192, length: 4096 }.encode());
        if self.byte != 0 {
            fs::write(window.path, image).expect("write");
        }
        let entry = (spec.arm.name.clone(), spec.arm.filesystem.mount.clone(), spec.seed);
        self.boots.lock().expect("no panic elsewhere").push(entry);
        let mut result = self.inner.boot(spec, cancel, on_stage)?;
        if self.lies {
            let check = &mut result.rounds[0].checks[0];
            (check.actual, check.passed) = ("9999".to_owned(), false);
        }
        Ok(result)
    }
}

/// A cache, and the kernels and images that boots need.
struct Bench {
    _dir: tempfile::TempDir,
    cache: Cache,
    cancel: Cancel,
    plan: Plan,
    kernels: Vec<Kernel>,
    images: Vec<GuestImage>,
}

impl Bench {
    fn new(yaml: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let root = Utf8PathBuf::try_from(dir.path().to_owned()).expect("UTF-8");
        let (kernel, image) = (root.join("vmlinux"), root.join("image.cpio"));
        fs::write(&kernel, "a kernel").expect("write");
        fs::write(&image, "an archive").expect("write");
        let plan = plan(yaml, Instructions);
        let kernels = plan.kernels.iter().map(|request| Kernel {
            image: kernel.clone(),
            identity: identity(request),
            config: None,
            modules: Vec::new(),
        });
        let images = plan.kernels.iter().map(|_| GuestImage {
            path: image.clone(),
            digest: digest("initramfs"),
            init_digest: digest("init"),
            userland: Vec::new(),
        });
        let (kernels, images) = (kernels.collect(), images.collect());
        let cache = Cache::open(&root.join("cache")).expect("a cache");
        Self { _dir: dir, cache, cancel: Cancel::default(), plan, kernels, images }
    }

    fn make(&self, guest: &dyn Guest) -> Result<Vec<Option<AgedImage>>, AgedError> {
        let ctx = Context { cache: &self.cache, events: &Silent, cancel: &self.cancel, jobs: 1 };
        make_all(&ctx, guest, &self.plan, &self.kernels, &self.images)
    }
}

fn model(_: &Arm, _: u64, _: &kdelta_model::Metric) -> f64 {
    1000.0
}

fn works(_: &Arm, _: u64, _: usize) -> Option<Outcome> {
    None
}

fn aged(settings: &str) -> String {
    let settings = format!("type: xfs, mount: [noatime], aged: {{workload: create, seed: 9{settings}}}");
    TWO_ARMS.replace("type: tmpfs", &settings)
}

#[test]
fn arms_that_ask_for_the_same_share_an_image_that_the_first_made_once() {
    let bench = Bench::new(&aged(""));
    let maker = Maker::new(SimulatedGuest::new(&model, &works), 7);
    let images = bench.make(&maker).expect("images");
    assert_eq!(images.len(), 3, "parent, child and placebo");
    let first = images[0].clone().expect("an image");
    assert!(images.iter().all(|image| image.as_ref() == Some(&first)));
    assert_eq!(first.window, 16_384, "8208 bytes, and PCI wants a power of two");
    assert_eq!(fs::metadata(&first.path).expect("a file").len(), first.window);
    assert_eq!((first.record.bytes, &first.record.kernel), (4096, &bench.kernels[0].identity.image_digest));
    assert!(!first.window().writable);
    let boots = maker.boots.lock().expect("no panic elsewhere").clone();
    assert_eq!(boots, [("parent".to_owned(), Vec::new(), 9)], "with default mount options");
    assert_eq!(bench.make(&maker).expect("from the cache"), images);
    assert_eq!(maker.boots(), 1);
}

#[test]
fn another_workload_mkfs_size_or_kernel_is_another_image() {
    let arms = |arms: &str| aged("").replace("{name: child, kernel: {patches: [slow.patch]}}", arms);
    for (arm, count) in [
        ("{name: child, filesystem: {type: xfs, mkfs: [-n, parent=1]}}", 2),
        ("{name: child, filesystem: {type: xfs, aged: {workload: create, rounds: 2}}}", 2),
        ("{name: child, disk: {type: ram, size: 256MiB}}", 2),
        ("{name: child, filesystem: {type: xfs, mount: [logbsize=256k]}}", 1),
        ("{name: child, disk: {type: nvme, size: 512MiB}}", 1),
        ("{name: child, filesystem: {type: tmpfs}}", 1),
    ] {
        let bench = Bench::new(&arms(arm));
        let maker = Maker::new(SimulatedGuest::new(&model, &works), 7);
        let images = bench.make(&maker).expect("images");
        assert_eq!(maker.boots(), count, "{arm}");
        assert_eq!(images[1].is_some(), !arm.contains("tmpfs"), "{arm}");
    }
    let mut bench = Bench::new(&aged(""));
    let maker = Maker::new(SimulatedGuest::new(&model, &works), 7);
    bench.make(&maker).expect("images");
    bench.kernels[0].identity.image_digest = digest("another kernel");
    bench.make(&maker).expect("images");
    assert_eq!(maker.boots(), 2);
}

#[test]
fn a_boot_that_fails_or_leaves_nothing_is_an_error_with_an_owner() {
    let outcome = |outcome: fn(String) -> Outcome, owner: Owner| {
        let script = move |_: &Arm, _: u64, _: usize| Some(outcome("why".to_owned()));
        let bench = Bench::new(&aged(""));
        let error = bench.make(&Maker::new(SimulatedGuest::new(&model, &script), 7)).expect_err("failed");
        let text = error.to_string();
        assert!(text.starts_with("the filesystem that parent starts from could not be made: "), "{text}");
        assert!(text.ends_with("why"), "{text}");
        assert_eq!(error.owner(), owner);
        assert_eq!(fs::read_dir(bench.cache.aged()).expect("a folder").count(), 0, "nothing is published");
        assert_eq!(fs::read_dir(bench.cache.root().join("tmp")).expect("a folder").count(), 0);
    };
    outcome(|message| Outcome::KernelFailed { message }, Owner::Kernel);
    outcome(|message| Outcome::WorkloadFailed { message }, Owner::User);
    outcome(|message| Outcome::HostFailed { message }, Owner::Host);
    let error = Bench::new(&aged("")).make(&Maker::new(SimulatedGuest::new(&model, &works), 0));
    assert!(matches!(error, Err(AgedError::NoImage { .. })), "{error:?}");
}

#[test]
fn a_workload_that_did_not_do_what_it_claims_leaves_no_image() {
    let bench = Bench::new(&aged(""));
    let maker = Maker { lies: true, ..Maker::new(SimulatedGuest::new(&model, &works), 7) };
    let error = bench.make(&maker).expect_err("a failed check");
    insta::assert_snapshot!(error, @"the filesystem that parent starts from is not what was asked for: create/sane round 0: results must be 10000 and is 9999");
    assert_eq!(error.owner(), Owner::User);
    assert_eq!(fs::read_dir(bench.cache.aged()).expect("a folder").count(), 0);
}

#[test]
fn a_stored_image_that_was_changed_is_refused() {
    let bench = Bench::new(&aged(""));
    let maker = Maker::new(SimulatedGuest::new(&model, &works), 7);
    let images = bench.make(&maker).expect("images");
    let path = &images[0].as_ref().expect("an image").path;
    let mut bytes = fs::read(path).expect("read");
    bytes[5000] ^= 1;
    fs::write(path, bytes).expect("write");
    let error = bench.make(&maker).expect_err("damaged").to_string();
    assert!(error.contains("is damaged (the image has another digest); delete it"), "{error}");
    assert_eq!(maker.boots(), 1);
}
