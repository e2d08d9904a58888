//! Disks in memory: raw images of which virtual machines have copies behind their RAM.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use stile_board::map;
use stile_board::memory_disks::{self, MAX_MEMORY_DISKS};
use stile_config::{memory_disk, raw_image};

use super::draft::DiskDraft;
use super::{Mistake, VmConfig, units, value};
use crate::disk::in_memory::MemoryDisk;

/// The most bytes of a machine's disks in memory. They are in the image, which boot loaders put below 4 GiB.
const MOST: u64 = 1 << 30;

/// Resolves the disks in memory of a virtual machine with `ram` bytes of RAM. Paths are relative to `folder`.
pub fn resolve(drafts: &[DiskDraft], ram: u64, folder: &Path, mistakes: &mut Vec<Mistake>) -> Vec<MemoryDisk> {
    let drafts: Vec<&DiskDraft> = drafts.iter().filter(|draft| draft.in_memory).collect();
    if let Some(extra) = drafts.get(MAX_MEMORY_DISKS) {
        let what = format!("there are {} disks in memory", drafts.len());
        mistakes.push(Mistake::new(extra.place.clone(), what).expected(format!("at most {MAX_MEMORY_DISKS}")));
    }
    let disks: Vec<MemoryDisk> = drafts.iter().filter_map(|draft| disk(draft, folder, mistakes)).collect();
    let sizes: Vec<u64> = disks.iter().map(|disk| memory_disks::region_size(disk.size)).collect();
    if let (true, Some(first)) = (memory_disks::total(&sizes).saturating_add(ram) > map::RAM_MAX, drafts.first()) {
        let what = "the disks in memory do not fit behind the virtual machine's RAM";
        mistakes.push(Mistake::new(first.place.clone(), what).expected(format!("at most {} of both", units::size(map::RAM_MAX))));
    }
    disks
}

/// Checks the size of all disks in memory of a machine, which `drafts` describe.
pub fn check_all<'d>(vms: &[VmConfig], drafts: impl Iterator<Item = &'d DiskDraft>, mistakes: &mut Vec<Mistake>) {
    // The image has each file once.
    let files: BTreeMap<&Path, u64> = vms.iter().flat_map(|vm| &vm.memory_disks).map(|disk| (disk.file.as_path(), disk.size)).collect();
    let all = files.values().fold(0, |all: u64, size| all.saturating_add(*size));
    if let (true, Some(last)) = (all > MOST, drafts.filter(|draft| draft.in_memory).last()) {
        let size = units::size(all);
        let what = format!("the disks in memory have {size}, and are in the image, which boot loaders put below 4 GiB");
        mistakes.push(Mistake::new(last.place.clone(), what).expected(format!("at most {} in all", units::size(MOST))));
    }
}

fn disk(draft: &DiskDraft, folder: &Path, mistakes: &mut Vec<Mistake>) -> Option<MemoryDisk> {
    let Some(given) = &draft.file else {
        mistakes.push(Mistake::new(draft.place.clone(), "this disk has no image").expected("file = a path"));
        return None;
    };
    memory_disk::check(draft, mistakes);
    let file = value::file(given, "disk", "a raw image", &[], folder, mistakes)?;
    match size(&file) {
        Ok(size) => Some(MemoryDisk { file, size }),
        Err((what, expected)) => {
            mistakes.push(Mistake::new(given.place.clone(), format!("the disk \"{}\" {what}", given.value)).expected(expected));
            None
        }
    }
}

/// Returns the size of a raw image; or its mistake, and the expectation.
fn size(file: &Path) -> Result<u64, (String, &'static str)> {
    let unreadable = |error| (format!("can't be read: {error}"), "a raw image");
    let mut opened = fs::File::open(file).map_err(unreadable)?;
    let size = opened.metadata().map_err(unreadable)?.len();
    let mut start = [0; 4];
    if size >= start.len() as u64 {
        opened.read_exact(&mut start).map_err(unreadable)?;
    }
    raw_image::check(size, &start).map(|()| size)
}

#[cfg(test)]
mod tests {
    use super::super::{Arch, Flags, KernelSource, MachineConfig};
    use super::*;

    /// A machine of the architecture whose VM has these disks; "d" has three sectors.
    fn read(arch: &str, disks: &str) -> Result<MachineConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("d", &[7; 1536][..]), ("empty", &[]), ("odd", &[1; 513]), ("q", b"QFI\xfb\0\0\0\x03")] {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        fs::create_dir(dir.path().join("folder")).unwrap();
        fs::File::create(dir.path().join("large")).unwrap().set_len(MOST).unwrap();
        let text = format!("[machine]\narch = \"{arch}\"\n[[vm]]\nkernel = \"debian\"\nmemory = \"256M\"\n{disks}");
        MachineConfig::from_text("machine.toml", &text, dir.path(), &Flags::default()).map_err(|mistakes| mistakes.to_string())
    }

    fn disk(file: &str, more: &str) -> String {
        format!("[[vm.disk]]\nfile = \"{file}\"\nin_memory = true\n{more}\n")
    }

    #[test]
    fn disks_are_behind_ram_on_every_machine() {
        for (arch, start) in [(Arch::Aarch64, map::RAM_BASE + (256 << 20)), (Arch::X86_64, 256 << 20)] {
            let config = read(arch.name(), &disk("d", "format = \"raw\"").repeat(2)).unwrap();
            let vm = &config.vms[0];
            assert_eq!((vm.memory_disks.len(), vm.memory_disks[0].size, vm.emulated_functions()), (2, 1536, 0));
            let second = start + (4 << 20);
            assert_eq!(vm.disk_regions(arch), [start..start + (2 << 20), second..second + (2 << 20)]);
            assert_eq!((vm.memory, config.vm_memory()), (256 << 20, 262 << 20));
        }
    }

    #[test]
    fn a_vm_with_an_image_has_room_for_its_disks() {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("d")).unwrap().set_len(256 << 20).unwrap();
        let inner = format!("[[vm]]\nkernel = \"debian\"\n{}", disk("d", ""));
        fs::write(dir.path().join("inner.toml"), inner).unwrap();
        let read = |kernel: &str| {
            let text = format!("[[vm]]\nkernel = \"{kernel}\"\nnested = true\n");
            MachineConfig::from_text("machine.toml", &text, dir.path(), &Flags::default()).unwrap().vms[0].clone()
        };
        let KernelSource::Stile(inner) = read("stile:inner.toml").kernel else { panic!("another kernel") };
        let needed = inner.vm_memory() + (256 << 20) + inner.reserved();
        assert!(read("stile:inner.toml").memory >= needed);
    }

    #[test]
    fn mistakes_have_places() {
        let says = |disks: String, place: &str, what: &str| {
            let said = read("aarch64", &disks).unwrap_err();
            assert!(said.contains(place) && said.contains(what), "{said}");
        };
        says(disk("empty", ""), "machine.toml:7:8", "is an empty file; expected a raw image");
        says(disk("odd", ""), "machine.toml:7:8", "has 513 bytes; expected a raw image: a multiple of 512 bytes");
        says(disk("q", ""), "machine.toml:7:8", "is a qcow2 image; expected a raw image, which `qemu-img");
        says(disk("folder", ""), "machine.toml:7:8", "is not a file");
        says(disk("none", ""), "machine.toml:7:8", "is not there");
        says(disk("/dev/null", ""), "machine.toml:7:8", "is not a file");
        says(disk("d", "format = \"qcow2\""), "machine.toml:9:10", "can't have the format \"qcow2\"; expected \"raw\"");
        says(disk("d", "served = true"), "machine.toml:6:1", "can't be served");
        says(disk("d", "readonly = true"), "machine.toml:6:1", "can't be read-only");
        says(disk("d", "").repeat(5), "machine.toml:22:1", "there are 5 disks in memory; expected at most 4");
        says("[[vm.disk]]\nin_memory = true\n".into(), "machine.toml:6:1", "this disk has no image");
        assert!(read("aarch64", &disk("large", "").repeat(2)).is_ok(), "one file");
        says([disk("large", ""), disk("d", "")].concat(), "machine.toml:10:1", "expected at most 1G in all");
    }

    #[test]
    fn a_vm_starts_no_system_from_memory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("d"), [7; 512]).unwrap();
        let read = |text: &str| MachineConfig::from_text("machine.toml", text, dir.path(), &Flags::default());
        let said = read(&format!("[[vm]]\n{}", disk("d", ""))).unwrap_err().to_string();
        assert!(said.contains("has no kernel"), "{said}");
        let both = read(&format!("[[vm]]\n{}[[vm.disk]]\nfile = \"own\"\n", disk("d", ""))).unwrap();
        let vm = &both.vms[0];
        assert_eq!((&vm.kernel, vm.disks.len(), vm.memory_disks.len()), (&KernelSource::Disk, 1, 1));
        assert_eq!(vm.system_disk, vm.disks.first().cloned());
    }
}
