//! Single-CPU operations that run in a loop.

use crate::arch::gic::sending;
use crate::arch::measure::loop_ticks;
use crate::arch::platform::Platform;
use crate::arch::{cpu, gic, uart};

/// A hypercall unknown to every hypervisor: SMC Calling Convention, fast call, 32-bit, in the range of OEM
/// services.
pub fn hyp_call(_platform: &Platform, n: u64) -> u64 {
    loop_ticks!(n, ["mov w0, #0x4b000000", "hvc #0"],
        lateout("x0") _, lateout("x1") _, lateout("x2") _, lateout("x3") _, lateout("x4") _, lateout("x5") _, lateout("x6") _,
        lateout("x7") _, lateout("x8") _, lateout("x9") _, lateout("x10") _, lateout("x11") _, lateout("x12") _,
        lateout("x13") _, lateout("x14") _, lateout("x15") _, lateout("x16") _, lateout("x17") _)
}

/// A read of an identification register.
pub fn sysreg_trap(_platform: &Platform, n: u64) -> u64 {
    loop_ticks!(n, ["mrs x0, id_aa64pfr0_el1"], lateout("x0") _)
}

fn mmio_read(address: u64, n: u64) -> u64 {
    loop_ticks!(n, ["ldr {value:w}, [{address}]"], address = in(reg) address, value = out(reg) _)
}

/// GICD_TYPER, a constant register.
pub fn mmio_read_vgic(platform: &Platform, n: u64) -> u64 {
    mmio_read(platform.gicd + gic::GICD_TYPER, n)
}

/// GICD_ISENABLER, composed of 32 interrupts' state.
pub fn mmio_read_vgic_isenabler(platform: &Platform, n: u64) -> u64 {
    mmio_read(platform.gicd + gic::GICD_ISENABLER1, n)
}

/// The UART's flag register.
pub fn mmio_read_device(platform: &Platform, n: u64) -> u64 {
    mmio_read(platform.uart + uart::FR, n)
}

/// An end of interrupt, without an active one, so that it can be repeated.
pub fn eoi(_platform: &Platform, n: u64) -> u64 {
    match gic::eoir() {
        0 => loop_ticks!(n, ["msr S3_0_C12_C12_1, {none}", "isb"], none = in(reg) gic::SPURIOUS),
        eoir => loop_ticks!(n, ["str {none:w}, [{eoir}]"], none = in(reg) gic::SPURIOUS, eoir = in(reg) eoir),
    }
}

/// An SGI to this CPU, until its handler has run.
pub fn ipi_self(_platform: &Platform, n: u64) -> u64 {
    cpu::unmask();
    let ticks = sending!(loop_ticks!(n,
        ["add {expected}, {expected}, #1", SEND, "isb",
            "3: ldr {value}, [{taken}]", "cmp {value}, {expected}", "b.lo 3b"],
        (gic::SGI, 0), expected = inout(reg) cpu::taken(0) => _, taken = in(reg) cpu::taken_address(0), value = out(reg) _));
    cpu::mask();
    ticks
}
