//! A writer of cpio archives in the format that the Linux kernel unpacks (its documentation: "initramfs buffer format", newc).

use crate::debian::Module;

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

impl Archive {
    /// Adds a directory. Its parent must have been added before.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
    }

    /// Adds a file; `mode` is its permissions.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entry(path, REGULAR | mode, (0, 0), data);
    }

    /// Adds kernel modules, in the root directory.
    pub fn modules(&mut self, modules: &[Module]) {
        modules.iter().for_each(|module| self.file(module.name, 0o644, &module.bytes));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, SYMBOLIC_LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        self.entry(path, CHARACTER_DEVICE | mode, (major, minor), &[]);
    }

    /// Ends the archive and returns it.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        let inode = if mode == 0 { 0 } else { self.entries + 1 };
        self.entries += 1;
        let size = u32::try_from(data.len()).expect("a file of an initramfs is smaller than 4 GiB");
        let name_size = path.len() as u32 + 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // inode, mode, uid, gid, links, mtime, size, device (2), device of a device file (2), name's size, checksum
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_the_trailer() {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.character_device("dev/console", 0o600, 5, 1);
        archive.file("init", 0o755, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4);
        assert!(text.contains("TRAILER!!!"));
        // The last entry's header: size 5, name's size 5, then name and data, each padded to 4.
        let init = text.find("init\0").unwrap();
        assert_eq!(&bytes[init - 110..init - 104], b"070701");
        assert_eq!(&text[init - 110 + 6 + 6 * 8..][..8], "00000005");
        assert_eq!((init + 5) % 4, (110 + 5 + init - 110) % 4);
        assert_eq!(&bytes[(init + 5).next_multiple_of(4)..][..5], b"hello");
    }

    #[test]
    fn the_kernel_finds_a_devices_numbers() {
        let mut archive = Archive::default();
        archive.character_device("c", 0o600, 5, 1);
        let bytes = archive.finish();
        assert_eq!(&bytes[14..22], b"00002180");
        assert_eq!(&bytes[6 + 9 * 8..6 + 11 * 8], b"0000000500000001");
    }
}
