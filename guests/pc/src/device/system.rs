//! Registers of the system, from and to a device.

use core::arch::asm;

use super::agrees::agrees;
use super::flags::ALL_FLAGS;
use super::memory::DEVICE;
use super::run::Block;
use crate::emulator::tables::write;
use crate::tests::test::check;

fn agree(instruction: &[u8]) -> bool {
    agrees(instruction, ALL_FLAGS, &Block::new(), false)
}

/// Stores and loads of selectors.
pub fn selectors(_: u64) -> Result<(), &'static str> {
    // MOV [RDI], CS; SS; DS; SLDT; STR.
    for instruction in [&[0x8c, 0x0f][..], &[0x8c, 0x17], &[0x8c, 0x1f], &[0x0f, 0x00, 0x07], &[0x0f, 0x00, 0x0f]] {
        check!(agree(instruction), "a selector that is stored");
    }
    // MOV word [RDI], 16; MOV ES, [RDI]; MOV EAX, ES.
    check!(agree(&[0x66, 0xc7, 0x07, 0x10, 0x00, 0x8e, 0x07, 0x8c, 0xc0]), "MOV ES");
    // Likewise for SS, with selectors 16 and null; then MOV ECX, 16; MOV SS, ECX.
    check!(agree(&[0x66, 0xc7, 0x07, 0x10, 0x00, 0x8e, 0x17, 0x8c, 0xd0]), "MOV SS");
    check!(agree(&[0x66, 0xc7, 0x07, 0, 0, 0x8e, 0x17, 0x8c, 0xd0, 0xb9, 0x10, 0, 0, 0, 0x8e, 0xd1]), "MOV SS of a null selector");
    // MOV word [RDI + 8], 16; LFS RAX, [RDI]; MOV ECX, FS; XOR EDX, EDX; MOV FS, EDX.
    check!(agree(&[0x66, 0xc7, 0x47, 8, 0x10, 0, 0x48, 0x0f, 0xb4, 0x07, 0x8c, 0xe1, 0x31, 0xd2, 0x8e, 0xe2]), "LFS");
    Ok(())
}

/// A GDT with a task, at 32.
#[repr(C, align(16))]
struct Table([u64; 6]);
static mut GDT: Table = Table([0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_9b00_0000_ffff, 0, 0]);
static mut TASK: [u8; 104] = [0; 104];

/// SGDT, SIDT, LGDT, LIDT, LTR.
pub fn tables(_: u64) -> Result<(), &'static str> {
    // SGDT [RDI]; DEC word [RDI]; LGDT [RDI]; SGDT [RSI]; INC word [RDI]; LGDT [RDI].
    check!(agree(&[0x0f, 0x01, 0x07, 0x66, 0xff, 0x0f, 0x0f, 0x01, 0x17, 0x0f, 0x01, 0x06, 0x66, 0xff, 0x07, 0x0f, 0x01, 0x17]), "the GDT");
    check!(agree(&[0x0f, 0x01, 0x0f, 0x66, 0xff, 0x0f, 0x0f, 0x01, 0x1f, 0x0f, 0x01, 0x0e, 0x66, 0xff, 0x07, 0x0f, 0x01, 0x1f]), "the IDT");
    let table = &raw mut GDT as u64;
    let task = &raw const TASK as u64;
    let (low, high) = (task & 0xff_ffff, task >> 24 & 0xff);
    write(table + 32, &(103 | low << 16 | 0x89 << 40 | high << 56).to_le_bytes());
    write(table + 40, &(task >> 32).to_le_bytes());
    let mut pointer = [0; 10];
    pointer[..2].copy_from_slice(&47u16.to_le_bytes());
    pointer[2..].copy_from_slice(&table.to_le_bytes());
    let mut old = [0u8; 10];
    write(DEVICE, &32u16.to_le_bytes());
    let register: u16;
    // SAFETY: the GDT has the old descriptors and one more, and the old one is restored.
    unsafe {
        asm!(
            "sgdt [{old}]", "lgdt [{new}]", "ltr word ptr [{device}]", "str {register:x}", "lgdt [{old}]",
            old = in(reg) &mut old, new = in(reg) &pointer, device = in(reg) DEVICE, register = out(reg) register, options(nostack)
        );
    }
    check!(register == 32, "LTR");
    // SAFETY: the table belongs to this function.
    let descriptor = unsafe { ((table + 32) as *const u64).read_volatile() };
    check!(descriptor >> 40 & 0xff == 0x8b, "the task is not busy");
    Ok(())
}

/// SMSW; XOR word [RDI], 8; LMSW; SMSW EAX; CLTS.
pub fn machine_status(_: u64) -> Result<(), &'static str> {
    check!(agree(&[0x0f, 0x01, 0x27, 0x66, 0x83, 0x37, 8, 0x0f, 0x01, 0x37, 0x0f, 0x01, 0xe0, 0x0f, 0x06]), "another status");
    Ok(())
}

/// JMP by far and near pointers, and CALL.
pub fn far_jump(_: u64) -> Result<(), &'static str> {
    // LEA RAX, target; MOV [RDI], RAX; MOV word [RDI + 8], 8; JMP; UD2; target: MOV EAX, 0x77.
    let far =
        [0x48, 0x8d, 0x05, 14, 0, 0, 0, 0x48, 0x89, 0x07, 0x66, 0xc7, 0x47, 8, 8, 0, 0x48, 0xff, 0x2f, 0x0f, 0x0b, 0xb8, 0x77, 0, 0, 0];
    check!(agree(&far), "JMP of m16:64");
    // Likewise with 32 bits.
    let far = [0x48, 0x8d, 0x05, 13, 0, 0, 0, 0x48, 0x89, 0x07, 0x66, 0xc7, 0x47, 4, 8, 0, 0xff, 0x2f, 0x0f, 0x0b, 0xb8, 0x77, 0, 0, 0];
    check!(agree(&far), "JMP of m16:32");
    let near = [0x48, 0x8d, 0x05, 7, 0, 0, 0, 0x48, 0x89, 0x07, 0xff, 0x27, 0x0f, 0x0b, 0xb8, 0x66, 0, 0, 0];
    check!(agree(&near), "JMP of m64");
    // CALL [RDI]; JMP to the end; the function: MOV EBX, 0x33; RET.
    let call = [0x48, 0x8d, 0x05, 7, 0, 0, 0, 0x48, 0x89, 0x07, 0xff, 0x17, 0xeb, 6, 0xbb, 0x33, 0, 0, 0, 0xc3];
    check!(agree(&call), "CALL of m64");
    // LEA RAX, target; MOV [RDI], RAX; MOV word [RDI + 8], 8; CALL of m16:64; JMP to the end; target: MOV EBX, 0x44; RETF of 64 bits.
    let far = [
        0x48, 0x8d, 0x05, 14, 0, 0, 0, 0x48, 0x89, 0x07, 0x66, 0xc7, 0x47, 8, 8, 0, 0x48, 0xff, 0x1f, 0xeb, 7, 0xbb, 0x44, 0, 0, 0, 0x48,
        0xcb,
    ];
    check!(agree(&far), "CALL of m16:64");
    Ok(())
}
