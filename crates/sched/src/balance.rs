//! Which CPU: where a vCPU goes when it wakes, and how load moves between CPUs.

use crate::{CpuId, CpuSet, Scheduler, VcpuId};

/// How many slices end on a contended CPU before it sends a vCPU to a CPU that has just one less.
const ROTATION: u8 = 4;

/// The CPUs that a vCPU may use by its VM's configuration.
///
/// `cpus` are the CPUs that the VM may use, of those that are `online`; none stands for all. If the
/// VM is `pinned`, vCPU i gets the i-th of them, and starts again from the first when there are
/// fewer CPUs than vCPUs. The result is empty only if none of the CPUs is online.
pub fn affinity(cpus: CpuSet, pinned: bool, vcpu: u8, online: CpuSet) -> CpuSet {
    let cpus = if cpus.is_empty() { online } else { cpus.and(online) };
    if !pinned {
        return cpus;
    }
    let place = usize::from(vcpu).checked_rem(cpus.len()).unwrap_or(0);
    cpus.iter().nth(place).map_or(CpuSet::EMPTY, CpuSet::from)
}

impl Scheduler {
    /// The CPU for a vCPU that becomes ready.
    pub(crate) fn place(&self, vcpu: VcpuId) -> CpuId {
        // Its registers are nowhere else, and their CPU may be asleep: nobody else can have them.
        if let Some(cpu) = self.held_by(vcpu) {
            return cpu;
        }
        let it = &self.vcpus[vcpu.index()];
        let idle = it.allowed.and(self.idle);
        if let Some(last) = it.last
            && idle.contains(last)
        {
            return last;
        }
        // A CPU that holds nothing, before one that would have to put a vCPU that sleeps there.
        if let Some(cpu) = idle.without(self.holding).first().or(idle.first()) {
            return cpu;
        }
        // `allowed` isn't empty: a vCPU without a CPU isn't started.
        let least = || it.allowed.iter().min_by_key(|cpu| self.load(*cpu));
        it.last.or_else(least).unwrap_or(CpuId::BOOT)
    }

    /// For a CPU that has nothing to do: a vCPU out of the queue of the CPU that has the most.
    pub(crate) fn steal(&mut self, cpu: CpuId) -> Option<VcpuId> {
        let mut found = None;
        // A CPU that has one vCPU in its queue and runs none has been kicked and is about to take
        // it.
        let mut most = 1;
        for from in self.queues.filled().without(cpu.into()).iter() {
            if self.load(from) > most {
                // Not one whose registers are still over there.
                let held = self.cpus[from.index()].loaded;
                let mut waiting = self.queues.iter(from).filter(|vcpu| Some(*vcpu) != held);
                if let Some(vcpu) = waiting.find(|vcpu| self.vcpus[vcpu.index()].allowed.contains(cpu)) {
                    found = Some((from, vcpu));
                    most = self.load(from);
                }
            }
        }
        let (from, vcpu) = found?;
        self.queues.remove(from, vcpu);
        self.arrive(vcpu);
        Some(vcpu)
    }

    /// Gives a vCPU that waits here to a CPU that idles. That happens when the idle CPU could not
    /// be had before: the vCPU was still in this one's registers. Returns the CPU to kick.
    pub(crate) fn spread(&mut self, cpu: CpuId, now: u64) -> Option<CpuId> {
        let idle = self.idle.without(cpu.into());
        if idle.is_empty() || !self.queues.is_filled(cpu) {
            return None;
        }
        // Whoever waits here is not in this CPU's registers: the one that runs is.
        let (vcpu, to) = self.queues.iter(cpu).find_map(|vcpu| {
            let to = self.vcpus[vcpu.index()].allowed.and(idle).first()?;
            Some((vcpu, to))
        })?;
        self.transfer(vcpu, cpu, to, now)
    }

    /// At the end of a slice, with nobody running and who ran at the queue's tail: sends a vCPU to
    /// a CPU that has less to do. Returns the CPU to kick.
    ///
    /// A vCPU never goes to a queue in which more would be ahead of it than are here, so no vCPU
    /// waits for longer because it is sent about. Nor does the head go: it is loaded right after
    /// this, so whoever goes is put, if it was still in the registers.
    pub(crate) fn balance(&mut self, cpu: CpuId, now: u64) -> Option<CpuId> {
        let load = self.load(cpu);
        if load < 2 {
            return None;
        }
        let turns = &mut self.cpus[cpu.index()].turns;
        *turns = turns.saturating_add(1);
        let rotate = *turns >= ROTATION;

        let found = self.overload(cpu, load);
        let (vcpu, to) = if rotate { found.or_else(|| self.rotation(cpu, load)) } else { found }?;
        self.cpus[cpu.index()].turns = 0;
        self.transfer(vcpu, cpu, to, now)
    }

    /// Of those who wait here, who goes to a CPU that has at least two less to do: from the tail,
    /// for those would wait the longest.
    fn overload(&self, cpu: CpuId, load: usize) -> Option<(VcpuId, CpuId)> {
        let least = self.least_loaded(self.online.without(cpu.into()), cpu)?;
        if self.load(least) + 2 > load {
            return None;
        }
        // The one at the head, with nobody ahead of it, is about to run here.
        let ahead = (1..load).rev();
        self.queues.iter_back(cpu).zip(ahead).find_map(|(vcpu, ahead)| {
            let to = self.destination(vcpu, cpu)?;
            (self.load(to) <= ahead.min(load - 2)).then_some((vcpu, to))
        })
    }

    /// Who goes to a CPU that has one less to do: the one whose slice is over, if it has been here
    /// for longer than the others that could go.
    fn rotation(&self, cpu: CpuId, load: usize) -> Option<(VcpuId, CpuId)> {
        let vcpu = self.queues.tail(cpu)?;
        let to = self.destination(vcpu, cpu)?;
        let arrived = |vcpu: VcpuId| self.vcpus[vcpu.index()].arrived;
        let oldest = self.queues.iter(cpu).all(|other| {
            // The count wraps, so it is the distance that has a sign.
            arrived(other).wrapping_sub(arrived(vcpu)) <= u32::MAX / 2 || self.destination(other, cpu).is_none()
        });
        (oldest && self.load(to) < load).then_some((vcpu, to))
    }

    /// Moves a vCPU from one queue, where it does not leave its CPU idle, to another. Returns the CPU
    /// to kick.
    fn transfer(&mut self, vcpu: VcpuId, from: CpuId, to: CpuId, now: u64) -> Option<CpuId> {
        self.queues.remove(from, vcpu);
        self.enqueue(to, vcpu, now).then_some(to)
    }

    /// The least loaded of the other CPUs that a vCPU may use.
    fn destination(&self, vcpu: VcpuId, from: CpuId) -> Option<CpuId> {
        self.least_loaded(self.vcpus[vcpu.index()].allowed.without(from.into()), from)
    }

    /// The least loaded CPU of a set; of several, the next one after `near`, so that vCPUs that are
    /// sent on again and again come round to all of them.
    fn least_loaded(&self, cpus: CpuSet, near: CpuId) -> Option<CpuId> {
        cpus.iter_after(near).min_by_key(|cpu| self.load(*cpu))
    }

    /// How many vCPUs want this CPU: the one that runs, and those in the queue.
    fn load(&self, cpu: CpuId) -> usize {
        self.queues.len(cpu) + usize::from(self.cpus[cpu.index()].current.is_some())
    }
}
