//! NMIs during which a processor single-steps: the guest's own steps, and those by which a hypervisor steps over the IRET of a handler while
//! another NMI waits.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use super::firmware::cpus;
use super::test::check;
use crate::exception;
use crate::lapic::{self as apic, command};
use crate::others::{self, DONE, UP, wait};

static CAME: AtomicU32 = AtomicU32::new(0);
static GOES_ON: AtomicU32 = AtomicU32::new(0);

// An NMI that returns to no code segment, and the fault of its IRET, from which nothing returns.
core::arch::global_asm!(
    "nmi_to_nowhere:",
    "mov dword ptr [rip + {came}], 1",
    "2: pause",
    "cmp dword ptr [rip + {goes_on}], 0",
    "je 2b",
    "push 0; push 0; push 2; push 0; push 0",
    "iretq",
    "fault_of_iret:",
    "mov dword ptr [rip + {came}], 2",
    "3: pause",
    "jmp 3b",
    came = sym CAME,
    goes_on = sym GOES_ON,
);

unsafe extern "C" {
    static nmi_to_nowhere: u8;
    static fault_of_iret: u8;
}

/// Resets and starts the other CPUs. Returns whether all of them come up.
fn start(others: u32) -> bool {
    others::forget();
    others::start();
    wait(|| UP.load(Ordering::SeqCst) == others)
}

/// A CPU that INIT stops while its IRET from an NMI is incomplete, with another NMI pending, single-steps afterwards as any other.
pub fn steps_after_init(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    check!(start(others), "they do not come up");
    CAME.store(0, Ordering::SeqCst);
    GOES_ON.store(0, Ordering::SeqCst);
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        exception::load_two([(2, &raw const nmi_to_nowhere as u64), (13, &raw const fault_of_iret as u64)]);
        CAME.store(3, Ordering::SeqCst);
        loop {
            core::hint::spin_loop();
        }
    });
    check!(wait(|| CAME.load(Ordering::SeqCst) == 3), "it does not run");
    apic::send(1, command::NMI | command::ASSERT);
    check!(wait(|| CAME.load(Ordering::SeqCst) == 1), "an NMI does not come");
    apic::send(1, command::NMI | command::ASSERT);
    GOES_ON.store(1, Ordering::SeqCst);
    check!(wait(|| CAME.load(Ordering::SeqCst) == 2), "IRET does not fault");
    check!(start(others), "they do not come up again");
    exception::handle(1, None);
    others::give(|| {
        if apic::id() == 1 {
            // SAFETY: the handler of single steps keeps all registers, and TF is clear at the end.
            unsafe {
                asm!(
                    "pushfq; pop rax; or eax, 0x100; push rax; popfq",
                    "nop; and eax, ~0x100; push rax; popfq",
                    out("rax") _,
                );
            }
        }
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do not end");
    check!(exception::take(1) == 4, "a single step is lost, or one too many");
    Ok(())
}

/// NMIs that [`nmi_with_step`] has taken, and debug exceptions.
static NMIS: AtomicU32 = AtomicU32::new(0);
static STEPS: AtomicU32 = AtomicU32::new(0);

// An NMI whose first handler sets TF for its IRET, and a handler of debug exceptions.
core::arch::global_asm!(
    "nmi_with_step:",
    "lock inc dword ptr [rip + {nmis}]",
    "cmp dword ptr [rip + {nmis}], 1",
    "jne 3f",
    "2: pause",
    "cmp dword ptr [rip + {goes_on}], 0",
    "je 2b",
    "pushfq",
    "or dword ptr [rsp], 0x100",
    "popfq",
    "3: iretq",
    "one_step:",
    "lock inc dword ptr [rip + {steps}]",
    "iretq",
    nmis = sym NMIS,
    steps = sym STEPS,
    goes_on = sym GOES_ON,
);

unsafe extern "C" {
    static nmi_with_step: u8;
    static one_step: u8;
}

/// An NMI that waits for the IRET of another one, which its handler single-steps, comes soon: the CPU does nothing more that exits.
pub fn nmi_behind_a_step(_: u64) -> Result<(), &'static str> {
    static ENDS: AtomicU32 = AtomicU32::new(0);
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    check!(start(others), "they do not come up");
    for variable in [&CAME, &GOES_ON, &NMIS, &STEPS, &ENDS] {
        variable.store(0, Ordering::SeqCst);
    }
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        exception::load_two([(1, &raw const one_step as u64), (2, &raw const nmi_with_step as u64)]);
        CAME.store(1, Ordering::SeqCst);
        while ENDS.load(Ordering::SeqCst) == 0 {
            core::hint::spin_loop();
        }
        exception::load();
    });
    check!(wait(|| CAME.load(Ordering::SeqCst) == 1), "it does not run");
    apic::send(1, command::NMI | command::ASSERT);
    check!(wait(|| NMIS.load(Ordering::SeqCst) == 1), "an NMI does not come");
    apic::send(1, command::NMI | command::ASSERT);
    GOES_ON.store(1, Ordering::SeqCst);
    let comes = wait(|| NMIS.load(Ordering::SeqCst) == 2);
    ENDS.store(1, Ordering::SeqCst);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do not end");
    check!(comes, "the second NMI does not come");
    check!(STEPS.load(Ordering::SeqCst) == 1, "the handler's step is lost, or there is another one");
    Ok(())
}
