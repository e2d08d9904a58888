//! Expiry of alarms.

use crate::arch::Arch;
use crate::arch::contract::Platform;
use crate::device::{Line, alarm};
use crate::vm;

/// Expires the due alarms that `cpu`, the calling CPU, keeps time for.
#[inline]
pub fn due(cpu: usize, now: u64) {
    if alarm::next(cpu).is_some_and(|at| at <= now) {
        alarm::for_each_due(cpu, now, |number| expire(number, now));
    }
}

fn expire(number: usize, now: u64) {
    if number == alarm::WATCH_ALARM {
        alarm::clear(number);
        alarm::WATCH.get()(now);
    } else if number == alarm::PATIENCE_ALARM {
        alarm::clear(number);
        Arch::look_at_waits(now);
    } else if let Some(vm) = vm::get(number) {
        let set_line = |level| Arch::set_line(vm, Line::Clock, level);
        vm.devices.clock.expire(set_line, |at| alarm::set(number, at));
    }
}
