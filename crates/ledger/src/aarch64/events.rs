//! Exits that are not an access: waits, faults, interrupts, debug.

use crate::RowId;
use crate::aarch64::mmio;
use crate::catalogue::named_rows;

named_rows! {
    /// Waits, by "ISS encoding for an exception from a WF* instruction", field TI.
    WFX WFX_NAMES = Some(mmio::MMIO_MISC);
    /// WFI.
    WFX_WFI = "WFI",
    /// WFE.
    WFX_WFE = "WFE",
    /// WFI with a time-out.
    WFX_WFIT = "WFIT",
    /// WFE with a time-out.
    WFX_WFET = "WFET",
}

/// The row of a wait, by the syndrome's field TI (its low two bits).
#[inline]
pub const fn wfx(iss: u32) -> RowId {
    WFX.row((iss & 3) as usize)
}

named_rows! {
    /// Second-stage faults that are resolved.
    FAULT FAULT_NAMES = Some(WFX);
    /// The guest read.
    FAULT_READ = "read",
    /// The guest wrote.
    FAULT_WRITE = "write",
    /// The guest fetched an instruction.
    FAULT_FETCH = "fetch",
    /// The guest's own table walk faulted.
    FAULT_WALK = "table walk",
}

named_rows! {
    /// Aborts that go back to the guest.
    ABORT ABORT_NAMES = Some(FAULT);
    /// Instruction fetch from where there is no memory.
    ABORT_FETCH = "fetch",
    /// The guest's translation tables lie where there is no memory.
    ABORT_WALK = "table walk",
    /// An access to a device whose syndrome does not say which register is moved (ISV is 0).
    ABORT_NO_SYNDROME = "no syndrome",
    /// A synchronous external abort from the machine.
    ABORT_EXTERNAL = "external",
}

named_rows! {
    /// Physical interrupts, by what they were for.
    IRQ IRQ_NAMES = Some(ABORT);
    /// The guest's EL1 virtual timer.
    IRQ_VIRTUAL_TIMER = "virtual timer",
    /// The guest's EL1 physical timer.
    IRQ_PHYSICAL_TIMER = "physical timer",
    /// Stile's own timer: the end of a time slice, or the deadline of a blocked vCPU.
    IRQ_SLICE = "slice timer",
    /// Another CPU asks this one to look at its run queue, or at its vCPU's interrupts.
    IRQ_KICK = "kick",
    /// GIC maintenance: list registers have come free, or an EOI is wanted.
    IRQ_MAINTENANCE = "maintenance",
    /// The serial port.
    IRQ_UART = "UART",
    /// The real-time clock.
    IRQ_RTC = "RTC",
    /// A device that was given to a VM.
    IRQ_DEVICE = "device",
    /// The interrupt was gone when it was acknowledged (INTID 1023).
    IRQ_SPURIOUS = "spurious",
}

named_rows! {
    /// Debug exceptions that are routed to EL2.
    DEBUG DEBUG_NAMES = Some(IRQ);
    /// Hardware breakpoint.
    DEBUG_BREAKPOINT = "breakpoint",
    /// Hardware watchpoint.
    DEBUG_WATCHPOINT = "watchpoint",
    /// Software step.
    DEBUG_STEP = "step",
    /// BRK, or AArch32 BKPT.
    DEBUG_BRK = "BRK",
}
