//! Panics: Stile reports its state and stops the machine.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use stile_wire::Event;

use crate::arch::contract::{Failure, Host};
use crate::arch::{Arch, Cpu};
use crate::backtrace::Backtrace;
use crate::console::Emergency;
use crate::screen;

/// Number of the CPU that stops the machine, plus 1; 0 if none does.
static STOPPING: AtomicUsize = AtomicUsize::new(0);

#[cfg_attr(target_os = "none", panic_handler)]
fn panic(info: &PanicInfo<'_>) -> ! {
    let calls = Backtrace { pc: None, pointer: Arch::frame_pointer() };
    match info.location() {
        Some(location) => stop(format_args!("{} ({location})", info.message()), calls, |_| Ok(())),
        None => stop(format_args!("{}", info.message()), calls, |_| Ok(())),
    }
}

/// Returns this CPU's block, if it exists: it is in the memory of the CPU's stack.
fn this_cpu() -> Option<&'static Cpu> {
    let block = Arch::block();
    // SAFETY: a stack pointer in a mapped stack implies that `Cpu::install` has put a block there permanently.
    Arch::stack_of(block as u64).is_some().then(|| unsafe { &*block })
}

/// Reports the panic, and powers the machine off. Waits if another CPU already does.
pub fn stop(what: fmt::Arguments<'_>, calls: Backtrace, registers: impl FnOnce(&mut dyn Write) -> fmt::Result) -> ! {
    let number = this_cpu().map_or(0, |cpu| cpu.index);
    if let Err(stopping) = STOPPING.compare_exchange(0, number + 1, Ordering::AcqRel, Ordering::Acquire) {
        if stopping == number + 1 {
            // A second panic, during the report.
            Arch::power_off();
        }
        loop {
            Arch::wait_for_interrupt();
        }
    }
    let mut out = Emergency::new();
    let _ = tell(&mut out, what, calls, registers);
    out.event(&Event::Panic { cpu: number as u16 });
    out.event(&Event::End { status: Event::PANICKED });
    screen::end_panic()
}

fn tell(
    out: &mut Emergency,
    what: fmt::Arguments<'_>,
    calls: Backtrace,
    registers: impl FnOnce(&mut dyn Write) -> fmt::Result,
) -> fmt::Result {
    writeln!(out, "\npanic: {what}")?;
    registers(out)?;
    match this_cpu() {
        None => writeln!(out, "  while CPU 0 booted")?,
        Some(cpu) => {
            write!(out, "  CPU {}", cpu.index)?;
            match cpu.vcpu {
                None => writeln!(out, ", no vCPU loaded")?,
                Some(vcpu) => {
                    writeln!(out, ", vCPU {} of {}, at the exit with this state:", vcpu.id.vcpu(), vcpu.vm().name)?;
                    Arch::write_guest(out, cpu)?;
                }
            }
        }
    }
    writeln!(out, "  backtrace:")?;
    calls.write(out)
}
