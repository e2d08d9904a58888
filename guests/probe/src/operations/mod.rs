//! The operations, by the names of the field's micro-benchmarks.

mod calls;
mod timer;
mod two_cpus;

use crate::platform::Platform;
use crate::{cpu, measure, second};

/// One operation.
struct Operation {
    name: &'static str,
    needs: Needs,
    /// It runs so many times less often than asked for: it is slow, or waits.
    seldom: u64,
    /// Runs it so many times; the net ticks of all together.
    run: fn(&Platform, u64) -> u64,
}

/// Which virtual CPUs an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// One.
    One,
    /// Two that run at the same time.
    Two,
    /// Two that share a physical CPU. The guest can't know, so it must be asked for by name.
    Shared,
}

const OPERATIONS: [Operation; 14] = [
    Operation { name: "hyp_call", needs: Needs::One, seldom: 1, run: calls::hyp_call },
    Operation { name: "sysreg_trap", needs: Needs::One, seldom: 1, run: calls::sysreg_trap },
    Operation { name: "mmio_read_vgic", needs: Needs::One, seldom: 1, run: calls::mmio_read_vgic },
    Operation { name: "mmio_read_vgic_isenabler", needs: Needs::One, seldom: 1, run: calls::mmio_read_vgic_isenabler },
    Operation { name: "mmio_read_device", needs: Needs::One, seldom: 1, run: calls::mmio_read_device },
    Operation { name: "eoi", needs: Needs::One, seldom: 1, run: calls::eoi },
    Operation { name: "ipi_self", needs: Needs::One, seldom: 1, run: calls::ipi_self },
    Operation { name: "ipi", needs: Needs::Two, seldom: 1, run: two_cpus::ipi },
    Operation { name: "ipi_wfi", needs: Needs::Two, seldom: 8, run: two_cpus::ipi_wfi },
    Operation { name: "wfi_wake", needs: Needs::Two, seldom: 8, run: two_cpus::wfi_wake },
    Operation { name: "timer", needs: Needs::One, seldom: 8, run: timer::running },
    Operation { name: "timer_wfi", needs: Needs::One, seldom: 8, run: timer::waiting },
    Operation { name: "vcpu_switch", needs: Needs::Shared, seldom: 4, run: two_cpus::vcpu_switch },
    Operation { name: "ipi_wfi_shared", needs: Needs::Shared, seldom: 4, run: two_cpus::ipi_wfi_shared },
];

/// Runs before the measured ones: what is done once only, such as a second-stage fault, is over then.
const WARM_UP: u64 = 16;

/// Measures the operations that are asked for and possible, and prints their lines.
pub fn run_all(platform: &Platform) {
    let mut second = false;
    for operation in &OPERATIONS {
        if !platform.wants(operation.name, operation.needs != Needs::Shared) {
            continue;
        }
        if operation.needs != Needs::One {
            second = second || (platform.cpus > 1 && second::start(platform));
            if !second {
                measure::print_skipped(operation.name);
                continue;
            }
        }
        let faults = cpu::faults();
        (operation.run)(platform, WARM_UP);
        if cpu::faults() != faults {
            measure::print_skipped(operation.name);
            continue;
        }
        let n = (platform.iterations / operation.seldom).max(1);
        measure::print(operation.name, (operation.run)(platform, n), n);
    }
}
