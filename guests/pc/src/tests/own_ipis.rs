//! Interrupts that CPUs send themselves by the ICR in x2APIC mode. With gaps between identifiers, an identifier is not the number of a CPU.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use super::firmware::cpus;
use super::test::check;
use crate::exception;
use crate::lapic::{self as apic, command};
use crate::machine::{cli, sti};
use crate::others::{self, DONE, UP, wait};

const VECTOR: u8 = 0x63;
/// The ICR's MSR.
const ICR: u32 = 0x830;

/// The first ones may take a slower path than those of instructions that are known.
const ROUNDS: u32 = 4;
/// Instructions that send, of which some are known: one in another place may take the record of each.
const PLACES: u32 = 4;

/// Interrupts that a CPU took, by its identifier.
static TAKEN: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// Number of CPUs that did not get what they sent.
static LOST: AtomicU32 = AtomicU32::new(0);

/// Each of the others, all at once, gets those that it sends.
pub fn each(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    others::forget();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up");
    TAKEN.iter().for_each(|count| count.store(0, Ordering::SeqCst));
    LOST.store(0, Ordering::SeqCst);
    exception::handle(
        VECTOR,
        Some(|_| {
            TAKEN[(apic::id() & 63) as usize].fetch_add(1, Ordering::SeqCst);
            apic::end();
        }),
    );
    others::give(|| {
        let base = apic::base();
        apic::set_base(base | apic::X2);
        let taken = &TAKEN[(apic::id() & 63) as usize];
        sti();
        for round in 1..=ROUNDS {
            // SAFETY: the APIC is in x2APIC mode, the command is valid, and its vector has a handler.
            unsafe {
                asm!("wrmsr", "nop", "wrmsr", "nop", "wrmsr", "nop", "wrmsr",
                    in("ecx") ICR, in("eax") command::SELF | u32::from(VECTOR), in("edx") 0);
            }
            if !wait(|| taken.load(Ordering::SeqCst) == PLACES * round) {
                LOST.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        cli();
        // From x2APIC mode, xAPIC mode is reached only by disabling the APIC ("x2APIC State Transitions").
        apic::set_base(base & !apic::ENABLED);
        apic::set_base(base);
        apic::enable();
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do not end");
    check!(LOST.load(Ordering::SeqCst) == 0, "another one gets it");
    Ok(())
}
