//! Task switches with random TSSs and descriptors, outside of long mode. Every exception leads to a task that
//! can continue.

use common::fail::Outcome;
use common::random::Random;
use pc::tasks::selector::*;
use pc::tasks::{Machine, at, descriptor, task_gate, word};

use crate::{cpu, phase_machine};

/// Addresses of TSSs: RAM and its end, the I/O APIC, parts of the local APIC without its command register,
/// device memory, unmapped memory, and the end of the address space.
const PLACES: [u32; 8] = [0, 0x0400_0000 - 50, 0xfec0_0000, 0xfee0_0000, 0xfee0_0100, 0xff00_0ff0, 0x8000_0000, 0xffff_ffe0];

#[repr(C, align(4096))]
struct Table([u32; 1024]);
/// 4 GiB of identity-mapped 4 MiB pages, one of which is not present.
static mut ROOT: Table = Table([0; 1024]);
const HOLE: u32 = 0x4000_0000;

fn root() -> u32 {
    const ENTRY: u32 = 0x87;
    let root = &raw mut ROOT;
    for n in 0..1024 {
        // SAFETY: the first CPU alone uses it, and not now.
        unsafe { (*root).0[n] = if n as u32 == HOLE >> 22 { 0 } else { (n as u32) << 22 | ENTRY } };
    }
    root as u32
}

fn selector(random: &mut Random) -> u32 {
    random.pick(&[0, 8, DATA, CODE, MAIN, OTHER, SMALL, USER_CODE, USER_DATA, CONFORMING | 3, LDT, ODD, RESCUE, END])
        ^ random.pick(&[0, 0, 0, 1, 3, 4])
}

/// Prepares the other task, partly corrupted. With paging it keeps its address, because a random CR3 has no
/// tables.
fn spoil(machine: &Machine, random: &mut Random, paging: bool) {
    const VM: u32 = 1 << 17;
    const NT: u32 = 1 << 14;
    let other = machine.other();
    for _ in 0..random.below(4) {
        let segment = word::ES + random.below(7) as usize;
        // Code runs where the program ends, or not at all.
        if segment != word::CS {
            other[segment] = selector(random);
        }
    }
    other[word::CS] = random.pick(&[CODE, CODE, CODE, USER_CODE, CONFORMING | 3, CODE | 3, 0, DATA, END, MAIN]);
    other[word::EFLAGS] = random.bits() as u32 & !VM & !NT;
    other[word::ESP] = random.odd() as u32;
    other[word::TRAP] = random.below(2) as u32;
    other[word::LINK] = selector(random);
    if random.below(8) == 0 {
        other[word::EFLAGS] |= VM;
        (other[word::CS], other[word::EIP]) = (0x900, random.pick(&[0, 0, 0xffff, 0x1_0000, u32::MAX]));
    }
    // The unused descriptor, without code.
    *machine.gdt(ODD) = random.bits() & !(8 << 40);
    if random.below(3) == 0 {
        let place = random.pick(&PLACES);
        let place = if place == 0 || paging { machine.other().as_ptr() as u32 } else { place };
        let limit = random.pick(&[103, 102, 0xf_ffff, 43, 42, 0]);
        let access = random.pick(&[0x89, 0x89, 0x81, 0x8b, 0x09, 0x99]);
        *machine.gdt(OTHER) = descriptor(place, limit, access, random.below(16));
    }
}

/// The phase.
pub fn run() -> Outcome {
    let mut random = phase_machine::random();
    let root = root();
    // SAFETY: an unused page below 1 MiB. Code in virtual-8086 mode finds UD2.
    unsafe { ((0x900u64 << 4) as *mut u16).write_volatile(0x0b0f) };
    let programs =
        [at!(main_call), at!(main_call_gate), at!(main_jump), at!(main_jump_gate), at!(main_int), at!(main_divide), at!(main_return)];
    for _ in 0..600 {
        let mut machine = Machine::new(at!(tasks_done));
        machine.rescue();
        let paging = random.below(2) == 0;
        spoil(&machine, &mut random, paging);
        // The 16-bit task returns, so a fault would recur infinitely.
        *machine.idt(0x50) = task_gate(random.pick(&[OTHER, OTHER, SMALL, MAIN, END, 0]), 0xe5);
        if random.below(2) == 0 {
            *machine.idt(0) = task_gate(random.pick(&[OTHER, OTHER, MAIN, END, 0]), 0xe5);
        }
        // Like a task that has called.
        machine.main()[word::LINK] = selector(&mut random);
        if random.below(2) == 0 {
            *machine.gdt(OTHER) |= 2 << 40;
            machine.main()[word::LINK] = OTHER;
        }
        if paging {
            machine.control = [1 << 4, root, 1 << 31 | 1 << 16];
            (machine.main()[word::CR3], machine.other()[word::CR3]) = (root, root);
            machine.set_rescue_tables(root);
            if random.below(4) == 0 {
                *machine.gdt(OTHER) = descriptor(HOLE - 50, 103, 0x89, 0);
            }
        }
        machine.run(random.pick(&programs));
        cpu::restore();
    }
    Ok(())
}
