//! Validation of a configuration before its use.

use crate::{Error, FILE_ALIGN, Load, MAX_NAME_LEN, Machine, Mode, Rule, Share, Vm};
use stile_board::{MAX_VCPUS, map};

/// Whether `name` can name a virtual machine: 1 to [`MAX_NAME_LEN`] of `[a-z0-9-]`.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Checks every rule of `machine`, whose files lie at `files_start..blob_len` of its blob.
///
/// # Errors
/// The first violated rule.
pub fn validate(machine: &Machine<'_>, files_start: u64, blob_len: u64) -> Result<(), Error> {
    if machine.vms.is_empty() {
        return Err(Error::NoVms);
    }
    if !(100..=1_000_000).contains(&machine.slice_us) {
        return Err(Error::Slice);
    }
    for (index, vm) in machine.vms.iter().enumerate() {
        let broken = |rule| Err(Error::Vm(index, rule));
        if let Err(rule) = validate_vm(vm) {
            return broken(rule);
        }
        if machine.vms.iter().take(index).any(|earlier| earlier.name == vm.name) {
            return broken(Rule::UniqueName);
        }
        let earlier = machine.vms.iter().take(index).flat_map(|earlier| &earlier.functions);
        for (place, function) in vm.functions.iter().enumerate() {
            if earlier.clone().chain(vm.functions.iter().take(place)).any(|other| other == function) {
                return broken(Rule::Functions);
            }
        }
        for load in &vm.loads {
            if let Err(rule) = validate_load(load, vm, files_start, blob_len) {
                return broken(rule);
            }
        }
    }
    Ok(())
}

pub(crate) fn validate_vm(vm: &Vm<'_>) -> Result<(), Rule> {
    if !is_name(vm.name) {
        return Err(Rule::Name);
    }
    if !map::is_ram_size(vm.memory) || vm.ram_base > map::RAM_BASE || !vm.ram_base.is_multiple_of(map::RAM_GRANULE) {
        return Err(Rule::Memory);
    }
    if vm.vcpus == 0 || usize::from(vm.vcpus) > MAX_VCPUS {
        return Err(Rule::Vcpus);
    }
    let Share { weight, cap } = vm.share;
    if !(1..=Share::MAX_WEIGHT).contains(&weight) || cap.is_some_and(|cap| !(1..=Share::MAX_CAP).contains(&cap)) {
        return Err(Rule::Share);
    }
    let contains = |gpa, len| map::contains(vm.ram_base, vm.memory, gpa, len);
    if !contains(vm.entry, 4) || vm.mode == Mode::Reset && !vm.entry.is_multiple_of(4) {
        return Err(Rule::Entry);
    }
    if !contains(vm.info, 8) || !vm.info.is_multiple_of(8) {
        return Err(Rule::Info);
    }
    if let Mode::Long { tables } = vm.mode
        && !(contains(tables, 4096) && tables.is_multiple_of(4096))
    {
        return Err(Rule::Tables);
    }
    Ok(())
}

pub(crate) fn validate_load(load: &Load, vm: &Vm<'_>, files_start: u64, blob_len: u64) -> Result<(), Rule> {
    // A load without a file only zeroes memory.
    if load.len != 0 {
        let end = load.offset.checked_add(load.len).ok_or(Rule::LoadFile)?;
        if load.offset < files_start || end > blob_len || !load.offset.is_multiple_of(FILE_ALIGN) {
            return Err(Rule::LoadFile);
        }
    }
    if load.mem_len < load.len {
        return Err(Rule::LoadSize);
    }
    if !map::contains(vm.ram_base, vm.memory, load.gpa, load.mem_len) {
        return Err(Rule::LoadAddress);
    }
    Ok(())
}
