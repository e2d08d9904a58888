//! Contract of the guests' machine: RAM, interrupt lines, power states of vCPUs.

use core::ops::Range;

use stile_blob::Mode;
use stile_board::{intid, map};
use stile_wire::Decoded;

use crate::arch::aarch64::Arch;
use crate::arch::aarch64::interrupts::delivery;
use crate::arch::contract::Platform;
use crate::device::Line;
use crate::served::{self, patience};
use crate::vm::Vm;

impl Platform for Arch {
    fn ram(config: &stile_blob::Vm<'_>) -> [Range<u64>; 2] {
        [map::FIRMWARE_BASE..map::FIRMWARE_BASE + config.firmware, config.memory_span()]
    }

    fn can_start(mode: Mode) -> bool {
        mode == Mode::Reset
    }

    fn set_line(vm: &Vm, line: Line, high: bool) {
        let intid = match line {
            Line::Uart => intid::PL011,
            Line::Clock => intid::PL031,
        };
        let kick = vm.arch.distributor.lock().set_level(intid, high);
        delivery::deliver(vm, kick);
    }

    fn record_off(vm: &Vm, vcpu: usize) -> usize {
        vm.arch.power.lock().cpu_off(vcpu)
    }

    /// Routes the vCPU's 1-of-N interrupts to others, unless it was turned on again.
    fn powered_off(vm: &'static Vm, vcpu: usize) {
        if vm.arch.served.is_some() {
            delivery::release_posted(vm.vcpus[vcpu]);
        }
        let power = vm.arch.power.lock();
        if !power.is_off(vcpu) {
            return;
        }
        let kick = vm.arch.distributor.lock().set_online(vcpu, false);
        drop(power);
        delivery::deliver(vm, kick);
    }

    /// Stops the virtual counter only. The physical one continues, and with it all time of a VM with an EL2.
    fn hold_time(vm: &Vm, ticks: u64) {
        if vm.vcpus.iter().all(|vcpu| !vcpu.arch.has_el2) {
            vm.arch.hold_time(ticks);
        }
        served::server_resumed(vm.number, ticks);
    }

    fn forget_translations(vm: &Vm) {
        vm.arch.forget_translations();
    }

    fn look_at_waits(now: u64) {
        patience::look(now);
    }

    fn press_power_button(_vm: &'static Vm) -> bool {
        false
    }

    fn decoded(vm: &Vm) -> Decoded {
        Decoded { vm: vm.number as u8, ..Decoded::default() }
    }
}
