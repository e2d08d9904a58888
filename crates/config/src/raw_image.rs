//! Raw images of disks.

use alloc::format;
use alloc::string::{String, ToString};

/// Granularity of disks in bytes.
const SECTOR: u64 = 512;

/// QEMU, docs/interop/qcow2.rst, "Header": the magic.
pub const QCOW2: [u8; 4] = *b"QFI\xfb";

/// Checks an image of `size` bytes that begins with `start`: its first four bytes or more, if it has them.
///
/// # Errors
/// The mistake, and what is expected.
pub fn check(size: u64, start: &[u8]) -> Result<(), (String, &'static str)> {
    match size {
        _ if start.starts_with(&QCOW2) => Err(("is a qcow2 image".to_string(), "a raw image, which `qemu-img convert -O raw` makes of it")),
        0 => Err(("is an empty file".to_string(), "a raw image")),
        _ if !size.is_multiple_of(SECTOR) => Err((format!("has {size} bytes"), "a raw image: a multiple of 512 bytes")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sectors_are_raw_images() {
        assert_eq!(check(1024, &[0; 8]), Ok(()));
        for (size, start, what) in [(0, &b""[..], "empty"), (513, b"abcd", "513 bytes"), (512, b"QFI\xfb\0", "qcow2")] {
            assert!(check(size, start).unwrap_err().0.contains(what), "{size}");
        }
    }
}
