//! Systems found on disks with file systems of `mke2fs` and the FAT crate.

use std::fs;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::Command;

use super::*;
use crate::disk::contents::Contents;

/// A sector's bytes.
const SECTOR: usize = 512;

/// Begins as a kernel for arm64 does, and differs by `name`.
fn kernel(name: &str) -> Vec<u8> {
    let mut kernel = vec![0; 128];
    kernel[56..60].copy_from_slice(b"ARM\x64");
    kernel.extend(name.as_bytes());
    kernel
}

/// An ext4 file system of 4 MiB with these files. Its UUID is `1111...`.
fn ext4(files: &[(&str, &[u8])]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (root, image) = (dir.path().join("root"), dir.path().join("image"));
    fs::create_dir(&root).unwrap();
    for (name, bytes) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    make_ext4(&root, &image);
    fs::read(image).unwrap()
}

fn make_ext4(root: &Path, image: &Path) {
    let mut command = Command::new("mke2fs");
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command.args(["-q", "-t", "ext4", "-U", UUID, "-d"]).arg(root).arg(image).arg("4M");
    let output = command.output().expect("mke2fs");
    assert!(output.status.success(), "{output:?}");
}

const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// A FAT file system of 4 MiB with these files in directories of one level.
fn fat(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    file.set_len(4 << 20).unwrap();
    fatfs::format_volume(&mut file, fatfs::FormatVolumeOptions::new().volume_id(0x1234_abcd)).unwrap();
    file.rewind().unwrap();
    let volume = fatfs::FileSystem::new(&mut file, fatfs::FsOptions::new()).unwrap();
    for (name, bytes) in files {
        let mut parent = String::new();
        for part in name.split('/').take(name.matches('/').count()) {
            parent = format!("{parent}/{part}");
            volume.root_dir().create_dir(&parent).unwrap();
        }
        volume.root_dir().create_file(name).unwrap().write_all(bytes).unwrap();
    }
    volume.unmount().unwrap();
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

/// A disk with these partitions, in a GPT.
fn disk(volumes: &[Vec<u8>]) -> Vec<u8> {
    let mut at = 2048;
    let mut places = Vec::new();
    for volume in volumes {
        let sectors = (volume.len() / SECTOR) as u64;
        places.push((at, at + sectors - 1));
        at += sectors;
    }
    let mut bytes = partitions::tests::with_gpt(at as usize + 34, &places);
    for ((first, _), volume) in places.iter().zip(volumes) {
        bytes[*first as usize * SECTOR..][..volume.len()].copy_from_slice(volume);
    }
    bytes
}

fn found(bytes: &[u8]) -> Result<Files, Unbootable> {
    found_for(Arch::Aarch64, bytes)
}

fn found_for(arch: Arch, bytes: &[u8]) -> Result<Files, Unbootable> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    find(Contents::raw(file).unwrap(), arch)
}

/// Kernel without its header, initial RAM file system, and parameters.
fn summary(bytes: &[u8]) -> (String, String, String) {
    let files = found(bytes).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&files.kernel[128..]), text(&files.initrd.unwrap_or_default()), files.parameters)
}

fn expected(kernel: &str, initrd: &str, parameters: &str) -> (String, String, String) {
    (kernel.into(), initrd.into(), parameters.into())
}

#[test]
fn a_system_on_the_whole_disk_is_found() {
    let whole = ext4(&[("vmlinuz", &kernel("k")), ("initrd.img", b"i"), ("etc/fstab", b"")]);
    assert_eq!(summary(&whole), expected("k", "i", &format!("root=UUID={UUID} rw")));
    let files = found(&whole).unwrap();
    assert_eq!(files.about, "/vmlinuz (the newest in /), on the whole disk");
}

#[test]
fn debian_s_layout_is_found() {
    let config = format!(
        "set default=\"0\"\nmenuentry 'Debian' {{\n search --no-floppy --fs-uuid --set=root {UUID}\n \
         linux /boot/vmlinuz-6.12 root=UUID={UUID} ro quiet\n initrd /boot/initrd.img-6.12\n}}\n"
    );
    let root = ext4(&[("boot/vmlinuz-6.12", &kernel("k")), ("boot/initrd.img-6.12", b"i"), ("boot/grub/grub.cfg", config.as_bytes())]);
    let esp = fat(&[("EFI/debian/grub.cfg", b"configfile"), ("EFI/debian/shimaa64.efi", b"MZ")]);
    assert_eq!(summary(&disk(&[esp, root])), expected("k", "i", &format!("root=UUID={UUID} ro quiet")));
}

#[test]
fn a_boot_partition_s_entries_are_found() {
    let entry = b"version 6.11.4\nlinux /vmlinuz-6.11.4\ninitrd /a.img /b.img\noptions root=UUID=x ro $kernelopts\n";
    let older = b"version 6.9.1\nlinux /vmlinuz-6.9.1\n";
    let boot = ext4(&[
        ("vmlinuz-6.11.4", &kernel("new")),
        ("vmlinuz-6.9.1", &kernel("old")),
        ("a.img", b"a"),
        ("b.img", b"b"),
        ("grub2/grubenv", b"# GRUB Environment Block\nkernelopts=quiet\n"),
        ("loader/entries/x-6.11.4.conf", entry),
        ("loader/entries/x-6.9.1.conf", older),
    ]);
    let mut btrfs = vec![0; 1 << 20];
    btrfs[0x10040..0x10048].copy_from_slice(b"_BHRfS_M");
    // The second archive begins at a multiple of four.
    assert_eq!(summary(&disk(&[boot, btrfs.clone()])), expected("new", "a\0\0\0b", "root=UUID=x ro quiet"));
    let esp = fat(&[("loader/entries/a.conf", entry), ("vmlinuz-6.11.4", &kernel("esp")), ("a.img", b"1234"), ("b.img", b"5")]);
    assert_eq!(summary(&disk(&[esp, btrfs])), expected("esp", "12345", "root=UUID=x ro"));
}

#[test]
fn extlinux_and_bare_kernels_are_found() {
    let config = b"label a\n kernel ../vmlinuz-1\n append root=/dev/vda1 rw\n";
    let root = ext4(&[("boot/extlinux/extlinux.conf", config), ("boot/vmlinuz-1", &kernel("k"))]);
    assert_eq!(summary(&disk(&[root])), expected("k", "", "root=/dev/vda1 rw"));
    let boot = ext4(&[("vmlinuz-6.1", &kernel("k")), ("initrd.img-6.1", b"i")]);
    let root = ext4(&[("etc/fstab", b"")]);
    assert_eq!(summary(&disk(&[boot, root])), expected("k", "i", &format!("root=UUID={UUID} rw")));
    // Without an initial RAM file system, Linux finds partitions only.
    let bare = ext4(&[("boot/Image", &kernel("k")), ("etc/fstab", b"")]);
    assert_eq!(summary(&disk(&[bare])), expected("k", "", "root=PARTUUID=03020100-0504-0706-0809-0a0b0c0d0e0f rw"));
}

#[test]
fn unbootable_disks_are_described() {
    let says = |bytes: &[u8]| found(bytes).unwrap_err().to_string();
    assert_eq!(says(&[0; 1 << 16]), "has neither partitions nor an ext4 file system: no known file system");
    let mut xfs = vec![0; 1 << 20];
    xfs[..4].copy_from_slice(b"XFSB");
    let empty = ext4(&[("etc/fstab", b"")]);
    assert_eq!(says(&disk(&[empty, xfs])), "partition 1 has no kernel in / or /boot, partition 2 has xfs");
    assert_eq!(says(&disk(&[])), "has no partitions");
    let other = ext4(&[("vmlinuz", b"MZ, of a PC")]);
    assert!(says(&other).contains("no kernel for aarch64"));
    let lost = ext4(&[("boot/extlinux/extlinux.conf", b"label a\n kernel /gone\n")]);
    assert_eq!(says(&lost), "has no /gone, which /boot/extlinux/extlinux.conf names");
    let mut damaged = ext4(&[("vmlinuz", &kernel("k"))]);
    damaged[1024 + 0x20..1024 + 0x24].fill(0);
    assert!(says(&damaged).contains("impossible sizes"), "{}", says(&damaged));
}

#[test]
fn kernels_are_those_of_the_architecture() {
    let mut pc = vec![0; 0x300];
    pc[0x202..0x206].copy_from_slice(b"HdrS");
    let (of_pc, of_arm) = (ext4(&[("vmlinuz", &pc)]), ext4(&[("vmlinuz", &kernel("k"))]));
    assert_eq!(found_for(Arch::X86_64, &of_pc).unwrap().kernel, pc);
    for (arch, disk, other) in [(Arch::Aarch64, &of_pc, Arch::X86_64), (Arch::X86_64, &of_arm, Arch::Aarch64)] {
        let problem = found_for(arch, disk).unwrap_err();
        assert_eq!(problem, Unbootable::OtherArch { path: "/vmlinuz".into(), arch: other });
        assert_eq!(problem.to_string(), format!("has a /vmlinuz for {other}"));
    }
    // Compressed as a whole: the loader finds out.
    assert!(found_for(Arch::X86_64, &ext4(&[("vmlinuz", &[0x1f, 0x8b])])).is_ok());
}
