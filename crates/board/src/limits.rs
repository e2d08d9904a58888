//! Maximum numbers of VMs, vCPUs, CPUs and devices of a machine.

/// The most virtual machines in one image.
pub const MAX_VMS: usize = 128;

/// The most virtual CPUs that one virtual machine has.
pub const MAX_VCPUS: usize = 256;

/// Words of a set of a virtual machine's vCPUs: bit n % 64 of word n / 64 is vCPU n.
pub const VCPU_WORDS: usize = MAX_VCPUS / 64;

/// The most virtual CPUs of an Arm virtual machine that has an EL2.
pub const MAX_NESTED_VCPUS: usize = 8;

/// Number of vCPUs with the same Aff1: the length of an SGI's target list.
pub const CLUSTER: usize = 16;

/// The most PCI functions of one virtual machine.
pub const MAX_FUNCTIONS: usize = 8;

/// The most PCI functions of all virtual machines together.
pub const MAX_ASSIGNED: usize = 64;

/// The most virtio devices that a virtual machine has from others, and the most that it serves.
pub const MAX_SERVED: usize = 8;

/// Bytes of memory that each virtual CPU of a VM with an EL2 adds to what Stile reserves for its shadow tables: enough
/// for 2 GiB of L2 in single pages of 4 KiB, and for 1 TiB in blocks.
pub const SHADOW_MEMORY: u64 = 4 << 20;

/// The most physical CPUs that Stile drives.
pub const MAX_CPUS: usize = 512;

/// Words of a set of physical CPUs.
pub const CPU_WORDS: usize = MAX_CPUS / 64;
