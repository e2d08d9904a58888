//! The CPU's counters of cycles and instructions, for guests that measure (`counters` of a VM's techniques).
//!
//! They count in Stile and in guests, at all privilege levels. Nothing else uses them, and they are off until such a guest reads one.
//! Guests read them by RDPMC with the numbers of Intel's fixed counters, on all processors.

use core::fmt;

use super::instructions::{cpuid, rdmsr, wrmsr};

/// RDPMC's ECX for the fixed counters (the manual, "Fixed-function Performance Counters").
const INSTRUCTIONS: u32 = 0x4000_0000;
const CYCLES: u32 = 0x4000_0001;

/// Counters of a processor.
#[derive(Clone, Copy)]
enum Kind {
    /// Intel's fixed counters 0 and 1.
    Fixed,
    /// AMD's core counters 0 and 1.
    Core {
        /// CPUs have a register that enables all counters.
        global: bool,
    },
}

/// Intel's registers: counters from `FIXED_CTR0` on, their control, and the global enable.
const FIXED_CTR0: u32 = 0x309;
const FIXED_CTR_CTRL: u32 = 0x38d;
const PERF_GLOBAL_CTRL: u32 = 0x38f;
/// Both counters at all privilege levels.
const FIXED_ON: u64 = 0x33;
const FIXED_GLOBAL: u64 = 0b11 << 32;

/// AMD's registers: pairs of control and counter from `PERF_CTL0` on, and the global enable.
const PERF_CTL0: u32 = 0xc001_0200;
const PERF_CNTR_GLOBAL_CTL: u32 = 0xc000_0301;
/// Events "retired instructions" and "CPU cycles not in halt", enabled at all privilege levels, in hosts and guests.
const ALWAYS: u64 = 1 << 22 | 1 << 17 | 1 << 16;
const EVENTS: [u64; 2] = [ALWAYS | 0xc0, ALWAYS | 0x76];

/// The counters of this CPU.
fn kind() -> Option<Kind> {
    const CORE_COUNTERS: u32 = 1 << 23;
    if cpuid(0, 0).eax >= 0xa {
        let leaf = cpuid(0xa, 0);
        // From version 2 on there are fixed counters, by number or by a mask ("Architectural Performance Monitoring Version 5").
        if leaf.eax & 0xff >= 2 && (leaf.edx & 0x1f >= 2 || leaf.eax & 0xff >= 5 && leaf.ecx & 0b11 == 0b11) {
            return Some(Kind::Fixed);
        }
    }
    let highest = cpuid(0x8000_0000, 0).eax;
    if highest >= 0x8000_0001 && cpuid(0x8000_0001, 0).ecx & CORE_COUNTERS != 0 {
        return Some(Kind::Core { global: highest >= 0x8000_0022 && cpuid(0x8000_0022, 0).eax & 1 != 0 });
    }
    None
}

/// Value of the counter that RDPMC's ECX names. `None` for others, and if the CPU has none.
///
/// The first call on a CPU starts the counters; writing the same settings again does not disturb them.
#[cold]
#[inline(never)]
pub fn read(counter: u32) -> Option<u64> {
    let index = match counter {
        INSTRUCTIONS => 0,
        CYCLES => 1,
        _ => return None,
    };
    // SAFETY: CPUID enumerates the registers. Counters whose interrupts are off change nothing but themselves.
    unsafe {
        match kind()? {
            Kind::Fixed => {
                wrmsr(FIXED_CTR_CTRL, FIXED_ON);
                wrmsr(PERF_GLOBAL_CTRL, FIXED_GLOBAL);
                Some(rdmsr(FIXED_CTR0 + index))
            }
            Kind::Core { global } => {
                for (pair, event) in (0..).zip(EVENTS) {
                    wrmsr(PERF_CTL0 + 2 * pair, event);
                }
                if global {
                    wrmsr(PERF_CNTR_GLOBAL_CTL, 0b11);
                }
                Some(rdmsr(PERF_CTL0 + 2 * index + 1))
            }
        }
    }
}

/// Displays the CPU's counters, for the log.
pub struct Description;

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match kind() {
            Some(Kind::Fixed) => "cycles, instructions (architectural performance monitoring)",
            Some(Kind::Core { .. }) => "cycles, instructions (AMD's core performance counters)",
            None => "cycles and instructions not available (no PMU): the time-stamp counter alone",
        })
    }
}
