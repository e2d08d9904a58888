//! The PC that x86-64 guests see, reduced to the devices that kernels need.

use core::ops::Range;

/// The most vCPUs of a PC whose guests have VMs of their own: each needs two VPIDs, of which there are 65,535.
pub const MAX_NESTED_VCPUS: usize = 255;

/// Whether the APICs of a PC start in x2APIC mode: the greatest identifier, `last`, is above 254. In xAPIC mode 255 addresses
/// all APICs.
pub const fn starts_in_x2apic_mode(last: u32) -> bool {
    last > 254
}

/// Whether a PC's I/O APIC and messages have destinations of 15 bits: the greatest identifier, `last`, has more than eight.
pub const fn has_extended_destinations(last: u32) -> bool {
    last > 255
}

/// Guest-physical addresses from here to [`HIGH_RAM`] belong to devices.
pub const RAM_LIMIT: u64 = 0xc000_0000;
/// RAM that does not fit below [`RAM_LIMIT`] continues here: 4 GiB.
pub const HIGH_RAM: u64 = 1 << 32;

/// Returns the end of the last of two ranges that is not empty.
pub const fn end([low, high]: &[Range<u64>; 2]) -> u64 {
    if high.start == high.end { low.end } else { high.end }
}

/// Returns the ranges of `size` bytes of RAM: below the devices and above them. The second may be empty.
pub const fn ram(size: u64) -> [Range<u64>; 2] {
    let low = if size < RAM_LIMIT { size } else { RAM_LIMIT };
    [0..low, HIGH_RAM..HIGH_RAM + (size - low)]
}

/// Returns the ranges of `size` bytes of RAM with `disks` bytes of disks in memory behind them. The disks are not divided: if the devices
/// leave no room for them below, they are above.
pub const fn memory(size: u64, disks: u64) -> [Range<u64>; 2] {
    let [low, high] = ram(size);
    let is_below = high.start == high.end && disks <= RAM_LIMIT - low.end;
    if is_below { [0..low.end + disks, high] } else { [low, high.start..high.end + disks] }
}

/// Returns the address of the first disk in memory: see [`memory`].
pub const fn disks_start(ram: u64, disks: u64) -> u64 {
    end(&memory(ram, disks)) - disks
}

/// Window of the PCI host bridge of a PC with functions, for BARs; configuration space of its bus 0 is behind it.
pub const PCI_WINDOW: Range<u64> = RAM_LIMIT..0xe000_0000;
/// Configuration space (ECAM) of bus 0.
pub const PCI_ECAM: Range<u64> = PCI_WINDOW.end..PCI_WINDOW.end + (1 << 20);

/// Number of the first PCI device that another VM serves, on the bus of that bridge; those that the VM owns are before it.
pub const SERVED_DEVICES: usize = 16;

/// Registers of the first device that a VM serves, in VMs that serve any; the others follow
/// ([`map::SERVER_STRIDE`](crate::map::SERVER_STRIDE)).
pub const SERVER_REGISTERS: u64 = 0xfd00_0000;
/// Events of the first device that a VM serves; pages of the others follow ([`map::EVENTS_STRIDE`](crate::map::EVENTS_STRIDE)).
pub const SERVER_EVENTS: u64 = 0xfd10_0000;
/// I/O APIC input of the first device that a VM serves, edge-triggered; [`crate::MAX_SERVED`] of them.
pub const SERVER_INPUT: u32 = 16;

/// Local APIC: each vCPU accesses its own here.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
/// I/O APIC.
pub const IO_APIC: u64 = 0xfec0_0000;
/// I/O APIC input of the first serial port.
pub const COM1_INPUT: u32 = 4;
/// I/O APIC input of the clock.
pub const CLOCK_INPUT: u32 = 8;
/// I/O APIC input of the 8254, which is line 0 of the 8259s.
pub const TIMER_INPUT: u32 = 2;
/// I/O APIC input of ACPI's fixed events.
pub const ACPI_INPUT: u32 = 9;
/// CMOS index of the century.
pub const CENTURY: u8 = 0x32;
/// Posted-interrupt descriptors of a VM that sends its interprocessor interrupts itself: a page for each vCPU, in the order of their APICs'
/// identifiers.
pub const IPI_DESCRIPTORS: u64 = 0xfeb0_0000;
/// A device for test programs that behaves as memory: every access exits.
pub const TEST_MEMORY: Range<u64> = 0xff00_0000..0xff01_0000;
/// `SLP_TYP` of S5 in the sleep control register: power-off.
pub const SLEEP_TYPE_OFF: u8 = 5;
/// `SLP_TYP` of S3, not announced in the tables: RAM is preserved, and the machine wakes immediately.
pub const SLEEP_TYPE_S3: u8 = 1;
/// ACPI's root pointer, with the tables behind it. The command `stile` builds them.
pub const ACPI_TABLES: u64 = 0xf_8000;
/// ACPI's firmware control structure, which holds the guest's waking vector.
pub const FACS: u64 = ACPI_TABLES + 0x40;

/// CPUID leaf of Stile's own features.
pub mod features {
    /// The leaf.
    pub const LEAF: u32 = 0x4000_0001;
    /// EAX: the VM may send its interprocessor interrupts itself ([`super::msr::IPI_CONTROL`]).
    pub const DIRECT_IPI: u32 = 1 << 0;
    /// EAX: the same, through the gate (crate `stile-gate`): VMFUNC instead of the physical ICR.
    pub const GATE_IPI: u32 = 1 << 1;
    /// EAX: expiries of its timer may notify it as its interprocessor interrupts do.
    pub const DIRECT_TIMER: u32 = 1 << 2;
}

/// Model-specific registers of Stile's own, in the range that is reserved for software (40000000H to 400000FFH).
pub mod msr {
    /// Read: the address of [`super::IPI_DESCRIPTORS`], the number of them in bits 11:4, in bit 0 whether this vCPU
    /// writes to the physical x2APIC's ICR, or may enter the gate, and in bit 1 whether expiries of its timer are notifications.
    /// Written with 1, 3 or 0: it does from now on, with such a timer, or not.
    pub const IPI_CONTROL: u32 = 0x4000_00f0;
    /// Takes what a virtual x2APIC's ICR takes, also while that is the physical one.
    pub const IPI_COMMAND: u32 = 0x4000_00f1;
}

/// I/O ports.
pub mod port {
    /// First serial port, a 16550: eight ports.
    pub const COM1: u16 = 0x3f8;
    /// Line status of the first serial port.
    pub const COM1_STATUS: u16 = COM1 + 5;
    /// The first port beyond it.
    pub const COM1_END: u16 = COM1 + 8;
    /// The clock's index and data.
    pub const CLOCK: u16 = 0x70;
    /// The first port beyond it.
    pub const CLOCK_END: u16 = CLOCK + 2;
    /// ACPI's fixed registers: PM1a events, control, and the timer.
    pub const PM1A_EVENT: u16 = 0x600;
    /// The first port beyond them.
    pub const PM_END: u16 = PM1A_EVENT + 12;
    /// ACPI's timer.
    pub const PM_TIMER: u16 = 0x608;
    /// ACPI's PM1a control register: `SLP_EN` with `SLP_TYP` 0 turns the machine off.
    pub const PM1A_CONTROL: u16 = 0x604;
    /// `SLP_EN` of that register.
    pub const SLP_EN: u16 = 1 << 13;
    /// ACPI's sleep control register: `SLP_TYP` is bits 4 to 2, `SLP_EN` bit 5.
    pub const SLEEP_CONTROL: u16 = 0x600;
    /// ACPI's sleep status register.
    pub const SLEEP_STATUS: u16 = 0x601;
    /// Reset control register: bit 2 resets the machine.
    pub const RESET: u16 = 0xcf9;
    /// The first port beyond the accesses that reach it.
    pub const RESET_END: u16 = RESET + 3;
    /// A value with that bit set.
    pub const RESET_VALUE: u8 = 0x06;
    /// Test programs write their status here to end the machine, as on QEMU with `isa-debug-exit`.
    pub const DEBUG_EXIT: u16 = 0xf4;
    /// The first port beyond the accesses that reach it.
    pub const DEBUG_EXIT_END: u16 = DEBUG_EXIT + 4;
    /// fw_cfg, as on QEMU: the selector, then the data port.
    pub const FW_CFG: u16 = 0x510;
    /// The first port beyond it.
    pub const FW_CFG_END: u16 = FW_CFG + 2;
    /// A 32-bit register for test programs, as on QEMU with `pc-testdev`: four ports.
    pub const TEST_WORD: u16 = 0xe0;
    /// The first port beyond it.
    pub const TEST_WORD_END: u16 = TEST_WORD + 4;
    /// Test port: makes the next VM entry of the writing vCPU fail, which no other guest action can: 0 by an entry
    /// control, 1 by guest state.
    pub const TEST_ENTRY: u16 = 0xe8;
    /// Interrupt lines that test programs drive: one port per line.
    pub const TEST_LINES: u16 = 0x2000;
    /// The first port beyond them.
    pub const TEST_LINES_END: u16 = TEST_LINES + 24;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_around_the_devices() {
        assert_eq!(ram(1 << 30), [0..1 << 30, HIGH_RAM..HIGH_RAM]);
        assert_eq!(ram(RAM_LIMIT), [0..RAM_LIMIT, HIGH_RAM..HIGH_RAM]);
        assert_eq!(ram(5 << 30), [0..RAM_LIMIT, HIGH_RAM..6 << 30]);
        assert_eq!([1 << 30, RAM_LIMIT, 5 << 30].map(|size| end(&ram(size))), [1 << 30, RAM_LIMIT, 6 << 30]);
    }

    #[test]
    fn disks_are_whole_and_beside_the_devices() {
        let gib = |gib: u64| gib << 30;
        assert_eq!(memory(gib(1), 0), ram(gib(1)));
        assert_eq!(memory(gib(1), gib(2)), [0..gib(3), HIGH_RAM..HIGH_RAM]);
        assert_eq!(memory(gib(1), gib(2) + 1), [0..gib(1), HIGH_RAM..gib(6) + 1]);
        assert_eq!(memory(gib(3), 1), [0..gib(3), HIGH_RAM..HIGH_RAM + 1]);
        assert_eq!(memory(gib(5), gib(1)), [0..gib(3), HIGH_RAM..gib(7)]);
    }

    #[test]
    fn served_devices_are_beside_others() {
        use crate::map::{EVENTS_SIZE, SERVER_SIZE};
        use crate::{MAX_FUNCTIONS, MAX_SERVED};
        const { assert!(SERVED_DEVICES > MAX_FUNCTIONS && SERVED_DEVICES + MAX_SERVED <= 32) };
        const { assert!(PCI_ECAM.end <= SERVER_REGISTERS && SERVER_REGISTERS + SERVER_SIZE <= SERVER_EVENTS) };
        const { assert!(SERVER_EVENTS + EVENTS_SIZE <= IPI_DESCRIPTORS) };
        const { assert!(SERVER_INPUT as usize + MAX_SERVED <= 24) };
    }
}
