//! CPUs that are reset and restarted by all others, in real mode, and execute instructions like the kernel
//! phases'.

use common::check;
use common::fail::Outcome;
use pc::lapic::{self, command};
use pc::others;

use crate::{cpu, phase_machine};

/// The page that they start in.
const PAGE: u32 = 0x20;

/// Real mode: a handler for each exception that skips the faulting instruction; instructions that a
/// hypervisor refuses.
const CODE: &[u8] = &[
    0xfa, //                            cli
    0x31, 0xc0, //                      xor ax, ax
    0x8e, 0xd8, //                      mov ds, ax
    0x8e, 0xd0, //                      mov ss, ax
    0xbc, 0x00, 0x70, //                mov sp, 0x7000
    0xc7, 0x06, 0x34, 0x00, 0x80, 0x00, // mov word ptr [13 * 4], 0x80
    0x8c, 0x0e, 0x36, 0x00, //          mov [13 * 4 + 2], cs
    0xc7, 0x06, 0x18, 0x00, 0x80, 0x00, // mov word ptr [6 * 4], 0x80
    0x8c, 0x0e, 0x1a, 0x00, //          mov [6 * 4 + 2], cs
    0xc7, 0x06, 0x30, 0x00, 0x80, 0x00, // mov word ptr [12 * 4], 0x80
    0x8c, 0x0e, 0x32, 0x00, //          mov [12 * 4 + 2], cs
    0x66, 0xb9, 0x78, 0x56, 0x34, 0x12, // mov ecx, 0x12345678
    0x0f, 0x32, //                      rdmsr: #GP, without an error code here
    0x0f, 0x30, //                      wrmsr
    0x0f, 0x33, //                      rdpmc
    0x2e, 0xfe, 0x06, 0x00, 0x0f, //    inc byte ptr cs:[0xf00]
    0x0f, 0xa2, //                      cpuid
    0xb0, 0x55, //                      mov al, 0x55
    0xe6, 0x80, //                      out 0x80, al
    0x66, 0xb9, 0x05, 0x00, 0x00, 0x00, // mov ecx, 5
    0xbf, 0xff, 0xff, //                mov di, 0xffff
    0xf3, 0x6d, //                      rep insw: over the end of the segment
    0x2e, 0xfe, 0x06, 0x00, 0x0f, //    inc byte ptr cs:[0xf00]
    0xf4, //                            hlt
    0xeb, 0xfd, //                      jmp to it
];

/// At 0x80 of the page: continues two bytes after the faulting instruction, the length of all that can fault.
const HANDLER: &[u8] = &[
    0x55, //                            push bp
    0x89, 0xe5, //                      mov bp, sp
    0x83, 0x46, 0x02, 0x02, //          add word ptr [bp + 2], 2
    0x5d, //                            pop bp
    0xcf, //                            iret
];

/// The phase.
pub fn run() -> Outcome {
    if cpu::count() < 2 {
        return Ok(());
    }
    let mut random = phase_machine::random();
    let write = |address: u64, bytes: &[u8]| {
        for (n, &byte) in bytes.iter().enumerate() {
            // SAFETY: an otherwise unused page of RAM below 1 MiB.
            unsafe { ((address + n as u64) as *mut u8).write_volatile(byte) };
        }
    };
    assert!(CODE.len() <= 0x80);
    write(u64::from(PAGE) << 12, CODE);
    write(u64::from(PAGE) << 12 | 0x80, HANDLER);
    write(0x30 << 12, &[0xfa, 0xf4, 0xeb, 0xfd]);
    for round in 0..20 {
        write(u64::from(PAGE) << 12 | 0xf00, &[0]);
        start(command::INIT, 0);
        start(command::STARTUP, PAGE);
        // SAFETY: a byte of the page of real-mode code, RAM that is identity-mapped; that code writes it, hence the volatile access.
        let note = || unsafe { ((u64::from(PAGE) << 12 | 0xf00) as *const u8).read_volatile() };
        if round == 0 {
            let all = cpu::count() as u8 - 1;
            check!(cpu::wait(|| note() >= 2 * all), "real mode stops at {}", note());
        }
        // INIT, startup and NMI without an end, with every vector, at any moment.
        for _ in 0..random.below(12) {
            let kind = random.pick(&[command::INIT, command::STARTUP, command::STARTUP, command::NMI]);
            start(kind, if random.below(4) == 0 { PAGE } else { 0x30 });
            for _ in 0..random.below(400) {
                core::hint::spin_loop();
            }
        }
    }
    cpu::start_others()?;
    check!(others::UP.load(core::sync::atomic::Ordering::SeqCst) == cpu::count() as u32 - 1, "they do not come back");
    Ok(())
}

/// Sends to all others.
fn start(kind: u32, page: u32) {
    lapic::send(0, command::OTHERS | kind | command::ASSERT | page);
}
