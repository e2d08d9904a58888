//! Priorities at a CPU interface: mask, group enables, preemption. Common to the reference and to the
//! emulated virtual CPU interface, with five bits of priority and preemption.

use stile_vgic::Vmcr;

#[derive(Clone, Debug)]
pub struct Cpu {
    pub vmcr: Vmcr,
    /// Active priorities of group 0 and group 1, bit `n` for priority `n * 8`.
    pub active: [u32; 2],
}

impl Cpu {
    pub fn new() -> Self {
        Self { vmcr: Vmcr::reset(5), active: [0; 2] }
    }

    pub fn running(&self) -> u8 {
        let all = self.active[0] | self.active[1];
        if all == 0 { 0xff } else { (all.trailing_zeros() * 8) as u8 }
    }

    fn binary_point_mask(&self, group1: bool) -> u8 {
        let cbpr = self.vmcr.0 & Vmcr::VCBPR != 0;
        let bpr0 = self.vmcr.0 >> 21 & 7;
        let bpr1 = self.vmcr.0 >> 18 & 7;
        // The number of low bits ignored for preemption.
        let low = if group1 && !cbpr { bpr1 } else { bpr0 + 1 };
        if low >= 8 { 0 } else { 0xff << low }
    }

    pub fn can_take(&self, priority: u8, group1: bool) -> bool {
        let mask = self.binary_point_mask(group1);
        let running = self.running();
        priority < (self.vmcr.0 >> 24) as u8 && (running == 0xff || priority & mask < running & mask)
    }

    pub fn enabled(&self, group1: bool) -> bool {
        self.vmcr.0 >> u32::from(group1) & 1 != 0
    }

    pub fn acknowledge(&mut self, priority: u8, group1: bool) {
        let level = (priority & self.binary_point_mask(group1)) >> 3;
        self.active[usize::from(group1)] |= 1 << level;
    }

    /// Drops the highest active priority and returns it with its group.
    pub fn drop_priority(&mut self) -> Option<(u8, bool)> {
        let [g0, g1] = self.active;
        if g0 | g1 == 0 {
            return None;
        }
        let group1 = g0.trailing_zeros() > g1.trailing_zeros();
        let bits = &mut self.active[usize::from(group1)];
        let level = bits.trailing_zeros();
        *bits &= *bits - 1;
        Some(((level * 8) as u8, group1))
    }

    pub fn group_priority(&self, priority: u8, group1: bool) -> u8 {
        priority & self.binary_point_mask(group1)
    }
}
