//! Contract of the guests' machine: RAM, interrupt lines, power states of vCPUs.

use core::ops::Range;

use stile_blob::Mode;
use stile_board::pc;
use stile_wire::Decoded;

use crate::arch::contract::Platform;
use crate::arch::x86_64::Arch;
use crate::arch::x86_64::emulation::devices;
use crate::arch::x86_64::interrupts::events;
use crate::arch::x86_64::vm::protected::Protected;
use crate::device::Line;
use crate::served::{self, patience};
use crate::vm::{self, Vm};

impl Platform for Arch {
    /// Around the device regions.
    fn ram(config: &stile_blob::Vm<'_>) -> [Range<u64>; 2] {
        pc::memory(config.memory, config.disk_memory())
    }

    fn can_start(mode: Mode) -> bool {
        matches!(mode, Mode::Protected | Mode::Long { .. })
    }

    fn set_line(vm: &Vm, line: Line, high: bool) {
        let line = match line {
            Line::Uart => pc::COM1_INPUT,
            Line::Clock => pc::CLOCK_INPUT,
        };
        if let Some(vm) = vm::get(vm.number) {
            devices::set_line(vm, line as u8, high);
        }
    }

    fn record_off(vm: &Vm, _vcpu: usize) -> usize {
        vm.vcpus.iter().filter(|vcpu| vcpu.arch.events.is_on()).count()
    }

    fn powered_off(vm: &'static Vm, vcpu: usize) {
        if let Some(vcpu) = vm.vcpus.get(vcpu) {
            events::turned_off(vcpu);
        }
    }

    /// Stops the TSCs and the APIC timers. Clocks of other devices continue.
    fn hold_time(vm: &Vm, ticks: u64) {
        for vcpu in &vm.vcpus {
            // SAFETY: the VM is paused, with its power state locked, so that none of its vCPUs is loaded.
            unsafe { vcpu.arch.hold_time(ticks) };
        }
        served::server_resumed(vm.number, ticks);
    }

    fn forget_translations(vm: &Vm) {
        if let Some(protected) = &vm.arch.protected {
            // Pages become writable when they are mapped again.
            protected.clear(|| ());
        }
        for vcpu in &vm.vcpus {
            // SAFETY: the VM is paused, with its power state locked, so that none of its vCPUs is loaded.
            unsafe { vcpu.arch.forget_translations() };
        }
    }

    fn look_at_waits(now: u64) {
        patience::look(now);
    }

    fn press_power_button(vm: &'static Vm) -> bool {
        devices::press_power_button(vm)
    }

    fn decoded(vm: &Vm) -> Decoded {
        let mut all = Decoded { vm: vm.number as u8, ..Decoded::default() };
        let of_vcpus = vm.vcpus.iter().map(|vcpu| vcpu.arch.decoded.counts());
        for counts in of_vcpus.chain(vm.arch.protected.as_ref().map(Protected::counts)) {
            all.hits += counts.hits;
            all.misses += counts.misses;
            all.evictions += counts.evictions;
            all.mismatches += counts.mismatches;
            all.dropped += counts.dropped;
        }
        all
    }
}
