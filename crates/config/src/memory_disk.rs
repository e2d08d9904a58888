//! Keys of disks in memory.

use alloc::format;
use alloc::vec::Vec;

use crate::Mistake;
use crate::draft::DiskDraft;

/// Reports the keys that a disk in memory can't have.
pub fn check(disk: &DiskDraft, mistakes: &mut Vec<Mistake>) {
    let conflicts = [
        (disk.served, "served", "served = false"),
        (disk.read_only, "read-only: Linux has no such persistent memory", "readonly = false: its file is never written"),
    ];
    for (_, what, expected) in conflicts.into_iter().filter(|(applies, ..)| *applies) {
        mistakes.push(Mistake::new(disk.place.clone(), format!("a disk in memory can't be {what}")).expected(expected));
    }
    if let Some(format) = disk.format.as_ref().filter(|format| format.value != "raw") {
        let what = format!("a disk in memory can't have the format \"{}\"", format.value);
        mistakes.push(Mistake::new(format.place.clone(), what).expected("\"raw\""));
    }
}
