//! The reference model: a GICv3 with one Security state, without list registers.

use stile_vgic::SgiRegister;

use super::cpu::Cpu;

#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    pub enabled: bool,
    pub group1: bool,
    pub priority: u8,
    pub edge: bool,
    pub line: bool,
    pub latch: bool,
    pub active: bool,
    pub route: u64,
}

impl Interrupt {
    pub fn pending(&self) -> bool {
        self.latch || self.line && !self.edge
    }
}

#[derive(Clone, Debug)]
pub struct Gic {
    pub enables: u32,
    /// SGIs and PPIs, per vCPU.
    pub private: Vec<Vec<Interrupt>>,
    /// SPIs, from INTID 32.
    pub spis: Vec<Interrupt>,
    pub cpus: Vec<Cpu>,
}

const ANY: u64 = 1 << 31;

impl Gic {
    pub fn new(vcpus: usize) -> Self {
        let private = |intid: usize| Interrupt { edge: intid < 16, group1: true, ..Default::default() };
        Self {
            enables: 0,
            private: vec![(0..32).map(private).collect(); vcpus],
            spis: vec![Interrupt { group1: true, ..Default::default() }; 224],
            cpus: vec![Cpu::new(); vcpus],
        }
    }

    /// The interrupt `intid` as vCPU `v` sees it.
    pub fn interrupt(&mut self, v: usize, intid: u32) -> &mut Interrupt {
        match intid {
            0..32 => &mut self.private[v][intid as usize],
            _ => &mut self.spis[intid as usize - 32],
        }
    }

    fn goes_to(&self, intid: u32, v: usize) -> bool {
        if intid < 32 {
            return true;
        }
        let route = self.spis[intid as usize - 32].route;
        // 1 of N: vCPU 0 is the lowest that is online.
        if route & ANY != 0 { v == 0 } else { route == v as u64 }
    }

    /// Pending interrupts of the highest priority among those of groups enabled at vCPU `v`'s
    /// interface. The order of equal priorities is not defined.
    fn highest_pending(&mut self, v: usize) -> Vec<u32> {
        let mut best = (u8::MAX, vec![]);
        for intid in 0..256 {
            if !self.goes_to(intid, v) {
                continue;
            }
            let enables = self.enables;
            let interrupt = self.interrupt(v, intid).clone();
            let group = u32::from(interrupt.group1);
            let ready = interrupt.pending()
                && !interrupt.active
                && interrupt.enabled
                && enables >> group & 1 != 0
                && self.cpus[v].enabled(interrupt.group1);
            if ready && interrupt.priority < best.0 {
                best = (interrupt.priority, vec![]);
            }
            if ready && interrupt.priority == best.0 {
                best.1.push(intid);
            }
        }
        best.1
    }

    /// The interrupts that vCPU `v` may acknowledge next, and whether none is allowed, too: of two interrupts of
    /// the same priority but different groups only one may be able to preempt, and either may be selected.
    pub fn signalled(&mut self, v: usize) -> (Vec<u32>, bool) {
        let mut all = self.highest_pending(v);
        let count = all.len();
        all.retain(|&intid| {
            let Interrupt { priority, group1, .. } = *self.interrupt(v, intid);
            self.cpus[v].can_take(priority, group1)
        });
        let maybe_nothing = all.len() < count || count == 0;
        (all, maybe_nothing)
    }

    pub fn acknowledge(&mut self, v: usize, intid: u32) {
        let interrupt = self.interrupt(v, intid);
        interrupt.active = true;
        interrupt.latch = false;
        let Interrupt { priority, group1, .. } = *interrupt;
        self.cpus[v].acknowledge(priority, group1);
    }

    pub fn end_of_interrupt(&mut self, v: usize, intid: u32) {
        self.cpus[v].drop_priority();
        if !self.cpus[v].vmcr.eoi_split() {
            self.interrupt(v, intid).active = false;
        }
    }

    pub fn set_level(&mut self, v: usize, intid: u32, high: bool) {
        let interrupt = self.interrupt(v, intid);
        if high && !interrupt.line && interrupt.edge {
            interrupt.latch = true;
        }
        interrupt.line = high;
    }

    pub fn send_sgi(&mut self, sender: usize, register: SgiRegister, targets: u64, intid: u32) {
        for v in 0..self.private.len() {
            let interrupt = &mut self.private[v][intid as usize];
            let allowed = !interrupt.group1 || register == SgiRegister::Sgi1r;
            if targets >> v & 1 != 0 && allowed {
                interrupt.latch = true;
            }
        }
        let _ = sender;
    }

    fn bits(&mut self, v: usize, n: u32, f: impl Fn(&Interrupt) -> bool) -> u32 {
        (0..32).fold(0, |bits, i| bits | u32::from(f(self.interrupt(v, n * 32 + i))) << i)
    }

    /// Reads the 32-bit register at `offset` of the distributor (for `n` > 0) or of vCPU `v`'s SGI_base.
    pub fn read(&mut self, v: usize, offset: u32) -> u32 {
        let n = offset >> 2 & 31;
        match offset {
            0x080..0x100 => self.bits(v, n, |i| i.group1),
            0x100..0x200 => self.bits(v, n, |i| i.enabled),
            0x200..0x300 => self.bits(v, n, Interrupt::pending),
            0x300..0x400 => self.bits(v, n, |i| i.active),
            0x400..0x500 => {
                let first = offset - 0x400;
                let bytes = [0, 1, 2, 3].map(|i| self.interrupt(v, first + i).priority);
                u32::from_le_bytes(bytes)
            }
            0xc00..0xc40 => {
                let first = (offset - 0xc00) * 4;
                (0..16).fold(0, |all, i| all | u32::from(self.interrupt(v, first + i).edge) << (2 * i + 1))
            }
            _ => panic!("the reference has no register at {offset:#x}"),
        }
    }

    pub fn write(&mut self, v: usize, offset: u32, value: u32) {
        let n = offset >> 2 & 31;
        for i in 0..32 {
            let set = value >> i & 1 != 0;
            let interrupt = match offset {
                0x080..0x400 => self.interrupt(v, n * 32 + i),
                _ => break,
            };
            match offset >> 7 {
                1 => interrupt.group1 = set,
                2 => interrupt.enabled |= set,
                3 => interrupt.enabled &= !set,
                4 => interrupt.latch |= set,
                5 => interrupt.latch &= !set,
                6 => interrupt.active |= set,
                _ => interrupt.active &= !set,
            }
        }
        if (0x400..0x500).contains(&offset) {
            for (i, byte) in (0..).zip(value.to_le_bytes()) {
                self.interrupt(v, offset - 0x400 + i).priority = byte & 0xf8;
            }
        }
        if (0xc00..0xc40).contains(&offset) {
            let first = (offset - 0xc00) * 4;
            for i in 0..16 {
                let intid = first + i;
                if intid >= 16 && !super::HW_PPIS.contains(&intid) {
                    self.interrupt(v, intid).edge = value >> (2 * i + 1) & 1 != 0;
                }
            }
        }
    }
}
