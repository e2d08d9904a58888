//! Input of the console: bytes for guests, and requests of the operator. The CPU that receives a request executes and answers it.

use stile_lock::TicketLock;
use stile_wire::{Action, Answer, Answered, Command, Event};

use crate::arch::Arch;
use crate::arch::contract::Platform;
use crate::console::Input;
use crate::device::Line;
use crate::vm::Vm;
use crate::vm::power::{self, End};
use crate::{console, report, sample, snapshot, trace, upload, vm, watch, window};

/// Answers to the last requests to change a VM's state.
static ANSWERED: TicketLock<Answered> = TicketLock::new(Answered::new());

/// Handles an interrupt of the console: input for guests, requests of the operator, and space for output.
pub fn console_interrupt() {
    let mut commanded = false;
    let input = |input| {
        commanded |= matches!(input, Input::Command(_));
        take(input);
    };
    console::interrupt(input, |number| {
        if let Some(vm) = vm::get(number) {
            vm.devices.uart.drained(|level| Arch::set_line(vm, Line::Uart, level));
        }
    });
    if commanded {
        watch::begin();
    }
    report::advance();
}

/// Delivers input to its guest, or executes a command.
fn take(input: Input) {
    match input {
        Input::Guest(number, byte) => {
            if let Some(vm) = vm::get(number) {
                vm.devices.uart.receive(byte, |level| Arch::set_line(vm, Line::Uart, level));
            }
        }
        Input::Command(Command::Ledger) => report::begin(),
        Input::Command(Command::Stop { vm }) => {
            if let Some(vm) = vm::get(usize::from(vm)) {
                power::end_now(vm, End::Off);
            }
        }
        Input::Command(Command::Control { tag, vm, action }) => control(tag, vm, action),
        Input::Command(Command::State { vm }) => console::repeat_state(vm.into()),
        Input::Command(Command::Sample { tag, vm, vcpu }) => sample::request(tag, vm, vcpu),
        Input::Command(Command::SampleRows { tag, from }) => sample::send_rows(tag, from),
        Input::Command(Command::Upload { tag, vm, size, memory }) => upload::begin(tag, vm, size, memory),
        Input::Command(Command::UploadData { tag, offset, piece }) => upload::take(tag, offset, &piece),
        Input::Command(Command::UploadWindow { tag, offset, length }) => upload::take_window(tag, offset, length),
        Input::Command(Command::Abandon { tag, upload }) => upload::abandon(tag, upload),
        Input::Command(Command::Create { tag, crc }) => upload::create(tag, crc, false, upload::start),
        Input::Command(Command::OpenWindow { tag, mark }) => window::open(tag, mark),
        Input::Command(Command::CloseWindow) => {
            window::close();
            vm::all().for_each(Vm::end_copy);
        }
        Input::Command(Command::SaveState { tag, vm, part }) => snapshot::save_state(tag, vm, part),
        Input::Command(Command::SaveMemory { tag, vm, from, scope }) => snapshot::save_memory(tag, vm, from, scope),
        Input::Command(Command::Collect { tag, vm, from }) => snapshot::collect(tag, vm, from),
        Input::Command(Command::Restore { tag, crc }) => upload::create(tag, crc, true, power::begin_restore),
        Input::Command(Command::RestoreState { tag, vm, part, length }) => snapshot::restore_state(tag, vm, part, length),
        Input::Command(Command::RestoreMemory { tag, vm, from, length }) => snapshot::restore_memory(tag, vm, from, length),
        Input::Command(Command::RestoreEnd { tag, vm, advance }) => snapshot::restore_end(tag, vm, advance),
        Input::Command(Command::TraceStart { tag }) => trace::start(tag),
        Input::Command(Command::TraceStop) => trace::stop(),
        Input::Command(Command::TraceFetch { discard }) => trace::fetch(discard),
        Input::Command(Command::TraceRow { vm, vcpu, number }) => trace::report_row(vm, vcpu, number),
        Input::Command(Command::Panic) => panic!("the operator asked for it"),
        Input::Command(Command::Shutdown) => {
            for vm in vm::all() {
                power::end_now(vm, End::Off);
            }
        }
    }
}

/// Changes the state of a VM, and answers the request. The operator repeats a request with its tag if the answer does not arrive: a known
/// tag gets its first answer, and changes nothing.
fn control(tag: u32, number: u8, action: Action) {
    let known = ANSWERED.lock().answer_to(tag);
    let answer = known.unwrap_or_else(|| change(number, action));
    if known.is_none() {
        ANSWERED.lock().add(tag, answer);
    }
    console::event(&Event::Answer { tag, answer });
}

/// Changes the state of VM `number`.
fn change(number: u8, action: Action) -> Answer {
    match vm::get(usize::from(number)) {
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
    }
}
