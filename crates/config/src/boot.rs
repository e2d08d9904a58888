//! The difference that the file on the boot medium makes to the configuration in an image.
//!
//! The image has the text of which it was made. A key with the same value in both files keeps the image's setting, which
//! may be the command line's. Another value of a key of [`CHANGEABLE`] applies; of any other key it is a mistake, since the
//! image was made by it. A virtual machine that the image lacks is added if its kernel is a file on the boot medium, and all its keys but
//! the name and disks in memory are of [`CHANGEABLE`].

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::{CpuClass, Mitigations, OnReset, Settings, Share, Techniques, Vm};
use stile_board::{CpuSet, MAX_VMS};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::draft::{Cpus, Draft, Given, VmDraft, changed};
use crate::{Mistake, Mistakes, Place, document, units, value};

mod remake;

pub use remake::{Append, Remake};

/// The file's name, in the root directory of the file system from which firmware starts Stile.
pub const NAME: &str = "STILE.TOML";

/// The folder of a bench stick's file system that gets the figures of machines.
pub const FIGURES: &str = "FIGURES";

/// The folder of the file system with kernels, initial RAM file systems and disks of virtual machines.
pub const VMS: &str = "VMS";

/// Maximum length of the file in bytes.
pub const LONGEST: usize = 64 << 10;

/// The time slice of a machine without one in its configuration, in microseconds.
pub const DEFAULT_SLICE_US: u32 = 5000;

/// Keys of `[machine]`, `[[vm]]` and `[vm.techniques]` that may change, apart from `disk`: [`has_same_disks`].
const CHANGEABLE: [&[&str]; 3] = [
    &["mitigations", "slice"],
    &["append", "cap", "cpus", "initrd", "kernel", "memory", "on_reset", "pinned", "techniques", "vcpus", "weight"],
    &["wfi_passthrough"],
];

/// Longest value that a message repeats, in bytes.
const LONGEST_VALUE: usize = 64;

/// The changes of a machine's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Another time slice, in microseconds.
    pub slice_us: Option<u32>,
    /// Another set of mitigations.
    pub mitigations: Option<Mitigations>,
    /// The changes of each virtual machine of the image, in its order, and of each one that is added, to the defaults.
    pub vms: Vec<VmChanges>,
    /// The virtual machines to rebuild, and all that are added, in the order of their numbers.
    pub remakes: Vec<Remake>,
    /// The keys that changed, such as `slice` and `guest: weight`, for the log.
    pub keys: Vec<String>,
}

/// The changes of a virtual machine's settings. `None`: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmChanges {
    /// The file lacks the virtual machine.
    pub is_removed: bool,
    /// Other physical CPUs, or a class of them.
    pub cpus: Option<(CpuSet, Option<CpuClass>)>,
    /// Whether each vCPU is pinned.
    pub pinned: Option<bool>,
    /// Another weight.
    pub weight: Option<u16>,
    /// Another cap, or none.
    pub cap: Option<Option<u16>>,
    /// Another effect of a reset.
    pub on_reset: Option<OnReset>,
    /// Whether `WFI` is not trapped while no other vCPU wants the CPU.
    pub wfi_passthrough: Option<bool>,
}

impl VmChanges {
    /// Applies them to the image's settings.
    pub fn apply(&self, vm: &mut Vm<'_>) {
        if let Some((cpus, class)) = self.cpus {
            (vm.cpus, vm.class) = (cpus, class);
        }
        let Share { weight, cap } = vm.share;
        vm.share = Share { weight: self.weight.unwrap_or(weight), cap: self.cap.unwrap_or(cap) };
        vm.pinned = self.pinned.unwrap_or(vm.pinned);
        vm.on_reset = self.on_reset.unwrap_or(vm.on_reset);
        vm.techniques.wfi_passthrough = self.wfi_passthrough.unwrap_or(vm.techniques.wfi_passthrough);
    }
}

impl Changes {
    /// Reads `text`, the content of a file called `name`, and compares it with `image`, the text of which the image was made.
    /// `vms`: names of the image's virtual machines: those of that text in its order, then those that `stile` added. `cpus`: the number of
    /// physical CPUs. `files`: names of the boot medium's files for virtual machines.
    ///
    /// # Errors
    /// The mistakes in the file, in the words of `stile check`, and the keys that can't change.
    pub fn read(name: &str, text: &[u8], (image, vms): (&str, &[&str]), cpus: u32, files: &[&str]) -> Result<Self, Mistakes> {
        if text.len() > LONGEST {
            let mistake = Mistake::new(Place::File, "the file is too long").expected(format!("at most {}", units::size(LONGEST as u64)));
            return Err(Mistakes::new(Some((name.to_owned(), String::new())), vec![mistake]));
        }
        let text = crate::utf8(name, text)?;
        let mut mistakes = Vec::new();
        let changes = compare(text, (image, vms), cpus, files, &mut mistakes);
        match changes {
            Some(changes) if mistakes.is_empty() => Ok(changes),
            _ => Err(Mistakes::new(Some((name.to_owned(), text.to_owned())), mistakes)),
        }
    }

    /// Applies those of the whole machine.
    pub fn apply(&self, settings: &mut Settings) {
        settings.slice_us = self.slice_us.unwrap_or(settings.slice_us);
        settings.mitigations = self.mitigations.unwrap_or(settings.mitigations);
    }
}

fn compare(text: &str, (image, vms): (&str, &[&str]), cpus: u32, files: &[&str], mistakes: &mut Vec<Mistake>) -> Option<Changes> {
    let draft = document::draft(text, mistakes)?;
    // The command has read it before.
    let old = document::draft(image, &mut Vec::new()).unwrap_or_default();
    let (pairs, added) = pairs(&draft, &old, mistakes);
    let mut changes = Changes { vms: vec![VmChanges { is_removed: true, ..VmChanges::default() }; old.vms.len()], ..Changes::default() };
    // No text names those that `stile` added, so none removes them.
    let of_stile = vms.get(old.vms.len()..).unwrap_or_default();
    changes.vms.resize(old.vms.len() + of_stile.len(), VmChanges::default());
    let in_image = changes.vms.len();
    if let Some(slice) = changed(&draft.slice, &old.slice) {
        changes.keys.push("slice".to_owned());
        let slice = slice.and_then(|given| value::slice(given, mistakes));
        changes.slice_us = Some(slice.map_or(DEFAULT_SLICE_US, |slice| slice.as_micros() as u32));
    }
    if let Some(mitigations) = changed(&draft.mitigations, &old.mitigations) {
        changes.keys.push("mitigations".to_owned());
        changes.mitigations = Some(mitigations.and_then(|given| value::mitigations(given, mistakes)).unwrap_or_default());
    }
    let known = names(&old);
    for &(new, old_number) in &pairs {
        let (Some(vm), Some(old), Some(to)) = (draft.vms.get(new), old.vms.get(old_number), changes.vms.get_mut(old_number)) else {
            continue;
        };
        let name = name_of(new, vm);
        *to = vm_changes(vm, old, &name, cpus, &mut changes.keys, mistakes);
        let remake = remake::remake((vm, old), old_number, &name, files, &mut changes.keys, mistakes);
        changes.remakes.extend(remake);
    }
    for (number, vm) in old.vms.iter().enumerate().filter(|(number, _)| changes.vms.get(*number).is_some_and(|vm| vm.is_removed)) {
        let name = name_of(number, vm);
        changes.keys.push(format!("{name}: removed"));
        if mistakes.is_empty() && old.vms.iter().any(remake::is_served) {
            mistakes.push(not_removed(&name));
        }
    }
    let blank = VmDraft::new(Place::Nowhere);
    for (&new, number) in added.iter().zip(in_image..) {
        let Some(vm) = draft.vms.get(new) else { continue };
        if number == MAX_VMS {
            let what = format!("there are {} virtual machines, those of the image included", in_image + added.len());
            mistakes.push(Mistake::new(vm.place.clone(), what).expected(format!("at most {MAX_VMS}")));
            break;
        }
        let name = name_of(new, vm);
        if of_stile.contains(&&name[..]) {
            let what = format!("the image has a virtual machine \"{name}\", which serves the others devices");
            mistakes.push(Mistake::new(vm.place_of_name().clone(), what).expected("another name"));
            continue;
        }
        vm.name.iter().for_each(|given| drop(value::vm_name(given, mistakes)));
        changes.vms.push(vm_changes(vm, &blank, &name, cpus, &mut Vec::new(), mistakes));
        if let Some(remake) = remake::added(vm, number, &name, (files, &known), mistakes) {
            changes
                .keys
                .push(format!("{name}: added{}", remake.kernel.iter().map(|given| format!(", VMS\\{}", given.value)).collect::<String>()));
            changes.remakes.push(remake);
        }
    }
    changes.remakes.sort_by_key(|remake| remake.vm);
    // Keys with mistakes are different from the image's.
    if mistakes.is_empty() {
        compare_fixed(text, image, &pairs, &added, mistakes);
    }
    Some(changes)
}

/// The mistake that a file lacks a virtual machine, which others serve or which serves others: they refer to it by its number.
#[must_use]
pub fn not_removed(name: &str) -> Mistake {
    let what = format!("virtual machine \"{name}\" can't be removed here, since virtual machines serve others devices");
    Mistake::new(Place::File, what).expected("the virtual machines of the image, or a new image")
}

/// The name of a virtual machine, by its number in its file.
fn name_of(number: usize, vm: &VmDraft) -> String {
    vm.name.as_ref().map_or_else(|| format!("vm{number}"), |given| given.value.clone())
}

/// The names of a draft's virtual machines.
fn names(draft: &Draft) -> Vec<String> {
    draft.vms.iter().enumerate().map(|(number, vm)| name_of(number, vm)).collect()
}

/// Returns the numbers of each name's virtual machine in the new and the old draft, and the numbers of those that only the new draft has.
fn pairs(new: &Draft, old: &Draft, mistakes: &mut Vec<Mistake>) -> (Vec<(usize, usize)>, Vec<usize>) {
    let (known, names) = (names(old), names(new));
    let (mut pairs, mut added) = (Vec::new(), Vec::new());
    for (number, (vm, name)) in new.vms.iter().zip(&names).enumerate() {
        if names.iter().take(number).any(|earlier| earlier == name) {
            let what = format!("another virtual machine is called \"{name}\" already");
            mistakes.push(Mistake::new(vm.place_of_name().clone(), what).expected("a name of its own"));
            continue;
        }
        match known.iter().position(|known| known == name) {
            Some(old) => pairs.push((number, old)),
            None => added.push(number),
        }
    }
    (pairs, added)
}

/// Whether two lists of CPUs differ, apart from their places.
fn cpus_differ(new: Option<&Given<Cpus>>, old: Option<&Given<Cpus>>) -> bool {
    match (new.map(|given| &given.value), old.map(|given| &given.value)) {
        (Some(Cpus::List(new)), Some(Cpus::List(old))) => !new.iter().map(|cpu| cpu.value).eq(old.iter().map(|cpu| cpu.value)),
        (new, old) => new != old,
    }
}

/// Finds the changes of a virtual machine called `name`.
fn vm_changes(vm: &VmDraft, old: &VmDraft, name: &str, cpus: u32, keys: &mut Vec<String>, mistakes: &mut Vec<Mistake>) -> VmChanges {
    let mut changes = VmChanges::default();
    let mut note = |key: &str| keys.push(format!("{name}: {key}"));
    if cpus_differ(vm.cpus.as_ref(), old.cpus.as_ref()) {
        note("cpus");
        changes.cpus = Some(vm.cpus.as_ref().and_then(|given| value::cpus(given, cpus, mistakes)).unwrap_or_default());
    }
    if let Some(pinned) = changed(&vm.pinned, &old.pinned) {
        note("pinned");
        changes.pinned = Some(pinned.is_some_and(|given| given.value));
    }
    if let Some(weight) = changed(&vm.weight, &old.weight) {
        note("weight");
        changes.weight = Some(weight.and_then(|given| value::weight(given, mistakes)).unwrap_or(Share::default().weight));
    }
    if let Some(cap) = changed(&vm.cap, &old.cap) {
        note("cap");
        changes.cap = Some(cap.and_then(|given| value::cap(given, mistakes)));
    }
    if let Some(on_reset) = changed(&vm.on_reset, &old.on_reset) {
        note("on_reset");
        changes.on_reset = Some(on_reset.and_then(|given| value::on_reset(given, mistakes)).unwrap_or_default());
    }
    if let Some(passthrough) = changed(&vm.wfi_passthrough, &old.wfi_passthrough) {
        note("wfi_passthrough");
        changes.wfi_passthrough = Some(passthrough.map_or(Techniques::default().wfi_passthrough, |given| given.value));
    }
    changes
}

/// Reports the keys that differ but can't change. `pairs`: the numbers of virtual machines in both texts; `added`: the numbers of those
/// that only `text` has, whose disks are checked.
fn compare_fixed(text: &str, image: &str, pairs: &[(usize, usize)], added: &[usize], mistakes: &mut Vec<Mistake>) {
    let [new, old] = [text, image].map(|text| DeTable::parse_recoverable(text).0);
    let (whole, new, old) = (new.span(), new.get_ref(), old.get_ref());
    let [machine, vm, technique] = CHANGEABLE;
    fixed_tables(new, old, "machine", whole, machine, image, mistakes);
    for &(number, old_number) in pairs {
        if let (Some((new, span)), Some((old, _))) = (vm_table(new, number), vm_table(old, old_number)) {
            let disks = ["disk"].into_iter().filter(|key| has_same_disks(new.get(*key), old.get(*key)));
            fixed(new, old, &span, &vm.iter().copied().chain(disks).collect::<Vec<_>>(), image, mistakes);
            fixed_tables(new, old, "techniques", span, technique, image, mistakes);
        }
    }
    let none = DeTable::new();
    let vm: Vec<&str> = vm.iter().copied().chain(["name", "disk"]).collect();
    for (new, span) in added.iter().filter_map(|&number| vm_table(new, number)) {
        fixed(new, &none, &span, &vm, image, mistakes);
        fixed_tables(new, &none, "techniques", span, technique, image, mistakes);
    }
}

/// Whether two lists of disks are equal, apart from the files of those in memory.
fn has_same_disks(new: Option<&Spanned<DeValue<'_>>>, old: Option<&Spanned<DeValue<'_>>>) -> bool {
    let lists = new.and_then(|new| new.get_ref().as_array()).zip(old.and_then(|old| old.get_ref().as_array()));
    let Some((new, old)) = lists else { return false };
    let is_in_memory = |disk: &DeTable<'_>| disk.get("in_memory").is_some_and(|value| value.get_ref().as_bool() == Some(true));
    let is_same_disk = |new: &DeTable<'_>, old: &DeTable<'_>| {
        let may_differ = |key: &str| key == "file" && is_in_memory(new) && is_in_memory(old);
        let has = |key: &str, value| old.get(key).is_some_and(|old| may_differ(key) || is_same(value, old.get_ref()));
        new.len() == old.len() && new.iter().all(|(key, value)| has(key.get_ref(), value.get_ref()))
    };
    let mut pairs = new.iter().zip(old.iter()).map(|(new, old)| new.get_ref().as_table().zip(old.get_ref().as_table()));
    new.len() == old.len() && pairs.all(|pair| pair.is_some_and(|(new, old)| is_same_disk(new, old)))
}

/// The table of a virtual machine, and its place.
fn vm_table<'t>(file: &'t DeTable<'t>, number: usize) -> Option<(&'t DeTable<'t>, Range<usize>)> {
    match file.get("vm")?.get_ref() {
        DeValue::Array(array) => array.get(number).and_then(|vm| Some((vm.get_ref().as_table()?, vm.span()))),
        _ => None,
    }
}

/// Compares the tables called `key`, either of which may be missing.
fn fixed_tables(
    new: &DeTable<'_>,
    old: &DeTable<'_>,
    key: &str,
    outer: Range<usize>,
    changeable: &[&str],
    image: &str,
    mistakes: &mut Vec<Mistake>,
) {
    let none = DeTable::new();
    let span = new.get(key).map_or(outer, |value| value.span());
    let [new, old] = [new, old].map(|table| table.get(key).and_then(|value| value.get_ref().as_table()).unwrap_or(&none));
    fixed(new, old, &span, changeable, image, mistakes);
}

/// Reports the keys of two tables that differ, but for the `changeable` ones. `span`: place of the new one.
fn fixed(new: &DeTable<'_>, old: &DeTable<'_>, span: &Range<usize>, changeable: &[&str], image: &str, mistakes: &mut Vec<Mistake>) {
    let is_fixed = |key: &str| !changeable.contains(&key);
    for (key, value) in new.iter().filter(|(key, _)| is_fixed(key.get_ref())) {
        let word = key.get_ref();
        let (what, expected) = match old.get(&word[..]) {
            Some(old) if is_same(value.get_ref(), old.get_ref()) => continue,
            Some(old) => ("changed here: the image was made by it", in_image(image, old.span())),
            None => ("added here: the image was made without it", "no such key".to_owned()),
        };
        let mistake = Mistake::new(Place::Text(value.span()), format!("\"{word}\" can't be {what}"));
        mistakes.push(mistake.expected(format!("{expected}, or a new image by `stile image`")));
    }
    for (key, value) in old.iter().filter(|(key, _)| is_fixed(key.get_ref()) && !new.contains_key(&key.get_ref()[..])) {
        let word = key.get_ref();
        let what = format!("\"{word}\" can't be removed here: the image was made by it");
        let expected = format!("{word} = {}, or a new image by `stile image`", in_image(image, value.span()));
        mistakes.push(Mistake::new(Place::Text(span.clone()), what).expected(expected));
    }
}

/// A value of the image's text for a message: itself, if it is short.
fn in_image(image: &str, span: Range<usize>) -> String {
    let value = image.get(span).unwrap_or_default();
    if value.len() <= LONGEST_VALUE && !value.contains('\n') { format!("{value} as in the image") } else { "the image's value".to_owned() }
}

/// Whether two values are equal, apart from their places. They are nested no deeper than [`document`] allows.
fn is_same(one: &DeValue<'_>, other: &DeValue<'_>) -> bool {
    match (one, other) {
        (DeValue::String(one), DeValue::String(other)) => one == other,
        (DeValue::Integer(one), DeValue::Integer(other)) => one.radix() == other.radix() && one.as_str() == other.as_str(),
        (DeValue::Float(one), DeValue::Float(other)) => one.as_str() == other.as_str(),
        (DeValue::Boolean(one), DeValue::Boolean(other)) => one == other,
        (DeValue::Datetime(one), DeValue::Datetime(other)) => one == other,
        (DeValue::Array(one), DeValue::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other.iter()).all(|(one, other)| is_same(one.get_ref(), other.get_ref()))
        }
        (DeValue::Table(one), DeValue::Table(other)) => {
            let has = |key: &str, value| other.get(key).is_some_and(|other| is_same(value, other.get_ref()));
            one.len() == other.len() && one.iter().all(|(key, value)| has(key.get_ref(), value.get_ref()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
