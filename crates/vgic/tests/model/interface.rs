//! An emulated virtual CPU interface: list registers that behave like hardware, with the guest's
//! operations on them, and the physical interrupts that back them.

use std::rc::Rc;

use stile_vgic::{ListRegister, ListRegisters, Maintenance, Shortcuts, Vmcr};

use super::cpu::Cpu;
use super::physical::Physical;
use super::{HW_PPI_MASK, HW_PPIS};

#[derive(Clone, Debug)]
pub struct Interface {
    pub cpu: Cpu,
    pub lr: Vec<ListRegister>,
    /// Shortcuts of the loaded vCPU.
    pub shortcuts: Option<Rc<Shortcuts>>,
    pub maintenance: Maintenance,
    /// Enables that the hypervisor has cleared since the engine set `maintenance`, because their causes stayed asserted
    /// after it had handled them.
    pub withdrawn: u32,
    pub eoi_count: u32,
    /// Physical PPIs that are active.
    pub physical_active: u32,
    /// The lines of the physical PPIs.
    pub physical_lines: u32,
    /// Whether a list register that is pending and active counts as pending for the no-pending
    /// maintenance interrupt; the architecture does not define it.
    pub np_counts_active: bool,
    /// VGrp0D follows the enable of group 1, as in QEMU 10.0 (`maintenance_interrupt_state`).
    pub vgrp0d_follows_group1: bool,
    /// The loaded vCPU's SGIs and timers are the physical redistributor's.
    pub direct: Option<Physical>,
    /// The guest may end interrupts in ways that are UNPREDICTABLE.
    pub hostile: bool,
    /// Number of list-register reads and writes.
    pub accesses: std::cell::Cell<usize>,
}

impl Interface {
    pub fn new(list_registers: usize, np_counts_active: bool) -> Self {
        Self {
            cpu: Cpu::new(),
            lr: vec![ListRegister::INVALID; list_registers],
            shortcuts: None,
            maintenance: Maintenance::default(),
            withdrawn: 0,
            eoi_count: 0,
            physical_active: 0,
            physical_lines: 0,
            np_counts_active,
            vgrp0d_follows_group1: false,
            direct: None,
            hostile: false,
            accesses: 0.into(),
        }
    }

    /// The list register with the highest priority pending interrupt of an enabled group.
    fn highest_pending(&self) -> Option<usize> {
        let candidates = self.lr.iter().enumerate().filter(|(_, lr)| lr.pending() && !lr.active() && self.cpu.enabled(lr.group1()));
        candidates.min_by_key(|(_, lr)| lr.priority()).map(|(n, _)| n)
    }

    /// The interrupt that a read of ICV_IAR, or of ICC_IAR, would return, if any.
    pub fn signalled(&self) -> Option<ListRegister> {
        if let Some(physical) = &self.direct {
            return physical.signalled(&self.cpu, self.physical_lines);
        }
        let lr = self.lr[self.highest_pending()?];
        self.cpu.can_take(lr.priority(), lr.group1()).then_some(lr)
    }

    /// A read of the ICV_IAR of the group that is signalled.
    pub fn acknowledge(&mut self) -> Option<(u32, bool)> {
        let signalled = self.signalled()?;
        if let Some(physical) = &mut self.direct {
            physical.pending &= !(1 << signalled.intid());
            physical.active |= 1 << signalled.intid();
            self.cpu.acknowledge(signalled.priority(), true);
            return Some((signalled.intid(), true));
        }
        let n = self.highest_pending()?;
        let lr = &mut self.lr[n];
        *lr = ListRegister(lr.0 & !ListRegister::PENDING | ListRegister::ACTIVE);
        self.cpu.acknowledge(lr.priority(), lr.group1());
        Some((lr.intid(), lr.group1()))
    }

    /// Whether interrupt `intid` is in a list register.
    pub fn holds(&self, intid: u32) -> bool {
        self.lr.iter().any(|lr| !lr.invalid() && lr.intid() == intid)
    }

    fn find_active(&self, intid: u32) -> Option<usize> {
        self.lr.iter().position(|lr| lr.active() && lr.intid() == intid)
    }

    fn deactivate(&mut self, n: usize) {
        let lr = &mut self.lr[n];
        if lr.hw() {
            assert!(!lr.pending(), "a hardware interrupt pending and active");
            assert!(self.physical_active & 1 << lr.physical_intid() != 0);
            self.physical_active &= !(1 << lr.physical_intid());
        }
        *lr = ListRegister(lr.0 & !ListRegister::ACTIVE);
    }

    /// A write of the ICV_EOIR of a group.
    pub fn end_of_interrupt(&mut self, intid: u32, group1: bool) {
        let Some((dropped, _)) = self.cpu.drop_priority() else {
            return;
        };
        if let Some(physical) = &mut self.direct {
            if !self.cpu.vmcr.eoi_split() {
                physical.active &= !(1 << intid);
            }
            return;
        }
        match self.find_active(intid) {
            None if self.cpu.vmcr.eoi_split() => {}
            None => self.eoi_count = (self.eoi_count + 1) % 32,
            Some(n) => {
                let lr = self.lr[n];
                let matches = lr.group1() == group1 && self.cpu.group_priority(lr.priority(), group1) == dropped;
                // With EOImode 1 the list register is unaffected.
                let split = self.cpu.vmcr.eoi_split();
                assert!(matches || split || self.hostile, "the list register differs from its state at the acknowledge");
                if !self.cpu.vmcr.eoi_split() {
                    self.deactivate(n);
                }
            }
        }
    }

    /// A write of ICV_DIR. Returns false if it is trapped.
    pub fn deactivate_interrupt(&mut self, intid: u32) -> bool {
        if self.maintenance.0 & Maintenance::TDIR != 0 {
            return false;
        }
        if self.cpu.vmcr.eoi_split() {
            if let Some(physical) = &mut self.direct {
                physical.active &= !(1 << intid);
                return true;
            }
            match self.find_active(intid) {
                None => self.eoi_count = (self.eoi_count + 1) % 32,
                Some(n) => self.deactivate(n),
            }
        }
        true
    }

    /// Whether the maintenance interrupt is asserted (ICH_MISR_EL2 not zero).
    pub fn needs_maintenance(&self) -> bool {
        self.lr.iter().any(|lr| lr.eoi_asserted()) || self.asserted() != 0
    }

    /// Disables the causes that the engine has handled and that remain asserted, as the hypervisor does.
    pub fn withdraw_asserted(&mut self) {
        self.withdrawn |= self.asserted();
    }

    /// The enables in ICH_HCR_EL2.
    fn enables(&self) -> u32 {
        self.maintenance.0 & !self.withdrawn
    }

    /// The enables whose cause is asserted.
    fn asserted(&self) -> u32 {
        let pending = |lr: &ListRegister| lr.pending() && (self.np_counts_active || !lr.active());
        let causes = [
            (Maintenance::LRENPIE, self.eoi_count != 0),
            (Maintenance::NPIE, !self.lr.iter().any(pending)),
            (Maintenance::VGRP0EIE, self.cpu.enabled(false)),
            (Maintenance::VGRP0DIE, !self.cpu.enabled(self.vgrp0d_follows_group1)),
            (Maintenance::VGRP1EIE, self.cpu.enabled(true)),
            (Maintenance::VGRP1DIE, !self.cpu.enabled(true)),
        ];
        let on = causes.iter().filter(|(_, asserted)| *asserted).fold(0, |all, (enable, _)| all | enable);
        self.enables() & on
    }

    /// Whether a physical PPI whose condition went away is active for one that waits in software.
    pub fn has_lowered_line_in_software(&self) -> bool {
        let lowered = self.physical_active & !self.physical_lines & HW_PPI_MASK;
        HW_PPIS.iter().any(|&intid| lowered >> intid & 1 != 0 && !self.holds(intid))
    }

    /// Whether the hypervisor's WFI asks the engine no further: all list registers are empty, and no maintenance
    /// interrupt is enabled.
    pub fn is_empty(&self) -> bool {
        self.enables() == 0 && self.lr.iter().all(|lr| lr.invalid() && !lr.eoi_asserted())
    }
}

impl ListRegisters for Interface {
    fn read(&self, n: usize) -> ListRegister {
        self.accesses.set(self.accesses.get() + 1);
        self.lr[n]
    }

    fn write(&mut self, n: usize, value: ListRegister) {
        assert!(!(value.hw() && value.pending() && value.active()), "not permitted: {value:?}");
        let twice = |(m, lr): (usize, &ListRegister)| m != n && !lr.invalid() && !value.invalid() && lr.intid() == value.intid();
        assert!(!self.lr.iter().enumerate().any(twice), "duplicate in list registers: {value:?}");
        self.accesses.set(self.accesses.get() + 1);
        self.lr[n] = value;
    }

    fn shortcuts(&self) -> Option<&Shortcuts> {
        self.shortcuts.as_deref()
    }

    fn invalid(&self) -> u16 {
        let lrs = self.lr.iter().enumerate();
        lrs.filter(|(_, lr)| lr.invalid()).fold(0, |mask, (n, _)| mask | 1 << n)
    }

    fn set_maintenance(&mut self, enables: Maintenance) {
        assert_ne!(self.maintenance, enables, "must be called on changes only");
        self.maintenance = enables;
        self.withdrawn = 0;
    }

    fn take_eoi_count(&mut self) -> u32 {
        std::mem::take(&mut self.eoi_count)
    }

    fn vmcr(&self) -> Vmcr {
        self.cpu.vmcr
    }

    fn running_priority(&self) -> u8 {
        self.cpu.running()
    }

    fn physical_line(&self, intid: u32) -> Option<bool> {
        Some(self.physical_lines >> intid & 1 != 0)
    }

    fn deactivate_physical(&mut self, intid: u32) {
        self.physical_active &= !(1 << intid);
    }
}
