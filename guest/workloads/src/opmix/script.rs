//! What one process of `opmix` is going to do, drawn and played through before anything is timed.
//! Read [`Script::draw`] first: the process is alone in its folder, so that every result is known.

use std::ffi::CStr;

use rand_chacha::rand_core::Rng;
use rustix::io::Errno;

use crate::draw::below;
use crate::inventory::Inventory;
use crate::sys::names::Names;

/// Longest path that the kernel takes, its NUL included (`PATH_MAX`).
const PATH_BYTES: usize = 4096;
/// A letter and seven digits of 32 values each, as `f000002a`.
const NAME_BYTES: usize = 8;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Creat,
    Mkdir,
    Mknod,
    Symlink,
    Rmdir,
    Unlink,
    Link,
    Rename,
    Write,
    Truncate,
    Setxattr,
}

/// Number of kinds.
pub(crate) const OPS: usize = 11;

impl Op {
    /// Every kind; `ALL[op as usize]` is `op`.
    pub(crate) const ALL: [Self; OPS] = [
        Self::Creat,
        Self::Mkdir,
        Self::Mknod,
        Self::Symlink,
        Self::Rmdir,
        Self::Unlink,
        Self::Link,
        Self::Rename,
        Self::Write,
        Self::Truncate,
        Self::Setxattr,
    ];

    /// Its name, which is also that of the parameter with its frequency.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Creat => "creat",
            Self::Mkdir => "mkdir",
            Self::Mknod => "mknod",
            Self::Symlink => "symlink",
            Self::Rmdir => "rmdir",
            Self::Unlink => "unlink",
            Self::Link => "link",
            Self::Rename => "rename",
            Self::Write => "write",
            Self::Truncate => "truncate",
            Self::Setxattr => "setxattr",
        }
    }

    /// The system calls that it makes.
    pub(crate) fn calls(self) -> &'static [&'static str] {
        match self {
            Self::Creat => &["openat", "close"],
            Self::Mkdir => &["mkdirat"],
            Self::Mknod => &["mknodat"],
            Self::Symlink => &["symlinkat"],
            Self::Rmdir | Self::Unlink => &["unlinkat"],
            Self::Link => &["linkat"],
            Self::Rename => &["renameat"],
            Self::Write => &["openat", "pwrite64", "close"],
            Self::Truncate => &["openat", "ftruncate", "close"],
            Self::Setxattr => &["openat", "fsetxattr", "close"],
        }
    }
}

/// One operation with everything that its system calls take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    /// 0, or the error that it must end with.
    pub(crate) errno: i32,
    /// Path that exists or is to be made, by its number.
    from: u32,
    /// Path to be made by `link` and `rename`.
    to: u32,
    /// Where `write` begins; the new size for `truncate`.
    pub(crate) offset: u64,
    /// Bytes of `write`.
    pub(crate) length: u32,
}

/// What one process is going to do, and what must come of it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    paths: Names,
    /// Operations that must succeed, by kind.
    pub(crate) successes: [u64; OPS],
    /// What must be in the folder at the end.
    pub(crate) inventory: Inventory,
}

impl Script {
    /// Draws `operations` operations, each kind as often as its share of `mix`, in random order: a
    /// kind comes next with the probability of those left of it, unless nothing is there that it
    /// could be done to. When only such kinds are left, the script ends early.
    pub(crate) fn draw(rng: &mut impl Rng, mix: &[u64; OPS], operations: u64, write_bytes: u64) -> Self {
        let mut left = shares(mix, operations);
        let mut model = Model::new(operations as usize, write_bytes);
        while let Some(op) = next(rng, &mut left, &model) {
            model.step(rng, op);
        }
        let Model { steps, paths, successes, inventory, .. } = model;
        Self { steps, paths, successes, inventory }
    }

    /// The path that exists or is to be made.
    #[inline]
    pub(crate) fn from(&self, step: &Step) -> &CStr {
        self.paths.get(step.from)
    }

    /// The path to be made by `link` and `rename`.
    #[inline]
    pub(crate) fn to(&self, step: &Step) -> &CStr {
        self.paths.get(step.to)
    }
}

/// How many of `operations` each kind gets, so that they add up: the largest remainders go up.
pub(crate) fn shares(mix: &[u64; OPS], operations: u64) -> [u64; OPS] {
    let total: u64 = mix.iter().sum();
    if total == 0 {
        return [0; OPS];
    }
    let exact = mix.map(|frequency| u128::from(frequency) * u128::from(operations));
    let mut shares = exact.map(|share| (share / u128::from(total)) as u64);
    let mut order: Vec<usize> = (0..OPS).collect();
    order.sort_by_key(|&kind| std::cmp::Reverse(exact[kind] % u128::from(total)));
    let missing = operations - shares.iter().sum::<u64>();
    for &kind in order.iter().take(missing as usize) {
        shares[kind] += 1;
    }
    shares
}

/// Takes one kind out of those `left` that can be done now.
fn next(rng: &mut impl Rng, left: &mut [u64; OPS], model: &Model) -> Option<Op> {
    let possible = |op: Op, count: u64| if model.has_target(op) { count } else { 0 };
    let total: u64 = Op::ALL.iter().zip(&*left).map(|(&op, &count)| possible(op, count)).sum();
    if total == 0 {
        return None;
    }
    let mut drawn = below(rng, total);
    for op in Op::ALL {
        let count = possible(op, left[op as usize]);
        if drawn < count {
            left[op as usize] -= 1;
            return Some(op);
        }
        drawn -= count;
    }
    None
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Symlink,
    Device,
}

const KINDS: usize = 4;
/// Kinds that `unlink` and `link` take.
const NOT_FOLDERS: [Kind; 3] = [Kind::File, Kind::Symlink, Kind::Device];
const ANY: [Kind; KINDS] = [Kind::Folder, Kind::File, Kind::Symlink, Kind::Device];

/// A name in the tree.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    name: u32,
    parent: u32,
    /// Index into [`Model::inodes`]; folders have none.
    inode: u32,
    /// Index into the list of live entries of its kind.
    place: u32,
    /// Names in it.
    children: u32,
}

#[derive(Clone, Copy, Debug)]
struct Inode {
    links: u32,
    size: u64,
}

/// The process's folder is entry 0, which is in no list.
const ROOT: u32 = 0;

/// The tree as it is after the steps so far.
struct Model {
    entries: Vec<Entry>,
    inodes: Vec<Inode>,
    live: [Vec<u32>; KINDS],
    names: u32,
    write_bytes: u64,
    path: Vec<u8>,
    ancestors: Vec<u32>,
    steps: Vec<Step>,
    paths: Names,
    successes: [u64; OPS],
    inventory: Inventory,
}

impl Model {
    fn new(operations: usize, write_bytes: u64) -> Self {
        let root = Entry { kind: Kind::Folder, name: 0, parent: ROOT, inode: 0, place: 0, children: 0 };
        Self {
            entries: vec![root],
            inodes: Vec::new(),
            live: Default::default(),
            names: 0,
            write_bytes,
            path: Vec::new(),
            ancestors: Vec::new(),
            steps: Vec::with_capacity(operations),
            paths: Names::with_capacity(operations, 4 * NAME_BYTES),
            successes: [0; OPS],
            inventory: Inventory::default(),
        }
    }

    fn count(&self, kinds: &[Kind]) -> u64 {
        kinds.iter().map(|&kind| self.live[kind as usize].len() as u64).sum()
    }

    fn has_target(&self, op: Op) -> bool {
        match op {
            Op::Creat | Op::Mkdir | Op::Mknod | Op::Symlink => true,
            Op::Rmdir => self.count(&[Kind::Folder]) > 0,
            Op::Unlink | Op::Link => self.count(&NOT_FOLDERS) > 0,
            Op::Rename => self.count(&ANY) > 0,
            Op::Write | Op::Truncate | Op::Setxattr => self.count(&[Kind::File]) > 0,
        }
    }

    /// Any live entry of `kinds`.
    fn pick(&self, rng: &mut impl Rng, kinds: &[Kind]) -> u32 {
        let mut drawn = below(rng, self.count(kinds)) as usize;
        for &kind in kinds {
            let live = &self.live[kind as usize];
            match live.get(drawn) {
                Some(&entry) => return entry,
                None => drawn -= live.len(),
            }
        }
        ROOT
    }

    /// Any live folder, the process's own among them.
    fn pick_parent(&self, rng: &mut impl Rng) -> u32 {
        let folders = &self.live[Kind::Folder as usize];
        folders.get(below(rng, folders.len() as u64 + 1) as usize).copied().unwrap_or(ROOT)
    }

    /// Does `op` to something drawn, and writes it down.
    fn step(&mut self, rng: &mut impl Rng, op: Op) {
        let from;
        let mut errno;
        let (mut to, mut offset, mut length) = (0, 0, 0);
        match op {
            Op::Creat | Op::Mkdir | Op::Mknod | Op::Symlink => {
                let kind = match op {
                    Op::Creat => Kind::File,
                    Op::Mkdir => Kind::Folder,
                    Op::Mknod => Kind::Device,
                    _ => Kind::Symlink,
                };
                let parent = self.pick_parent(rng);
                let name = self.new_name();
                (from, errno) = self.path(parent, kind, name);
                if errno.is_none() {
                    self.add(kind, name, parent, None);
                }
            }
            Op::Rmdir | Op::Unlink => {
                let kinds: &[Kind] = if op == Op::Rmdir { &[Kind::Folder] } else { &NOT_FOLDERS };
                let entry = self.pick(rng, kinds);
                (from, errno) = self.path_of(entry);
                if errno.is_none() && self.entries[entry as usize].children > 0 {
                    errno = Some(Errno::NOTEMPTY);
                }
                if errno.is_none() {
                    self.remove(entry);
                }
            }
            Op::Link => {
                let entry = self.pick(rng, &NOT_FOLDERS);
                let Entry { kind, inode, .. } = self.entries[entry as usize];
                let parent = self.pick_parent(rng);
                let name = self.new_name();
                let (old, old_errno) = self.path_of(entry);
                let (new, new_errno) = self.path(parent, kind, name);
                (from, to, errno) = (old, new, old_errno.or(new_errno));
                if errno.is_none() {
                    self.add(kind, name, parent, Some(inode));
                }
            }
            Op::Rename => {
                let entry = self.pick(rng, &ANY);
                let parent = self.pick_parent(rng);
                let name = self.new_name();
                let (old, old_errno) = self.path_of(entry);
                let (new, new_errno) = self.path(parent, self.entries[entry as usize].kind, name);
                (from, to, errno) = (old, new, old_errno.or(new_errno));
                if errno.is_none() && self.is_below(parent, entry) {
                    errno = Some(Errno::INVAL);
                }
                if errno.is_none() {
                    let old_parent = self.entries[entry as usize].parent;
                    self.entries[old_parent as usize].children -= 1;
                    self.entries[parent as usize].children += 1;
                    let entry = &mut self.entries[entry as usize];
                    (entry.name, entry.parent) = (name, parent);
                }
            }
            Op::Write | Op::Truncate | Op::Setxattr => {
                let entry = self.pick(rng, &[Kind::File]);
                (from, errno) = self.path_of(entry);
                let inode = &mut self.inodes[self.entries[entry as usize].inode as usize];
                let old_size = inode.size;
                match op {
                    Op::Write => {
                        offset = below(rng, old_size + 1);
                        length = below(rng, self.write_bytes) as u32 + 1;
                    }
                    Op::Truncate => offset = below(rng, old_size + self.write_bytes),
                    _ => {}
                }
                if errno.is_none() {
                    inode.size = match op {
                        Op::Write => old_size.max(offset + u64::from(length)),
                        Op::Truncate => offset,
                        _ => old_size,
                    };
                    self.inventory.bytes = self.inventory.bytes - old_size + inode.size;
                }
            }
        }
        self.successes[op as usize] += u64::from(errno.is_none());
        let errno = errno.map_or(0, Errno::raw_os_error);
        self.steps.push(Step { op, errno, from, to, offset, length });
    }

    fn new_name(&mut self) -> u32 {
        self.names += 1;
        self.names
    }

    /// Adds an entry: another name of `inode`, or of a new one.
    fn add(&mut self, kind: Kind, name: u32, parent: u32, inode: Option<u32>) {
        let inode = match (kind, inode) {
            (Kind::Folder, _) => 0,
            (_, Some(inode)) => {
                self.inodes[inode as usize].links += 1;
                inode
            }
            (_, None) => {
                self.inodes.push(Inode { links: 1, size: 0 });
                self.inventory.inodes += 1;
                self.inodes.len() as u32 - 1
            }
        };
        *self.counter(kind) += 1;
        self.entries[parent as usize].children += 1;
        let live = &mut self.live[kind as usize];
        let place = live.len() as u32;
        live.push(self.entries.len() as u32);
        self.entries.push(Entry { kind, name, parent, inode, place, children: 0 });
    }

    fn remove(&mut self, entry: u32) {
        let Entry { kind, parent, inode, place, .. } = self.entries[entry as usize];
        *self.counter(kind) -= 1;
        self.entries[parent as usize].children -= 1;
        let live = &mut self.live[kind as usize];
        live.swap_remove(place as usize);
        if let Some(&moved) = live.get(place as usize) {
            self.entries[moved as usize].place = place;
        }
        if kind != Kind::Folder {
            let inode = &mut self.inodes[inode as usize];
            inode.links -= 1;
            if inode.links == 0 {
                self.inventory.inodes -= 1;
                self.inventory.bytes -= inode.size;
            }
        }
    }

    fn counter(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Folder => &mut self.inventory.folders,
            Kind::File => &mut self.inventory.files,
            Kind::Symlink => &mut self.inventory.symlinks,
            Kind::Device => &mut self.inventory.devices,
        }
    }

    /// Whether `folder` is `entry` or lies below it.
    fn is_below(&self, mut folder: u32, entry: u32) -> bool {
        while folder != entry && folder != ROOT {
            folder = self.entries[folder as usize].parent;
        }
        folder == entry
    }

    /// Writes down the path of `entry` as it is now.
    fn path_of(&mut self, entry: u32) -> (u32, Option<Errno>) {
        let Entry { kind, name, parent, .. } = self.entries[entry as usize];
        self.path(parent, kind, name)
    }

    /// Writes down a path, and what the kernel says to one of that length.
    fn path(&mut self, parent: u32, kind: Kind, name: u32) -> (u32, Option<Errno>) {
        self.ancestors.clear();
        let mut folder = parent;
        while folder != ROOT {
            self.ancestors.push(folder);
            folder = self.entries[folder as usize].parent;
        }
        self.path.clear();
        for &folder in self.ancestors.iter().rev() {
            self.path.extend(spell(Kind::Folder, self.entries[folder as usize].name));
            self.path.push(b'/');
        }
        self.path.extend(spell(kind, name));
        let errno = (self.path.len() >= PATH_BYTES).then_some(Errno::NAMETOOLONG);
        (self.paths.push(&self.path), errno)
    }
}

/// A letter for the kind, as fsstress has it, and the number in digits of 32 values.
fn spell(kind: Kind, mut number: u32) -> [u8; NAME_BYTES] {
    let mut name = [b'0'; NAME_BYTES];
    for byte in name[1..].iter_mut().rev() {
        *byte = b"0123456789abcdefghijklmnopqrstuv"[(number % 32) as usize];
        number /= 32;
    }
    name[0] = match kind {
        Kind::Folder => b'd',
        Kind::File => b'f',
        Kind::Symlink => b'l',
        Kind::Device => b'c',
    };
    name
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    const EVEN: [u64; OPS] = [1; OPS];

    fn draw(seed: u64, mix: &[u64; OPS], operations: u64) -> Script {
        Script::draw(&mut ChaCha8Rng::seed_from_u64(seed), mix, operations, 100)
    }

    fn executed(script: &Script) -> [u64; OPS] {
        let mut executed = [0; OPS];
        for step in &script.steps {
            executed[step.op as usize] += 1;
        }
        executed
    }

    #[test]
    fn shares_add_up_and_go_to_the_largest_remainders() {
        assert_eq!(shares(&[1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], 10)[..4], [4, 3, 3, 0]);
        assert_eq!(shares(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], 6)[..4], [5, 0, 0, 1]);
        assert_eq!(shares(&[0; OPS], 6), [0; OPS]);
        assert_eq!(shares(&EVEN, 12).iter().sum::<u64>(), 12);
    }

    #[test]
    fn a_script_has_the_mix_that_was_asked_for() {
        for seed in 0..20 {
            let script = draw(seed, &EVEN, 1100);
            assert_eq!(executed(&script), [100; OPS]);
            let removed = script.successes[Op::Rmdir as usize];
            assert!(removed > 0 && removed < 100, "{removed}");
        }
    }

    #[test]
    fn what_has_no_target_waits_for_one_and_is_left_out_when_none_comes() {
        let mut mix = [0; OPS];
        (mix[Op::Creat as usize], mix[Op::Unlink as usize]) = (1, 9);
        let script = draw(1, &mix, 100);
        assert_eq!(executed(&script)[Op::Creat as usize], 10);
        assert_eq!(executed(&script)[Op::Unlink as usize], 10);
        assert_eq!(script.inventory, Inventory::default());
        assert_eq!(draw(1, &[0; OPS], 100).steps.len(), 0);
    }

    #[test]
    fn the_same_seed_draws_the_same_script_and_no_name_is_used_twice() {
        let text = |script: &Script| format!("{:?}", script);
        assert_eq!(text(&draw(3, &EVEN, 500)), text(&draw(3, &EVEN, 500)));
        assert_ne!(text(&draw(3, &EVEN, 500)), text(&draw(4, &EVEN, 500)));
        let script = draw(3, &EVEN, 2000);
        let mut made = HashSet::new();
        for step in &script.steps {
            let path = match step.op {
                Op::Creat | Op::Mkdir | Op::Mknod | Op::Symlink => script.from(step),
                Op::Link | Op::Rename => script.to(step),
                _ => continue,
            };
            let name = path.to_bytes().rsplit(|&byte| byte == b'/').next().expect("a name");
            assert_eq!(name.len(), NAME_BYTES);
            assert!(made.insert(name.to_owned()), "{path:?}");
        }
    }

    #[test]
    fn a_folder_cannot_be_moved_below_itself() {
        let mut mix = [0; OPS];
        (mix[Op::Mkdir as usize], mix[Op::Rename as usize]) = (1, 9);
        let script = draw(1, &mix, 300);
        let refused = script.steps.iter().filter(|step| step.errno == libc::EINVAL).count();
        assert!(refused > 10, "{refused}");
        for step in script.steps.iter().filter(|step| step.op == Op::Rename) {
            let mut inside = script.from(step).to_bytes().to_owned();
            inside.push(b'/');
            let below_itself = script.to(step).to_bytes().starts_with(&inside);
            assert_eq!(step.errno, if below_itself { libc::EINVAL } else { 0 });
        }
    }
}
