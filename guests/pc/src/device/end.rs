//! Operands that begin in RAM and end beyond it, within a large page of the guest's tables.

use core::arch::x86_64::__cpuid_count as cpuid;

use super::code::put;
use super::memory::DEVICE;
use super::run::Block;
use crate::emulator::tables::{PAGE, root, set_root, write};
use crate::tests::firmware::ram;
use crate::tests::test::check;

/// A second mapping of the first GiB, by one page.
const AGAIN: u64 = 2 << 30;

/// Beyond the end of RAM, reads return ones and writes are ignored.
pub fn of_memory(_: u64) -> Result<(), &'static str> {
    const LARGE_OPEN: u64 = 1 << 7 | 0b11;
    let has_1g_pages = cpuid(0x8000_0001, 0).edx & 1 << 26 != 0;
    if !has_1g_pages || ram() >= 1 << 30 {
        return Ok(());
    }
    // SAFETY: the program's tables, which are mapped where they are.
    let entry = unsafe { ((root() & !(PAGE - 1)) as *const u64).read_volatile() & !(PAGE - 1) } + 8 * (AGAIN >> 30);
    // SAFETY: the entry is in the program's own table, which is mapped.
    let before = unsafe { (entry as *const u64).read_volatile() };
    write(entry, &LARGE_OPEN.to_le_bytes());
    set_root(root());
    let outcome = at(AGAIN + ram());
    write(entry, &before.to_le_bytes());
    set_root(root());
    outcome
}

fn at(end: u64) -> Result<(), &'static str> {
    let last = end - 4;
    write(last, &[0x5a; 4]);
    // MOV RAX, [RDI].
    let mut block = Block { rdi: last, ..Block::new() };
    block.run(put(&[0x48, 0x8b, 0x07]), false);
    check!(block.rax == 0xffff_ffff_5a5a_5a5a, "a load reads what is behind RAM");
    // MOV [RDI], RAX; MOV RAX, [RDI].
    let mut block = Block { rdi: last, rax: 0x1122_3344_5566_7788, ..Block::new() };
    block.run(put(&[0x48, 0x89, 0x07, 0x48, 0x8b, 0x07]), false);
    check!(block.rax == 0xffff_ffff_5566_7788, "a store writes what is behind RAM");
    // MOVSQ, from there to a device.
    let mut block = Block { rsi: last, rdi: DEVICE, ..Block::new() };
    block.run(put(&[0x48, 0xa5]), false);
    // SAFETY: aligned memory of the test device, which the tests alone access.
    let moved = unsafe { (DEVICE as *const u64).read_volatile() };
    check!(moved == 0xffff_ffff_5566_7788, "MOVS reads what is behind RAM");
    Ok(())
}
