//! The guest-physical memory map: addresses are guest-physical addresses, sizes are bytes.

/// Firmware, in VMs that start from it: code that executes in place.
pub const FIRMWARE_BASE: u64 = 0;
/// The most memory for firmware, in whole [`RAM_GRANULE`]s.
pub const FIRMWARE_MAX: u64 = 0x0400_0000;

/// NOR flash for the variables of firmware, in VMs that start from it.
pub const FLASH_BASE: u64 = 0x0400_0000;
/// Size of that flash: three blocks of 256 KiB, as EDK2 divides it (store, working block, spare block).
pub const FLASH_SIZE: u64 = 0xc_0000;

/// The stolen time of the virtual CPUs: pages that guests can only read.
pub const STOLEN_TIME_BASE: u64 = 0x0700_0000;
/// Size of a virtual CPU's structure there.
pub const STOLEN_TIME_EACH: u64 = 64;
/// The most memory for that.
pub const STOLEN_TIME_SIZE: u64 = stolen_time_size(crate::limits::MAX_VCPUS);

/// Memory for the stolen time of `vcpus` virtual CPUs, in bytes: whole pages of 4 KiB.
pub const fn stolen_time_size(vcpus: usize) -> u64 {
    (vcpus as u64 * STOLEN_TIME_EACH).next_multiple_of(0x1000)
}

/// Events of the first device that a VM serves, in VMs that serve any; pages of the others follow.
pub const EVENTS_BASE: u64 = 0x0701_0000;
/// The page with the events of such a device.
pub const EVENTS_STRIDE: u64 = 0x1000;
/// Size of the pages of all devices.
pub const EVENTS_SIZE: u64 = EVENTS_STRIDE * crate::MAX_SERVED as u64;

/// GICv3 distributor.
pub const GICD_BASE: u64 = 0x0800_0000;
/// Size of the distributor's frame.
pub const GICD_SIZE: u64 = 0x1_0000;

/// Size of a GICv2's distributor.
pub const GICV2_GICD_SIZE: u64 = 0x1000;
/// A GICv2's CPU interface.
pub const GICC_BASE: u64 = 0x0801_0000;
/// Size of that: two pages, of which the second has GICC_DIR.
pub const GICC_SIZE: u64 = 0x2000;

/// The frame through which messages become interrupts, as GICv2m's: in VMs that have PCI functions or served devices.
pub const MSI_FRAME_BASE: u64 = 0x0802_0000;
/// Size of that frame.
pub const MSI_FRAME_SIZE: u64 = 0x1000;
/// Offset in that frame of the register to which messages are written (MSI_SETSPI_NS).
pub const MSI_DOORBELL: u64 = 0x40;

/// GICv3 ITS, in VMs that have PCI functions.
pub const ITS_BASE: u64 = 0x0808_0000;
/// Size of its two frames: registers, then the one with GITS_TRANSLATER.
pub const ITS_SIZE: u64 = 0x2_0000;
/// Address to which functions write messages (GITS_TRANSLATER).
pub const ITS_TRANSLATER: u64 = ITS_BASE + 0x1_0040;

/// The first virtual CPU's GICv3 redistributor: see [`redistributors`](crate::redistributors).
pub const GICR_BASE: u64 = 0x080a_0000;
/// Redistributors for which there is room up to the UART, as on QEMU's `virt`. Those of further virtual CPUs are at
/// [`GICR_HIGH_BASE`].
pub const GICR_FIRST: usize = ((PL011_BASE - GICR_BASE) / GICR_STRIDE) as usize;
/// The redistributor of virtual CPU [`GICR_FIRST`].
pub const GICR_HIGH_BASE: u64 = 0x0b00_0000;
/// One redistributor: the `RD_base` and the `SGI_base` frame, 64 KiB each.
pub const GICR_STRIDE: u64 = 0x2_0000;

/// PL011 UART, the console.
pub const PL011_BASE: u64 = 0x0900_0000;
/// Size of the UART's frame.
pub const PL011_SIZE: u64 = 0x1000;
/// The clock that the UART's device-tree node names, in Hz.
pub const PL011_CLOCK_HZ: u32 = 24_000_000;

/// PL031 real-time clock.
pub const PL031_BASE: u64 = 0x0901_0000;
/// Size of the clock's frame.
pub const PL031_SIZE: u64 = 0x1000;

/// Registers of the first device that a VM serves, in VMs that serve any; the others follow.
pub const SERVER_BASE: u64 = 0x0a01_0000;
/// Registers of such a device.
pub const SERVER_STRIDE: u64 = 0x1000;
/// Size of the registers of all devices.
pub const SERVER_SIZE: u64 = SERVER_STRIDE * crate::MAX_SERVED as u64;
/// Alignment of the windows, behind a server's RAM, in which it finds its clients' RAM.
pub const WINDOW_ALIGN: u64 = 1 << 30;
/// End of guest-physical addresses.
pub const ADDRESS_END: u64 = 1 << 39;

/// Addresses for the BARs of PCI functions, in VMs that have any.
pub const PCI_WINDOW_BASE: u64 = 0x1000_0000;
/// Size of that window.
pub const PCI_WINDOW_SIZE: u64 = 0x2eff_0000;
/// Configuration space (ECAM) of bus 0, the only one, in VMs that have PCI functions.
pub const PCI_ECAM_BASE: u64 = 0x3f00_0000;
/// Size of a bus's configuration space.
pub const PCI_ECAM_SIZE: u64 = 0x10_0000;

/// Configuration space of bus 0 of another PCI domain, in VMs that have virtio devices that a service VM serves.
pub const VIRTIO_ECAM_BASE: u64 = 0x3f10_0000;
/// Addresses for the BARs of these devices.
pub const VIRTIO_WINDOW_BASE: u64 = 0x3f20_0000;
/// Size of that window.
pub const VIRTIO_WINDOW_SIZE: u64 = 0x1_0000;

/// The first byte of RAM.
pub const RAM_BASE: u64 = 0x4000_0000;
/// RAM consists of whole second-stage blocks of this size, at least one.
pub const RAM_GRANULE: u64 = 0x20_0000;
/// The most RAM that a virtual machine has: it ends at 256 GiB, as on QEMU's `virt`.
pub const RAM_MAX: u64 = 0x40_0000_0000 - RAM_BASE;

/// Offset in RAM at which a flat binary (neither an arm64 `Image` nor an ELF file) is loaded.
pub const FLAT_OFFSET: u64 = 0x8_0000;

/// Whether a virtual machine can have `size` bytes of RAM.
#[inline]
pub const fn is_ram_size(size: u64) -> bool {
    size >= RAM_GRANULE && size <= RAM_MAX && size.is_multiple_of(RAM_GRANULE)
}

/// Whether the `len` bytes at `gpa` lie in the RAM of a virtual machine that has `ram` bytes of it.
/// An empty range lies in RAM if its address does, or is RAM's end.
#[inline]
pub const fn ram_contains(ram: u64, gpa: u64, len: u64) -> bool {
    contains(RAM_BASE, ram, gpa, len)
}

/// Whether the `len` bytes at `gpa` lie in `ram` bytes of RAM at `base`, as [`ram_contains`].
#[inline]
pub const fn contains(base: u64, ram: u64, gpa: u64, len: u64) -> bool {
    match gpa.checked_sub(base) {
        Some(offset) => offset <= ram && len <= ram - offset,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap() {
        let map = [
            (FIRMWARE_BASE, FIRMWARE_MAX),
            (FLASH_BASE, FLASH_SIZE),
            (STOLEN_TIME_BASE, STOLEN_TIME_SIZE),
            (EVENTS_BASE, EVENTS_SIZE),
            (GICD_BASE, GICD_SIZE),
            (GICC_BASE, GICC_SIZE),
            (MSI_FRAME_BASE, MSI_FRAME_SIZE),
            (ITS_BASE, ITS_SIZE),
            (GICR_BASE, GICR_STRIDE * GICR_FIRST as u64),
            (PL011_BASE, PL011_SIZE),
            (PL031_BASE, PL031_SIZE),
            (SERVER_BASE, SERVER_SIZE),
            (GICR_HIGH_BASE, GICR_STRIDE * (crate::limits::MAX_VCPUS - GICR_FIRST) as u64),
            (PCI_WINDOW_BASE, PCI_WINDOW_SIZE),
            (PCI_ECAM_BASE, PCI_ECAM_SIZE),
            (VIRTIO_ECAM_BASE, PCI_ECAM_SIZE),
            (VIRTIO_WINDOW_BASE, VIRTIO_WINDOW_SIZE),
            (RAM_BASE, RAM_MAX),
        ];
        for pair in map.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0);
        }
    }

    #[test]
    fn ram_bounds() {
        let ram = 2 * RAM_GRANULE;
        assert!(ram_contains(ram, RAM_BASE, ram));
        assert!(!ram_contains(ram, RAM_BASE, ram + 1));
        assert!(!ram_contains(ram, RAM_BASE - 1, 1));
        assert!(ram_contains(ram, RAM_BASE + ram - 1, 1));
        assert!(!ram_contains(ram, RAM_BASE + ram, 1));
        assert!(!ram_contains(ram, u64::MAX, u64::MAX));
        assert!(!ram_contains(ram, RAM_BASE + 1, u64::MAX));
    }

    #[test]
    fn ram_sizes() {
        assert!(is_ram_size(RAM_GRANULE));
        assert!(is_ram_size(RAM_MAX));
        assert!(!is_ram_size(0));
        assert!(!is_ram_size(RAM_GRANULE + 4096));
        assert!(!is_ram_size(RAM_MAX + RAM_GRANULE));
    }
}
