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
    /// The timer that stands in for those of a hypervisor inside the VM while its guest runs.
    IRQ_STAND_IN = "timer of its EL2",
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

named_rows! {
    /// What a hypervisor inside the VM does at its EL2, registers left out.
    NESTED NESTED_NAMES = Some(DEBUG);
    /// An exception return into the same kernel.
    NESTED_ERET_KERNEL = "ERET to its own kernel",
    /// An exception return to this kernel's own user space (HCR_EL2.TGE).
    NESTED_ERET_USER = "ERET to its own user space",
    /// An exception return to its guest.
    NESTED_ERET_GUEST = "ERET to its guest",
    /// An exception return that the architecture calls illegal.
    NESTED_ERET_ILLEGAL = "ERET, illegal",
    /// HVC at its EL2, which takes an exception there.
    NESTED_HVC = "HVC of its own",
    /// An instruction that EL2 does not have.
    NESTED_UNDEFINED = "undefined",
    /// It was found to have changed HCR_EL2.E2H, and tries again.
    NESTED_E2H = "HCR_EL2.E2H changed",
    /// TLBI VAALE1IS for its own translations.
    NESTED_TLBI = "TLBI VAALE1IS of its own",
    /// An exception of a memory copy, its own or of its guest, that Stile passes on.
    NESTED_MOPS = "memory copy",
}

named_rows! {
    /// Exits of a hypervisor's guest that the hypervisor must see.
    FORWARDED FORWARDED_NAMES = Some(NESTED);
    /// HVC.
    FORWARDED_HVC = "HVC",
    /// SMC.
    FORWARDED_SMC = "SMC",
    /// WFI, WFE.
    FORWARDED_WFX = "WFI or WFE",
    /// A data access that its second stage does not allow.
    FORWARDED_DATA_ABORT = "data abort",
    /// An instruction fetch that its second stage does not allow.
    FORWARDED_FETCH_ABORT = "instruction abort",
    /// First use of floating point, SIMD or SVE.
    FORWARDED_FP = "floating point",
    /// A physical interrupt of the VM's.
    FORWARDED_IRQ = "IRQ",
    /// Breakpoint, watchpoint, software step, BRK.
    FORWARDED_DEBUG = "debug",
}
