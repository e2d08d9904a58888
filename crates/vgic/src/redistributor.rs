//! A redistributor, with the vCPU's CPU interface.

use crate::SGIS;
use crate::block::Block;
use crate::engine::Slots;
use crate::interface::{CpuInterface, ListRegisters, Maintenance};
use crate::kick::{Bits, Delivery};
use crate::lr::ListRegister;

/// What a vCPU's interrupt controller is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The vCPU's number, which is its Aff0 (below [`MAX_VCPUS`](crate::MAX_VCPUS)).
    pub vcpu: u8,
    /// It is the last of the VM (GICR_TYPER.Last).
    pub last: bool,
    /// List registers to use, 1 to 16: the least that any physical CPU it may run on has
    /// (ICH_VTR_EL2.ListRegs + 1).
    pub list_registers: u8,
    /// Bits of priority, 4 to 8 (ICH_VTR_EL2.PRIbits + 1).
    pub priority_bits: u8,
    /// Bits of preemption, 5 to 7 (ICH_VTR_EL2.PREbits + 1).
    pub preemption_bits: u8,
    /// PPIs that have a physical interrupt behind them, bit `n` for INTID `n`.
    pub hw_ppis: u32,
    /// The physical interrupts of [`Config::hw_ppis`], by INTID from 16 on: [`SAME_PPIS`] unless a virtual one has
    /// another number than the physical one.
    pub behind: [u8; 16],
    /// ICC_CTLR_EL1.CBPR is one for good: group 1 has the binary point of group 0. The hypervisor keeps it so.
    pub common_binary_point: bool,
}

/// [`Config::behind`] where each PPI has the physical one of the same number behind it.
pub const SAME_PPIS: [u8; 16] = [16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31];

/// What [`Redistributor::load`] asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Loaded {
    /// Of [`Config::hw_ppis`], those whose physical interrupt must be made active on this CPU; all
    /// others must be made inactive.
    pub active_ppis: u32,
    /// Whether something is left to do before the guest is entered.
    pub delivery: Delivery,
}

/// The state of GICR for one vCPU, and what sits in its list registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redistributor {
    /// SGIs and PPIs.
    pub(crate) block: Block,
    pub(crate) slots: Slots,
    /// The maintenance enables that hold. Not zero means that list registers are short: then nothing
    /// is delivered without the distributor.
    pub(crate) maintenance: Maintenance,
    /// Physical lines that were high when they were last looked at.
    pub(crate) lines_seen: u32,
    pub(crate) unpublished: bool,
    /// GICR_WAKER.ProcessorSleep.
    pub(crate) asleep: bool,
    pub(crate) loaded: bool,
    pub(crate) config: Config,
    pub(crate) interface: CpuInterface,
}

/// SGIs are edge-triggered, PPIs level-sensitive until the guest says otherwise.
const EDGE: u32 = (1 << SGIS) - 1;

impl Redistributor {
    /// A redistributor after reset, of a vCPU that is not loaded.
    pub fn new(config: Config) -> Self {
        let hw_ppis = config.hw_ppis & !EDGE;
        Self {
            block: Block::new(0, EDGE),
            slots: Slots::new(config.list_registers, hw_ppis, config.behind),
            maintenance: Maintenance::default(),
            lines_seen: 0,
            unpublished: false,
            asleep: true,
            loaded: false,
            config: Config { hw_ppis, ..config },
            interface: CpuInterface::new(&config),
        }
    }

    /// Back to the state after reset, the CPU interface included. The vCPU must not be loaded, and
    /// the distributor must be reset with it.
    pub fn reset(&mut self) {
        *self = Self::new(self.config);
    }

    /// Is the vCPU loaded on a physical CPU?
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// The CPU interface's registers while the vCPU is not loaded. At put the hypervisor stores
    /// `vmcr`, `ap0r` and `ap1r` here, at load it takes them from here.
    #[inline]
    pub fn interface(&mut self) -> &mut CpuInterface {
        &mut self.interface
    }

    /// Must the vCPU still publish what a [`Read::Stale`](crate::Read::Stale) asked for?
    #[inline]
    pub fn unpublished(&self) -> bool {
        self.unpublished
    }

    /// Writes the list registers in use, when the vCPU is loaded. All list registers must be invalid
    /// before, and no maintenance enable set, as [`unload`](Self::unload) leaves them. Where
    /// [`ListRegisters::physical_line`] reads a timer, that is the vCPU's own by now.
    #[inline(always)]
    pub fn load<L: ListRegisters>(&mut self, lrs: &mut L) -> Loaded {
        self.loaded = true;
        for n in Bits(self.slots.used.into()) {
            lrs.write(n, self.interface.read(n));
        }
        if let Some(shortcuts) = lrs.shortcuts() {
            shortcuts.reset();
            for i in Bits(self.slots.quick) {
                let entry = self.block.entry[i];
                let lr = if self.slots.hw_ppis >> i & 1 != 0 { self.slots.linked(entry, i) } else { entry };
                shortcuts.set(i, self.block.slot[i].into(), lr);
            }
        }
        if self.maintenance != Maintenance::default() {
            // What the last owner of this interface counted is none of this vCPU's.
            lrs.take_eoi_count();
            lrs.set_maintenance(self.maintenance);
        }
        let delivery = if self.interface.eoi_count != 0 { Delivery::NeedsSync } else { self.sync_private(lrs) };
        Loaded { active_ppis: self.active_ppis(lrs), delivery }
    }

    /// Takes the list registers in use away, when the vCPU is put. Returns the PPIs of
    /// [`Config::hw_ppis`] whose physical interrupt is active on its behalf: the hypervisor makes
    /// them inactive, and the next `load` asks for them again.
    ///
    /// A maintenance interrupt that was under way is taken away, too, until the next `load`. So if the
    /// vCPU sleeps and [`maintenance_was_under_way`](Self::maintenance_was_under_way), ask
    /// [`has_deliverable_saved`](Self::has_deliverable_saved) now.
    #[inline(always)]
    pub fn unload<L: ListRegisters>(&mut self, lrs: &mut L) -> u32 {
        for n in Bits(self.slots.used.into()) {
            let lr = lrs.read(n);
            self.interface.write(n, lr);
            if !lr.invalid() || lr.eoi_asserted() {
                lrs.write(n, ListRegister::INVALID);
            }
        }
        if self.maintenance != Maintenance::default() {
            if self.maintenance.0 & Maintenance::LRENPIE != 0 {
                self.interface.eoi_count += lrs.take_eoi_count();
            }
            lrs.set_maintenance(Maintenance::default());
        }
        self.loaded = false;
        self.active_ppis(&self.interface)
    }

    /// Can [`unload`](Self::unload) have taken a maintenance interrupt away? If not, whether the vCPU may sleep is as it was before.
    #[inline]
    pub fn maintenance_was_under_way(&self) -> bool {
        self.slots.eoi != 0 || self.maintenance != Maintenance::default()
    }

    /// The PPIs whose physical interrupt is active because of this vCPU.
    fn active_ppis<L: ListRegisters>(&self, lrs: &L) -> u32 {
        // Of those that are resident the guest may have deactivated some.
        let resident = Bits(self.slots.held & self.block.resident);
        let over = |&i: &usize| {
            let lr = lrs.read(self.block.slot[i].into());
            lr.hw() && lr.invalid()
        };
        self.slots.held & !resident.filter(over).fold(0, |mask, i| mask | 1 << i)
    }

    /// Is the physical interrupt behind PPI `i` active because of this vCPU, which is not loaded?
    pub(crate) fn holds_saved(&self, i: usize) -> bool {
        self.active_ppis(&self.interface) >> i & 1 != 0
    }
}

/// The priority bits that an implementation of so many has: the upper ones.
pub(crate) fn priority_mask(bits: u8) -> u8 {
    (0xff00u16 >> bits.clamp(4, 8)) as u8
}
