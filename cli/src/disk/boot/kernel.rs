//! The architecture of a kernel on a disk.

use crate::config::Arch;
use crate::image::file_type::{AARCH64, X86, linux_arch};

/// The architecture that a kernel's header names; `None` if it names none that Stile runs. An EFI program, compressed or not, has its
/// machine in the PE header (PE Format, "COFF File Header").
pub fn arch_of(kernel: &[u8]) -> Option<Arch> {
    match linux_arch(kernel) {
        Some(AARCH64) => return Some(Arch::Aarch64),
        Some(X86) => return Some(Arch::X86_64),
        Some(_) | None => {}
    }
    let header = kernel.get(60..64).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let at = header.and_then(|at| usize::try_from(at).ok()).filter(|_| kernel.starts_with(b"MZ"))?;
    match kernel.get(at..at.checked_add(6)?)? {
        b"PE\0\0\x64\xaa" => Some(Arch::Aarch64),
        b"PE\0\0\x64\x86" => Some(Arch::X86_64),
        _ => None,
    }
}

/// Whether the file is compressed by gzip, as a whole: boot loaders unpack such a kernel before they read its header.
pub fn may_be_compressed(kernel: &[u8]) -> bool {
    kernel.starts_with(&[0x1f, 0x8b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_recognized() {
        let with = |at: usize, mark: &[u8]| {
            let mut kernel = vec![0; 0x300];
            kernel[at..at + mark.len()].copy_from_slice(mark);
            kernel
        };
        assert_eq!(arch_of(&with(56, b"ARM\x64")), Some(Arch::Aarch64));
        assert_eq!(arch_of(&with(0x202, b"HdrS")), Some(Arch::X86_64));
        assert_eq!((arch_of(&[0; 128]), arch_of(b""), arch_of(b"MZ")), (None, None, None));
        assert!(may_be_compressed(&[0x1f, 0x8b]) && !may_be_compressed(&[0; 128]));
        let mut efi = vec![0; 128];
        efi[..2].copy_from_slice(b"MZ");
        efi[60] = 64;
        for (machine, arch) in
            [(b"PE\0\0\x64\x86", Some(Arch::X86_64)), (b"PE\0\0\x64\xaa", Some(Arch::Aarch64)), (b"PE\0\0\x4c\x01", None)]
        {
            efi[64..70].copy_from_slice(machine);
            assert_eq!(arch_of(&efi), arch);
        }
        efi[60..64].fill(0xff);
        assert_eq!(arch_of(&efi), None);
    }
}
