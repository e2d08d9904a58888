//! Control registers, XCR0 and debug registers: reserved values, and illegal changes of mode.

use common::check;
use common::fail::{Fail, Outcome};
use common::random::Random;

use crate::cpu::{self, selector};
use crate::odd::odd;
use crate::{phase_machine, window};

const GENERAL_PROTECTION: u64 = 13;

fn noise() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(300) {
            once(&mut random);
        }
        Ok(())
    })
}

/// Changes of CR0 that the processor refuses, combined with a cache control bit, which a hypervisor may check
/// itself.
fn refused() -> Outcome {
    // mov rax, cr0; btr rax, 31; btc rax, 30; mov cr0, rax: paging off in 64-bit code.
    let end = cpu::run(&[0x0f, 0x20, 0xc0, 0x48, 0x0f, 0xba, 0xf0, 31, 0x48, 0x0f, 0xba, 0xf8, 30, 0x0f, 0x22, 0xc0], [0; 16]);
    check!(end.vector == GENERAL_PROTECTION, "paging goes off in 64-bit code: vector {}", end.vector);
    // The case in 32-bit code, with PCIDs enabled: mov eax, cr4; bts eax, 17; mov cr4, eax, and the rest
    // without REX.
    let has_contexts = core::arch::x86_64::__cpuid(1).ecx & 1 << 17 != 0;
    if has_contexts {
        const CODE: [u8; 24] = [
            0x0f, 0x20, 0xe0, 0x0f, 0xba, 0xe8, 17, 0x0f, 0x22, 0xe0, 0x0f, 0x20, 0xc0, 0x0f, 0xba, 0xf0, 31, 0x0f, 0xba, 0xf8, 30, 0x0f,
            0x22, 0xc0,
        ];
        let mut frame = cpu::kernel(&CODE, [0; 16]);
        frame.cs = selector::CODE_32;
        let end = cpu::enter(&frame);
        check!(end.vector == GENERAL_PROTECTION, "paging goes off with process contexts: vector {}", end.vector);
    }
    cpu::restore();
    // In 32-bit code the upper half of a register is ignored: xor eax... with rsi's upper half set; mov cr0,
    // esi.
    let mut registers = [0; 16];
    registers[6] = 0xdead_beef_0000_0000 | 1 << 31 | 1 << 30 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
    let mut frame = cpu::kernel(&[0x0f, 0x22, 0xc6], registers);
    frame.cs = selector::CODE_32;
    let end = cpu::enter(&frame);
    check!(end.vector == 3, "a register of 32 bits is refused: vector {}", end.vector);
    cpu::restore();
    // Bits of CR4 of features that CPUID does not enumerate: SMXE, PKE, CET, and an undefined one.
    for bit in [14u32, 22, 23, 40] {
        let mut registers = [0; 16];
        registers[6] = 1 << 5 | 1 << 9 | 1u64 << bit;
        let end = cpu::run(&[0x0f, 0x22, 0xe6], registers);
        check!(end.vector == GENERAL_PROTECTION, "CR4 takes bit {bit}: vector {}", end.vector);
        cpu::restore();
    }
    Ok(())
}

/// Instructions that exit at the end of the 32-bit address space: execution wraps around.
fn wraps() -> Outcome {
    const BREAKPOINT: u64 = 3;
    let zero = core::hint::black_box(0u64) as *mut u8;
    // SAFETY: the first byte of RAM is unused.
    unsafe { core::arch::asm!("mov byte ptr [{}], 0xcc", in(reg) zero, options(nostack)) };
    let page = cpu::code_page();
    let mut outcome = Ok(());
    // cpuid, handled by a leaf; in al, 0x80.
    for code in [[0x0f, 0xa2], [0xe4, 0x80]] {
        let mut frame = cpu::kernel(&[], [0; 16]);
        // SAFETY: the last two bytes of this CPU's page of code, which no other CPU accesses and which does not run now.
        unsafe { ((page + 4094) as *mut [u8; 2]).write_volatile(code) };
        window::map_last(Some(page));
        (frame.cs, frame.rip) = (selector::CODE_32, 0xffff_fffe);
        let end = cpu::enter(&frame);
        window::map_last(None);
        if (end.vector, end.rip) != (BREAKPOINT, 1) {
            outcome = Err(Fail::new(format_args!("{code:x?} at the end of addresses: {end:x?}")));
        }
    }
    outcome
}

/// DR7.GD, which a phase may leave set: the next access to a debug register faults, wherever it is.
fn guarded() -> Outcome {
    const GENERAL_DETECT: u64 = 1 << 13;
    let mut registers = [0; 16];
    registers[6] = 0x400 | GENERAL_DETECT;
    // mov dr7, rsi
    cpu::run(&[0x0f, 0x23, 0xfe], registers);
    cpu::restore();
    Ok(())
}

/// The phase.
pub fn run() -> Outcome {
    refused()?;
    guarded()?;
    wraps()?;
    noise()
}

/// Any value for a control, debug or extended control register.
pub fn once(random: &mut Random) -> u64 {
    let mut registers = odd(random);
    let control = match random.below(6) {
        // mov cr0, rsi: protection, paging and write protection stay.
        0 => {
            registers[6] = registers[6] & !(1 << 16) | 1 << 31 | 1 << 16 | 1;
            &[0x0f, 0x22, 0xc6][..]
        }
        // mov cr4, rsi: without SMEP and SMAP, because of user pages, and with PAE.
        1 => {
            registers[6] = registers[6] & !(3 << 20) | 1 << 5;
            &[0x0f, 0x22, 0xe6]
        }
        // mov cr8, rsi; mov rsi, cr8; mov cr5, rsi.
        2 => [&[0x44, 0x0f, 0x22, 0xc6][..], &[0x44, 0x0f, 0x20, 0xc6], &[0x0f, 0x22, 0xee]][random.below(3) as usize],
        // XSETBV, with CR4.OSXSAVE.
        3 => {
            registers[1] = random.below(3);
            // mov rbx, cr4; bts rbx, 18; mov cr4, rbx; xsetbv
            &[0x0f, 0x20, 0xe3, 0x48, 0x0f, 0xba, 0xeb, 18, 0x0f, 0x22, 0xe3, 0x0f, 0x01, 0xd1]
        }
        // mov dr0/dr2/dr4/dr6/dr7, rsi. They match this code's own accesses, if any.
        4 => {
            let which = [0xc6u8, 0xd6, 0xe6, 0xf6, 0xfe][random.below(5) as usize];
            cpu::run(&[0x0f, 0x23, which], registers);
            return 1;
        }
        // lmsw si; clts; smsw rsi
        _ => {
            registers[6] |= 1;
            &[0x0f, 0x01, 0xf6, 0x0f, 0x06, 0x0f, 0x01, 0xe6]
        }
    };
    cpu::run(control, registers);
    cpu::restore();
    1
}
