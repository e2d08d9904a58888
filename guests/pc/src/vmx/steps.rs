//! Single steps, traps and windows of L2 at instructions that exit to the hypervisor but not to L1, and what precedes what.

use pc::console::println;
use pc::exception;
use pc::lapic;

use crate::field::{self, pin, primary};
use crate::test::{Outcome, Test};
use crate::vmcs::{VIRTUAL_NMIS, code, enable, fresh, get, run, set};

pub const ALL: &[Test] = &[("steps_and_windows", steps)];

/// Exit reasons.
const EXCEPTION: u64 = 0;
const INTERRUPT_WINDOW: u64 = 7;
const NMI_WINDOW: u64 = 8;
const CPUID: u64 = 10;
const VMCALL: u64 = 18;
const TRAP: u64 = 37;
const TIMER: u64 = 52;

const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
const RF: u64 = 1 << 16;
/// Blocking by STI and by MOV SS.
const STI: u64 = 1 << 0;
const MOV_SS: u64 = 1 << 1;
/// Pending debug exceptions, and causes in the exit qualification: a single step, general detection, breakpoint 0 (enabled).
const BS: u64 = 1 << 14;
const BD: u64 = 1 << 13;
const B0: u64 = 1 << 12 | 1;
/// Bits of the exception bitmap.
const DEBUG: u64 = 1 << 1;
const UNDEFINED: u64 = 1 << 6;
/// Interruption information: #DB, INT1, #UD, an interrupt.
const STEP: u64 = 0x8000_0301;
const INT1: u64 = 0x8000_0501;
const UD: u64 = 0x8000_0306;
const INTERRUPT: u64 = 0x8000_0041;
const HALTED: u64 = 1;

/// L2's state and L1's controls.
#[derive(Clone, Copy)]
struct Setup {
    flags: u64,
    blocking: u64,
    pending: u64,
    windows: u32,
    injected: u64,
    dr7: u64,
    /// Value of the preemption timer.
    timer: Option<u64>,
    activity: u64,
}

const PLAIN: Setup = Setup { flags: 0, blocking: 0, pending: 0, windows: 0, injected: 0, dr7: 0x400, timer: None, activity: 0 };

/// The first exit: its reason, RIP from the code's start, flags but the reserved one, blocking, pending debug exceptions, qualification, event.
type Exit = [u64; 7];

fn steps() -> Outcome {
    let input = code!("in al, 0x80", "nop");
    let input_behind_ss = code!("mov ecx, ss", "mov ss, ecx", "in al, 0x80", "nop");
    let input_behind_sti = code!("sti", "in al, 0x80", "nop");
    let (cpuid, undefined, int1) = (code!("cpuid"), code!("ud2"), code!(".byte 0xf1"));
    let (debug_register, halt, nothing) = (code!("mov dr7, rax"), code!("hlt", "nop"), code!("nop", "nop"));
    let stepping = Setup { flags: TF, ..PLAIN };
    let trapping = Setup { windows: primary::MONITOR_TRAP, ..PLAIN };
    let window = Setup { flags: IF, windows: primary::INTERRUPT_WINDOW, ..PLAIN };
    let behind_ss = Setup { flags: TF | IF, blocking: MOV_SS, pending: BS, ..PLAIN };
    let expired = Setup { timer: Some(0), ..PLAIN };
    // Bochs 3.0 takes a single step in HLT only once something else ends that.
    let halted = Setup { timer: Some(100_000), ..stepping };
    let rows: [(u64, Setup, Exit); 35] = [
        (input, stepping, [EXCEPTION, 2, TF, 0, 0, BS, STEP]),
        (input, Setup { flags: TF, ..trapping }, [TRAP, 2, TF, 0, BS, 0, 0]),
        (input, Setup { windows: window.windows | trapping.windows, ..window }, [INTERRUPT_WINDOW, 0, IF, 0, 0, 0, 0]),
        (input, Setup { flags: TF | IF, injected: INTERRUPT, ..PLAIN }, [EXCEPTION, 2, TF | IF, 0, 0, BS, STEP]),
        (input, behind_ss, [EXCEPTION, 2, TF | IF, 0, 0, BS, STEP]),
        (input, Setup { pending: BS | B0, ..behind_ss }, [EXCEPTION, 2, TF | IF, 0, 0, BS | 1, STEP]),
        (input, Setup { blocking: STI, ..behind_ss }, [EXCEPTION, 0, TF | IF, STI, 0, BS, STEP]),
        (input, Setup { pending: B0, dr7: 0x402, ..PLAIN }, [EXCEPTION, 0, 0, 0, 0, 1, STEP]),
        (input, Setup { blocking: MOV_SS, ..window }, [INTERRUPT_WINDOW, 2, IF, 0, 0, 0, 0]),
        (input, Setup { blocking: STI, ..window }, [INTERRUPT_WINDOW, 2, IF, 0, 0, 0, 0]),
        (input, Setup { blocking: MOV_SS, windows: primary::NMI_WINDOW, ..PLAIN }, [NMI_WINDOW, 2, 0, 0, 0, 0, 0]),
        (input, Setup { flags: RF, ..PLAIN }, [VMCALL, 3, 0, 0, 0, 0, 0]),
        (input_behind_ss, trapping, [TRAP, 2, 0, 0, 0, 0, 0]),
        (input_behind_ss + 2, trapping, [TRAP, 2, 0, MOV_SS, 0, 0, 0]),
        (input_behind_ss + 2, Setup { flags: TF, ..trapping }, [TRAP, 2, TF, MOV_SS, BS, 0, 0]),
        (input_behind_ss + 2, stepping, [EXCEPTION, 4, TF, 0, 0, BS, STEP]),
        (input_behind_sti, trapping, [TRAP, 1, IF, STI, 0, 0, 0]),
        (input_behind_sti, Setup { flags: 0, ..window }, [INTERRUPT_WINDOW, 3, IF, 0, 0, 0, 0]),
        (input_behind_sti, stepping, [EXCEPTION, 1, TF | IF, STI, 0, BS, STEP]),
        (cpuid, stepping, [CPUID, 0, TF, 0, 0, 0, 0]),
        (cpuid, behind_ss, [CPUID, 0, TF | IF, MOV_SS, BS, 0, 0]),
        (undefined, stepping, [EXCEPTION, 0, TF | RF, 0, 0, 0, UD]),
        (undefined, behind_ss, [EXCEPTION, 0, TF | IF | RF, MOV_SS, BS, 0, UD]),
        (int1, stepping, [EXCEPTION, 0, TF, 0, 0, 0, INT1]),
        (int1, behind_ss, [EXCEPTION, 0, TF | IF, MOV_SS, 0, 0, INT1]),
        (debug_register, Setup { dr7: 0x2400, ..PLAIN }, [EXCEPTION, 0, 0, 0, 0, BD, STEP]),
        (halt, halted, [EXCEPTION, 1, TF, 0, 0, BS, STEP]),
        (halt, Setup { timer: Some(100_000), ..trapping }, [TRAP, 1, 0, 0, 0, 0, 0]),
        (halt, Setup { timer: Some(100_000), flags: TF, ..trapping }, [TRAP, 1, TF, 0, BS, 0, 0]),
        (nothing, Setup { activity: HALTED, pending: BS, ..halted }, [EXCEPTION, 0, TF, 0, 0, BS, STEP]),
        (nothing, Setup { pending: BS, timer: Some(0), ..stepping }, [EXCEPTION, 0, TF, 0, 0, BS, STEP]),
        (nothing, Setup { timer: Some(0), ..window }, [TIMER, 0, IF, 0, 0, 0, 0]),
        (nothing, Setup { injected: 0x8000_0700, ..expired }, [TRAP, 0, 0, 0, 0, 0, 0]),
        (nothing, Setup { timer: Some(0), ..behind_ss }, [EXCEPTION, 1, TF | IF, 0, 0, BS, STEP]),
        (nothing, Setup { windows: primary::NMI_WINDOW, ..expired }, [TIMER, 0, 0, 0, 0, 0, 0]),
    ];
    lapic::enable();
    exception::handle(INTERRUPT as u8, Some(|_| {}));
    for (n, (start, setup, expected)) in rows.into_iter().enumerate() {
        let Some(exit) = first_exit(start, &setup) else { continue };
        if exit != expected {
            println!("row {n}: {exit:#x?}, not {expected:#x?}");
            return Outcome::Fail("the exit");
        }
    }
    exception::handle(INTERRUPT as u8, None);
    Outcome::Pass
}

/// Enters L2. `None` if there is no such control.
fn first_exit(start: u64, setup: &Setup) -> Option<Exit> {
    const RESERVED: u64 = 2;
    /// The arithmetic flags.
    const RESULTS: u64 = 0x8d5;
    fresh(start);
    let has_nmi_window = setup.windows & primary::NMI_WINDOW == 0 || enable(field::PIN_CONTROLS, VIRTUAL_NMIS);
    let has_timer = setup.timer.is_none() || enable(field::PIN_CONTROLS, pin::PREEMPTION_TIMER);
    if !has_nmi_window || !has_timer || !enable(field::PRIMARY_CONTROLS, setup.windows) {
        return None;
    }
    let fields = [
        (field::GUEST_RFLAGS, setup.flags | RESERVED),
        (field::GUEST_INTERRUPTIBILITY, setup.blocking),
        (field::GUEST_PENDING_DEBUG, setup.pending),
        (field::EXCEPTION_BITMAP, DEBUG | UNDEFINED),
        (field::ENTRY_INTERRUPTION, setup.injected),
        (field::GUEST_DR7, setup.dr7),
        (field::GUEST_ACTIVITY, setup.activity),
    ];
    fields.into_iter().for_each(|(field, value)| set(field, value));
    if let Some(value) = setup.timer {
        set(field::PREEMPTION_TIMER, value);
    }
    let reason = run(&mut [0x400, 0, 0, 0, 0, 0, 0, 0], false).unwrap_or(u64::MAX);
    let event = if reason == EXCEPTION { get(field::EXIT_INTERRUPTION) } else { 0 };
    Some([
        reason,
        get(field::GUEST_RIP).wrapping_sub(start),
        get(field::GUEST_RFLAGS) & !(RESERVED | RESULTS),
        get(field::GUEST_INTERRUPTIBILITY),
        get(field::GUEST_PENDING_DEBUG),
        get(field::EXIT_QUALIFICATION),
        event,
    ])
}
