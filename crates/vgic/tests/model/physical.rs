//! The physical redistributor under a vCPU whose interrupts are direct: its SGIs and timers, all of group 1.

use stile_vgic::{Direct, ListRegister, Observed};

use super::HW_PPI_MASK;
use super::cpu::Cpu;

#[derive(Clone, Debug)]
pub struct Physical {
    all: u32,
    enabled: u32,
    pub pending: u32,
    pub active: u32,
    priorities: [u8; 32],
}

impl Physical {
    /// Programmed by the hypervisor. `active`: timers that were active for the vCPU until now.
    pub fn new(direct: &Direct, active: u32) -> Self {
        let &Direct { all, enabled, pending, deactivate, priorities } = direct;
        assert_eq!(active & !deactivate, 0, "an active timer went unnoticed");
        Self { all, enabled, pending, active: 0, priorities }
    }

    /// The interrupt that the CPU interface signals; its list register stands for number, priority and group.
    pub fn signalled(&self, cpu: &Cpu, lines: u32) -> Option<ListRegister> {
        let pending = (self.pending | lines & HW_PPI_MASK) & self.enabled & !self.active;
        let best = (0..32u32).filter(|i| pending >> i & 1 != 0).min_by_key(|&i| self.priorities[i as usize])?;
        let priority = self.priorities[best as usize];
        let lr = ListRegister::of(best).with_priority(priority).with_group1(true);
        (cpu.enabled(true) && cpu.can_take(priority, true)).then_some(lr)
    }

    /// A write of ICC_SGI1R of any CPU. False if the SGI is not the guest's.
    pub fn send(&mut self, intid: u32) -> bool {
        self.pending |= 1 << intid & self.all;
        self.all >> intid & 1 != 0
    }

    /// State for the model; and the timers that stay active.
    pub fn observe(&self) -> (Observed, u32) {
        assert_eq!(self.pending & HW_PPI_MASK, 0, "a timer is pending by a latch");
        (Observed { pending: self.pending, active: self.active }, self.active & HW_PPI_MASK)
    }
}
