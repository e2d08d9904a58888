//! Shares: virtual time, by which competing VMs are scheduled on a CPU.
//!
//! Each CPU runs start-time fair queueing over the VMs that want it. A VM's virtual time there advances with each tick
//! that one of its vCPUs runs, by 1 / (weight × part), where `part` is the number of its ready vCPUs here divided by
//! that on all CPUs. Ready vCPUs on CPUs that no other VM wants count, too: the VM is served there. A VM that begins to
//! compete starts at the CPU's virtual time, or at its own if that is later: sleep earns no credit, and debt stays.

use crate::cap::Cap;
use crate::id::{VMS, VmSet};
use crate::vm::Vm;
use crate::{CpuId, Scheduler, State};

/// Virtual time per tick at weight 1, with all the VM's vCPUs on one CPU.
const SCALE: u64 = 1 << 16;
/// Maximum number of ticks charged at once: bounds the product with [`SCALE`].
const MOST: u64 = 1 << 40;
/// All virtual times are rebased by this amount when one exceeds it.
const REBASE: u64 = 1 << 62;

impl Scheduler {
    /// Sets a VM's weight and cap (ticks of CPU time, ticks of the period). All vCPUs of the VM must be off.
    ///
    /// A weight or number of ticks of 0 counts as 1.
    pub fn set_share(&mut self, vm: u8, weight: u16, cap: Option<(u64, u64)>) {
        let vm = usize::from(vm) & (VMS - 1);
        self.vms[vm].weight = weight.max(1);
        self.vms[vm].cap = cap.map(|(quota, period)| Cap::new(quota.max(1), period.max(1)));
        self.known.insert(vm);
        match cap {
            Some(_) => self.capped.insert(vm),
            None => self.capped.remove(vm),
        }
        self.update_policed();
    }

    /// Forgets a VM, all of whose vCPUs are off: its share, and its vCPUs' affinities and times.
    pub fn remove_vm(&mut self, vm: u8) {
        for vcpu in self.vcpus_of(vm) {
            debug_assert!(self.state(vcpu) == State::Off, "a vCPU of a VM that is removed is not off");
            self.reset_vcpu(vcpu);
        }
        let vm = usize::from(vm) & (VMS - 1);
        self.vms[vm] = Vm::NEW;
        self.known.remove(vm);
        self.capped.remove(vm);
        for queue in self.cpus.iter_mut().map(|cpu| &mut cpu.queue) {
            // Its successor has neither debt nor credit.
            queue.entity(vm).vtime = 0;
        }
        self.update_policed();
    }

    /// Decides whether shares are accounted. That may begin and end while vCPUs of the only other VM run and wait.
    fn update_policed(&mut self) {
        let policed = !self.capped.is_empty() || self.known.is_several();
        if policed != self.policed {
            self.policed = policed;
            self.recount();
        }
    }

    /// Counts the vCPUs that run and wait, as [`join`](Self::join) would have, if shares are accounted; otherwise forgets the counts.
    fn recount(&mut self) {
        for queue in self.cpus.iter_mut().map(|cpu| &mut cpu.queue) {
            queue.present = VmSet::EMPTY;
            queue.deadline = u64::MAX;
            queue.entities.iter_mut().for_each(|entity| entity.count = 0);
        }
        for vm in &mut self.vms {
            vm.active = 0;
        }
        if !self.policed {
            return;
        }
        for vm in 0..VMS {
            for vcpu in self.vcpus_of(vm as u8) {
                if let State::Ready(cpu) | State::Running(cpu) = self.state(vcpu) {
                    self.vms[vm].active += 1;
                    let queue = &mut self.cpus[cpu.index()].queue;
                    queue.entity(vm).count += 1;
                    queue.present.insert(vm);
                }
            }
        }
    }

    /// Accounts a vCPU of a VM as waiting or running on a CPU.
    #[inline(always)]
    pub(crate) fn join(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if self.policed {
            self.join_policed(cpu, vm & (VMS - 1), now);
        } else {
            self.cpus[cpu.index()].queue.load += 1;
        }
    }

    #[inline(never)]
    fn join_policed(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.vms[vm].activate(now);
        // The next period may have begun.
        if self.cpus[cpu.index()].queue.throttled.contains(vm) && self.has_time(vm, now) {
            self.unthrottle(cpu, vm, now);
        }
        self.charge(cpu, now);
        let queue = &mut self.cpus[cpu.index()].queue;
        queue.entity(vm).count += 1;
        if !queue.throttled.contains(vm) {
            let count = queue.entity(vm).count;
            if count == 1 {
                self.appear(cpu, vm, now);
            }
            self.cpus[cpu.index()].queue.load += 1;
        }
    }

    /// Reverses [`join`](Self::join). The vCPU may still be running, but is no longer in the list.
    #[inline(always)]
    pub(crate) fn part(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if self.policed {
            self.part_policed(cpu, vm & (VMS - 1), now);
        } else {
            self.cpus[cpu.index()].queue.load -= 1;
        }
    }

    #[inline(never)]
    fn part_policed(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.charge(cpu, now);
        self.vms[vm].deactivate(now);
        let queue = &mut self.cpus[cpu.index()].queue;
        let throttled = queue.throttled.contains(vm);
        if !throttled {
            queue.load -= 1;
        }
        let entity = queue.entity(vm);
        entity.count -= 1;
        if entity.count == 0 {
            queue.throttled.remove(vm);
            if !throttled {
                self.vanish(cpu, vm, now);
            }
        }
    }

    /// A VM starts to compete for a CPU; the running vCPU has been charged.
    pub(crate) fn appear(&mut self, cpu: CpuId, vm: usize, now: u64) {
        let queue = &mut self.cpus[cpu.index()].queue;
        let before = queue.present;
        queue.present.insert(vm);
        if !before.is_several()
            && let Some(other) = before.first()
        {
            // Debt decays while VMs don't compete, as if the VM running alone had been charged for that time.
            let alone = now.saturating_sub(queue.alone_since).min(MOST) * SCALE / u64::from(self.vms[other].weight);
            let vtime = queue.vtime;
            let incumbent = queue.entity(other);
            incumbent.vtime = incumbent.vtime.max(vtime).saturating_add(alone);
            queue.vtime = incumbent.vtime;
            self.begin_charge(cpu, now);
        }
        let queue = &mut self.cpus[cpu.index()].queue;
        let vtime = queue.vtime;
        let entity = queue.entity(vm);
        entity.vtime = entity.vtime.max(vtime);
    }

    /// A VM no longer wants a CPU, or is throttled there; the running vCPU has been charged.
    pub(crate) fn vanish(&mut self, cpu: CpuId, vm: usize, now: u64) {
        let queue = &mut self.cpus[cpu.index()].queue;
        let several = queue.competing();
        queue.present.remove(vm);
        if several && !queue.competing() {
            queue.alone_since = now;
            let left = queue.present.first().map_or(0, |other| queue.entities[other].vtime);
            queue.vtime = queue.vtime.max(left);
        }
    }

    /// Charges the VM of the running vCPU for the time since it was last charged, if VMs compete.
    #[inline(always)]
    pub(crate) fn charge(&mut self, cpu: CpuId, now: u64) {
        if self.policed && self.cpus[cpu.index()].queue.competing() {
            self.charge_competing(cpu, now);
        }
    }

    #[inline(never)]
    fn charge_competing(&mut self, cpu: CpuId, now: u64) {
        let queue = &mut self.cpus[cpu.index()].queue;
        let Some(current) = self.cpus[cpu.index()].current else { return };
        let vm = usize::from(current.vm()) & (VMS - 1);
        let it = &self.vms[vm];
        let clock = it.clock_at(now);
        let used = clock.wrapping_sub(queue.charged);
        if used > u64::MAX / 2 {
            // Times are slightly out of order: it has been charged to a later one.
            return;
        }
        let used = used.min(MOST);
        queue.charged = clock;
        let entity = queue.entity(vm);
        // Rounded up: many short runs cost no less than a long one.
        let cost = (used * SCALE).div_ceil(u64::from(it.weight) * u64::from(entity.count.max(1)));
        entity.vtime = entity.vtime.saturating_add(cost);
    }

    /// Starts charging the running vCPU's VM.
    fn begin_charge(&mut self, cpu: CpuId, now: u64) {
        if let Some(current) = self.cpus[cpu.index()].current {
            self.cpus[cpu.index()].queue.charged = self.vms[usize::from(current.vm()) & (VMS - 1)].clock_at(now);
        }
    }

    /// A vCPU of a VM starts to run.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if self.cpus[cpu.index()].queue.competing() {
            self.begin_competing_turn(cpu, vm, now);
        }
        // Succeeds: without time the VM would be throttled.
        if !self.capped.is_empty() {
            self.begin_grant(cpu, vm, now);
        }
    }

    #[inline(never)]
    fn begin_competing_turn(&mut self, cpu: CpuId, vm: usize, now: u64) {
        let queue = &mut self.cpus[cpu.index()].queue;
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
        if !self.capped.is_empty() {
            self.end_grant(cpu, now);
        }
    }

    /// Lets another VM go first if this one, which is running, has no other vCPU here.
    #[inline(never)]
    pub(crate) fn step_behind(&mut self, cpu: CpuId, vm: usize) {
        let queue = &mut self.cpus[cpu.index()].queue;
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
        let queue = &self.cpus[cpu.index()].queue;
        if !self.policed {
            return self.vcpu_weight(0) * queue.load as u64;
        }
        queue.present.iter().map(|vm| self.vcpu_weight(vm) * u64::from(queue.entities[vm].count)).sum()
    }

    /// A vCPU's fraction of its VM's weight.
    pub(crate) fn vcpu_weight(&self, vm: usize) -> u64 {
        let it = &self.vms[vm & (VMS - 1)];
        u64::from(it.weight) * SCALE / u64::from(it.active.max(1))
    }
}
