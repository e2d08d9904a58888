//! Images and folders of several VMs, or of one VM twice.
//!
//! Each disk is a separate device of one VM, not coherent with that of another: images may be shared only read-only. A folder may be shared without restrictions, as it may by
//! programs of this machine.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;

use super::drive::Drive;
use super::folder::Folder;
use crate::config::{MachineConfig, VmConfig};
use crate::exit;

/// Checks that an image that a VM may write is no other disk.
///
/// # Errors
/// Two disks have the same image. The error names the VMs and the remedy.
pub fn check(machine: &MachineConfig) -> Result<()> {
    let mut used: Vec<(&str, &Drive)> = Vec::new();
    for vm in &machine.vms {
        for drive in &vm.disks {
            let conflict = used.iter().find(|(_, other)| !(other.read_only && drive.read_only) && is_same(&other.file, &drive.file));
            if let Some((owner, _)) = conflict {
                let whose =
                    if *owner == vm.name { format!("twice a disk of {owner}") } else { format!("a disk of {owner} and of {}", vm.name) };
                let remedy = "use a copy for one of them, or readonly for both";
                return Err(exit::usage(format!("disk: {} is {whose}, and can be written: {remedy}", drive.file.display())));
            }
            used.push((&vm.name, drive));
        }
    }
    Ok(())
}

/// Names of other VMs than the `index`th one that have the same image.
pub fn others<'m>(machine: &'m MachineConfig, index: usize, drive: &Drive) -> Vec<&'m str> {
    other_vms(machine, index, |vm| vm.disks.iter().any(|other| is_same(&other.file, &drive.file)))
}

/// Names of other VMs than the `index`th one that have the same folder.
pub fn others_with_folder<'m>(machine: &'m MachineConfig, index: usize, folder: &Folder) -> Vec<&'m str> {
    other_vms(machine, index, |vm| vm.folders.iter().any(|other| is_same(&other.path, &folder.path)))
}

fn other_vms(machine: &MachineConfig, index: usize, has_it: impl Fn(&VmConfig) -> bool) -> Vec<&str> {
    let others = machine.vms.iter().enumerate().filter(|(other, vm)| *other != index && has_it(vm));
    others.map(|(_, vm)| &vm.name[..]).collect()
}

/// Whether two names are of the same file or folder: by symbolic links, hard links and mounts, too.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|about| (about.dev(), about.ino()));
    one == other || identity(one).is_some_and(|one| identity(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    /// Returns a machine with one VM for each of these images.
    fn machine(disks: &[(&Path, bool)]) -> MachineConfig {
        let vm = |(number, (file, read_only)): (usize, &(&Path, bool))| {
            format!("[[vm]]\nname = \"vm{number}\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = {file:?}\nreadonly = {read_only}\n")
        };
        let text: String = disks.iter().enumerate().map(vm).collect();
        MachineConfig::from_text("machine.toml", &text, Path::new("/images"), &Flags::default()).expect("valid")
    }

    #[test]
    fn only_read_only_images_are_shared() {
        let (a, b) = (Path::new("a"), Path::new("b"));
        let refusal = |disks: &[(&Path, bool)]| check(&machine(disks)).err().map(|error| format!("{error:#}"));
        assert_eq!(refusal(&[(a, true), (b, false), (a, true)]), None);
        for writers in [[false, true], [true, false], [false, false]] {
            let said = refusal(&[(a, writers[0]), (b, false), (a, writers[1])]).expect("one writes what the other reads");
            assert!(said.contains("/images/a is a disk of vm0 and of vm2, and can be written: use a copy"), "{said}");
        }
    }

    #[test]
    fn a_vm_has_an_image_once() {
        let text = "[[vm]]\nname = \"web\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"a\"\n[[vm.disk]]\nfile = \"a\"\nreadonly = true\n";
        let machine = MachineConfig::from_text("machine.toml", text, Path::new(""), &Flags::default()).expect("valid");
        assert!(check(&machine).unwrap_err().to_string().contains("a is twice a disk of web"));
    }

    #[test]
    fn names_of_the_same_file_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(is_same(&file, &link) && is_same(&file, &dir.path().join("./a")));
        assert!(!is_same(&file, dir.path()) && !is_same(&file, &dir.path().join("none")));
        let hard = dir.path().join("c");
        std::fs::hard_link(&file, &hard).unwrap();
        assert!(check(&machine(&[(&file, true), (&hard, false)])).is_err());
        let shared = machine(&[(&file, true), (dir.path(), true), (&link, true)]);
        assert_eq!(others(&shared, 0, &shared.vms[0].disks[0]), ["vm2"]);
        assert!(check(&machine(&[(&file, false), (&link, false)])).is_err());
    }
}
