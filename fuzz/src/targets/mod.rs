//! The targets, a file for each group of inputs.

mod assigned;
mod blob;
mod boot_configuration;
mod bus;
mod config;
mod console;
mod control;
mod decode;
mod devices;
mod disk;
mod efi;
mod figures;
mod firmware;
mod flash;
mod interrupts;
mod kernel;
mod line;
mod nested;
mod package;
mod queues;
mod report;
mod sampler;
mod snapshot;
mod vhost_user;
mod virtio;
mod vmx;
mod walk;

use crate::target::Target;

/// See [`crate::TARGETS`].
pub const ALL: &[Target] = &[
    assigned::EVENTS,
    assigned::FUNCTION,
    assigned::PLACES,
    assigned::COMMANDS,
    blob::BLOB,
    blob::IMAGE,
    bus::BUS,
    boot_configuration::BOOT_CONFIGURATION,
    config::CONFIGURATION,
    console::CONSOLE,
    control::REQUESTS,
    decode::CACHE,
    decode::INSTRUCTIONS,
    devices::AARCH64,
    devices::X86_64,
    disk::BOOT_LOADER,
    disk::DISK,
    efi::EFI,
    figures::FIGURES,
    firmware::ACPI,
    firmware::DEVICE_TREE,
    firmware::MULTIBOOT,
    flash::FLASH,
    interrupts::APIC,
    interrupts::APIC_VIRTUALIZED,
    interrupts::IO_APIC,
    interrupts::VGIC,
    interrupts::VGIC_AGAINST_REFERENCE,
    kernel::AARCH64,
    kernel::X86_64,
    line::FROM_STILE,
    line::TO_STILE,
    nested::INTERRUPTS,
    nested::REGISTERS,
    package::PACKAGE,
    queues::QUEUES,
    report::REPORT,
    sampler::SAMPLER,
    snapshot::SNAPSHOT,
    vhost_user::REPLIES,
    virtio::VIRTIO,
    vmx::ENTRIES,
    vmx::EXITS,
    walk::AARCH64,
    walk::X86_64,
];
