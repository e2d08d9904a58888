//! Arm's operations.

mod calls;
mod timer;
mod two_cpus;

use super::measure::net_of_pairs;
use crate::measure::{all_ticks, net_ticks};
use crate::operation::{Needs, Operation};

/// All operations.
pub const OPERATIONS: [Operation; 16] = [
    Operation { name: "hyp_call", needs: Needs::One, divisor: 1, run: calls::hyp_call, net: net_ticks },
    Operation { name: "sysreg_trap", needs: Needs::One, divisor: 1, run: calls::sysreg_trap, net: net_ticks },
    Operation { name: "mmio_read_vgic", needs: Needs::One, divisor: 1, run: calls::mmio_read_vgic, net: net_ticks },
    Operation { name: "mmio_read_vgic_isenabler", needs: Needs::One, divisor: 1, run: calls::mmio_read_vgic_isenabler, net: net_ticks },
    Operation { name: "mmio_read_device", needs: Needs::One, divisor: 1, run: calls::mmio_read_device, net: net_ticks },
    Operation { name: "eoi", needs: Needs::One, divisor: 1, run: calls::eoi, net: net_ticks },
    Operation { name: "ipi_self", needs: Needs::One, divisor: 1, run: calls::ipi_self, net: net_ticks },
    Operation { name: "ipi", needs: Needs::Two, divisor: 1, run: two_cpus::ipi, net: net_ticks },
    Operation { name: "ipi_wfi", needs: Needs::Two, divisor: 8, run: two_cpus::ipi_wfi, net: net_of_pairs },
    Operation { name: "wfi_wake", needs: Needs::Two, divisor: 8, run: two_cpus::wfi_wake, net: all_ticks },
    Operation { name: "sgi_broadcast", needs: Needs::All, divisor: 1, run: two_cpus::sgi_broadcast, net: all_ticks },
    Operation { name: "timer", needs: Needs::One, divisor: 8, run: timer::running, net: all_ticks },
    Operation { name: "timer_wfi", needs: Needs::One, divisor: 8, run: timer::waiting, net: all_ticks },
    Operation { name: "vcpu_switch", needs: Needs::Shared, divisor: 4, run: two_cpus::vcpu_switch, net: all_ticks },
    Operation { name: "ipi_wfi_shared", needs: Needs::Shared, divisor: 4, run: two_cpus::ipi_wfi_shared, net: all_ticks },
    Operation { name: "ipi_shared", needs: Needs::Shared, divisor: 4, run: two_cpus::ipi_shared, net: all_ticks },
];
