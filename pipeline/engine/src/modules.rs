//! Finds the modules that a ready-made kernel needs in the guest, and the order to load them in: a
//! package holds no `modules.dep`, that is made when it is installed. Read [`load_order`] first,
//! which returns a list of [`Module`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use object::{Object, ObjectSection};
use thiserror::Error;

use crate::archive::decompress;

/// No module is larger than this when unpacked.
const LARGEST: u64 = 256 << 20;
/// Where modules lie that are asked for by what they provide (`crypto-crc32c`), not by name.
const PROVIDERS: [&str; 3] = ["kernel/crypto", "kernel/arch", "kernel/lib"];
const SUFFIXES: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];

/// A module to load in the guest, after those before it in the list.
#[derive(Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, with underscores, as `lsmod` prints it.
    pub name: String,
    /// The ELF object, decompressed, as `init_module(2)` takes it.
    pub bytes: Vec<u8>,
    /// Only wished for by another one, a faster checksum for example: it may refuse the guest's CPU,
    /// and that is no error.
    pub optional: bool,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, bytes, optional } = self;
        write!(f, "Module({name}, {} bytes, optional: {optional})", bytes.len())
    }
}

/// Why modules cannot be loaded.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// There is no such module.
    #[error(
        "the kernel in {folder} has no module `{name}`{needed}, and it is not built in; choose a kernel that has it, or leave it out"
    )]
    Missing {
        /// Its name.
        name: String,
        /// Who needs it.
        needed: String,
        /// Where it was looked for.
        folder: Utf8PathBuf,
    },
    /// Modules need each other.
    #[error("the modules in {folder} need each other in a circle: {circle}; fetch the package again")]
    Circle {
        /// Their names.
        circle: String,
        /// Where they are.
        folder: Utf8PathBuf,
    },
    /// A module file is broken.
    #[error("the module {path} cannot be read: {reason}; fetch the package again")]
    Broken {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: Utf8PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The modules in `folder` (which holds `kernel/` and `modules.builtin`) that make `wanted` work,
/// each after those it needs. Names may be written with `-` or `_`; built-in ones need nothing.
///
/// # Errors
/// When a module or one that it needs is missing or broken, or modules need each other.
pub fn load_order(folder: &Utf8Path, wanted: &[String]) -> Result<Vec<Module>, ModuleError> {
    let mut search =
        Search { index: Index::read(folder)?, path: Vec::new(), done: BTreeMap::new(), order: Vec::new() };
    for name in wanted {
        search.require(name)?;
    }
    // Whether something is required may become known after it was placed.
    let Search { done, order, .. } = search;
    Ok(order.into_iter().map(|module| Module { optional: !done[&module.name], ..module }).collect())
}

/// Where modules are, by name.
struct Index {
    folder: Utf8PathBuf,
    files: BTreeMap<String, Utf8PathBuf>,
    builtin: BTreeSet<String>,
    builtin_aliases: BTreeSet<String>,
    aliases: Option<BTreeMap<String, BTreeSet<String>>>,
}

/// What `.modinfo` says that matters here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Info {
    depends: Vec<String>,
    before: Vec<String>,
    aliases: Vec<String>,
}

struct Search {
    index: Index,
    /// Being placed: each needs the next.
    path: Vec<String>,
    /// Placed; `true` for those that are required.
    done: BTreeMap<String, bool>,
    order: Vec<Module>,
}

impl Search {
    fn require(&mut self, name: &str) -> Result<(), ModuleError> {
        let name = normal(name);
        if self.index.builtin.contains(&name) {
            return Ok(());
        }
        if self.index.files.contains_key(&name) {
            return self.place(&name, true);
        }
        if self.index.builtin_aliases.contains(&name) {
            return Ok(());
        }
        Err(ModuleError::Missing {
            name,
            needed: self.path.last().map(|needy| format!(" (needed by {needy})")).unwrap_or_default(),
            folder: self.index.folder.clone(),
        })
    }

    /// Places what a soft dependency names, when there is such a thing: modprobe.d(5) says that one
    /// that is missing is no error.
    fn wish(&mut self, name: &str) -> Result<(), ModuleError> {
        let name = normal(name);
        if self.index.builtin.contains(&name) || self.path.contains(&name) {
            return Ok(());
        }
        if self.index.files.contains_key(&name) {
            return self.place(&name, false);
        }
        for provider in self.index.providers(&name)? {
            if !self.path.contains(&provider) {
                self.place(&provider, false)?;
            }
        }
        Ok(())
    }

    fn place(&mut self, name: &str, required: bool) -> Result<(), ModuleError> {
        match self.done.get_mut(name) {
            Some(known) if *known || !required => return Ok(()),
            // What a required module needs is required too: go through its dependencies once more.
            Some(known) => *known = true,
            None => {}
        }
        if let Some(start) = self.path.iter().position(|it| it == name) {
            let mut circle = self.path[start..].to_vec();
            circle.push(name.to_owned());
            return Err(ModuleError::Circle {
                circle: circle.join(" -> "),
                folder: self.index.folder.clone(),
            });
        }
        let (bytes, info) = self.index.load(name)?;
        self.path.push(name.to_owned());
        for needed in &info.before {
            self.wish(needed)?;
        }
        for needed in &info.depends {
            if required {
                self.require(needed)?;
            } else {
                self.wish(needed)?;
            }
        }
        self.path.pop();
        if !self.done.contains_key(name) {
            self.done.insert(name.to_owned(), required);
            self.order.push(Module { name: name.to_owned(), bytes, optional: !required });
        }
        Ok(())
    }
}

impl Index {
    fn read(folder: &Utf8Path) -> Result<Self, ModuleError> {
        let mut files = BTreeMap::new();
        find(&folder.join("kernel"), &mut files)?;
        // Both are missing when a kernel was installed by hand; then nothing is known to be built in.
        let builtin = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let builtin =
            builtin.lines().filter_map(|line| module_name(Utf8Path::new(line).file_name()?)).collect();
        let info = fs::read(folder.join("modules.builtin.modinfo")).unwrap_or_default();
        let builtin_aliases = strings(&info)
            .filter_map(|text| text.split_once('.')?.1.strip_prefix("alias="))
            .map(normal)
            .collect();
        Ok(Self { folder: folder.to_owned(), files, builtin, builtin_aliases, aliases: None })
    }

    fn load(&self, name: &str) -> Result<(Vec<u8>, Info), ModuleError> {
        let path = self.files.get(name).ok_or_else(|| ModuleError::Missing {
            name: name.to_owned(),
            needed: String::new(),
            folder: self.folder.clone(),
        })?;
        let bytes = fs::read(path).map_err(|source| ModuleError::Io { path: path.clone(), source })?;
        let broken = |reason: String| ModuleError::Broken { path: path.clone(), reason };
        let bytes = decompress(&bytes, LARGEST).map_err(|error| broken(error.to_string()))?;
        let info = modinfo(&bytes).map_err(broken)?;
        Ok((bytes, info))
    }

    /// Modules that offer `alias`: the portable ones first, then those for special CPUs.
    fn providers(&mut self, alias: &str) -> Result<Vec<String>, ModuleError> {
        let aliases = match self.aliases.take() {
            Some(aliases) => aliases,
            None => self.read_aliases()?,
        };
        let mut found: Vec<String> = aliases.get(alias).into_iter().flatten().cloned().collect();
        found.sort_by_key(|name| !name.ends_with("_generic"));
        self.aliases = Some(aliases);
        Ok(found)
    }

    fn read_aliases(&self) -> Result<BTreeMap<String, BTreeSet<String>>, ModuleError> {
        let mut aliases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let folders: Vec<Utf8PathBuf> = PROVIDERS.iter().map(|folder| self.folder.join(folder)).collect();
        for (name, path) in &self.files {
            if folders.iter().any(|folder| path.starts_with(folder)) {
                for alias in self.load(name)?.1.aliases {
                    aliases.entry(normal(&alias)).or_default().insert(name.clone());
                }
            }
        }
        Ok(aliases)
    }
}

fn find(folder: &Utf8Path, files: &mut BTreeMap<String, Utf8PathBuf>) -> Result<(), ModuleError> {
    let failed = |source| ModuleError::Io { path: folder.to_owned(), source };
    for entry in folder.read_dir_utf8().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            find(entry.path(), files)?;
        } else if let Some(name) = module_name(entry.file_name()) {
            files.insert(name, entry.path().to_owned());
        }
    }
    Ok(())
}

fn module_name(file: &str) -> Option<String> {
    SUFFIXES.iter().find_map(|suffix| file.strip_suffix(suffix)).map(normal)
}

/// Hyphens and underscores are the same in names of modules.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn strings(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok())
}

/// Reads `.modinfo`, a list of `key=value` strings.
fn modinfo(bytes: &[u8]) -> Result<Info, String> {
    let file = object::File::parse(bytes).map_err(|error| format!("it is no ELF object ({error})"))?;
    let section = file.section_by_name(".modinfo").ok_or("it has no .modinfo section")?;
    let data = section.data().map_err(|error| format!("its .modinfo section is broken ({error})"))?;
    let mut info = Info::default();
    let words =
        |text: &str| text.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    for (key, value) in strings(data).filter_map(|text| text.split_once('=')) {
        match key {
            "depends" => info.depends = words(value),
            "alias" => info.aliases.push(value.to_owned()),
            // `pre: a b post: c`; what comes after is not needed to get going.
            "softdep" => {
                let before = value.split_once("pre:").map_or("", |(_, rest)| rest);
                let before: Vec<String> =
                    words(before.split_once("post:").map_or(before, |(names, _)| names));
                info.before.extend(before);
            }
            _ => {}
        }
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::tests::xz;

    /// An ELF object with nothing but a `.modinfo` section.
    fn module(info: &[&str]) -> Vec<u8> {
        let data: Vec<u8> = info.iter().flat_map(|text| text.bytes().chain([0])).collect();
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut elf = vec![0; 64];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[16..18].copy_from_slice(&1_u16.to_le_bytes());
        elf[18..20].copy_from_slice(&62_u16.to_le_bytes());
        elf[20] = 1;
        let (data_at, names_at) = (64, 64 + data.len() as u64);
        let table_at = (names_at + names.len() as u64).next_multiple_of(8);
        elf[40..48].copy_from_slice(&table_at.to_le_bytes());
        elf[52..54].copy_from_slice(&64_u16.to_le_bytes());
        elf[58..60].copy_from_slice(&64_u16.to_le_bytes());
        elf[60..62].copy_from_slice(&3_u16.to_le_bytes());
        elf[62..64].copy_from_slice(&2_u16.to_le_bytes());
        elf.extend(&data);
        elf.extend(names);
        elf.resize(usize::try_from(table_at).expect("small"), 0);
        elf.extend([0; 64]);
        for (name, kind, at, size) in
            [(1_u32, 1_u32, data_at, data.len() as u64), (10, 3, names_at, names.len() as u64)]
        {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&at.to_le_bytes());
            section[32..40].copy_from_slice(&size.to_le_bytes());
            elf.extend(section);
        }
        elf
    }

    struct Folder {
        dir: tempfile::TempDir,
    }

    impl Folder {
        fn new(modules: &[(&str, &[&str])]) -> Self {
            let folder = Self { dir: tempfile::tempdir().expect("folder") };
            for (path, info) in modules {
                let bytes = module(info);
                let bytes = match path.rsplit_once('.') {
                    Some((_, "xz")) => xz(&bytes),
                    Some((_, "zst")) => crate::archive::tests::zstd(&bytes),
                    _ => bytes,
                };
                folder.write(&format!("kernel/{path}"), &bytes);
            }
            folder
        }

        fn path(&self) -> &Utf8Path {
            Utf8Path::from_path(self.dir.path()).expect("UTF-8")
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            let path = self.path().join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            fs::write(path, bytes).expect("write");
        }

        fn order(&self, wanted: &[&str]) -> Result<String, ModuleError> {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            let order = load_order(self.path(), &wanted)?;
            let names = order.iter().map(|it| format!("{}{}", it.name, if it.optional { "?" } else { "" }));
            Ok(names.collect::<Vec<_>>().join(" "))
        }
    }

    #[test]
    fn modules_come_after_what_they_need_whatever_their_compression() {
        let folder = Folder::new(&[
            ("drivers/virtio/virtio_pci.ko", &["depends=virtio-ring,virtio,virtio_pci_legacy_dev"]),
            ("drivers/virtio/virtio.ko.xz", &["depends="]),
            ("drivers/virtio/virtio_ring.ko.zst", &["depends=virtio"]),
            ("drivers/char/virtio_console.ko", &["depends=virtio,virtio_ring"]),
        ]);
        folder.write(
            "modules.builtin",
            b"kernel/drivers/virtio/virtio_pci_legacy_dev.ko\nkernel/drivers/nvme/host/nvme-core.ko\n",
        );
        let order = folder.order(&["virtio-pci", "nvme-core", "virtio_console"]).expect("order");
        assert_eq!(order, "virtio virtio_ring virtio_pci virtio_console");
    }

    #[test]
    fn a_wish_is_met_by_whoever_provides_it() {
        let folder = Folder::new(&[
            ("fs/xfs/xfs.ko", &["depends=libcrc32c"]),
            ("lib/libcrc32c.ko", &["softdep=pre: crc32c post: x", "depends="]),
            ("arch/x86/crypto/crc32c-intel.ko", &["alias=crypto-crc32c", "alias=crc32c"]),
            ("crypto/crc32c_generic.ko", &["alias=crc32c"]),
        ]);
        assert_eq!(folder.order(&["xfs"]).expect("order"), "crc32c_generic? crc32c_intel? libcrc32c xfs");
        assert_eq!(
            folder.order(&["xfs", "crc32c-generic"]).expect("order"),
            "crc32c_generic crc32c_intel? libcrc32c xfs",
            "what is asked for is required"
        );
    }

    #[test]
    fn a_wish_for_something_unknown_or_built_in_is_nothing() {
        let folder = Folder::new(&[("a.ko", &["softdep=pre: nosuch sha256", "depends="])]);
        folder.write("modules.builtin.modinfo", b"sha256_generic.alias=sha256\0sha256_generic.license=GPL\0");
        assert_eq!(folder.order(&["a"]).expect("order"), "a");
        assert_eq!(folder.order(&["sha256"]).expect("built in"), "");
    }

    #[test]
    fn what_is_missing_is_named_with_who_needs_it() {
        let folder = Folder::new(&[("a.ko", &["depends=b"])]);
        let text = folder.order(&["a"]).expect_err("missing").to_string();
        assert!(text.contains("no module `b` (needed by a)"), "{text}");
        let text = folder.order(&["zfs"]).expect_err("missing").to_string();
        assert!(text.contains("no module `zfs`, and"), "{text}");
    }

    #[test]
    fn a_circle_is_named_and_a_circle_of_wishes_is_cut() {
        let folder = Folder::new(&[("a.ko", &["depends=b"]), ("b.ko", &["depends=a"])]);
        let text = folder.order(&["a"]).expect_err("circle").to_string();
        assert!(text.contains("a -> b -> a"), "{text}");
        let folder = Folder::new(&[("a.ko", &["softdep=pre: b"]), ("b.ko", &["softdep=pre: a"])]);
        assert_eq!(folder.order(&["a"]).expect("order"), "b? a");
    }

    #[test]
    fn a_broken_module_is_an_error() {
        let folder = Folder::new(&[]);
        folder.write("kernel/a.ko", b"no ELF");
        let text = folder.order(&["a"]).expect_err("broken").to_string();
        assert!(text.contains("a.ko") && text.contains("no ELF object"), "{text}");
    }
}
