//! Other CPUs: started, stopped, and spoken to.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use super::check;
use super::firmware::cpus;
use crate::exception::{self, COUNTS};
use crate::lapic::{self as apic, command};
use crate::others::{self, BEATS, DONE, SEEN, UP, wait};

fn beats() -> bool {
    let before = BEATS.load(Ordering::SeqCst);
    let start = crate::machine::ticks();
    while crate::machine::ticks() - start < 3_000_000 {}
    BEATS.load(Ordering::SeqCst) != before
}

pub fn start(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up");
    check!(SEEN.load(Ordering::SeqCst) == (1 << (others + 1)) - 2, "other identifiers");
    // A startup message for those that do not wait for one is nothing.
    apic::send(0, command::OTHERS | command::STARTUP | command::ASSERT | 0x10);
    check!(beats() && UP.load(Ordering::SeqCst) == others, "a second startup message starts them again");
    Ok(())
}

/// INIT stops those that run, and they begin anew.
pub fn init(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    for _ in 0..3 {
        check!(beats(), "they do not run");
        apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
        let start = crate::machine::ticks();
        while crate::machine::ticks() - start < 3_000_000 {}
        check!(!beats(), "INIT does not stop them");
        others::start();
        check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up again");
        // INIT with the startup message right behind it.
        others::start();
        check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up at once");
    }
    Ok(())
}

pub fn broadcasts(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0xcf;
    let all = u64::from(cpus());
    apic::enable();
    others::give(crate::machine::sti);
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do nothing");
    exception::handle(VECTOR, None);
    crate::machine::sti();
    let came =
        |expected: u64| wait(|| COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst) >= expected) && exception::take(VECTOR) == expected;
    apic::send(0xff, command::ASSERT | u32::from(VECTOR));
    let address = came(all);
    apic::send(0, command::ALL | command::ASSERT | u32::from(VECTOR));
    let shorthand = came(all);
    apic::send(0, command::OTHERS | command::ASSERT | u32::from(VECTOR));
    let rest = came(all - 1);
    // Flat logical identifiers: this CPU's is 1.
    apic::write(0xe0, u32::MAX);
    apic::write(0xd0, 1 << 24);
    apic::send(1, command::LOGICAL | command::ASSERT | u32::from(VECTOR));
    let logical = came(1);
    crate::machine::cli();
    check!(address, "to the address of all");
    check!(shorthand && rest, "to all, or to all others");
    check!(logical, "to a logical address");
    Ok(())
}

/// An NMI wakes a CPU that waits with interrupts off.
pub fn nmi_wakes(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    static WOKEN: AtomicU32 = AtomicU32::new(0);
    static WAITING: AtomicU32 = AtomicU32::new(0);
    WOKEN.store(0, Ordering::SeqCst);
    exception::handle(2, None);
    others::give(|| {
        // SAFETY: an NMI ends the wait.
        unsafe {
            asm!("cli", options(nostack));
            WAITING.fetch_add(1, Ordering::SeqCst);
            asm!("hlt", options(nostack));
        }
        WOKEN.fetch_add(1, Ordering::SeqCst);
    });
    check!(wait(|| WAITING.load(Ordering::SeqCst) == others), "they do not wait");
    let start = crate::machine::ticks();
    while crate::machine::ticks() - start < 3_000_000 {}
    check!(WOKEN.load(Ordering::SeqCst) == 0, "they do not wait with interrupts off");
    apic::send(0, command::OTHERS | command::ASSERT | 0xcf);
    let start = crate::machine::ticks();
    while crate::machine::ticks() - start < 3_000_000 {}
    check!(WOKEN.load(Ordering::SeqCst) == 0, "an interrupt wakes them that they can't take");
    apic::send(0, command::OTHERS | command::NMI | command::ASSERT);
    check!(wait(|| WOKEN.load(Ordering::SeqCst) == others), "they do not wake");
    Ok(())
}
