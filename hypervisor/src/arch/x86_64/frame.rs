//! Operands of `frame.S`, `record.S` and `speculation.S`, the common parts of the exit paths of VMX and AMD-V.

/// `global_asm!` of an exit path: `frame.S`, `record.S` and `speculation.S`, then these files, with these operands and those that both paths have.
macro_rules! exit_path {
    ($($file:expr),+; $($operands:tt)+) => {
        core::arch::global_asm!(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/arch/x86_64/frame.S")),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/arch/x86_64/record.S")),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/arch/x86_64/speculation.S")),
            $($file,)+
            REGISTERS = const $crate::arch::x86_64::host::cpu::REGISTERS,
            SINCE = const $crate::arch::x86_64::host::cpu::SINCE,
            ROWS = const $crate::arch::x86_64::host::cpu::ROWS,
            TAKEN = const $crate::arch::x86_64::host::cpu::TAKEN,
            APIC_BASE = const $crate::arch::x86_64::host::cpu::APIC_BASE,
            CPUID = const $crate::arch::x86_64::host::cpu::CPUID,
            CPUID_LEAVES = const $crate::arch::x86_64::host::cpuid::LEAVES,
            CPUID_ANSWERS = const $crate::arch::x86_64::host::cpuid::ANSWERS,
            APIC_BASE_MSR = const $crate::arch::x86_64::host::instructions::msr::IA32_APIC_BASE,
            NO_SUCH_CALL = const $crate::arch::x86_64::handler::NO_SUCH_CALL,
            SEND_IPI = const $crate::arch::x86_64::handler::SEND_IPI,
            COUNT = const core::mem::offset_of!(stile_ledger::Row, count),
            TICKS = const core::mem::offset_of!(stile_ledger::Row, ticks),
            MIN = const core::mem::offset_of!(stile_ledger::Row, min),
            MAX = const core::mem::offset_of!(stile_ledger::Row, max),
            ROW_SHIFT = const stile_ledger::layout::ROW_SHIFT,
            APIC_BASE_ROW = const stile_ledger::x86_64::RDMSR_APIC_BASE.raw(),
            CPUID_ROW = const stile_ledger::x86_64::reason::CPUID.other().raw(),
            VMCALL_ROW = const stile_ledger::x86_64::reason::VMCALL.other().raw(),
            VCPU = const $crate::arch::x86_64::host::cpu::VCPU,
            VCPU_ID = const core::mem::offset_of!($crate::vm::Vcpu, id),
            RECORD_SLOT = const $crate::arch::x86_64::host::cpu::RECORD_SLOT,
            RECORDS_DROPPED = const $crate::arch::x86_64::host::cpu::RECORDS_DROPPED,
            ROW_OF_ICR = const stile_ledger::x86_64::WRMSR_X2APIC_ICR.raw(),
            ROWS_OF_APIC = const stile_ledger::x86_64::local_apic(true).raw(),
            ROWS_OF_APIC_LAST = const stile_ledger::x86_64::APIC_WRITE.raw(),
            DATA_SELECTOR = const $crate::arch::x86_64::host::cpu::DATA,
            FLAGS = sym $crate::arch::x86_64::host::speculation::FLAGS,
            IBRS_AT_EXITS = const $crate::arch::x86_64::host::speculation::IBRS_AT_EXITS,
            IA32_SPEC_CTRL = const $crate::arch::x86_64::host::instructions::msr::IA32_SPEC_CTRL,
            SPEC_CTRL = const $crate::arch::x86_64::host::cpu::SPEC_CTRL,
            $($operands)+
        );
    };
}

pub(super) use exit_path;
