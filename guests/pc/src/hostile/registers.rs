//! Model-specific registers and CPUID, all of them.

use common::fail::Outcome;
use common::random::Random;

use crate::cpu::{self, run};
use crate::odd::odd;
use crate::phase_machine;

const RDMSR: &[u8] = &[0x0f, 0x32];
const WRMSR: &[u8] = &[0x0f, 0x30];
const CPUID: &[u8] = &[0x0f, 0xa2];

const APIC_BASE: u32 = 0x1b;
const EFER: u32 = 0xc000_0080;
/// Registers with which the guest would reset or end itself. Interrupts have their own phase.
const SPARED: [u32; 3] = [APIC_BASE, EFER, 0x830];

/// Reads and writes each register of the two ranges that bitmaps have, and others.
pub fn msrs() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        let ranges = (0..0x2000).chain(0xc000_0000..0xc000_2000);
        // Most don't exist: one in eight of those is accessed.
        let there = |register: u32| register & 0x1fff < 0x200 || register & !0xff == 0x800 || register & 0x1fff == 0x6e0;
        for register in ranges.skip(cpu::this()).step_by(cpu::count()) {
            if !there(register) && random.below(8) != 0 {
                continue;
            }
            let mut registers = odd(&mut random);
            registers[1] = register.into();
            run(RDMSR, registers);
            if !SPARED.contains(&register) {
                run(WRMSR, registers);
            }
        }
        for _ in phase_machine::share(200) {
            let mut registers = odd(&mut random);
            registers[1] = random.bits();
            if !SPARED.contains(&(registers[1] as u32)) {
                run(RDMSR, registers);
                run(WRMSR, registers);
            }
        }
        Ok(())
    })
}

/// Leaves and subleaves, by the kernel and in user mode.
pub fn cpuid() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for base in [0, 0x4000_0000, 0x4000_0100, 0x8000_0000, 0xc000_0000, 0xffff_fff0u64] {
            for leaf in base..base + 0x22 {
                let mut registers = odd(&mut random);
                registers[0] = leaf | random.bits() << 32;
                registers[1] = random.odd();
                run(CPUID, registers);
                registers[1] = random.below(70);
                cpu::enter(&cpu::user(CPUID, registers));
            }
        }
        Ok(())
    })
}

/// Reads and writes a register, mostly an existing one.
pub fn once(random: &mut Random) -> u64 {
    let register = match random.below(4) {
        0 => random.bits(),
        1 => 0xc000_0080 + random.below(0x90),
        2 => 0x800 + random.below(0x40),
        _ => random.below(0x500),
    };
    let mut registers = odd(random);
    registers[1] = register;
    run(RDMSR, registers);
    if !SPARED.contains(&(register as u32)) {
        run(WRMSR, registers);
    }
    // A random APIC mode, base or SYSCALL target stays for a few operations only; registers needed for paging
    // are not changed.
    2
}

/// A leaf of CPUID, by the kernel or in user mode.
pub fn cpuid_once(random: &mut Random) -> u64 {
    let base = random.pick(&[0, 0, 0x4000_0000, 0x4000_0100, 0x8000_0000, 0xc000_0000, 0xffff_fff0u64]);
    let mut registers = odd(random);
    registers[0] = (base + random.below(0x22)) | random.bits() << 32;
    registers[1] = random.below(70);
    if random.below(2) == 0 {
        run(CPUID, registers)
    } else {
        cpu::enter(&cpu::user(CPUID, registers))
    };
    1
}
