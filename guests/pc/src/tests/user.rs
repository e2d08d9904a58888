//! Privileges of user mode.

use core::arch::asm;

use super::test::check;
use crate::machine::{rdmsr, wrmsr};

const EFER: u32 = 0xc000_0080;
const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const FMASK: u32 = 0xc000_0084;
/// EFER: SYSCALL and SYSRET enabled.
const SCE: u64 = 1 << 0;
/// STAR: the kernel's selectors from 0x08 on, and user mode's from 0x13 on, which SYSRET loads without
/// reading the GDT.
const SELECTORS: u64 = 0x08 << 32 | 0x13 << 48;
/// In entries of tables: for user mode, too.
const USER: u64 = 1 << 2;

/// An unknown hypercall returns the same value in user mode as in the kernel: the privilege level is not
/// read.
pub fn hypercall(_: u64) -> Result<(), &'static str> {
    let (answer, level): (i64, u64);
    // SAFETY: the first GiB is mapped by one entry of each upper table, and with pages of 2 MiB; interrupts
    // are masked, so that only SYSCALL leaves user mode. Changes are reverted or named.
    unsafe {
        let efer = rdmsr(EFER);
        wrmsr(EFER, efer | SCE);
        wrmsr(STAR, SELECTORS);
        wrmsr(FMASK, 0);
        change_pages(|entry| entry | USER);
        asm!(
            "pushfq", "cli",
            "lea rax, [rip + 3f]",
            "mov rdx, rax", "shr rdx, 32", "mov ecx, {LSTAR}", "wrmsr",
            "lea rcx, [rip + 2f]", "mov r11d, 2", "sysretq",
            "2:", "mov eax, 0x12345678", pc::hypercall!(), "mov edx, cs", "syscall",
            "3:", "popfq",
            LSTAR = const LSTAR,
            out("rax") answer, out("rdx") level, out("rcx") _, out("r11") _,
        );
        change_pages(|entry| entry & !USER);
        wrmsr(EFER, efer);
    }
    check!(level & 0b11 == 3, "it was not in user mode");
    check!(answer == -1000, "another answer");
    Ok(())
}

/// Changes the entries that map the first GiB.
///
/// # Safety
/// The tables stay valid.
unsafe fn change_pages(change: impl Fn(u64) -> u64) {
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    // SAFETY: the tables are those of boot.s, and mapped where they are.
    unsafe {
        let mut table: u64;
        asm!("mov {}, cr3", out(reg) table, options(nostack, preserves_flags));
        let root = table;
        for _ in 0..2 {
            let entry = (table & ADDRESS) as *mut u64;
            entry.write_volatile(change(entry.read_volatile()));
            table = entry.read_volatile();
        }
        for index in 0..512 {
            let entry = ((table & ADDRESS) as *mut u64).add(index);
            entry.write_volatile(change(entry.read_volatile()));
        }
        asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags));
    }
}
