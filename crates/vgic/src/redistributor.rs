//! A redistributor, with the vCPU's CPU interface.

use crate::SGIS;
use crate::block::Block;
use crate::config::Config;
use crate::engine::Slots;
use crate::interface::{CpuInterface, ListRegisters, Maintenance};
use crate::kick::{Bits, Delivery};
use crate::lr::{ListRegister, MAX_LIST_REGISTERS};

/// Requests of [`Redistributor::load`] to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Loaded {
    /// The PPIs of [`Config::hw_ppis`] whose physical interrupt must be made active on this CPU; all others
    /// must be made inactive.
    pub active_ppis: u32,
    /// Whether a sync is needed before the guest is entered.
    pub delivery: Delivery,
}

/// The state of GICR for one vCPU, and the assignment of its list registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redistributor {
    /// SGIs and PPIs.
    pub(crate) block: Block,
    pub(crate) slots: Slots,
    /// The enabled maintenance interrupts. Nonzero on list-register overflow: then nothing is delivered
    /// without the distributor.
    pub(crate) maintenance: Maintenance,
    /// Physical lines that were high when last sampled.
    pub(crate) lines_seen: u32,
    pub(crate) unpublished: bool,
    /// GICR_WAKER.ProcessorSleep.
    pub(crate) asleep: bool,
    pub(crate) loaded: bool,
    /// SGIs and timers are in hardware (`direct`).
    pub(crate) direct: bool,
    pub(crate) config: Config,
    pub(crate) interface: CpuInterface,
}

/// Runs a statement for each list register of a set, in ascending order. Its number is a constant in each copy: an
/// access to the register is no branch by number.
macro_rules! for_each_list_register {
    ($set:expr, $n:ident => $each:expr) => {
        for_each_list_register!(($set), $n => $each, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($set:expr, $n:ident => $each:expr, $($number:literal)*) => {{
        const _: () = assert!([$($number),*].len() == MAX_LIST_REGISTERS);
        let set: u16 = $set;
        'done: {
            $(
                if set >> $number == 0 {
                    break 'done;
                }
                if set >> $number & 1 != 0 {
                    let $n: usize = $number;
                    $each;
                }
            )*
        }
    }};
}

/// SGIs are edge-triggered, PPIs level-sensitive until configured otherwise.
pub(crate) const EDGE: u32 = (1 << SGIS) - 1;

impl Redistributor {
    /// The reset state, for a vCPU that is not loaded.
    pub fn new(config: Config) -> Self {
        let hw_ppis = config.hw_ppis & !EDGE;
        let mut new = Self {
            block: Block::new(0, EDGE),
            slots: Slots::new(config.list_registers, hw_ppis, config.behind),
            maintenance: Maintenance::default(),
            lines_seen: 0,
            unpublished: false,
            asleep: true,
            loaded: false,
            direct: false,
            config: Config { hw_ppis, ..config },
            interface: CpuInterface::new(&config),
        };
        if config.gicv2 {
            new.set_gicv2_groups();
        }
        new
    }

    /// Resets the redistributor and CPU interface. The vCPU must not be loaded, and the distributor must be
    /// reset with it.
    pub fn reset(&mut self) {
        *self = Self::new(self.config);
    }

    /// Whether the vCPU is loaded on a physical CPU.
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// The CPU interface's registers while the vCPU is not loaded. The hypervisor saves `vmcr`, `ap0r` and
    /// `ap1r` here at put, and restores them at load.
    #[inline]
    pub fn interface(&mut self) -> &mut CpuInterface {
        &mut self.interface
    }

    /// Whether the vCPU has an outstanding publish request of [`Read::Stale`](crate::Read::Stale).
    #[inline]
    pub fn unpublished(&self) -> bool {
        self.unpublished
    }

    /// Writes the list registers when the vCPU is loaded. All list registers must be invalid before and all
    /// maintenance enables clear, as [`unload`](Self::unload) leaves them. If
    /// [`ListRegisters::physical_line`] reads a timer, the vCPU's own must already be loaded.
    #[inline(always)]
    pub fn load<L: ListRegisters>(&mut self, lrs: &mut L) -> Loaded {
        self.loaded = true;
        self.merge_quick_saved();
        for_each_list_register!(self.slots.used, n => lrs.write(n, self.interface.read(n)));
        if let Some(shortcuts) = lrs.shortcuts() {
            shortcuts.reset();
            for i in Bits(self.slots.quick) {
                let entry = self.block.entry[i];
                let lr = if self.slots.hw_ppis >> i & 1 != 0 { self.slots.linked(entry, i) } else { entry };
                shortcuts.set(i, self.block.slot[i].into(), lr);
            }
        }
        if self.maintenance != Maintenance::default() {
            // Counts of the previously loaded vCPU are not this vCPU's.
            lrs.take_eoi_count();
            lrs.set_maintenance(self.maintenance);
        }
        let delivery = if self.interface.eoi_count != 0 { Delivery::NeedsSync } else { self.sync_private_merged(lrs) };
        Loaded { active_ppis: self.active_ppis(lrs), delivery }
    }

    /// Saves and invalidates the list registers when the vCPU is put. Returns the PPIs of [`Config::hw_ppis`]
    /// whose physical interrupt is active on its behalf: the hypervisor makes them inactive, and the next
    /// `load` requests them again.
    ///
    /// This also removes an asserted maintenance interrupt until the next `load`. So if the vCPU is blocked
    /// and [`maintenance_was_under_way`](Self::maintenance_was_under_way), check
    /// [`has_deliverable_saved`](Self::has_deliverable_saved) afterwards.
    #[inline(always)]
    pub fn unload<L: ListRegisters>(&mut self, lrs: &mut L) -> u32 {
        for_each_list_register!(self.slots.used, n => {
            let lr = lrs.read(n);
            self.interface.write(n, lr);
            if !lr.invalid() || lr.eoi_asserted() {
                lrs.write(n, ListRegister::INVALID);
            }
        });
        if self.maintenance != Maintenance::default() {
            if self.maintenance.0 & Maintenance::LRENPIE != 0 {
                self.interface.eoi_count += lrs.take_eoi_count();
            }
            lrs.set_maintenance(Maintenance::default());
        }
        self.loaded = false;
        self.active_ppis(&self.interface)
    }

    /// Whether [`unload`](Self::unload) may have removed an asserted maintenance interrupt. If not, it has
    /// not changed whether the vCPU may stay blocked.
    #[inline]
    pub fn maintenance_was_under_way(&self) -> bool {
        self.slots.eoi != 0 || self.maintenance != Maintenance::default()
    }

    /// The PPIs whose physical interrupt is active on behalf of this vCPU.
    fn active_ppis<L: ListRegisters>(&self, lrs: &L) -> u32 {
        // The guest may have deactivated some of the resident ones.
        let resident = Bits(self.slots.held & self.block.resident);
        let over = |&i: &usize| {
            let lr = lrs.read(self.block.slot[i].into());
            lr.hw() && lr.invalid()
        };
        self.slots.held & !resident.filter(over).fold(0, |mask, i| mask | 1 << i)
    }

    /// Whether the physical interrupt of PPI `i` is active on behalf of this vCPU, which is not loaded.
    pub(crate) fn holds_saved(&self, i: usize) -> bool {
        self.active_ppis(&self.interface) >> i & 1 != 0
    }
}

/// The implemented priority bits, the upper `bits` ones.
pub(crate) fn priority_mask(bits: u8) -> u8 {
    (0xff00u16 >> bits.clamp(4, 8)) as u8
}
