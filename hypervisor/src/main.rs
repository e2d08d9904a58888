//! Stile: a hypervisor with few exits, all of them accounted.
//!
//! The boot order, from top to bottom: `arch` brings the boot CPU here with memory, console and interrupt controller
//! set up and the other CPUs waiting. The VMs are created from the blob behind the image and started; then every CPU
//! runs the vCPUs that the scheduler selects.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(not(target_os = "none"), allow(dead_code, reason = "on the developer's machine only tests run, which do not use all of this"))]

extern crate alloc;

#[cfg(target_os = "none")]
mod address_space;
mod arch;
mod arena;
#[cfg(target_os = "none")]
#[allow(dead_code, unused_imports, reason = "not every back end assigns functions")]
mod assigned;
mod backtrace;
mod console;
mod cpu;
mod device;
mod direct_map;
mod efi;
mod figures;
#[cfg(target_os = "none")]
mod footprint;
mod heap;
mod image;
mod keep_figures;
mod memory;
mod nodes;
mod once;
mod operator;
mod panic;
mod reconfigure;
mod report;
#[cfg(target_os = "none")]
mod runtime_services;
mod sample;
mod screen;
#[cfg(target_os = "none")]
mod served;
mod snapshot;
mod stacks;
#[cfg(test)]
mod tests;
mod trace;
#[cfg_attr(not(target_os = "none"), allow(dead_code, reason = "used by real back ends"))]
mod uart_16550;
#[allow(dead_code, reason = "not every back end has such boards")]
mod uart_cadence;
#[allow(dead_code, reason = "not every back end has such boards")]
mod uart_imx;
#[allow(dead_code, reason = "not every back end has such boards")]
mod uart_words;
mod upload;
mod vm;
mod wall_clock;
mod watch;
mod window;

use core::ops::Range;

use stile_blob::Blob;
use stile_firmware::configuration::BootMedium;
use stile_wire::{Event, Version};

use arch::contract::Host;
use arch::{Arch, Cpu};
use console::log;

/// Entry of the boot CPU once the machine is set up. `blob` is the blob's physical extent, `medium` has the boot medium's
/// files.
fn start(cpu: &mut Cpu, blob: &Range<u64>, medium: Option<&BootMedium<'static>>) -> ! {
    // SAFETY: the range was loaded with the image, and is mapped read-only in the direct map, so that nothing writes
    // to it.
    let blob = unsafe { core::slice::from_raw_parts(Arch::physical(blob.start), (blob.end - blob.start) as usize) };
    let blob = match Blob::parse(blob) {
        Ok(blob) => blob,
        Err(error) => {
            log!("the configuration behind the image: {error}");
            refuse("it has no usable configuration: make the image with `stile build`");
        }
    };
    let mut settings = blob.settings.clone();
    let changes = match medium.map(|medium| reconfigure::read(medium, &blob, &mut settings)).transpose() {
        Ok(changes) => changes.unwrap_or_default(),
        Err(what) => refuse(what),
    };
    let added = changes.iter().skip(blob.vms.len()).filter(|change| matches!(change, vm::Change::Made(_))).count();
    let vms = blob.vms.len() + added;
    let cpus = cpu::SCHEDULE.online().len() as u16;
    console::event(&Event::Hello { version: version(), cpus, level: Arch::level(), vms: vms as u8 });
    let measures = blob.vms.clone().any(|vm| vm.techniques.counters);
    if measures && let Err(what) = keep_figures::setup() {
        refuse(what);
    }
    cpu::classes::log_all();
    cpu::setup(settings.slice_us);
    Arch::apply_mitigations(settings.mitigations);
    if measures {
        Arch::describe();
        figures::measure();
        screen::show_consoles();
    }
    if let Err(what) = vm::create_all(blob, changes).and_then(|()| sample::setup()).and_then(|()| report::setup(settings.report_exits)) {
        refuse(what);
    }
    watch::setup();
    upload::setup();
    trace::setup();
    screen::write(format_args!("The VMs start. Their consoles and Stile's log are on the serial line, if there is one.\n"));
    console::listen();
    for vm in vm::all() {
        vm::power::start(vm);
        console::event(&Event::Vm { vm: vm.number as u8, state: stile_wire::VmState::Started });
    }
    cpu::work(cpu)
}

/// Reports why Stile cannot run here, and powers the machine off, unless a screen shows the report.
fn refuse(what: &str) -> ! {
    log!("Stile can't run here: {what}");
    console::event(&Event::End { status: Event::REFUSED });
    screen::end_machine()
}

fn version() -> Version {
    let part = |text: &str| text.parse().unwrap_or(0);
    Version {
        major: part(env!("CARGO_PKG_VERSION_MAJOR")),
        minor: part(env!("CARGO_PKG_VERSION_MINOR")),
        patch: part(env!("CARGO_PKG_VERSION_PATCH")),
    }
}

/// On the developer's machine only the tests run.
#[cfg(not(target_os = "none"))]
fn main() {}
