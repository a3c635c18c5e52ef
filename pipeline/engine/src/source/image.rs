//! Recognizes kernel images and takes the ELF file out of a bzImage. Read [`extract_vmlinux`] first;
//! it fails with an [`ImageError`].

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

use super::lz4;
use crate::archive::decompress;

/// Offsets of the setup header (Documentation/arch/x86/boot.rst).
const SETUP_SECTS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const KERNEL_VERSION: usize = 0x20e;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The first protocol that says where the payload lies.
const PAYLOAD_SINCE: u16 = 0x0208;
/// No kernel without debug information is larger than this when unpacked.
const LARGEST: u32 = 1 << 30;
/// ELF's number for x86-64.
const X86_64: u16 = 62;

/// Why a file is no kernel image.
#[derive(Debug, Error)]
pub enum ImageError {
    /// It is something else.
    #[error(
        "{path} is no kernel for x86-64 but {found}; give a bzImage (arch/x86/boot/bzImage, /boot/vmlinuz-*) or a vmlinux"
    )]
    NotKernel {
        /// The file.
        path: Utf8PathBuf,
        /// What it is instead.
        found: String,
    },
    /// The compressed kernel inside cannot be read.
    #[error("the kernel inside the bzImage cannot be unpacked: {reason}; boot the bzImage itself")]
    Payload {
        /// Why not.
        reason: String,
    },
}

/// Checks that `bytes`, the content of `path`, are a bzImage or a vmlinux for x86-64, and says which
/// release it is when it can be told.
///
/// # Errors
/// When it is something else; the error says what.
pub fn check(path: &Utf8Path, bytes: &[u8]) -> Result<Option<String>, ImageError> {
    if is_bzimage(bytes) {
        return Ok(bzimage_release(bytes));
    }
    if is_vmlinux(bytes) {
        return Ok(vmlinux_release(bytes));
    }
    Err(ImageError::NotKernel { path: path.to_owned(), found: describe(bytes) })
}

/// The ELF vmlinux inside a bzImage; a vmlinux is returned as it is. It has its symbols stripped and
/// boots through PVH, without the decompressor.
///
/// # Errors
/// When `image` is no bzImage, or compressed in a way that is not known here (bzip2, lzo).
pub fn extract_vmlinux(image: &[u8]) -> Result<Vec<u8>, ImageError> {
    let wrong = |reason: &str| ImageError::Payload { reason: reason.to_owned() };
    if is_vmlinux(image) {
        return Ok(image.to_vec());
    }
    if !is_bzimage(image) {
        return Err(wrong(&format!("it is no bzImage but {}", describe(image))));
    }
    let version = u16_at(image, VERSION).unwrap_or_default();
    if version < PAYLOAD_SINCE {
        return Err(wrong(&format!("its boot protocol {version:#06x} is older than 2.08")));
    }
    let sectors = match image.get(SETUP_SECTS) {
        Some(0) | None => 4,
        Some(sectors) => usize::from(*sectors),
    };
    let number = |at| u32_at(image, at).and_then(|number| usize::try_from(number).ok());
    let payload = number(PAYLOAD_OFFSET)
        .zip(number(PAYLOAD_LENGTH))
        .and_then(|(offset, length)| {
            let start = ((sectors + 1) * 512).checked_add(offset)?;
            image.get(start..start.checked_add(length)?)
        })
        .ok_or_else(|| wrong("the file is cut off"))?;
    let vmlinux = if payload.starts_with(&lz4::MAGIC) {
        lz4::unpack(payload, LARGEST as usize).map_err(|reason| wrong(&reason))?
    } else {
        decompress(payload, LARGEST.into()).map_err(|error| wrong(&error.to_string()))?
    };
    if is_vmlinux(&vmlinux) { Ok(vmlinux) } else { Err(wrong(&format!("it holds {}", describe(&vmlinux)))) }
}

fn is_bzimage(bytes: &[u8]) -> bool {
    bytes.get(MAGIC..MAGIC + 4) == Some(b"HdrS")
}

fn is_vmlinux(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF\x02\x01") && u16_at(bytes, 18) == Some(X86_64) && u16_at(bytes, 16) != Some(1)
}

/// The first word of the version string that the setup header points at.
fn bzimage_release(bytes: &[u8]) -> Option<String> {
    let at = usize::from(u16_at(bytes, KERNEL_VERSION)?);
    first_word(bytes.get(at.checked_add(0x200)?..)?)
}

fn vmlinux_release(bytes: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    let mut rest = bytes;
    while let Some(at) = rest.windows(BANNER.len()).position(|window| window == BANNER) {
        rest = &rest[at + BANNER.len()..];
        // The kernel holds the banner's format string too.
        if rest.first().is_some_and(u8::is_ascii_digit) {
            return first_word(rest);
        }
    }
    None
}

fn first_word(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(128).position(|byte| matches!(byte, 0 | b' '))?;
    let word = std::str::from_utf8(&bytes[..end]).ok()?;
    (!word.is_empty()).then(|| word.to_owned())
}

/// What a file is that is no kernel.
fn describe(bytes: &[u8]) -> String {
    if bytes.starts_with(b"\x7fELF") {
        let machine = u16_at(bytes, 18).unwrap_or_default();
        return match (u16_at(bytes, 16), machine) {
            (Some(1), _) => "an ELF object file".into(),
            (_, X86_64) => "an ELF file that is not 64-bit little-endian".into(),
            (_, 183) => "an ELF file for arm64".into(),
            (_, 243) => "an ELF file for RISC-V".into(),
            (_, 3) => "an ELF file for 32-bit x86".into(),
            _ => format!("an ELF file for machine {machine}"),
        };
    }
    let known: [(&[u8], &str); 9] = [
        (b"!<arch>\n", "an archive; a Debian package is given as deb:PATH"),
        (b"\x1f\x8b", "a gzip-compressed file"),
        (b"\xfd7zXZ\0", "an xz-compressed file"),
        (b"\x28\xb5\x2f\xfd", "a zstd-compressed file"),
        (b"MZ", "an EFI program, or a kernel for another architecture"),
        (b"\x27\x05\x19\x56", "a U-Boot image"),
        (b"070701", "an initramfs"),
        (b"#!", "a script"),
        (b"QFI\xfb", "a disk image"),
    ];
    match known.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        Some((_, name)) => (*name).to_owned(),
        None if bytes.is_empty() => "an empty file".into(),
        None if std::str::from_utf8(&bytes[..bytes.len().min(256)]).is_ok() => "a text file".into(),
        None => format!("something unknown of {} bytes", bytes.len()),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::archive::tests::xz;

    /// A bzImage around `payload`, as small as the boot protocol allows.
    pub(crate) fn bzimage(payload: &[u8], version: &str) -> Vec<u8> {
        let mut image = vec![0; 1024 + 16];
        image[SETUP_SECTS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[KERNEL_VERSION..KERNEL_VERSION + 2].copy_from_slice(&0x100_u16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).expect("small");
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image[0x300..0x300 + version.len()].copy_from_slice(version.as_bytes());
        image.extend(payload);
        image
    }

    fn elf() -> Vec<u8> {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[16] = 2;
        elf[18] = 62;
        elf.extend(b"Linux version %s (%s)\0Linux version 6.12.1-test (x@y) #1\0");
        elf
    }

    fn check_found(bytes: &[u8], found: &str) {
        let text = check(Utf8Path::new("/k"), bytes).expect_err(found).to_string();
        assert!(text.contains(found) && text.contains("give a bzImage"), "{text}");
    }

    #[test]
    fn the_release_is_read_from_either_kind_of_image() {
        let path = Utf8Path::new("/k");
        assert_eq!(check(path, &elf()).expect("vmlinux").as_deref(), Some("6.12.1-test"));
        let image = bzimage(b"", "6.12.2 (x@y) #1");
        assert_eq!(check(path, &image).expect("bzImage").as_deref(), Some("6.12.2"));
    }

    #[test]
    fn whatever_else_it_is_is_said() {
        check_found(b"", "an empty file");
        check_found(b"hello", "a text file");
        check_found(b"!<arch>\ndebian-binary", "deb:PATH");
        check_found(b"\x1f\x8b\x08", "gzip");
        let mut arm = elf();
        arm[18] = 183;
        check_found(&arm, "arm64");
        let mut module = elf();
        module[16] = 1;
        check_found(&module, "object file");
    }

    #[test]
    fn the_elf_file_inside_comes_out_as_it_went_in() {
        let mut payload = xz(&elf());
        payload.extend(124_u32.to_le_bytes());
        assert_eq!(extract_vmlinux(&bzimage(&payload, "6.12")).expect("xz"), elf());
        let mut payload = crate::archive::tests::zstd(&elf());
        payload.extend(124_u32.to_le_bytes());
        assert_eq!(extract_vmlinux(&bzimage(&payload, "6.12")).expect("zstd"), elf());
        let payload = lz4::tests::pack(&elf());
        assert_eq!(extract_vmlinux(&bzimage(&payload, "6.12")).expect("lz4"), elf());
        assert_eq!(extract_vmlinux(&elf()).expect("as it is"), elf());
    }

    #[test]
    fn a_broken_bzimage_is_an_error_and_no_panic() {
        let whole = bzimage(&xz(&elf()), "6.12");
        for length in [0, 0x206, 0x240, 0x24e, 1024, whole.len() - 1] {
            extract_vmlinux(&whole[..length]).expect_err("cut off");
        }
        let mut wild = whole.clone();
        wild[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        extract_vmlinux(&wild).expect_err("out of range");
        let text = extract_vmlinux(&bzimage(b"BZh9", "6.12")).expect_err("bzip2").to_string();
        assert!(text.contains("Bzip2"), "{text}");
    }
}
