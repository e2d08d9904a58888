//! The operations, by the names of the field's micro-benchmarks.

mod calls;
mod timer;
mod two_cpus;

use crate::measure::{all_ticks, net_of_pairs, net_ticks};
use crate::platform::Platform;
use crate::{cpu, measure, second};

/// One operation.
struct Operation {
    name: &'static str,
    needs: Needs,
    /// It runs so many times less often than asked for: it is slow, or waits.
    seldom: u64,
    /// Runs it so many times; the ticks of all together.
    run: fn(&Platform, u64) -> u64,
    /// What is left of them without what measuring takes.
    net: fn(u64, u64) -> u64,
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
    Operation { name: "hyp_call", needs: Needs::One, seldom: 1, run: calls::hyp_call, net: net_ticks },
    Operation { name: "sysreg_trap", needs: Needs::One, seldom: 1, run: calls::sysreg_trap, net: net_ticks },
    Operation { name: "mmio_read_vgic", needs: Needs::One, seldom: 1, run: calls::mmio_read_vgic, net: net_ticks },
    Operation { name: "mmio_read_vgic_isenabler", needs: Needs::One, seldom: 1, run: calls::mmio_read_vgic_isenabler, net: net_ticks },
    Operation { name: "mmio_read_device", needs: Needs::One, seldom: 1, run: calls::mmio_read_device, net: net_ticks },
    Operation { name: "eoi", needs: Needs::One, seldom: 1, run: calls::eoi, net: net_ticks },
    Operation { name: "ipi_self", needs: Needs::One, seldom: 1, run: calls::ipi_self, net: net_ticks },
    Operation { name: "ipi", needs: Needs::Two, seldom: 1, run: two_cpus::ipi, net: net_ticks },
    Operation { name: "ipi_wfi", needs: Needs::Two, seldom: 8, run: two_cpus::ipi_wfi, net: net_of_pairs },
    Operation { name: "wfi_wake", needs: Needs::Two, seldom: 8, run: two_cpus::wfi_wake, net: all_ticks },
    Operation { name: "timer", needs: Needs::One, seldom: 8, run: timer::running, net: all_ticks },
    Operation { name: "timer_wfi", needs: Needs::One, seldom: 8, run: timer::waiting, net: all_ticks },
    Operation { name: "vcpu_switch", needs: Needs::Shared, seldom: 4, run: two_cpus::vcpu_switch, net: all_ticks },
    Operation { name: "ipi_wfi_shared", needs: Needs::Shared, seldom: 4, run: two_cpus::ipi_wfi_shared, net: all_ticks },
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
        measure::begin_section();
        let ticks = (operation.run)(platform, n);
        measure::end_section();
        measure::print(operation.name, (operation.net)(n, ticks), n);
    }
}
