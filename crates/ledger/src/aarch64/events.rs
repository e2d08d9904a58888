//! Exits other than accesses: waits, faults, interrupts, debug.

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
    /// Second-stage faults that Stile resolves.
    FAULT FAULT_NAMES = Some(WFX);
    /// The guest read.
    FAULT_READ = "read",
    /// The guest wrote.
    FAULT_WRITE = "write",
    /// The guest fetched an instruction.
    FAULT_FETCH = "fetch",
    /// The guest's own table walk faulted.
    FAULT_WALK = "table walk",
    /// Another CPU emptied the second stage, to have this one back from a guest with direct interrupts.
    FAULT_REGAINED = "regained",
}

named_rows! {
    /// Aborts injected into the guest.
    ABORT ABORT_NAMES = Some(FAULT);
    /// Instruction fetch from unmapped memory.
    ABORT_FETCH = "fetch",
    /// The guest's translation tables are in unmapped memory.
    ABORT_WALK = "table walk",
    /// An access to a device without a syndrome (ISV is 0), so that the transferred register is unknown. Also cache
    /// maintenance of a device, which is skipped.
    ABORT_NO_SYNDROME = "no syndrome",
    /// A synchronous external abort from hardware.
    ABORT_EXTERNAL = "external",
}

named_rows! {
    /// Physical interrupts, by source.
    IRQ IRQ_NAMES = Some(ABORT);
    /// The guest's EL1 virtual timer.
    IRQ_VIRTUAL_TIMER = "virtual timer",
    /// The guest's EL1 physical timer.
    IRQ_PHYSICAL_TIMER = "physical timer",
    /// Stile's own timer: the end of a time slice, or the deadline of a blocked vCPU.
    IRQ_SLICE = "slice timer",
    /// A kick by another CPU: check the run queue, or the vCPU's pending interrupts.
    IRQ_KICK = "kick",
    /// The physical timer that replaces a nested hypervisor's timers while its guest runs.
    IRQ_STAND_IN = "timer of its EL2",
    /// GIC maintenance: list registers were freed, or an EOI was requested.
    IRQ_MAINTENANCE = "maintenance",
    /// The serial port.
    IRQ_UART = "UART",
    /// The real-time clock.
    IRQ_RTC = "RTC",
    /// A device assigned to a VM.
    IRQ_DEVICE = "device",
    /// No interrupt was pending at the acknowledge (INTID 1023).
    IRQ_SPURIOUS = "spurious",
}

named_rows! {
    /// Debug exceptions routed to EL2.
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

named_rows! {
    /// Operations of a nested hypervisor at its EL2, other than register accesses.
    NESTED NESTED_NAMES = Some(DEBUG);
    /// An exception return to its own kernel.
    NESTED_ERET_KERNEL = "ERET to its own kernel",
    /// An exception return to its own user space (HCR_EL2.TGE).
    NESTED_ERET_USER = "ERET to its own user space",
    /// An exception return to its guest.
    NESTED_ERET_GUEST = "ERET to its guest",
    /// An illegal exception return, as defined by the architecture.
    NESTED_ERET_ILLEGAL = "ERET, illegal",
    /// HVC at its EL2, taken as an exception there.
    NESTED_HVC = "HVC of its own",
    /// An instruction that is undefined at EL2.
    NESTED_UNDEFINED = "undefined",
    /// A stale HCR_EL2.E2H was found and applied; the instruction is retried.
    NESTED_E2H = "HCR_EL2.E2H changed",
    /// TLBI VAALE1IS for its own translations.
    NESTED_TLBI = "TLBI VAALE1IS of its own",
    /// A memory-copy exception, its own or its guest's, that Stile reflects.
    NESTED_MOPS = "memory copy",
}

named_rows! {
    /// Forwarded exits: exits of a nested guest that its hypervisor must see.
    FORWARDED FORWARDED_NAMES = Some(NESTED);
    /// HVC.
    FORWARDED_HVC = "HVC",
    /// SMC.
    FORWARDED_SMC = "SMC",
    /// WFI, WFE.
    FORWARDED_WFX = "WFI or WFE",
    /// A data access denied by its hypervisor's second stage.
    FORWARDED_DATA_ABORT = "data abort",
    /// An instruction fetch denied by its hypervisor's second stage.
    FORWARDED_FETCH_ABORT = "instruction abort",
    /// First use of floating point, SIMD or SVE.
    FORWARDED_FP = "floating point",
    /// A physical interrupt that belongs to the VM.
    FORWARDED_IRQ = "IRQ",
    /// Breakpoint, watchpoint, software step, BRK.
    FORWARDED_DEBUG = "debug",
}
