//! The devices that are not a CPU's.

use pc::{console, lapic, machine};

/// Silences the devices, as at the start.
pub fn restore() {
    // SAFETY: the 8254 and the 8259s are the guest's own.
    unsafe {
        machine::out8(0x43, 0x30);
        for port in [0x21, 0xa1] {
            machine::out8(port, 0xff);
        }
    }
    restore_console();
    mask_inputs();
}

/// Restores the UART, so that it prints.
pub fn restore_console() {
    console::setup();
    // Its interrupts, its FIFOs and its loop back to itself.
    for port in [0x3f9, 0x3fa, 0x3fc] {
        // SAFETY: the UART belongs to the guest.
        unsafe { machine::out8(port, 0) };
    }
}

/// Masks the I/O APIC's inputs, so that none resets the machine.
pub fn mask_inputs() {
    for input in 0..24 {
        lapic::io_route(input, 0, lapic::IO_MASKED);
    }
}
