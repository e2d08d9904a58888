//! Interface of a virtualization extension: the modules of `vmx/` and `svm/` that other files name by `virt`, their functions and
//! their constants. It does not compile for an extension that lacks one of them or has it with other types. Calls are static, and one
//! extension is compiled, so that nothing here costs an instruction.
//!
//! | module | concern | who calls it, and when |
//! | --- | --- | --- |
//! | `extension` | features, memory of a CPU, switching on | boot: `detect` and `set_features` on the first CPU, then on each `detect` and `turn_on`, once |
//! | `apic_mode` | mode of the CPUs' APICs | boot: `choose` before the first APIC is initialized, `check_cpu` on each other CPU |
//! | `timer` | the CPU's timer | `host/timer.rs`, which has the rest of it |
//! | `block` | the extension's part of a CPU's block | `exit.S`, and the extension itself |
//! | `exit` | entry, exit, recording of exits | `enter` once on each CPU; it does not return. `trace` when a trace begins or ends, and on recording CPUs when a vCPU is loaded |
//! | `basic` | exit codes of crashes that both have | handlers |
//! | `structure` | the control structure (VMCS, VMCB) | load and put: `attach`, then `write_controls` if it is new, `move_to`, `load_msrs`; `read_msrs`, `detach` |
//! | `state` | registers of the loaded vCPU in it, events, windows | handlers, load. Only between `attach` and `detach` |
//! | `guest_state` | its part in snapshots | while the vCPU is off every CPU |
//! | `pauses` | exits of PAUSE loops | load |
//! | `place`, `parts` | what the control structures of a VM have in common | creation and reset of a VM |
//! | `second_stage` | format of its tables, invalidation | creation of a VM; `invalidate` on each CPU that may have translations |
//! | `virtual_apic` | APIC virtualization | `choose` at a VM's creation; the others for the loaded vCPU |
//! | `direct`, `descriptors` | IPIs that a trusted guest sends itself | load, put, accesses to its MSRs, interrupts of Stile's own |
//! | `record` | pending interrupts, for traces | recording exits |
//! | `nested` | the extension for guests that are hypervisors | creation, load, put and power-off of a vCPU; accesses to its MSRs |
//! | `hyper_v`, `kvm_clock` | paravirtual registers that one of the two offers | reset of a vCPU; accesses to its MSRs |
//! | `paravirtual_eoi` | MSR_KVM_PV_EOI_EN, and the bit in guest memory at its address | reset, INIT and load of a vCPU; accesses to its MSRs |
//!
//! # Rules
//!
//! - `state`, `virtual_apic` and `nested` act on the vCPU that is loaded on the calling CPU: no argument names it. Functions that take
//!   another vCPU say so.
//! - A file of the extension imports common files of its layer and of lower ones (docs/layers.md), and common files never name a file of
//!   one extension.
//! - What an extension lacks is absent without a condition: a function without effect, an answer that refuses, a type without values.
//! - Handlers of exits that both have are common (`handler/`). They name registers by `state::Field`, with the names of VMX's fields.

use stile_apic::{GeneralProtection, Status};
use stile_blob::{ApicVirtualization, Nested, Techniques, TimerAccess, Topology};
use stile_board::VCPU_WORDS;
use stile_board::footprint::Footprint;
use stile_ledger::RowId;
use stile_paging::table::{EptPermissions, Format, PageTable};
use stile_snapshot::x86_64::FIELDS;

use crate::address_space::Span;
use crate::arch::x86_64::host::board::Board;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::CpuidResult;
use crate::arch::x86_64::vcpu::moved_msrs::MSRS;
use crate::arch::x86_64::virt::block::{self, OfCpu, OfLocal};
use crate::arch::x86_64::virt::descriptors::{Direct, Sending};
use crate::arch::x86_64::virt::guest_state::GuestState;
use crate::arch::x86_64::virt::hyper_v::AssistPage;
use crate::arch::x86_64::virt::kvm_clock::KvmClock;
use crate::arch::x86_64::virt::nested::{self, GuestVmx, Offer};
use crate::arch::x86_64::virt::paravirtual_eoi::{Bit, ParavirtualEoi};
use crate::arch::x86_64::virt::pauses::Pauses;
use crate::arch::x86_64::virt::place::Place;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::virt::structure::Structure;
use crate::arch::x86_64::virt::{apic_mode, basic, direct, exit, extension, parts, record, second_stage, timer, virtual_apic};
use crate::arena::Arena;
use crate::cpu::Loaded;
use crate::vm::{Vcpu, Vm};

type Refusal = &'static str;
type MsrRead = Result<u64, GeneralProtection>;
type MsrWrite = Result<(), GeneralProtection>;
type Parts = (Place, Option<Direct>);
type Pdptes = [u64; 4];
type Each = fn(u32);
type Sent = (u16, [u64; VCPU_WORDS]);

const _: () = {
    let _: stile_wire::Level = extension::LEVEL;
    let _: bool = extension::ASSIGNS_FUNCTIONS;
    let _: u64 = extension::CPU_PAGES;
    let _: Footprint = extension::FOOTPRINT;
    let _: fn() -> Result<extension::Features, Refusal> = extension::detect;
    let _: fn(extension::Features) = extension::set_features;
    let _: fn() -> &'static extension::Features = extension::features;
    let _: fn(&extension::Features, &mut Cpu) -> Result<(), Refusal> = extension::turn_on;

    let _: fn(&Board, &Span) = apic_mode::choose;
    let _: fn() -> Result<(), Refusal> = apic_mode::check_cpu;
};

/// The CPU's timer. `setup` is called on each CPU, with the TSC's frequency.
const _: () = {
    let _: (u64, bool, bool) = (timer::MODE, timer::PASSES_THROUGH, timer::MAY_BE_EARLY);
    let _: fn(u64, fn() -> bool) = timer::setup;
    let _: fn() -> u64 = timer::deadline;
    let _: fn(u64) = timer::set_deadline;
    let _: fn() -> bool = timer::keeps_deadline;
    let _: fn() = timer::clear_expired;
};

/// The exit path.
const _: () = {
    let _: bool = block::HAS_GLOBAL_FLAG;
    let _: Option<(OfCpu, OfLocal)> = None;
    let _: fn() -> OfLocal = OfLocal::new;
    let _: fn(&mut Cpu) -> ! = exit::enter;
    let _: fn(&Cpu, bool) -> bool = exit::trace;
    let _: (usize, u64) = (basic::EPT_VIOLATION, basic::TASK_SWITCH);
};

/// The control structure.
const _: () = {
    let _: fn(&mut Structure, u16, u64) = Structure::setup;
    let _: fn(&Structure) -> &u64 = Structure::address;
    let _: fn(&mut Structure) = Structure::forget_host;
    let _: fn(&Structure) = Structure::attach;
    let _: fn(&Structure) = Structure::detach;
    let _: fn(&mut Structure, &Cpu, &Place) -> bool = Structure::move_to;
    let _: fn(&Structure, &Place) = Structure::write_controls;
    let _: fn(&Structure, &[u64; MSRS.len()], usize, bool) = Structure::load_msrs;
    let _: fn(&Structure, &mut [u64; MSRS.len()], usize) = Structure::read_msrs;
    let _: fn(&mut Pauses, bool) = Pauses::reset;
    let _: fn(&mut Pauses, bool) = Pauses::trap;
    let _: fn(u64) -> GuestState = GuestState::read;
    let _: fn(&GuestState) -> &[u64; FIELDS] = GuestState::words;
    let _: fn(&GuestState) = GuestState::write;
    let _: fn(&[u64; FIELDS]) -> Option<GuestState> = GuestState::allowed;
};

/// Registers of the loaded vCPU, its events and windows.
const _: () = {
    let _: [fn(Field) -> u64; 2] = [state::read, state::read_raw];
    let _: fn(Field, u64) -> u64 = state::of_raw;
    let _: fn() = state::end_shadow;
    let _: fn(Field, u64) = state::write;
    let _: fn(Field, u32) -> Field = state::of_segment;
    let _: [u64; 3] = [state::CR0_HELD, state::CR0_SET, state::CR0_CLEAR];
    let _: fn() -> u64 = state::fixed_cr4;
    let _: fn(bool) -> u64 = state::entry_controls;
    let _: fn(u64, bool) = state::set_long_mode;
    let _: fn() = state::invalidate_translations;
    let _: bool = state::LOADS_PDPTES;
    let _: fn(Pdptes) = state::set_pdptes;
    let _: fn(fn() -> Pdptes) -> Pdptes = state::pdptes;
    let _: u32 = state::KVM_FEATURES;
    let _: [fn() -> bool; 2] = [state::passes_invpcid, state::passes_rdtscp];
    let _: fn(u32, CpuidResult, Topology) -> CpuidResult = state::leaf_of_guests;
    let _: fn(u64) = state::inject;
    let _: fn(bool) = state::exit_when_it_can;
    let _: fn(u64, bool) -> bool = state::exit_when_nmis_can;
    let _: [fn(); 2] = [state::end_nmi_window, state::end_step_of_nmi];
    let _: [fn() -> bool; 2] = [state::has_virtual_nmis, state::injects_at_interrupts];
    let _: [fn(); 2] = [state::pend_step, state::end_step];
    let _: [fn(u64); 2] = [state::set_fault_address, state::set_dr6];
    let _: [fn() -> u64; 2] = [state::fault_address, state::dr6];
    let _: fn(u64) = state::fail_entry;
    let _: fn() = state::take_interrupts;
};

/// A VM: its second stage, and what its control structures have in common.
const _: () = {
    const fn is_format<F: Format<Permissions = EptPermissions>>() {}
    is_format::<second_stage::Format>();
    let _: fn() -> second_stage::Format = second_stage::format;
    let _: fn(u64) = second_stage::invalidate;
    let _: fn(&mut PageTable<second_stage::Format>, Techniques, usize, &'static Arena) -> Result<Parts, Refusal> = parts::make;
    let _: fn(&Place) -> u64 = Place::second_stage;
    let _: fn(&Place, fn() -> bool) = Place::choose_access_page;
};

/// Interrupts.
const _: () = {
    let _: bool = virtual_apic::MAY_DELIVER;
    let _: fn() -> ApicVirtualization = virtual_apic::supported;
    let _: fn(ApicVirtualization) -> ApicVirtualization = virtual_apic::choose;
    let _: [fn(&mut Cpu); 3] = [virtual_apic::moved, virtual_apic::write_controls, virtual_apic::note_priority];
    let _: fn(&Vcpu, bool) = virtual_apic::write_msr_bitmap;
    let _: fn(Status) = virtual_apic::write_status;
    let _: fn(u8) = virtual_apic::request;
    let _: fn() -> Sending = Sending::new;
    let _: fn(&Sending) = Sending::reset;
    let _: fn(&Direct, TimerAccess) -> u32 = Direct::features;
    let _: fn(&Sending) -> bool = Sending::has_timer;
    let _: fn(&Cpu) -> Option<u64> = direct::control;
    let _: [fn(&mut Cpu, u64) -> Option<MsrWrite>; 2] = [direct::set_control, direct::command];
    let _: [fn(&mut Cpu); 2] = [direct::end, direct::wake_beside];
    let _: fn(&mut Cpu, &'static Vcpu) = direct::close;
    let _: fn(&mut Cpu) = direct::kick_siblings;
    let _: fn(bool, Loaded<'_>) = direct::trap_halts;
    let _: fn(&mut Cpu, &Vcpu) = direct::load;
    let _: fn(&mut Cpu, Loaded<'_>) -> bool = direct::put;
    let _: fn(&Cpu) = direct::wake_from_idle;
    let _: fn() = direct::end_spurious;
    let _: fn(&Cpu, Option<u64>, Each) = record::each_new;
    let _: fn(&Cpu, RowId) -> Option<Sent> = record::sent;
};

/// Guests that are hypervisors, and paravirtual registers.
const _: () = {
    let _: u64 = nested::VCPU_MEMORY;
    let _: fn(Nested) -> Result<Option<Offer>, Refusal> = nested::offer;
    let _: fn(&Offer) = Offer::reset;
    let _: fn(&Offer, u32, CpuidResult, u32) -> CpuidResult = Offer::cpuid;
    let _: fn(u16, Nested, &'static Arena) -> Result<&'static mut GuestVmx, Refusal> = nested::new_vcpu;
    let _: fn(&mut GuestVmx) = GuestVmx::begin_anew;
    let _: fn(&mut Cpu, &mut GuestVmx) = nested::load;
    let _: fn(&mut Cpu, Option<&mut GuestVmx>) = nested::put;
    let _: fn(&mut GuestVmx) = nested::power_down;
    let _: fn(&Cpu, u32) -> MsrRead = nested::read_msr;
    let _: fn(&Cpu, u32, u64) -> MsrWrite = nested::write_msr;
    let _: fn() -> AssistPage = AssistPage::new;
    let _: fn(&AssistPage) = AssistPage::reset;
    let _: fn() -> KvmClock = KvmClock::new;
    let _: fn(&KvmClock) = KvmClock::reset;
    let _: fn(&KvmClock) -> u64 = KvmClock::register;
    let _: fn(&KvmClock, u64) = KvmClock::restore;
    let _: fn() -> ParavirtualEoi = ParavirtualEoi::new;
    let _: fn(&ParavirtualEoi) = ParavirtualEoi::reset;
    let _: fn(&ParavirtualEoi) -> u64 = ParavirtualEoi::register;
    let _: fn(&ParavirtualEoi, u64) = ParavirtualEoi::restore;
    let _: fn(&ParavirtualEoi, &'static Vm) -> Option<Bit> = ParavirtualEoi::bit;
};
