//! Shares: virtual time, by which competing VMs are scheduled on a CPU.
//!
//! Each CPU runs start-time fair queueing over the VMs that want it. A VM's virtual time there advances with each tick
//! that one of its vCPUs runs, by 1 / (weight × part), where `part` is the number of its ready vCPUs here divided by
//! that on all CPUs. Ready vCPUs on CPUs that no other VM wants count, too: the VM is served there. A VM that begins to
//! compete starts at the CPU's virtual time, or at its own if that is later: sleep earns no credit, and debt stays.

use core::sync::atomic::Ordering;

use crate::cap::Cap;
use crate::id::{VMS, VmSet};
use crate::vm::Vm;
use crate::{CpuId, Locked, State, VcpuId};

/// Virtual time per tick at weight 1, with all the VM's vCPUs on one CPU.
const SCALE: u64 = 1 << 16;
/// Maximum number of ticks charged at once: bounds the product with [`SCALE`].
const MOST: u64 = 1 << 40;
/// All virtual times are rebased by this amount when one exceeds it.
const REBASE: u64 = 1 << 62;

impl Locked<'_> {
    /// See [`Scheduler::set_share`](crate::Scheduler::set_share). All locks are held, as for the next.
    pub(crate) fn set_share(&mut self, vm: u8, weight: u16, cap: Option<(u64, u64)>) {
        let vm = usize::from(vm) & (VMS - 1);
        self.vm(vm).weight.store(weight.max(1), Ordering::Relaxed);
        self.vm(vm).set_cap(cap.map(|(quota, period)| Cap::new(quota.max(1), period.max(1))));
        self.shared().known.insert(vm);
        match cap {
            Some(_) => self.shared().capped.insert(vm),
            None => self.shared().capped.remove(vm),
        }
        self.update_policed();
    }

    /// See [`Scheduler::remove_vm`](crate::Scheduler::remove_vm). `vcpus` are the VM's.
    pub(crate) fn remove_vm(&mut self, vm: u8, vcpus: impl Iterator<Item = VcpuId>) {
        for vcpu in vcpus {
            debug_assert!(self.state(vcpu) == State::Off, "a vCPU of a VM that is removed is not off");
            self.reset_vcpu(vcpu);
        }
        let vm = usize::from(vm) & (VMS - 1);
        self.vm(vm).reset();
        self.shared().known.remove(vm);
        self.shared().capped.remove(vm);
        for cpu in self.online().iter() {
            // Its successor has neither debt nor credit.
            self[cpu].queue.entity(vm).vtime = 0;
        }
        self.update_policed();
    }

    /// Decides whether shares are accounted. That may begin and end while vCPUs of the only other VM run and wait.
    fn update_policed(&mut self) {
        let policed = !self.capped().is_empty() || self.shared().known.get().is_several();
        if policed != self.policed() {
            self.shared().policed.store(policed, Ordering::Relaxed);
            self.recount();
        }
    }

    /// Counts the vCPUs that run and wait, as [`join`](Self::join) would have, if shares are accounted; otherwise forgets the counts.
    fn recount(&mut self) {
        let mut counted = VmSet::EMPTY;
        (0..VMS).filter(|&vm| self.vm(vm).vcpus.load(Ordering::Relaxed) != 0).for_each(|vm| counted.insert(vm));
        for cpu in self.online().iter() {
            // Stale: not maintained while shares were not accounted.
            self[cpu].timed = false;
            self[cpu].queue.deadline = u64::MAX;
            let load = self.load_of(cpu);
            load.present.set(VmSet::EMPTY);
            counted.iter().for_each(|vm| load.set_count(vm, 0));
        }
        self.shared().vms().for_each(|vm| vm.recount(0));
        if !self.policed() {
            return;
        }
        for number in 0..VMS as u8 {
            let vm = usize::from(number);
            let vcpus = self.vm(vm).vcpus.load(Ordering::Relaxed);
            for vcpu in (0..vcpus).filter_map(|vcpu| VcpuId::new(number, vcpu as u8)) {
                if let State::Ready(cpu) | State::Running(cpu) = self.state(vcpu) {
                    self.vm(vm).recount(self.vm(vm).active() + 1);
                    let load = self.load_of(cpu);
                    load.set_count(vm, load.count(vm) + 1);
                    load.present.insert(vm);
                }
            }
        }
    }

    /// Accounts a vCPU of a VM as waiting or running on a CPU.
    #[inline(always)]
    pub(crate) fn join(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if self.policed() {
            self.join_policed(cpu, vm & (VMS - 1), now);
        } else {
            self.load_of(cpu).add(1);
        }
    }

    #[inline(never)]
    fn join_policed(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.vm(vm).activate(now);
        // The next period may have begun.
        if self[cpu].queue.throttled.contains(vm) && self.has_time(vm, now) {
            self.unthrottle(cpu, vm, now);
        }
        self.charge(cpu, now);
        let count = self.load_of(cpu).count(vm) + 1;
        self.load_of(cpu).set_count(vm, count);
        if !self[cpu].queue.throttled.contains(vm) {
            if count == 1 {
                self.appear(cpu, vm, now);
            }
            self.load_of(cpu).add(1);
        }
    }

    /// Reverses [`join`](Self::join). The vCPU may still be running, but is no longer in the list.
    #[inline(always)]
    pub(crate) fn part(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if self.policed() {
            self.part_policed(cpu, vm & (VMS - 1), now);
        } else {
            self.load_of(cpu).sub(1);
        }
    }

    #[inline(never)]
    fn part_policed(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.charge(cpu, now);
        self.vm(vm).deactivate(now);
        let throttled = self[cpu].queue.throttled.contains(vm);
        let load = self.load_of(cpu);
        if !throttled {
            load.sub(1);
        }
        let count = load.count(vm) - 1;
        load.set_count(vm, count);
        if count == 0 {
            self[cpu].queue.throttled.remove(vm);
            if !throttled {
                self.vanish(cpu, vm, now);
            }
        }
    }

    /// A VM starts to compete for a CPU; the running vCPU has been charged.
    pub(crate) fn appear(&mut self, cpu: CpuId, vm: usize, now: u64) {
        let present = &self.load_of(cpu).present;
        let before = present.get();
        present.insert(vm);
        if !before.is_several()
            && let Some(other) = before.first()
        {
            // Debt decays while VMs don't compete, as if the VM running alone had been charged for that time.
            let weight = self.vm(other).weight();
            let queue = &mut self[cpu].queue;
            let alone = now.saturating_sub(queue.alone_since).min(MOST) * SCALE / u64::from(weight);
            let vtime = queue.vtime;
            let incumbent = queue.entity(other);
            incumbent.vtime = incumbent.vtime.max(vtime).saturating_add(alone);
            queue.vtime = incumbent.vtime;
            self.begin_charge(cpu, now);
        }
        let queue = &mut self[cpu].queue;
        let vtime = queue.vtime;
        let entity = queue.entity(vm);
        entity.vtime = entity.vtime.max(vtime);
    }

    /// A VM no longer wants a CPU, or is throttled there; the running vCPU has been charged.
    pub(crate) fn vanish(&mut self, cpu: CpuId, vm: usize, now: u64) {
        let load = self.load_of(cpu);
        let several = load.competing();
        load.present.remove(vm);
        let present = load.present.get();
        if several && !present.is_several() {
            let queue = &mut self[cpu].queue;
            queue.alone_since = now;
            let left = present.first().map_or(0, |other| queue.entities[other].vtime);
            queue.vtime = queue.vtime.max(left);
        }
    }

    /// Charges the VM of the running vCPU for the time since it was last charged, if VMs compete.
    #[inline(always)]
    pub(crate) fn charge(&mut self, cpu: CpuId, now: u64) {
        if self.policed() && self.load_of(cpu).competing() {
            self.charge_competing(cpu, now);
        }
    }

    #[inline(never)]
    fn charge_competing(&mut self, cpu: CpuId, now: u64) {
        let Some(current) = self[cpu].current else { return };
        let vm = usize::from(current.vm()) & (VMS - 1);
        let (clock, weight) = (self.vm(vm).clock_at(now), self.vm(vm).weight());
        let count = self.load_of(cpu).count(vm);
        let queue = &mut self[cpu].queue;
        let used = clock.wrapping_sub(queue.charged);
        if used > u64::MAX / 2 {
            // Times are slightly out of order: it has been charged to a later one.
            return;
        }
        let used = used.min(MOST);
        queue.charged = clock;
        let entity = queue.entity(vm);
        // Rounded up: many short runs cost no less than a long one.
        let cost = (used * SCALE).div_ceil(u64::from(weight) * u64::from(count.max(1)));
        entity.vtime = entity.vtime.saturating_add(cost);
    }

    /// Charges the VM of `vcpu`, instead of the running vCPU's, for the time from `began` to `ended`, in ticks, in which this CPU woke
    /// `vcpu`. Without effect if no VMs compete: then nobody is charged.
    pub fn charge_woken(&mut self, cpu: CpuId, vcpu: VcpuId, began: u64, ended: u64) {
        let Some(current) = self[cpu].current else { return };
        if !self.policed() || !self.load_of(cpu).competing() {
            return;
        }
        let [payer, relieved] = [vcpu, current].map(|of| usize::from(of.vm()) & (VMS - 1));
        let during = |vm: &Vm| vm.clock_at(ended).saturating_sub(vm.clock_at(began)).min(MOST);
        let [used, spared] = [payer, relieved].map(|vm| during(self.vm(vm)));
        // A vCPU that was placed on another CPU is not counted here.
        let part = u64::from(self.vm(payer).weight()) * u64::from(self.load_of(cpu).count(payer).max(1));
        let queue = &mut self[cpu].queue;
        queue.charged = queue.charged.wrapping_add(spared);
        let entity = queue.entity(payer);
        entity.vtime = entity.vtime.saturating_add((used * SCALE).div_ceil(part));
    }

    /// Starts charging the running vCPU's VM.
    fn begin_charge(&mut self, cpu: CpuId, now: u64) {
        if let Some(current) = self[cpu].current {
            self[cpu].queue.charged = self.vm(usize::from(current.vm())).clock_at(now);
        }
    }

    /// A vCPU of a VM starts to run.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if self.load_of(cpu).competing() {
            self.begin_competing_turn(cpu, vm, now);
        }
        if !self.capped().is_empty() {
            self.begin_turn_with_cap(cpu, vm, now);
        }
    }

    #[inline(never)]
    fn begin_competing_turn(&mut self, cpu: CpuId, vm: usize, now: u64) {
        let queue = &mut self[cpu].queue;
        queue.last = vm;
        let vtime = queue.entity(vm).vtime;
        queue.vtime = queue.vtime.max(vtime);
        if queue.vtime > REBASE {
            queue.vtime -= REBASE;
            for entity in &mut queue.entities {
                entity.vtime = entity.vtime.saturating_sub(REBASE);
            }
        }
        self.begin_charge(cpu, now);
    }

    /// The running vCPU, of this VM, stops running; `stays` means that it is requeued here.
    #[inline(always)]
    pub(crate) fn end_turn(&mut self, cpu: CpuId, vm: usize, stays: bool, now: u64) {
        if stays {
            self.charge(cpu, now);
        } else {
            self.part_policed(cpu, vm & (VMS - 1), now);
        }
        if !self.capped().is_empty() {
            self.end_grant(cpu, now);
        }
    }

    /// Lets another VM go first if this one, which is running, has no other vCPU here.
    #[inline(never)]
    pub(crate) fn step_behind(&mut self, cpu: CpuId, vm: usize) {
        let queue = &mut self[cpu].queue;
        if queue.waits(vm) {
            return;
        }
        if let Some(next) = queue.next_vm() {
            let vtime = queue.entity(next).vtime;
            queue.last = vm;
            let entity = queue.entity(vm);
            entity.vtime = entity.vtime.max(vtime);
        }
    }

    /// The load of a CPU: the sum of the weights of its waiting and running vCPUs.
    pub(crate) fn weight_on(&self, cpu: CpuId) -> u64 {
        let load = self.load_of(cpu);
        if !self.policed() {
            return self.vcpu_weight(0) * load.get() as u64;
        }
        load.present.get().iter().map(|vm| self.vcpu_weight(vm) * u64::from(load.count(vm))).sum()
    }

    /// A vCPU's fraction of its VM's weight.
    pub(crate) fn vcpu_weight(&self, vm: usize) -> u64 {
        let it = self.vm(vm);
        u64::from(it.weight()) * SCALE / u64::from(it.active().max(1))
    }
}
