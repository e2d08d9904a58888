//! The machine that guests see.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use stile_blob::Mode;
use stile_wire::Decoded;

use super::Arch;
use crate::arch::contract::Platform;
use crate::device::Line;
use crate::vm;

/// Ticks for which VMs were paused.
pub static HELD: AtomicU64 = AtomicU64::new(0);

impl Platform for Arch {
    fn ram(config: &stile_blob::Vm<'_>) -> [Range<u64>; 2] {
        let span = config.memory_span();
        [span.clone(), span.end..span.end]
    }

    fn can_start(mode: Mode) -> bool {
        mode == Mode::Reset
    }

    fn set_line(_vm: &vm::Vm, _line: Line, _high: bool) {}

    fn record_off(vm: &vm::Vm, vcpu: usize) -> usize {
        let mut on = vm.arch.on.lock().unwrap();
        on.remove(&vcpu);
        on.len()
    }

    fn powered_off(_vm: &'static vm::Vm, _vcpu: usize) {}

    fn hold_time(vm: &vm::Vm, ticks: u64) {
        assert!(vm.vcpus.iter().all(|vcpu| vcpu.arch.loaded.lock().unwrap().is_none()), "a vCPU of a paused VM is loaded");
        HELD.fetch_add(ticks, Ordering::Relaxed);
    }

    fn forget_translations(vm: &vm::Vm) {
        assert!(vm.vcpus.iter().all(|vcpu| vcpu.arch.loaded.lock().unwrap().is_none()), "a vCPU of a paused VM is loaded");
    }

    fn press_power_button(_vm: &'static vm::Vm) -> bool {
        false
    }

    fn decoded(vm: &vm::Vm) -> Decoded {
        Decoded { vm: vm.number as u8, ..Decoded::default() }
    }
}
