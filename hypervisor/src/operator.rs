//! Requests of the operator that change the state of a VM. The CPU that receives a request executes and answers it.

use stile_wire::{Action, Answer, Event};

use crate::arch::Arch;
use crate::arch::contract::Platform;
use crate::vm::power::{self, End};
use crate::{console, vm};

/// Executes a request, and answers it.
pub fn control(tag: u32, number: u8, action: Action) {
    let answer = match vm::get(usize::from(number)) {
        None => Answer::NoVm,
        Some(vm) => match action {
            Action::PowerButton if vm.power.is_held() => Answer::WrongState,
            Action::PowerButton if Arch::press_power_button(vm) => Answer::Done,
            Action::PowerButton => Answer::NoButton,
            Action::Off => power::end_now(vm, End::Off),
            Action::Reset => power::end_now(vm, End::Restart),
            Action::Start => power::turn_on(vm),
            Action::Pause => power::pause(vm),
            Action::Resume => power::resume(vm),
            Action::Destroy => power::destroy(vm),
        },
    };
    console::event(&Event::Answer { tag, answer });
}
