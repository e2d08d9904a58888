//! vCPUs that have an EL2 of their own: L1, and the guest that it runs, L2.
//!
//! Both run at the CPU's EL1. At virtual EL2 HCR_EL2.NV and NV2 are set: accesses to EL2's registers go to EL1's registers or to the
//! page that VNCR_EL2 names, as far as FEAT_NV2 has it so; what else EL2 alone may do traps, as does ERET. EL1's registers of the
//! guest are in that page meanwhile. Where FEAT_NV2 is not to be used all of these accesses trap, and lead to the same places ([`NvMode`]). A switch between the two moves them, as little else as possible, and nothing at load or put
//! differs from other vCPUs but the trap controls. See Arm ARM, "Enhanced support for nested virtualization".

mod at;
mod debug;
mod e2h;
mod eret;
mod exits;
mod gic;
mod guest;
mod lazy_traps;
mod nv_mode;
mod registers;
mod shadow;
mod switch;
mod sysreg;
mod timers;
mod tlbi;
mod traps;

use stile_nested::forward::{Masks, Virtual};
use stile_nested::vgic::OnProcessor;
use stile_nested::vncr::{self, Page};

use crate::arch::aarch64::exit;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::{delivery, direct};
use crate::vm::{Vcpu, Vm};
pub use nv_mode::NvMode;
use registers::{OWN_REGISTERS, Own, SWITCHED};
pub use shadow::{Below, Shadows, new as new_shadows};

/// Which registers the vCPU's exception level 1 has on the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regime {
    /// Those of virtual EL2, which is its own EL0's kernel, too, while HCR_EL2.TGE is set.
    El2,
    /// Those of the guest: L2, or what L1 runs at EL1 without a second stage.
    Guest,
}

/// What a vCPU with an EL2 has beyond others.
#[repr(C, align(4096))]
pub struct Nested {
    /// Memory of VNCR_EL2; without FEAT_NV2 Stile's own, for the same registers.
    pub page: Page,
    /// How accesses of virtual EL2's get there.
    pub nv_mode: NvMode,
    /// Whose registers are on the CPU, or would be if the vCPU were loaded.
    pub regime: Regime,
    /// What HCR_EL2.E2H decides.
    mode: e2h::Mode,
    /// EL1's registers of virtual EL2, while those of its guest are on the CPU.
    el2: [u64; SWITCHED],
    /// Registers of virtual EL2 that trap and live nowhere else.
    own: [u64; OWN_REGISTERS],
    /// L2's list registers, while they are on the CPU.
    lists: Option<OnProcessor>,
    /// EL1's timers, by the bit of their physical interrupt, whose interrupt is active for the guest's timer...
    held: u32,
    /// ...and the line of one of them may be high, or is to be looked at...
    timers_raised: bool,
    /// ...and for virtual EL2's, since the guest runs.
    el2_active: u32,
    /// The physical interrupts of EL1's timers are active as the guest's need it, not as virtual EL2's do.
    active_is_guests: bool,
    /// Trap controls as any vCPU has them.
    base: traps::Base,
    /// Those of L1's controls for its guest that seldom change.
    lazy_traps: lazy_traps::LazyTraps,
    /// Virtual EL2's writes of MDSCR_EL1.
    debug: debug::WriteTrap,
    /// State that a run of a guest resets.
    until_guest: UntilGuest,
    /// The line of L1's maintenance interrupt, as it was seen last.
    asserts_maintenance: bool,
    /// Stile wants WFI and WFE to trap, whatever L1 wants.
    waiting_traps: bool,
    /// VMPIDR_EL2 of L1 itself.
    mpidr: u64,
    /// The second stage that the guest has.
    shadow: Option<shadow::Current>,
}

/// State that a run of a guest resets.
#[derive(Clone, Copy)]
struct UntilGuest {
    /// Since the reset no guest has run, and HCR_EL2.E2H was found as it was then: the page has nothing of a guest's.
    may_adopt: bool,
    /// No guest has run since a write of MDSCR_EL1 trapped.
    wrote_mdscr: bool,
}

impl UntilGuest {
    /// A guest runs.
    const NOTHING: Self = Self { may_adopt: false, wrote_mdscr: false };
}

impl Nested {
    /// The state after a reset: at virtual EL2, HCR_EL2.E2H clear if it can be.
    pub fn reset(&mut self, mpidr: u64) {
        self.page.clear();
        self.mode = e2h::Mode::at_reset(self.nv_mode);
        self.page.set(vncr::HCR_EL2, self.mode.e2h | traps::RW);
        self.page.set(vncr::VPIDR_EL2, read_sysreg!(MIDR_EL1));
        self.page.set(vncr::VMPIDR_EL2, mpidr);
        self.base = traps::Base::new();
        self.lazy_traps = lazy_traps::LazyTraps::at_reset();
        self.trap_mdscr_writes(true);
        self.regime = Regime::El2;
        self.el2 = [0; SWITCHED];
        self.own = e2h::own_at_reset();
        self.until_guest = UntilGuest { may_adopt: true, wrote_mdscr: false };
        self.lists = None;
        (self.active_is_guests, self.timers_raised, self.asserts_maintenance) = (false, false, false);
        (self.held, self.el2_active) = (0, 0);
        self.mpidr = mpidr;
    }

    /// The vCPU goes onto this CPU.
    pub fn load(&mut self) {
        if self.nv_mode.redirects() {
            write_sysreg!(VNCR_EL2, &raw const self.page as u64);
        }
        write_sysreg!(VBAR_EL2, self.mode.vectors(self.nv_mode));
        lazy_traps::set_copies_to_el2(true);
        if self.debug.is_on() {
            self.load_own_lazy_traps();
        }
        traps::load(self);
        self.start_stand_in();
    }

    /// It leaves it: traps and vectors as other vCPUs have them.
    pub fn put(&mut self) {
        write_sysreg!(VBAR_EL2, exit::vector_base());
        traps::put(self);
        lazy_traps::set_copies_to_el2(false);
        timers::stop_stand_in();
        gic::put(self);
        if self.regime == Regime::Guest {
            // A shadow may be another's when this vCPU is loaded again.
            crate::arch::aarch64::vm::leave_second_stage();
        }
    }

    /// WFI and WFE are to trap, or not to, for Stile's own sake.
    pub fn set_waiting_traps(&mut self, on: bool) {
        self.waiting_traps = on;
        traps::load(self);
    }

    /// HPFAR_EL2 of L1.
    fn set_hpfar(&mut self, value: u64) {
        self.own[Own::Hpfar as usize] = value;
    }

    /// L1's trap controls. Its guest is on the CPU.
    fn controls<'a>(&'a self, vm: &'a Vm) -> Virtual<'a> {
        let [mdcr, cnthctl] = [Own::Mdcr, Own::Cnthctl].map(|own| self.own[own as usize]);
        Virtual { page: &self.page, masks: vm.arch.masks(), cptr: self.cptr(), mdcr, cnthctl }
    }
}

/// Whether EL1 of the loaded vCPU is virtual EL2 now.
#[inline(always)]
pub fn at_virtual_el2() -> bool {
    read_sysreg!(HCR_EL2) & traps::NV != 0
}

/// Whether the loaded vCPU has an EL2 and runs a guest of its own now.
pub fn runs_guest(vcpu: &Vcpu) -> bool {
    vcpu.arch.has_el2 && !at_virtual_el2()
}

/// What a VM with an EL2 needs beyond others.
pub struct Shared {
    /// Second stages of its VMs.
    pub shadows: Shadows,
    /// What its processor has of trap controls.
    pub masks: Masks,
}

/// The state of the loaded vCPU, if it has an EL2.
fn of(vcpu: &Vcpu) -> Option<&'static mut Nested> {
    if !vcpu.arch.has_el2 {
        return None;
    }
    // SAFETY: the vCPU is loaded here, and nobody else has its context; handlers run one after the other.
    let context = unsafe { vcpu.arch.context() };
    // SAFETY: as above; what it points to lives as long as the machine.
    context.nested.as_mut().map(|nested| unsafe { &mut *core::ptr::from_mut::<Nested>(nested) })
}

/// The loaded vCPU was left, or has just been loaded: its guest may go on, or L1 may have an interrupt first.
pub fn resume(cpu: &mut Cpu) {
    delivery::pull(cpu);
    if cpu.vcpu().arch.special {
        resume_special(cpu);
    }
}

#[inline(never)]
fn resume_special(cpu: &mut Cpu) {
    match of(cpu.vcpu()) {
        Some(nested) => guest::resume(cpu, nested),
        None => direct::resume(cpu),
    }
}

/// WFI and WFE of the loaded vCPU are to trap, or not to.
pub fn trap_waiting(cpu: &Cpu, on: bool) -> bool {
    match of(cpu.vcpu()) {
        Some(nested) => {
            nested.set_waiting_traps(on);
            true
        }
        None => false,
    }
}

/// The loaded vCPU's guest, if it runs one, has its second stage on this CPU.
pub fn load_second_stage(cpu: &Cpu, vcpu: &Vcpu) {
    if let Some(nested) = of(vcpu)
        && nested.regime == Regime::Guest
    {
        nested.load_shadow(vcpu.vm(), cpu.index);
    }
}

/// A timer's interrupt came for the vCPU that is loaded here and sleeps, and is for the regime that is not on the CPU, or for its guest. L1's
/// own interface is on the CPU. False if it is another one, as for any vCPU.
pub fn idle_timer(cpu: &mut Cpu, intid: u32) -> bool {
    match cpu.vcpu.and_then(of) {
        Some(nested) => guest::idle_timer(cpu, nested, intid),
        None => false,
    }
}

/// Before a trapped write of ICC_DIR_EL1: the interrupt that is deactivated must not be pending again by a line that L1 lowered in memory, unseen.
#[cold]
pub fn sample_lines(vcpu: &Vcpu) {
    if let Some(nested) = of(vcpu)
        && nested.regime == Regime::El2
    {
        gic::sample_at_el2(vcpu, nested);
    }
}

/// When a vCPU that is being put must be woken for timers of its EL2 that wait while its guest is there, or the reverse.
pub fn deadline(vcpu: &Vcpu) -> Option<u64> {
    of(vcpu)?.stand_in_deadline()
}

/// CNTVOFF_EL2 for the EL1 virtual timer of a vCPU that is being put: its guest's, while that has the timer.
pub fn timer_offset(vcpu: &Vcpu) -> u64 {
    match of(vcpu) {
        Some(nested) if nested.regime == Regime::Guest => nested.page.get(vncr::CNTVOFF_EL2),
        _ => vcpu.vm().arch.held_time(),
    }
}

/// Processor state of virtual EL2 as L1 has it: the CPU's EL1 is its EL2.
pub fn as_el2(pstate: u64) -> u64 {
    stile_nested::inject::to_virtual(pstate)
}

/// Whether such a vCPU may have HCR_EL2.E2H clear.
pub fn may_clear_e2h(nested: stile_blob::Nested) -> bool {
    nested != stile_blob::Nested::Off && e2h::may_be_clear(NvMode::new(nested))
}

/// Whether this machine can run such vCPUs.
///
/// # Errors
/// In words, what is missing.
pub fn check(nv_mode: stile_blob::Nested) -> Result<(), &'static str> {
    let have = features::get();
    match nv_mode {
        stile_blob::Nested::Off => Ok(()),
        _ if !have.vhe => Err("a VM with an EL2 of its own needs a CPU with VHE"),
        stile_blob::Nested::Nv2 if have.nv < 2 => Err("nested = \"nv2\" needs a CPU with FEAT_NV2"),
        stile_blob::Nested::Nv if have.nv < 1 => Err("nested = \"nv\" needs a CPU with FEAT_NV"),
        stile_blob::Nested::Nv | stile_blob::Nested::Nv2 => Ok(()),
    }
}
