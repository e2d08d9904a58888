//! Disks that a guest may have written: partition tables, file systems, and boot loaders' configuration files.

use std::io::Write;

use stile::config::Arch;
use stile::disk::boot;
use stile::disk::contents::Contents;

use crate::marks::reach;
use crate::target::Target;

/// A disk's first bytes; the rest of it is zeroes.
pub const DISK: Target = Target {
    name: "disk",
    run: disk,
    seeds: disks,
    mutations: 500,
    marks: &["system", "no kernel", "other architecture", "no architecture", "no partitions", "no file system"],
};

/// Sectors of the FAT file system, and its first sector.
const SECTORS: u16 = 13;
const START: u8 = 2;

/// A disk with an MBR, and a FAT file system of one file and a kernel: their names in the format of directories, and their contents.
fn with_fat(files: &[(&[u8; 11], &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(START) * 512];
    bytes[446..462].copy_from_slice(&[0, 0, 0, 0, 0x0c, 0, 0, 0, START, 0, 0, 0, SECTORS as u8, 0, 0, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    // Boot sector, one table, one sector of the root directory, clusters of one sector (Microsoft, "FAT File System Specification").
    let mut volume = vec![0; usize::from(SECTORS) * 512];
    volume[..3].copy_from_slice(&[0xeb, 0, 0x90]);
    volume[11..24].copy_from_slice(&[0, 2, 1, 1, 0, 1, 16, 0, SECTORS as u8, 0, 0xf8, 1, 0]);
    volume[38] = 0x29;
    volume[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (index, (name, content)) in files.iter().enumerate() {
        let entry = &mut volume[1024 + index * 32..][..32];
        let cluster = 2 + index;
        entry[..11].copy_from_slice(*name);
        // Shown in lower case.
        entry[12] = 0x18;
        entry[26] = cluster as u8;
        entry[28..32].copy_from_slice(&(content.len() as u32).to_le_bytes());
        volume[1536 + index * 512..][..content.len()].copy_from_slice(content);
        // The chain's end, in 12 bits.
        let at = 512 + cluster * 3 / 2;
        let end: [u8; 2] = if cluster.is_multiple_of(2) { [0xff, 0x0f] } else { [0xf0, 0xff] };
        volume[at] |= end[0];
        volume[at + 1] |= end[1];
    }
    bytes.extend(volume);
    bytes
}

fn disks() -> Vec<Vec<u8>> {
    let mut kernel = [0; 64];
    kernel[56..60].copy_from_slice(b"ARM\x64");
    let system = with_fat(&[(b"VMLINUZ    ", &kernel), (b"INITRD     ", b"initrd")]);
    let unknown = with_fat(&[(b"VMLINUZ    ", b"MZ")]);
    let mut of_pc = [0; 70];
    of_pc[..2].copy_from_slice(b"MZ");
    of_pc[60] = 64;
    of_pc[64..].copy_from_slice(b"PE\0\0\x64\x86");
    let other = with_fat(&[(b"VMLINUZ    ", &of_pc)]);
    let mut logical = with_fat(&[]);
    logical[462..478].copy_from_slice(&[0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0]);
    logical[512 + 510..1024].copy_from_slice(&[0x55, 0xaa]);
    let mut ext4 = vec![0; 4096];
    ext4[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    ext4[0x404] = 64;
    ext4[0x420] = 64;
    let mut empty = vec![0; 512];
    empty[510..].copy_from_slice(&[0x55, 0xaa]);
    vec![system, unknown, other, logical, ext4, empty, vec![0; 1024], with_fat(&[])]
}

fn disk(bytes: &[u8]) {
    let Ok(mut file) = tempfile::tempfile() else { return };
    // Large enough for the sizes in a superblock or a table of a small disk.
    if file.write_all(bytes).is_err() || file.set_len(1 << 20).is_err() {
        return;
    }
    let Ok(contents) = Contents::raw(file) else { return };
    match boot::find(contents, Arch::Aarch64) {
        Ok(files) => {
            reach("system");
            assert!(!files.kernel.is_empty() && !files.about.is_empty());
        }
        Err(boot::Unbootable::OtherArch { path, arch }) => {
            reach("other architecture");
            assert!(!path.is_empty() && arch != Arch::Aarch64);
        }
        Err(boot::Unbootable::Other(what)) => {
            assert!(!what.is_empty());
            for (text, mark) in [
                ("no kernel in", "no kernel"),
                ("no kernel for aarch64", "no architecture"),
                ("has no partitions", "no partitions"),
                ("no known file system", "no file system"),
            ] {
                if what.contains(text) {
                    reach(mark);
                }
            }
        }
    }
}

/// A boot loader's configuration file, before the first byte that is zero, and GRUB's environment after it.
pub const BOOT_LOADER: Target =
    Target { name: "boot-loader", run: boot_loader, seeds: configurations, mutations: 1500, marks: &["grub", "extlinux", "bls", "none"] };

fn configurations() -> Vec<Vec<u8>> {
    let grub = "set default=\"1>${saved_entry}\"\nmenuentry 'a' --id b {\n search --fs-uuid --set=root 1-2\n linux /k root=\"x y\" $z \\\\ #\n\
                initrd (hd0,gpt1)/i /j\n}\nsubmenu 's' {\n menuentry \"c\" $menuentry_id_option 'd' {\n linux /l\n }\n}\n\0saved_entry=0\nz=1 2\n";
    let extlinux = "DEFAULT b\nLABEL a\n KERNEL /a\nLABEL b\n LINUX ../b\n INITRD /i,/j\n APPEND root=/dev/vda1\n";
    let bls = "title t\nversion 6.1\nlinux /k\ninitrd /i\noptions root=x $kernelopts ${y}\narchitecture aa64\n\0kernelopts=quiet\n";
    [grub, extlinux, bls, "# nothing"].map(|text| text.as_bytes().to_vec()).to_vec()
}

fn boot_loader(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (text, environment) = text.split_once('\0').unwrap_or((&text, ""));
    let entries = boot::entries(text, environment);
    for (name, entry) in ["grub", "extlinux", "bls"].into_iter().zip(&entries) {
        if let Some(entry) = entry {
            reach(name);
            assert!(!entry.kernel.is_empty());
        }
    }
    if entries.iter().all(Option::is_none) {
        reach("none");
    }
}
