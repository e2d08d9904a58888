//! The tests of the PC suite.

mod deadline;
mod debug;
pub mod firmware;
mod interrupts;
mod own_ipis;
mod paging;
mod paravirtual_eoi;
mod preempted;
pub mod qemu;
mod registers;
mod smp;
mod speculation;
mod stepped_nmis;
pub mod tasks;
pub mod test;
mod user;
mod vector;

pub use deadline::{many as many_deadlines, migrate_repeatedly, stop_pit};
pub use firmware::{reset_by_a_line, sleep, wake};
pub use smp::deadlock;

/// The test of IA32_SPEC_CTRL, for CPUs on which the others have not been tried.
pub fn speculation_control() -> Result<(), &'static str> {
    speculation::control(0)
}

use core::arch::asm;
use core::arch::x86_64::__cpuid_count as cpuid;

use crate::console::println;
use crate::exception::catch;
use crate::machine::{in8, out8};
use pc::hypercall::is_amds;
use test::{On, Test, check};
use vector::{GENERAL_PROTECTION, UNDEFINED};

/// All tests, in the order in which they run.
pub const ALL: &[Test] = &[
    ("multiboot_information", On::Any, multiboot_information),
    // Before others touch the local APIC.
    ("timer_without_an_apic", On::Any, firmware::timer_without_an_apic),
    ("cpuid_of_a_guest", On::Stile, cpuid_of_a_guest),
    ("cpuid_beyond_the_last_leaf", On::Stile, cpuid_beyond_the_last_leaf),
    ("hypercall_unknown", On::Stile, hypercall_unknown),
    ("hypercall_of_user_mode", On::Stile, user::hypercall),
    ("vmx_hidden", On::Stile, vmx_hidden),
    ("msr_not_there", On::Stile, msr_not_there),
    ("msr_of_the_guest", On::Any, msr_of_the_guest),
    ("exiting_code_changes", On::Stile, paging::exiting_code_changes),
    ("speculation_control", On::Stile, speculation::control),
    ("control_registers", On::Any, control_registers),
    ("cr4_of_features", On::Any, paging::cr4_of_features),
    ("paging_stays_on", On::Any, paging::paging_stays_on),
    ("pointers_of_pae", On::Any, paging::pointers_of_pae),
    ("long_mode_by_64_bit_code", On::Any, paging::activation),
    ("fetch_through_no_memory", On::Stile, paging::fetch_through_no_memory),
    ("hypercall_at_the_edge", On::Stile, paging::at_the_edge),
    ("xcr0", On::Any, xcr0),
    ("simd_registers_survive", On::Any, simd_registers_survive),
    ("registers_survive", On::Stile, registers_survive),
    ("unassigned_port", On::Stile, unassigned_port),
    ("serial_scratch", On::Any, serial_scratch),
    ("tsc_advances", On::Any, tsc_advances),
    ("firmware_configuration", On::Stile, firmware::configuration),
    ("acpi_tables", On::Any, firmware::acpi_tables),
    ("processor_tables", On::Any, firmware::processor_tables),
    ("acpi_timer", On::Stile, firmware::acpi_timer),
    ("keyboard_controller", On::Any, firmware::keyboard_controller),
    ("screen_controller", On::Any, firmware::screen_controller),
    ("test_word", On::Stile, firmware::test_word),
    ("strings_of_ports", On::Stile, firmware::strings_of_ports),
    ("strings_to_untouched_memory", On::Stile, firmware::strings_to_untouched_memory),
    ("registers_kept", On::Any, registers::kept),
    ("time_stamp_counter", On::Stile, registers::time_stamp_counter),
    ("stolen_time", On::Stile, registers::stolen_time),
    ("apic_base", On::Stile, registers::apic_base),
    ("interrupts_to_oneself", On::Any, interrupts::to_oneself),
    ("ends_by_a_bit_where", On::Stile, paravirtual_eoi::values),
    ("ends_by_a_bit", On::Stile, paravirtual_eoi::ends_interrupts),
    ("apic_timer", On::Any, interrupts::timer),
    ("deadlines", On::Stile, deadline::arming),
    ("deadlines_and_the_local_vector", On::Stile, deadline::local_vector),
    ("deadlines_and_the_counter", On::Stile, deadline::counter),
    ("lines_of_the_io_apic", On::Stile, interrupts::lines_of_the_io_apic),
    ("timer_by_the_io_apic", On::Any, firmware::timer_by_the_io_apic),
    ("timer_by_the_8259s", On::Any, firmware::timer_by_the_8259s),
    ("interrupts_by_a_pin", On::Stile, firmware::interrupts_by_a_pin),
    ("interrupt_by_a_pin_before_hlt", On::Stile, firmware::interrupt_by_a_pin_before_hlt),
    ("nmis", On::Any, interrupts::nmis),
    ("nmis_that_wait", On::Stile, interrupts::blocked_nmis),
    ("shadows", On::Any, interrupts::shadows),
    ("single_step", On::Any, interrupts::steps),
    ("single_step_in_shadows", On::Any, debug::steps),
    ("breakpoints", On::Any, debug::breakpoints),
    ("breakpoints_resumed", On::Any, debug::resumed),
    ("faults_set_rf", On::Any, debug::faults),
    ("others_start", On::Any, smp::start),
    ("others_are_broadcast_to", On::Any, smp::broadcasts),
    ("others_are_reset", On::Any, smp::init),
    ("others_accept_nothing_after_init", On::Stile, smp::interrupts_after_init),
    ("others_keep_registers", On::Stile, smp::kept),
    ("others_have_deadlines", On::Stile, deadline::init),
    ("others_are_woken_by_an_nmi", On::Any, smp::nmi_wakes),
    ("aps_take_ipis", On::Stile, smp::called),
    ("others_send_nmis", On::Stile, smp::nmis_at_once),
    ("others_interrupt_exits", On::Any, smp::amid_exits),
    ("others_set_the_timer", On::Any, smp::timer_of_another),
    ("others_lower_a_line", On::Stile, smp::fallen_line),
    ("others_disable_their_apics", On::Stile, smp::lowest_priority),
    ("others_use_the_x2apic", On::Stile, smp::mixed_modes),
    ("aps_interrupt_themselves", On::Stile, own_ipis::each),
    ("others_end_by_a_bit", On::Stile, paravirtual_eoi::after_init),
    ("others_flip_the_bit", On::Stile, paravirtual_eoi::lies),
    ("aps_alternate", On::Stile, smp::turns),
    ("aps_lose_their_cpu", On::Stile, preempted::seen),
    ("nmis_in_a_shadow", On::Stile, smp::nmis_in_a_shadow),
    ("others_step_after_init", On::Stile, stepped_nmis::steps_after_init),
    ("others_step_an_nmi", On::Stile, stepped_nmis::nmi_behind_a_step),
    ("x2apic_reserved", On::Stile, registers::x2apic_reserved),
    ("costs", On::Stile, costs),
];

fn multiboot_information(info: u64) -> Result<(), &'static str> {
    // SAFETY: the loader put its information there, and the first GiB is mapped.
    let word = |at: u64| unsafe { ((info + at) as *const u32).read_volatile() };
    check!(word(0) & 1 << 6 != 0, "no memory map");
    let (length, map) = (word(44), u64::from(word(48)) - info);
    let mut at = 0;
    let mut ram = 0u64;
    while at < u64::from(length) {
        let (size, len, kind) = (word(map + at), word(map + at + 12), word(map + at + 20));
        if kind == 1 {
            ram += u64::from(len);
        }
        at += u64::from(size) + 4;
    }
    check!(ram >= 8 << 20, "too little memory in the map");
    Ok(())
}

fn cpuid_of_a_guest(_: u64) -> Result<(), &'static str> {
    let leaf = cpuid(1, 0);
    check!(leaf.ecx & 1 << 31 != 0, "CPUID announces no hypervisor");
    check!(leaf.ecx & 1 << 5 == 0, "CPUID announces VMX");
    check!(cpuid(0x4000_0000, 0).ebx == u32::from_le_bytes(*b"Stil"), "the hypervisor's signature is wrong");
    check!(cpuid(0x8000_0001, 0).edx & 1 << 29 != 0, "no 64-bit mode");
    check!(cpuid(1, 0).eax == leaf.eax, "leaf 1 changes between reads");
    Ok(())
}

fn cpuid_beyond_the_last_leaf(_: u64) -> Result<(), &'static str> {
    for leaf in [cpuid(0, 0).eax + 1, 0x3fff_ffff, 0x4000_0200, 0x9000_0000] {
        let answer = cpuid(leaf, 0);
        check!((answer.eax, answer.ebx, answer.ecx, answer.edx) == (0, 0, 0, 0), "a leaf out of range is not zero");
    }
    Ok(())
}

fn hypercall_unknown(_: u64) -> Result<(), &'static str> {
    let answer: i64;
    // SAFETY: an unknown hypercall changes nothing but RAX.
    unsafe { asm!(pc::hypercall!(), inout("rax") 0x1234_5678i64 => answer, options(nostack)) };
    check!(answer == -1000, "VMCALL does not return -1000");
    Ok(())
}

fn vmx_hidden(_: u64) -> Result<(), &'static str> {
    check!(catch!("mov rax, cr4; or eax, 1 << 13; mov cr4, rax") == Some((GENERAL_PROTECTION, 0)), "CR4.VMXE can be set");
    let address = 0u64;
    if is_amds() {
        /// An aligned address: others raise #GP.
        const PAGE: u64 = 0x1000;
        // QEMU takes VMXON for RDRAND.
        check!(catch!("vmrun rax", "rax" = PAGE) == Some((UNDEFINED, 0)), "VMRUN");
        check!(catch!("vmsave rax", "rax" = PAGE) == Some((UNDEFINED, 0)), "VMSAVE");
        check!(catch!("stgi") == Some((UNDEFINED, 0)), "STGI");
        check!(cpuid(0x8000_0001, 0).ecx & 1 << 2 == 0, "CPUID announces SVM");
        return Ok(());
    }
    check!(catch!("vmxon [rsi]", "rsi" = &address) == Some((UNDEFINED, 0)), "VMXON");
    check!(catch!("vmread rax, rsi", "rsi" = 0x4402u64) == Some((UNDEFINED, 0)), "VMREAD");
    check!(catch!("invept rax, [rsi]", "rsi" = &address) == Some((UNDEFINED, 0)), "INVEPT");
    check!(catch!("monitor", "rax" = &address, "ecx" = 0, "edx" = 0) == Some((UNDEFINED, 0)), "MONITOR");
    Ok(())
}

fn msr_not_there(_: u64) -> Result<(), &'static str> {
    // IA32_VMX_BASIC, an unassigned MSR, and IA32_FEATURE_CONTROL.
    for register in [0x480u32, 0x1234_5678, 0x3a] {
        check!(catch!("rdmsr", "ecx" = register) == Some((GENERAL_PROTECTION, 0)), "RDMSR");
        check!(catch!("wrmsr", "ecx" = register, "eax" = 0, "edx" = 0) == Some((GENERAL_PROTECTION, 0)), "WRMSR");
    }
    Ok(())
}

fn msr_of_the_guest(_: u64) -> Result<(), &'static str> {
    // STAR, LSTAR, KERNEL_GS_BASE, SYSENTER_EIP: store values across exits.
    for register in [0xc000_0081u32, 0xc000_0082, 0xc000_0102, 0x176] {
        let (low, high): (u32, u32);
        // SAFETY: this program uses none of these MSRs: any value may be in them.
        unsafe {
            asm!("wrmsr", in("ecx") register, in("eax") register.rotate_left(8), in("edx") 0x1234, options(nostack));
            cpuid(0, 0);
            asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack));
        }
        check!((low, high) == (register.rotate_left(8), 0x1234), "an MSR does not keep its value");
    }
    // EFER has reserved bits, which raise an exception.
    check!(catch!("wrmsr", "ecx" = 0xc000_0080u32, "eax" = u32::MAX, "edx" = u32::MAX) == Some((GENERAL_PROTECTION, 0)), "EFER");
    Ok(())
}

fn control_registers(_: u64) -> Result<(), &'static str> {
    let before: u64;
    let after: u64;
    const CD: u64 = 1 << 30;
    // SAFETY: CR0.CD affects only performance, and CR0 is restored.
    unsafe {
        asm!("mov {}, cr0", out(reg) before, options(nostack));
        asm!("mov cr0, {}", in(reg) before | CD, options(nostack));
        asm!("mov {}, cr0", out(reg) after, options(nostack));
        asm!("mov cr0, {}", in(reg) before, options(nostack));
    }
    check!(after == before | CD, "CR0.CD can't be set");
    // NW without CD, and paging without protection.
    check!(catch!("mov cr0, rsi", "rsi" = before & !CD | 1 << 29) == Some((GENERAL_PROTECTION, 0)), "NW without CD");
    check!(catch!("mov cr4, rsi", "rsi" = 1u64 << 63) == Some((GENERAL_PROTECTION, 0)), "a reserved bit of CR4");
    Ok(())
}

fn xcr0(_: u64) -> Result<(), &'static str> {
    if cpuid(1, 0).ecx & 1 << 26 == 0 {
        return Ok(());
    }
    check!(cpuid(1, 0).ecx & 1 << 27 == 0, "OSXSAVE before it was set");
    // SAFETY: CPUID reported XSAVE and FXSAVE just before: CR4.OSXSAVE and CR4.OSFXSR can be set.
    unsafe { asm!("mov rax, cr4", "or eax, 1 << 18 | 1 << 9", "mov cr4, rax", out("rax") _, options(nostack)) };
    check!(cpuid(1, 0).ecx & 1 << 27 != 0, "no OSXSAVE");
    check!(catch!("xsetbv", "ecx" = 0, "eax" = 3, "edx" = 0).is_none(), "XCR0 does not take x87 and SSE");
    check!(catch!("xsetbv", "ecx" = 0, "eax" = 2, "edx" = 0) == Some((GENERAL_PROTECTION, 0)), "XCR0 takes SSE without x87");
    check!(catch!("xsetbv", "ecx" = 1, "eax" = 3, "edx" = 0) == Some((GENERAL_PROTECTION, 0)), "XCR1");
    check!(catch!("xsetbv", "ecx" = 0, "eax" = 3, "edx" = 0x8000_0000u32) == Some((GENERAL_PROTECTION, 0)), "a reserved bit of XCR0");
    Ok(())
}

fn simd_registers_survive(_: u64) -> Result<(), &'static str> {
    let (low, high): (u64, u64);
    // SAFETY: CR0.EM is clear and CR4.OSFXSR set; XMM registers are otherwise unused.
    unsafe {
        asm!("mov rax, cr4", "or eax, 1 << 9", "mov cr4, rax", out("rax") _, options(nostack));
        asm!("movq xmm7, {}", in(reg) 0x0123_4567_89ab_cdefu64, options(nostack));
        asm!("movq xmm15, {}", in(reg) !0x0123_4567_89ab_cdefu64, options(nostack));
        cpuid(0, 0);
        in8(0x80);
        asm!("movq {}, xmm7", out(reg) low, options(nostack));
        asm!("movq {}, xmm15", out(reg) high, options(nostack));
    }
    check!(low == 0x0123_4567_89ab_cdef && high == !low, "XMM7 or XMM15 does not keep its value");
    Ok(())
}

fn registers_survive(_: u64) -> Result<(), &'static str> {
    let wrong: u64;
    // SAFETY: clobbers are named; VMCALL changes RAX, and so does IN.
    unsafe {
        asm!(
            "push rbx", "push rbp",
            "mov rbx, 0x1111", "mov rcx, 0x2222", "mov rdx, 0x80", "mov rsi, 0x4444", "mov rdi, 0x5555", "mov rbp, 0x6666",
            "mov r8, 0x8888", "mov r9, 0x9999", "mov r10, 0xaaaa", "mov r11, 0xbbbb", "mov r12, 0xcccc", "mov r13, 0xdddd",
            "mov r14, 0xeeee", "mov r15, 0xffff",
            pc::hypercall!(), "in al, dx",
            "sub rbx, 0x1111", "sub rcx, 0x2222", "sub rdx, 0x80", "sub rsi, 0x4444", "sub rdi, 0x5555", "sub rbp, 0x6666",
            "sub r8, 0x8888", "sub r9, 0x9999", "sub r10, 0xaaaa", "sub r11, 0xbbbb", "sub r12, 0xcccc", "sub r13, 0xdddd",
            "sub r14, 0xeeee", "sub r15, 0xffff",
            "mov rax, rbx", "or rax, rcx", "or rax, rdx", "or rax, rsi", "or rax, rdi", "or rax, rbp", "or rax, r8", "or rax, r9",
            "or rax, r10", "or rax, r11", "or rax, r12", "or rax, r13", "or rax, r14", "or rax, r15",
            "pop rbp", "pop rbx",
            inout("rax") 1u64 => wrong, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _, out("r10") _,
            out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    check!(wrong == 0, "a general register does not keep its value");
    Ok(())
}

fn unassigned_port(_: u64) -> Result<(), &'static str> {
    // SAFETY: no device is at these ports: reads return all ones, and writes have no effect.
    unsafe {
        check!(in8(0x80) == 0xff && in8(0x5678) == 0xff, "an unassigned port does not read as all ones");
        let word: u32;
        asm!("in eax, dx", in("dx") 0x5678u16, out("eax") word, options(nostack));
        check!(word == u32::MAX, "a word is not all ones");
        out8(0x5678, 1);
    }
    Ok(())
}

fn serial_scratch(_: u64) -> Result<(), &'static str> {
    const SCRATCH: u16 = 0x3f8 + 7;
    // SAFETY: the scratch register has no function.
    unsafe {
        out8(SCRATCH, 0x5a);
        check!(in8(SCRATCH) == 0x5a, "the scratch register does not keep its value");
    }
    Ok(())
}

fn tsc_advances(_: u64) -> Result<(), &'static str> {
    // SAFETY: every x86-64 CPU has RDTSC, which has no side effect.
    let now = || unsafe { core::arch::x86_64::_rdtsc() };
    let start = now();
    cpuid(0, 0);
    check!(now() > start, "the time-stamp counter does not advance");
    Ok(())
}

/// Cost of exits in ticks, minus the loop: instructions, if the counter counts those (Bochs with one CPU).
fn costs(_: u64) -> Result<(), &'static str> {
    const TIMES: u64 = 256;
    // SAFETY: every x86-64 CPU has RDTSC, which has no side effect.
    let now = || unsafe { core::arch::x86_64::_rdtsc() };
    let measure = |operation: fn()| {
        let start = now();
        for _ in 0..TIMES {
            operation();
        }
        (now() - start) / TIMES
    };
    let nothing = measure(|| core::hint::black_box(()));
    let operations: [(&str, fn()); 5] = [
        // SAFETY: a register of the local APIC, which is mapped.
        ("lapic_id_read", || unsafe {
            asm!("mov eax, [{}]", in(reg) 0xfee0_0020u64, out("eax") _, options(nostack));
        }),
        ("cpuid", || {
            core::hint::black_box(cpuid(0, 0));
        }),
        // SAFETY: the hypervisor refuses an unknown hypercall, and changes nothing but RAX.
        ("vmcall", || unsafe { asm!(pc::hypercall!(), inout("rax") 1u64 => _, options(nostack)) }),
        // SAFETY: all CPUs with a local APIC have IA32_APIC_BASE; reading it has no side effect.
        ("rdmsr_trap", || unsafe { asm!("rdmsr", in("ecx") 0x1b, out("eax") _, out("edx") _, options(nostack)) }),
        ("port_read", || {
            // SAFETY: reading the line status changes nothing.
            core::hint::black_box(unsafe { in8(0x3f8 + 5) });
        }),
    ];
    for (name, operation) in operations {
        println!("cost {name} {}", measure(operation).saturating_sub(nothing));
    }
    Ok(())
}
