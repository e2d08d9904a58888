//! Unmapped and device addresses, by every kind of access; and random tables.

use common::fail::Outcome;
use common::random::Random;

use crate::odd::odd;
use crate::window;
use crate::{cpu, phase_machine};

/// Accesses at [RSI], with RCX = 2 for strings and RDI = RSI.
pub const ACCESSES: [&[u8]; 33] = [
    &[0x8a, 0x06],                         // mov al, [rsi]
    &[0x8b, 0x06],                         // mov eax, [rsi]
    &[0x48, 0x8b, 0x06],                   // mov rax, [rsi]
    &[0x88, 0x06],                         // mov [rsi], al
    &[0x66, 0x89, 0x06],                   // mov [rsi], ax
    &[0x89, 0x06],                         // mov [rsi], eax
    &[0x48, 0x89, 0x06],                   // mov [rsi], rax
    &[0xc7, 0x06, 1, 0, 0, 0],             // mov dword ptr [rsi], 1
    &[0xf0, 0x0f, 0xc1, 0x06],             // lock xadd [rsi], eax
    &[0xf0, 0x48, 0x0f, 0xb1, 0x0e],       // lock cmpxchg [rsi], rcx
    &[0x0f, 0xc7, 0x0e],                   // cmpxchg8b [rsi]
    &[0x48, 0x0f, 0xc7, 0x0e],             // cmpxchg16b [rsi]
    &[0x87, 0x06],                         // xchg [rsi], eax
    &[0xf0, 0x0f, 0xab, 0x06],             // lock bts [rsi], eax
    &[0x0f, 0xba, 0x26, 7],                // bt dword ptr [rsi], 7
    &[0xf7, 0x1e],                         // neg dword ptr [rsi]
    &[0xff, 0x36],                         // push [rsi]
    &[0x8f, 0x06],                         // pop [rsi]
    &[0xff, 0x16],                         // call [rsi]
    &[0xff, 0x26],                         // jmp [rsi]
    &[0xff, 0xe6],                         // jmp rsi
    &[0xff, 0x2e],                         // jmp far [rsi]
    &[0xf3, 0xa4],                         // rep movsb
    &[0xf3, 0x48, 0xab],                   // rep stosq
    &[0xf3, 0xa6],                         // repe cmpsb
    &[0xac],                               // lodsb
    &[0x0f, 0x10, 0x06],                   // movups xmm0, [rsi]
    &[0x0f, 0x29, 0x06],                   // movaps [rsi], xmm0
    &[0x0f, 0xae, 0x06],                   // fxsave [rsi]
    &[0xdd, 0x06],                         // fld qword ptr [rsi]
    &[0x0f, 0xae, 0x3e],                   // clflush [rsi]
    &[0x0f, 0x18, 0x06],                   // prefetchnta [rsi]
    &[0x48, 0x89, 0xf4, 0x50, 0x58, 0xc3], // mov rsp, rsi; push rax; pop rax; ret
];

/// An address outside of RAM, and not the local APIC's or the I/O APIC's.
fn nowhere(random: &mut Random) -> u64 {
    loop {
        let address = match random.below(6) {
            0 => (64 << 20) + random.below(0x1_0000),
            1 => 0xc000_0000 + random.below(1 << 30),
            2 => 0xff01_0000 - 8 + random.below(16),
            3 => (1 << 32) + random.below(1 << 32),
            4 => 1 << (32 + random.below(20)),
            _ => random.bits() & 0x000f_ffff_ffff_ffff,
        };
        if address >> 12 != 0xfee00 && address >> 12 != 0xfec00 && address >= 64 << 20 {
            return address;
        }
    }
}

/// The target of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Unmapped: reads return all ones, to which no jump leads.
    Nowhere,
    IoApic,
    /// Not usable for code: the emulated processor has no exit for that, and terminates.
    LocalApic,
}

/// An access at an address, by the kernel or in user mode. Values read from a device are not jumped to: they
/// could be addresses in the program.
pub fn access(random: &mut Random, address: u64, target: Target) {
    const JUMP: &[u8] = &[0xff, 0xe6];
    const THROUGH: [&[u8]; 4] = [&[0xff, 0x16], &[0xff, 0x26], &[0xff, 0x2e], &[0x48, 0x89, 0xf4, 0x50, 0x58, 0xc3]];
    let accesses = random.pick(&ACCESSES);
    let spared = target == Target::LocalApic && accesses == JUMP || target != Target::Nowhere && THROUGH.contains(&accesses);
    let code = if spared { ACCESSES[0] } else { accesses };
    let mut registers = odd(random);
    (registers[1], registers[6], registers[7]) = (2, address, address);
    let frame = if random.below(3) == 0 { cpu::user(code, registers) } else { cpu::kernel(code, registers) };
    cpu::enter(&cpu::watched(frame));
}

/// The phase "memory".
pub fn wild() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(700) {
            wild_once(&mut random);
        }
        Ok(())
    })
}

/// The phase "tables": entries of any kind, so that walks lead anywhere. Loads only, as a store could reach the guest's own memory.
pub fn tables() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(400) {
            tables_once(&mut random);
        }
        window::mend();
        Ok(())
    })
}

/// An access to an unmapped address.
pub fn wild_once(random: &mut Random) -> u64 {
    let address = window::wild(nowhere(random), random.below(2) == 0);
    access(random, address, Target::Nowhere);
    1
}

/// An entry of any kind in one of the tables of this CPU's window, and a load by it.
pub fn tables_once(random: &mut Random) -> u64 {
    let entry = match random.below(4) {
        0 => random.bits() & 0x000f_ffff_ffff_f000 | 0x7,
        1 => nowhere(random) & !0xfff | 0x7,
        2 => random.pick(&[0xfee0_0000, 0xfec0_0000, 0xff00_0000]) | 0x7,
        _ => random.bits() | 1,
    };
    let linear = window::rubbish(random.below(3) as usize, entry) + random.below(1 << 20);
    let mut registers = odd(random);
    registers[6] = linear;
    // movzx, mov; fetches are in user mode, so that no kernel code is affected.
    let code = random.pick(&[&[0x0f, 0xb6, 0x06][..], &[0x48, 0x8b, 0x06]]);
    cpu::enter(&cpu::watched(cpu::kernel(code, registers)));
    window::mend();
    1
}
