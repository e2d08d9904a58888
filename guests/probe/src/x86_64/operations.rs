//! A PC's operations. Those of xAPIC mode are first: x2APIC mode can't be left.

use core::sync::atomic::Ordering::Acquire;

use super::cpu::TAKEN_BY_ALL;
use super::measure::{loop_ticks, no_operation, within_a_page};
use super::platform::Platform;
use super::second::{self, Role};
use super::{apic, console, cpu, gate, interrupts, others, ports};
use crate::measure::{all_ticks, net_ticks};
use crate::operation::{Needs, Operation};

const fn operation(name: &'static str, run: fn(&Platform, u64) -> u64) -> Operation {
    Operation { name, needs: Needs::One, divisor: 1, run, net: net_ticks }
}

/// All of them.
pub const OPERATIONS: [Operation; 29] = [
    operation("cpuid", cpuid),
    operation("vmcall", vmcall),
    operation("vmmcall", vmmcall),
    operation("rdmsr_trap", rdmsr_trap),
    operation("port_read", port_read),
    operation("port_read_pic", port_read_pic),
    operation("lapic_id_read", lapic_id_read),
    operation("lapic_timer_read", lapic_timer_read),
    operation("eoi_xapic", eoi_xapic),
    operation("self_ipi_xapic", self_ipi_xapic),
    Operation { divisor: 8, net: all_ticks, ..operation("tscdeadline_fire_xapic", tscdeadline_fire_xapic) },
    operation("lapic_id_read_x2apic", lapic_id_read_x2apic),
    operation("lapic_timer_read_x2apic", lapic_timer_read_x2apic),
    operation("eoi", eoi),
    operation("self_ipi", self_ipi),
    operation("icr_self", icr_self),
    operation("icr_nobody", icr_nobody),
    operation("hlt_pending", hlt_pending),
    operation("tscdeadline", tscdeadline),
    Operation { divisor: 8, net: all_ticks, ..operation("tscdeadline_fire", tscdeadline_fire) },
    Operation { divisor: 8, net: all_ticks, ..operation("tscdeadline_fire_direct", tscdeadline_fire_direct) },
    Operation { divisor: 8, net: all_ticks, ..operation("host_interrupt", host_interrupt) },
    Operation { needs: Needs::Two, ..operation("ipi", ipi) },
    Operation { needs: Needs::Two, divisor: 8, net: all_ticks, ..operation("ipi_hlt", ipi_hlt) },
    Operation { needs: Needs::Shared, divisor: 4, net: all_ticks, ..operation("ipi_hlt_shared", ipi_hlt_shared) },
    Operation { needs: Needs::Shared, divisor: 4, net: all_ticks, ..operation("ipi_shared", ipi_shared) },
    Operation { needs: Needs::Two, ..operation("ipi_gate", ipi_gate) },
    Operation { needs: Needs::All, divisor: 4, net: all_ticks, ..operation("ipi_broadcast", ipi_broadcast) },
    // The last: from then on the ICR is the physical one.
    Operation { needs: Needs::Two, ..operation("ipi_direct", ipi_direct) },
];

/// Leaf 0, which never changes.
fn cpuid(_platform: &Platform, n: u64) -> u64 {
    loop_ticks!(n, ["xor eax, eax", "cpuid"], out("rcx") _)
}

/// A call that no hypervisor knows.
fn vmcall(_platform: &Platform, n: u64) -> u64 {
    loop_ticks!(n, ["mov eax, 0x4b000000", "vmcall"], out("rcx") _, out("rsi") _)
}

/// A hypercall on AMD's processors.
fn vmmcall(_platform: &Platform, n: u64) -> u64 {
    loop_ticks!(n, ["mov eax, 0x4b000000", "vmmcall"], out("rcx") _, out("rsi") _)
}

/// IA32_APIC_BASE.
fn rdmsr_trap(_platform: &Platform, n: u64) -> u64 {
    rdmsr(apic::BASE, n)
}

fn rdmsr(register: u32, n: u64) -> u64 {
    loop_ticks!(n, ["rdmsr"], in("ecx") register)
}

/// A write of zero.
fn wrmsr_zero(register: u32, n: u64) -> u64 {
    loop_ticks!(n, ["xor eax, eax", "xor edx, edx", "wrmsr"], in("ecx") register)
}

/// The serial port's line status.
fn port_read(_platform: &Platform, n: u64) -> u64 {
    read_port(console::LINE_STATUS, n)
}

/// The first PIC's mask: a device that KVM has in the kernel.
fn port_read_pic(_platform: &Platform, n: u64) -> u64 {
    const MASK: u16 = 0x21;
    const ALL_BUT_ONE: u8 = 0xfb;
    ports::out8(MASK, ALL_BUT_ONE);
    if ports::in8(MASK) != ALL_BUT_ONE {
        cpu::note_absent();
    }
    let ticks = read_port(MASK, n);
    ports::out8(MASK, 0xff);
    ticks
}

fn read_port(port: u16, n: u64) -> u64 {
    loop_ticks!(n, ["mov edx, ecx", "in al, dx"], in("ecx") u32::from(port))
}

fn page_read(register: u64, n: u64) -> u64 {
    apic::need_xapic();
    loop_ticks!(n, ["mov eax, [r10]"], in("r10") apic::PAGE + register)
}

/// The APIC's ID, which never changes, by its page.
fn lapic_id_read(_platform: &Platform, n: u64) -> u64 {
    page_read(apic::ID, n)
}

/// The timer's current count, by the APIC's page.
fn lapic_timer_read(_platform: &Platform, n: u64) -> u64 {
    with_timer(false, || page_read(apic::CURRENT_COUNT, n))
}

/// An end of interrupt, of none, so that it can be repeated; by the APIC's page.
fn eoi_xapic(_platform: &Platform, n: u64) -> u64 {
    apic::need_xapic();
    loop_ticks!(n, ["mov dword ptr [r10], 0"], in("r10") apic::PAGE + apic::EOI)
}

/// An IPI to this CPU by the APIC's page, until its handler has run.
fn self_ipi_xapic(_platform: &Platform, n: u64) -> u64 {
    apic::need_xapic();
    unmasked(|| {
        loop_ticks!(n, ["inc r10", "mov [rsi], edi", "3: cmp [r11], r10", "jb 3b"],
            inout("r10") cpu::taken(0) => _, in("r11") cpu::taken_address(0),
            in("rsi") apic::PAGE + apic::ICR, in("edi") apic::TO_SELF | apic::ASSERT | u32::from(interrupts::FIRST))
    })
}

/// The APIC's ID by its register.
fn lapic_id_read_x2apic(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    rdmsr(apic::msr(apic::ID), n)
}

/// The timer's current count by its register.
fn lapic_timer_read_x2apic(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    with_timer(false, || rdmsr(apic::msr(apic::CURRENT_COUNT), n))
}

/// An end of interrupt by its register.
fn eoi(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    wrmsr_zero(apic::msr(apic::EOI), n)
}

/// An IPI to this CPU by SELF IPI, until its handler has run.
fn self_ipi(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    unmasked(|| send_and_wait(apic::msr(apic::SELF_IPI), interrupts::FIRST.into(), 0, n))
}

/// An IPI to this CPU by the ICR, to its identifier, until its handler has run.
fn icr_self(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    unmasked(|| send_and_wait(apic::msr(apic::ICR), u64::from(apic::ASSERT) | u64::from(interrupts::FIRST), 0, n))
}

/// A write of the ICR without a receiver: no APIC has the identifier.
fn icr_nobody(_platform: &Platform, n: u64) -> u64 {
    const NOBODY: u32 = 0x7f;
    apic::need_x2apic();
    loop_ticks!(n, ["mov eax, esi", "mov edx, edi", "wrmsr"],
        in("ecx") apic::msr(apic::ICR), in("esi") apic::ASSERT | u32::from(interrupts::FIRST), in("edi") NOBODY)
}

/// HLT with an interrupt pending, of the CPU's own by its register, until its handler has run.
fn hlt_pending(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    loop_ticks!(n, ["mov eax, esi", "xor edx, edx", "wrmsr", "sti", "hlt", "cli"],
        in("ecx") apic::msr(apic::SELF_IPI), in("esi") u32::from(interrupts::FIRST))
}

/// An IPI to the other CPU, which runs, until this one sees that its handler has run.
fn ipi(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    send_and_wait(apic::msr(apic::ICR), apic::command_of_interrupt(1, interrupts::SECOND), 1, n)
}

/// An IPI to all other CPUs, which run, until this one sees that all handlers have run.
fn ipi_broadcast(_platform: &Platform, n: u64) -> u64 {
    let others = others::start();
    let start = cpu::now();
    for _ in 0..n {
        let before = TAKEN_BY_ALL.load(Acquire);
        apic::interrupt_others(interrupts::ALL);
        while TAKEN_BY_ALL.load(Acquire) - before < others {
            no_operation();
        }
    }
    cpu::now() - start
}

/// An IPI to the other CPU, which waits by HLT, until this one sees that its handler has run.
fn ipi_hlt(platform: &Platform, n: u64) -> u64 {
    second::play(platform, Role::Sleep);
    let once = |_| {
        cpu::pause(ASLEEP);
        send_and_wait(apic::msr(apic::ICR), apic::command_of_interrupt(1, interrupts::SECOND), 1, 1)
    };
    (0..n).map(once).sum()
}

/// An IPI to a vCPU that waits by HLT on the same CPU as the sender, which then waits for the reply.
fn ipi_hlt_shared(platform: &Platform, n: u64) -> u64 {
    second::play(platform, Role::Reply);
    rounds(n, |before| {
        while cpu::taken(0) == before {
            cpu::halt();
        }
    })
}

/// An IPI to a vCPU that spins on the same CPU as the sender, which then spins for the reply.
fn ipi_shared(platform: &Platform, n: u64) -> u64 {
    second::play(platform, Role::Echo);
    rounds(n, |before| {
        cpu::unmask();
        while cpu::taken(0) == before {
            no_operation();
        }
        cpu::mask();
    })
}

/// The ticks of `n` one-way messages, half of them to the second CPU and half of them back.
fn rounds(n: u64, wait: fn(u64)) -> u64 {
    let start = cpu::now();
    for _ in 0..n.div_ceil(2) {
        let before = cpu::taken(0);
        apic::interrupt(1, interrupts::SECOND);
        wait(before);
    }
    (cpu::now() - start) * n / (n.div_ceil(2) * 2)
}

/// An IPI by the posted-interrupt descriptor of the other CPU, and the physical ICR.
fn ipi_direct(_platform: &Platform, n: u64) -> u64 {
    const VECTOR: u8 = interrupts::SECOND;
    apic::need_x2apic();
    let Some(descriptor) = apic::send_directly(apic::DIRECT, 1) else { return 0 };
    loop_ticks!(n, [
            "inc r10",
            "lock bts dword ptr [rsi + {word}], {bit}", "jc 3f",
            "lock bts dword ptr [rsi + 32], 0", "jc 3f",
            "mov rax, [rsi + 32]", "mov rdx, rax", "shr eax, 16", "movzx eax, al", "shr rdx, 32",
            "wrmsr",
            "3: cmp [r11], r10", "jb 3b"],
        inout("r10") cpu::taken(1) => _, in("r11") cpu::taken_address(1),
        in("ecx") apic::msr(apic::ICR), in("rsi") descriptor, word = const VECTOR / 32 * 4, bit = const VECTOR % 32)
}

/// An IPI by the posted-interrupt descriptor of the other CPU, and the gate.
fn ipi_gate(_platform: &Platform, n: u64) -> u64 {
    const VECTOR: u8 = interrupts::SECOND;
    apic::need_x2apic();
    let Some(descriptor) = apic::send_directly(gate::FEATURE, 1) else { return 0 };
    gate::setup();
    loop_ticks!(n, after within_a_page!(), [
            "inc r10",
            "lock bts dword ptr [rsi + {word}], {bit}", "jc 3f",
            "lock bts dword ptr [rsi + 32], 0", "jc 3f",
            "xor eax, eax", "mov ecx, 1", "call rdi",
            "3: cmp [r11], r10", "jb 3b"],
        inout("r10") cpu::taken(1) => _, in("r11") cpu::taken_address(1), out("rcx") _,
        in("rdi") gate::entry(1), in("rsi") descriptor, word = const VECTOR / 32 * 4, bit = const VECTOR % 32)
}

/// Writes `value` to a register, which interrupts a CPU.
fn send_and_wait(register: u32, value: u64, cpu: usize, n: u64) -> u64 {
    loop_ticks!(n, ["inc r10", "mov eax, esi", "mov edx, edi", "wrmsr", "3: cmp [r11], r10", "jb 3b"],
        inout("r10") cpu::taken(cpu) => _, in("r11") cpu::taken_address(cpu),
        in("ecx") register, in("esi") value as u32, in("edi") (value >> 32) as u32)
}

/// A deadline that is far away: ten seconds.
fn tscdeadline(_platform: &Platform, n: u64) -> u64 {
    const FAR: u64 = 10_000_000;
    let deadline = cpu::now() + cpu::ticks(FAR);
    with_timer(true, || {
        loop_ticks!(n, ["mov eax, esi", "mov edx, edi", "wrmsr"],
            in("ecx") apic::TSC_DEADLINE, in("esi") deadline as u32, in("edi") (deadline >> 32) as u32)
    })
}

/// A deadline that is set, expires and interrupts, without the wait for it; interrupts are ended by the APIC's page.
fn tscdeadline_fire_xapic(_platform: &Platform, n: u64) -> u64 {
    apic::need_xapic();
    fire(n)
}

/// A deadline that is set, expires and interrupts; interrupts are ended by the APIC's register.
fn tscdeadline_fire(_platform: &Platform, n: u64) -> u64 {
    apic::need_x2apic();
    fire(n)
}

/// As [`tscdeadline_fire`], with a timer whose expiry is a notification of posted interrupts: this CPU requests the timer's vector
/// in its descriptor whenever it sets a deadline, and compares the counter when the interrupt has come, which may be early.
fn tscdeadline_fire_direct(_platform: &Platform, n: u64) -> u64 {
    const VECTOR: u8 = interrupts::FIRST;
    apic::need_x2apic();
    let Some(descriptor) = apic::direct_timer() else { return 0 };
    let once = |_| {
        let (start, end, turns): (u64, u64, u64);
        // SAFETY: the timer's interrupt changes its count only, and the descriptor is Stile's.
        unsafe {
            core::arch::asm!(
                "rdtsc", "shl rdx, 32", "or rax, rdx", "mov r8, rax",
                "add rax, rsi", "mov r9, rax", "mov rdx, rax", "shr rdx, 32",
                "lock bts dword ptr [r12 + {word}], {bit}", "wrmsr",
                "3: inc rdi", "cmp [r11], r10", "jb 3b",
                "rdtsc", "shl rdx, 32", "or rax, rdx", "cmp rax, r9", "jae 4f",
                "inc r10", "lock bts dword ptr [r12 + {word}], {bit}", "jmp 3b",
                "4:",
                out("r8") start, out("rax") end, out("rdx") _, out("r9") _, in("r12") descriptor,
                in("ecx") apic::TSC_DEADLINE, in("rsi") cpu::ticks(AHEAD), inout("rdi") 0u64 => turns,
                inout("r10") cpu::taken(0) + 1 => _, in("r11") cpu::taken_address(0),
                word = const VECTOR / 32 * 4, bit = const VECTOR % 32);
        }
        (end - start).saturating_sub(TURN * turns)
    };
    let ticks = unmasked(|| with_timer(true, || (0..n).map(once).sum()));
    apic::end_direct();
    ticks
}

/// Microseconds after which the other CPU is asleep under any hypervisor.
const ASLEEP: u64 = 50;
/// Microseconds to a deadline: long enough for any hypervisor to be back in the guest.
const AHEAD: u64 = 50;
/// Instructions of a turn of the wait for it.
const TURN: u64 = 3;

fn fire(n: u64) -> u64 {
    let once = |_| {
        let (start, end, turns): (u64, u64, u64);
        // SAFETY: the timer's interrupt changes its count only.
        unsafe {
            core::arch::asm!(
                "rdtsc", "shl rdx, 32", "or rax, rdx", "mov r8, rax",
                "add rax, rsi", "mov rdx, rax", "shr rdx, 32", "wrmsr",
                "3: inc rdi", "cmp [r11], r10", "jb 3b",
                "rdtsc", "shl rdx, 32", "or rax, rdx",
                out("r8") start, out("rax") end, out("rdx") _, in("ecx") apic::TSC_DEADLINE, in("rsi") cpu::ticks(AHEAD),
                inout("rdi") 0u64 => turns, in("r10") cpu::taken(0) + 1, in("r11") cpu::taken_address(0));
        }
        (end - start).saturating_sub(TURN * turns)
    };
    // The timer stays on: in a section of few iterations, the exits of setting it up would count.
    apic::keep_timer();
    unmasked(|| (0..n).map(once).sum())
}

/// An interrupt of the host's while this CPU spins: a gap between two reads of the counter.
fn host_interrupt(_platform: &Platform, n: u64) -> u64 {
    /// Longer than a turn of the loop, shorter than any exit.
    const GAP: u64 = 50;
    /// Microseconds in which a host with a tick interrupts.
    const LIMIT: u64 = 50_000;
    let gap = |_| {
        let mut last = cpu::now();
        let until = last + cpu::ticks(LIMIT);
        loop {
            let now = cpu::now();
            if now - last > GAP {
                return now - last;
            }
            if now > until {
                cpu::note_absent();
                return 0;
            }
            last = now;
        }
    };
    (0..n).map(gap).sum()
}

fn unmasked(run: impl FnOnce() -> u64) -> u64 {
    cpu::unmask();
    let ticks = run();
    cpu::mask();
    ticks
}

fn with_timer(by_deadline: bool, run: impl FnOnce() -> u64) -> u64 {
    apic::start_timer(by_deadline);
    let ticks = run();
    apic::stop_timer();
    ticks
}
