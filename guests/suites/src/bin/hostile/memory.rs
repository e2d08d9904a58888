//! Unmapped addresses, by every kind of access, and random translation tables.

use payload::encode::{BLR_X1, load, store};
use payload::exception::catch;
use payload::mmu::{self, Memory, PAGES, PAGES_ENTRY, ROOT};
use payload::prelude::*;
use payload::probe;
use payload::random::Random;

use crate::virt;

/// Accesses through x1 for which `encode` has no function.
const OTHERS: [u32; 34] = [
    0x8800_7C22, // stxr w0, w2, [x1]
    0x885F_7C22, // ldxr w2, [x1]
    0xC85F_7C22, // ldxr x2, [x1]
    0xC87F_0C22, // ldxp x2, x3, [x1]
    0xC820_0C22, // stxp w0, x2, x3, [x1]
    0xC8DF_FC22, // ldar x2, [x1]
    0xC89F_FC22, // stlr x2, [x1]
    0xF820_0022, // ldadd x0, x2, [x1]
    0xF8E0_8022, // swpal x0, x2, [x1]
    0x38E0_8022, // swpalb w0, w2, [x1]
    0xC8E0_FC22, // casal x0, x2, [x1]
    0x4820_7C22, // casp x0, x1, x2, x3, [x1]
    0xA940_0C22, // ldp x2, x3, [x1]
    0xA9BF_0C22, // stp x2, x3, [x1, #-16]!
    0xA8C1_0C22, // ldp x2, x3, [x1], #16
    0x6940_0C22, // ldpsw x2, x3, [x1]
    0xF840_0C22, // ldr x2, [x1, #0]!
    0xF800_8422, // str x2, [x1], #8
    0x3DC0_0022, // ldr q2, [x1]
    0x3D80_0022, // str q2, [x1]
    0xAD40_0C22, // ldp q2, q3, [x1]
    0x4C40_0022, // ld4 {v2.16b - v5.16b}, [x1]
    0x4C00_0022, // st4 {v2.16b - v5.16b}, [x1]
    0xF980_0020, // prfm pldl1keep, [x1]
    0xD50B_7421, // dc zva, x1
    0xD50B_7A21, // dc cvac, x1
    0xD50B_7E21, // dc civac, x1
    0xD508_7621, // dc ivac, x1
    0xD50B_7521, // ic ivau, x1
    0xD508_7801, // at s1e1r, x1
    0xD508_7841, // at s1e0r, x1
    0xA400_4022, // ld1b {z2.b}, p0/z, [x1, x0]
    0xF83F_D022, // ld64b x2, [x1]
    0x1980_4022, // ldapursw-like, reserved on older CPUs
];

/// An address outside RAM. On QEMU's own board the devices that would write to the guest's memory by themselves are spared.
pub fn nowhere(random: &mut Random) -> u64 {
    let ram = machine::ram();
    loop {
        let address = if !machine::is_stile() {
            match random.below(2) {
                0 => 0x0B00_0000 + random.below(0x100_0000),
                _ => (1 << 40) + random.below(1 << 43),
            }
        } else {
            match random.below(4) {
                0 => random.below(ram.start),
                1 => ram.end + random.below(1 << 30),
                2 => random.below(1 << 40),
                _ => random.below(1 << 48),
            }
        };
        // Devices have a phase of their own, in which the registers that matter to the guest are spared.
        let device = (0x0800_0000..0x0910_0000).contains(&address);
        if !device && !(ram.start..ram.end).contains(&address) {
            return address;
        }
    }
}

fn access(random: &mut Random) -> u32 {
    match random.below(5) {
        0 => load(random.below(4) as u32, 2, 1),
        1 => store(random.below(4) as u32, 2, 1),
        2 => BLR_X1,
        _ => random.pick(&OTHERS),
    }
}

/// A load or store that preserves x1 if it takes an exception, and does not jump.
pub fn data_access(random: &mut Random) -> u32 {
    match random.below(3) {
        0 => load(random.below(4) as u32, 2, 1),
        1 => store(random.below(4) as u32, 2, 1),
        _ => random.pick(&OTHERS),
    }
}

/// Loads, stores, atomics, cache maintenance and fetches at unmapped addresses.
pub fn wild() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        for _ in virt::share(1_000) {
            wild_once(&mut random);
        }
        Ok(())
    })
}

/// Some accesses to an unmapped page.
pub fn wild_once(random: &mut Random) -> u64 {
    let memory = random.pick(&[Memory::Device, Memory::DeviceEarly, Memory::Normal, Memory::Uncached]);
    let address = mmu::window(nowhere(random), memory, random.below(2) == 0);
    // Aligned to 4 KiB, so that accesses stay between the end of RAM and the end of the window.
    let address = address & !0xFFF | 0x100;
    for _ in 0..4 {
        let mut registers = core::array::from_fn(|_| random.odd());
        registers[0] = 0;
        registers[1] = (address + random.below(0xE00)) & !random.pick(&[0, 1, 3, 7, 15, 63]);
        probe::run(&[access(random)], &mut registers);
    }
    4
}

/// Entries of the top table made of rubbish: walks lead anywhere. Loads only, as a store could reach the guest's own memory.
pub fn tables() -> Outcome {
    let mut random = virt::random();
    for _ in 0..500 {
        tables_once(&mut random);
    }
    ROOT.set(PAGES_ENTRY, 0);
    mmu::forget(PAGES);
    Ok(())
}

/// One such entry, which other CPUs may use and change concurrently, and a load and a translation through it.
pub fn tables_once(random: &mut Random) -> u64 {
    // Accessed flag set, so that blocks are reached; any type, any address of 48 bits, any attributes.
    let address = if machine::is_stile() || random.below(2) == 0 { random.bits() } else { random.below(1 << 29) | machine::ram().start };
    ROOT.set(PAGES_ENTRY, random.bits() & 0xFFF0_0000_0000_0FFC | address & 0xFFFF_FFFF_F000 | 1 << 10 | random.below(4));
    mmu::forget(PAGES);
    let address = (PAGES + random.below(1 << 30)) & !7;
    catch(|| {
        // SAFETY: a load into a register, which may take an exception.
        unsafe { core::arch::asm!("ldr {0}, [{1}]", "at s1e1r, {1}", "isb", out(reg) _, in(reg) address, options(nostack)) }
    });
    2
}
