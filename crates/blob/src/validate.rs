//! Validation of a configuration before its use.

use heapless::Vec;
use stile_board::memory_disks::REGION_ALIGN;
use stile_board::{MAX_ASSIGNED, MAX_VCPUS, MAX_VMS, map};

use crate::{Error, FILE_ALIGN, Files, Load, MAX_NAME_LEN, Mode, Rule, Settings, Share, Vm, Vms};

/// Whether `name` can name a virtual machine: 1 to [`MAX_NAME_LEN`] of `[a-z0-9-]`.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

impl Vm<'_> {
    /// Checks the configuration of a virtual machine that is made at boot, whose files are `files`.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self, files: Files<'_>) -> Result<(), Rule> {
        validate_vm(self)?;
        for load in &self.loads {
            if load.len != 0 && files.file(load).is_none() {
                return Err(Rule::LoadFile);
            }
            validate_place(load, self)?;
        }
        Ok(())
    }
}

/// Checks every rule of a configuration, whose files lie at `files_start..blob_len` of its blob. Returns the settings and the text, which are
/// behind the virtual machines.
///
/// # Errors
/// The first violated rule; [`Error::Encoding`].
pub(crate) fn validate<'b>(mut vms: Vms<'b>, files_start: u64, blob_len: u64) -> Result<(Settings, &'b str), Error> {
    if vms.len() == 0 {
        return Err(Error::NoVms);
    }
    let mut names = Vec::<&str, MAX_VMS>::new();
    let mut functions = Vec::<u16, MAX_ASSIGNED>::new();
    let all = vms.clone();
    let mut has_links = false;
    while let Some(vm) = vms.decode_next()? {
        let broken = |rule| Err(Error::Vm(names.len(), rule));
        if let Err(rule) = validate_vm(&vm) {
            return broken(rule);
        }
        if names.contains(&vm.name) {
            return broken(Rule::UniqueName);
        }
        for function in &vm.functions {
            if functions.contains(function) || functions.push(*function).is_err() {
                return broken(Rule::Functions);
            }
        }
        has_links |= vm.has_links();
        for load in &vm.loads {
            if let Err(rule) = validate_load(load, &vm, files_start, blob_len) {
                return broken(rule);
            }
        }
        names.push(vm.name).map_err(|_| Error::Encoding)?;
    }
    // Addresses of all virtual machines are valid now.
    if has_links && let Some(number) = all.clone().enumerate().position(|(number, vm)| !all.is_served_as_configured(number, &vm)) {
        return Err(Error::Vm(number, Rule::Served));
    }
    let (settings, rest) = postcard::take_from_bytes::<Settings>(vms.rest()).map_err(|_| Error::Encoding)?;
    let (text, rest) = postcard::take_from_bytes::<&str>(rest).map_err(|_| Error::Encoding)?;
    if !rest.is_empty() {
        return Err(Error::Encoding);
    }
    if !(100..=1_000_000).contains(&settings.slice_us) {
        return Err(Error::Slice);
    }
    Ok((settings, text))
}

pub(crate) fn validate_vm(vm: &Vm<'_>) -> Result<(), Rule> {
    if !is_name(vm.name) {
        return Err(Rule::Name);
    }
    if !map::is_ram_size(vm.memory) || vm.ram_base > map::RAM_BASE || !vm.ram_base.is_multiple_of(map::RAM_GRANULE) {
        return Err(Rule::Memory);
    }
    let is_region = |size: &u64| *size != 0 && size.is_multiple_of(REGION_ALIGN);
    if !vm.disks.iter().all(is_region) || vm.disk_memory() > map::RAM_MAX - vm.memory {
        return Err(Rule::Disks);
    }
    // RAM below its usual place would overlap.
    let is_firmware = vm.firmware.is_multiple_of(map::RAM_GRANULE) && vm.firmware <= map::FIRMWARE_MAX && vm.ram_base == map::RAM_BASE;
    if vm.firmware != 0 && !is_firmware {
        return Err(Rule::Memory);
    }
    if vm.vcpus == 0 || usize::from(vm.vcpus) > MAX_VCPUS {
        return Err(Rule::Vcpus);
    }
    if vm.topology.is_some_and(|topology| topology.vcpus() != usize::from(vm.vcpus)) {
        return Err(Rule::Topology);
    }
    let Share { weight, cap } = vm.share;
    if !(1..=Share::MAX_WEIGHT).contains(&weight) || cap.is_some_and(|cap| !(1..=Share::MAX_CAP).contains(&cap)) {
        return Err(Rule::Share);
    }
    let contains = |gpa, len| map::contains(vm.ram_base, vm.memory, gpa, len);
    if !vm.is_in_ram(vm.entry, 4) || vm.mode == Mode::Reset && !vm.entry.is_multiple_of(4) {
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
    validate_place(load, vm)
}

/// Checks where a file is loaded.
pub(crate) fn validate_place(load: &Load, vm: &Vm<'_>) -> Result<(), Rule> {
    if load.mem_len < load.len {
        return Err(Rule::LoadSize);
    }
    if !vm.contains(load.gpa, load.mem_len) {
        return Err(Rule::LoadAddress);
    }
    Ok(())
}
