//! The draft of a configuration: unchecked settings in the user's words, each with its place in the file or
//! command line.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::Place;

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub place: Place,
}

impl<T> Given<T> {
    /// A value at a place.
    pub fn new(value: T, place: Place) -> Self {
        Self { value, place }
    }
}

/// The new value of a setting, if it differs from the old one.
pub fn changed<'d, T: PartialEq>(new: &'d Option<Given<T>>, old: &Option<Given<T>>) -> Option<Option<&'d Given<T>>> {
    let is_same = new.as_ref().map(|given| &given.value) == old.as_ref().map(|given| &given.value);
    (!is_same).then_some(new.as_ref())
}

/// A set of physical CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// `[0, 1]`.
    List(Vec<Given<i64>>),
    /// `"0-3,5"`.
    Text(String),
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// `arch`.
    pub arch: Option<Given<String>>,
    /// `cpus`.
    pub cpus: Option<Given<i64>>,
    /// `nodes`.
    pub nodes: Option<Given<i64>>,
    /// `memory`.
    pub memory: Option<Given<String>>,
    /// `cpu`.
    pub cpu: Option<Given<String>>,
    /// `slice`.
    pub slice: Option<Given<String>>,
    /// `mitigations`.
    pub mitigations: Option<Given<String>>,
    /// `gic`.
    pub gic: Option<Given<i64>>,
    /// Its virtual machines.
    pub vms: Vec<VmDraft>,
}

impl Draft {
    /// The draft for a machine configured by the command line alone.
    pub fn with_one_vm() -> Self {
        Self { vms: vec![VmDraft::new(Place::Nowhere)], ..Self::default() }
    }
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmDraft {
    /// Place of its start.
    pub place: Place,
    /// `name`.
    pub name: Option<Given<String>>,
    /// `kernel`.
    pub kernel: Option<Given<String>>,
    /// Whether the given kernel is not a string, which has been reported already.
    pub kernel_unreadable: bool,
    /// `initrd`.
    pub initrd: Option<Given<String>>,
    /// `preseed`.
    pub preseed: Option<Given<String>>,
    /// `append`.
    pub append: Option<Given<String>>,
    /// `memory`.
    pub memory: Option<Given<String>>,
    /// `vcpus`.
    pub vcpus: Option<Given<i64>>,
    /// `topology`.
    pub topology: Option<Given<String>>,
    /// `cpus`.
    pub cpus: Option<Given<Cpus>>,
    /// `pinned`.
    pub pinned: Option<Given<bool>>,
    /// `weight`.
    pub weight: Option<Given<i64>>,
    /// `cap`.
    pub cap: Option<Given<String>>,
    /// `exits_per_second` of `[vm.budget]`.
    pub exits_per_second: Option<Given<i64>>,
    /// `exit_time` of `[vm.budget]`.
    pub exit_time: Option<Given<String>>,
    /// `nested`.
    pub nested: Option<Given<bool>>,
    /// `on_reset`.
    pub on_reset: Option<Given<String>>,
    /// `exec`.
    pub exec: Option<Given<String>>,
    /// `nested` of `[vm.techniques]`.
    pub nested_way: Option<Given<String>>,
    /// `apic_virtualization` of `[vm.techniques]`.
    pub apic_virtualization: Option<Given<String>>,
    /// `binary_point` of `[vm.techniques]`.
    pub binary_point: Option<Given<String>>,
    /// `decode_cache` of `[vm.techniques]`.
    pub decode_cache: Option<Given<String>>,
    /// `timer` of `[vm.techniques]`.
    pub timer: Option<Given<String>>,
    /// `ipi` of `[vm.techniques]`.
    pub ipi: Option<Given<String>>,
    /// `interrupts` of `[vm.techniques]`.
    pub interrupts: Option<Given<String>>,
    /// `wfi_passthrough` of `[vm.techniques]`.
    pub wfi_passthrough: Option<Given<bool>>,
    /// `ablate` of `[vm.techniques]`.
    pub ablate: Option<Vec<Given<String>>>,
    /// `[[vm.domain]]`.
    pub domains: Vec<DomainDraft>,
    /// `[[vm.pci]]`.
    pub functions: Vec<FunctionDraft>,
    /// `[[vm.disk]]`.
    pub disks: Vec<DiskDraft>,
    /// `[[vm.net]]`.
    pub networks: Vec<NetworkDraft>,
    /// `[[vm.share]]`.
    pub folders: Vec<FolderDraft>,
    /// `[[vm.served]]`.
    pub served: Vec<ServedDraft>,
    /// Whether the machine is itself a virtual machine.
    pub inside: bool,
}

/// A virtual machine that a virtual machine starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainDraft {
    /// Place of its start.
    pub place: Place,
    /// `kernel`.
    pub kernel: Option<Given<String>>,
    /// `append`.
    pub append: Option<Given<String>>,
    /// `memory`.
    pub memory: Option<Given<String>>,
    /// `vcpus`.
    pub vcpus: Option<Given<i64>>,
}

/// A PCI function that a virtual machine owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionDraft {
    /// Place of its start.
    pub place: Place,
    /// `function`.
    pub function: Option<Given<String>>,
}

/// A disk of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDraft {
    /// Place of its start.
    pub place: Place,
    /// The image's path.
    pub file: Option<Given<String>>,
    /// Whether the virtual machine can only read it.
    pub read_only: bool,
    /// The image's format.
    pub format: Option<Given<String>>,
    /// Whether a virtual machine serves it that the configuration does not name.
    pub served: bool,
    /// Whether its contents are in the virtual machine's memory.
    pub in_memory: bool,
}

/// A network of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkDraft {
    /// Place of its start.
    pub place: Place,
    /// Ports of this machine, and the virtual machine's that they lead to.
    pub forwards: Vec<Given<String>>,
    /// The bridge that it is on.
    pub bridge: Option<Given<String>>,
    /// Whether a virtual machine serves it that the configuration does not name.
    pub served: bool,
}

/// A folder of this machine that a virtual machine shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderDraft {
    /// Place of its start.
    pub place: Place,
    /// Its path.
    pub path: Option<Given<String>>,
    /// Whether the virtual machine can only read it.
    pub read_only: bool,
    /// Its name in the virtual machine.
    pub tag: Option<Given<String>>,
    /// Whether a virtual machine serves it that the configuration does not name.
    pub served: bool,
}

/// A device that another virtual machine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedDraft {
    /// Place of its start.
    pub place: Place,
    /// The device's type.
    pub device: Option<Given<String>>,
    /// The name of the virtual machine that serves it. `None` if the configuration names none.
    pub by: Option<Given<String>>,
    /// The virtual machine's address for sockets.
    pub cid: Option<Given<i64>>,
    /// Folder with the file for a console's output.
    pub folder: Option<Given<String>>,
    /// Ports of this machine that lead to sockets.
    pub forwards: Vec<Given<String>>,
}

impl VmDraft {
    /// Returns the place of the name, or else of the table.
    pub fn place_of_name(&self) -> &Place {
        self.name.as_ref().map_or(&self.place, |given| &given.place)
    }

    /// A draft without settings.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            name: None,
            kernel: None,
            kernel_unreadable: false,
            initrd: None,
            preseed: None,
            append: None,
            memory: None,
            vcpus: None,
            topology: None,
            cpus: None,
            pinned: None,
            weight: None,
            cap: None,
            exits_per_second: None,
            exit_time: None,
            nested: None,
            on_reset: None,
            exec: None,
            nested_way: None,
            apic_virtualization: None,
            binary_point: None,
            decode_cache: None,
            timer: None,
            ipi: None,
            interrupts: None,
            wfi_passthrough: None,
            ablate: None,
            domains: Vec::new(),
            functions: Vec::new(),
            disks: Vec::new(),
            networks: Vec::new(),
            folders: Vec::new(),
            served: Vec::new(),
            inside: false,
        }
    }
}
