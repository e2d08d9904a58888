//! Which CPU: where a vCPU goes when it wakes, and how load moves between CPUs.

use crate::{CPUS, CpuId, CpuSet, Scheduler, VcpuId};

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
    #[cold]
    pub(crate) fn steal(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        let mut found = None;
        // A CPU that has one vCPU in its queue and runs none has been kicked and is about to take
        // it.
        let mut most = 1;
        for from in self.online.without(self.idle).without(cpu.into()).iter() {
            if self.load(from) > most && self.contended(from) {
                // Not one whose registers are still over there.
                let held = self.cpus[from.index()].loaded;
                let waiting = self.queues[from.index()].iter(&self.links).filter(|vcpu| Some(*vcpu) != held);
                let may_come = |vcpu: &VcpuId| self.vcpus[vcpu.index()].allowed.contains(cpu) && self.may_run(cpu, *vcpu, now);
                if let Some(vcpu) = { waiting }.find(may_come) {
                    found = Some((from, vcpu));
                    most = self.load(from);
                }
            }
        }
        let (from, vcpu) = found?;
        self.unqueue(from, vcpu, now);
        self.join(cpu, usize::from(vcpu.vm()), now);
        self.arrive(vcpu);
        Some(vcpu)
    }

    /// Whether a vCPU's cap lets it run on a CPU at once.
    fn may_run(&self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        let vm = usize::from(vcpu.vm());
        !self.capped.contains(vm) || !self.queues[cpu.index()].throttled.contains(vm) && self.has_time(vm, now)
    }

    /// Gives a vCPU that waits here to a CPU of those that idle. That happens when the idle CPU could not
    /// be had before: the vCPU was still in this one's registers. Returns the CPU to kick.
    #[cold]
    pub(crate) fn spread(&mut self, cpu: CpuId, idle: CpuSet, now: u64) -> Option<CpuId> {
        // Whoever waits here is not in this CPU's registers: the one that runs is.
        let (vcpu, to) = self.queues[cpu.index()].iter(&self.links).find_map(|vcpu| {
            let to = self.vcpus[vcpu.index()].allowed.and(idle).first()?;
            Some((vcpu, to))
        })?;
        self.transfer(vcpu, cpu, to, now)
    }

    /// At the end of the slice of `ended`, with nobody running: sends a vCPU to a CPU that has less
    /// to do, by weight. Returns the CPU to kick.
    ///
    /// One vCPU stays and is loaded right after this, so whoever goes is put, if it was still in
    /// the registers.
    pub(crate) fn balance(&mut self, cpu: CpuId, ended: Option<VcpuId>, now: u64) -> Option<CpuId> {
        if self.load(cpu) < 2 {
            return None;
        }
        let turns = &mut self.cpus[cpu.index()].turns;
        *turns = turns.saturating_add(1);
        let rotate = *turns >= ROTATION;

        let weights = self.weights();
        let found = self.overload(cpu, &weights);
        let (vcpu, to) = match ended {
            Some(ended) if rotate && self.queues[cpu.index()].ready.contains(usize::from(ended.vm())) => {
                found.or_else(|| self.rotation(cpu, ended, &weights))
            }
            _ => found,
        }?;
        self.cpus[cpu.index()].turns = 0;
        self.transfer(vcpu, cpu, to, now)
    }

    /// vCPU to send to a CPU that has less to do even with it: of the VM that waits the longest, from
    /// the tail. Only a vCPU that was not sent before since it last ran: none waits for ever because
    /// it is sent about.
    fn overload(&self, cpu: CpuId, weights: &[u64; CPUS]) -> Option<(VcpuId, CpuId)> {
        let queue = &self.queues[cpu.index()];
        let here = weights[cpu.index()];
        let least = self.lightest(self.online, cpu, weights)?;
        let lighter = |vm: usize, to: CpuId| weights[to.index()] + self.vcpu_weight(vm) < here;
        let mut vms = queue.ready;
        while let Some(vm) = vms.iter().max_by_key(|&vm| queue.entities[vm].vtime) {
            vms.remove(vm);
            if !lighter(vm, least) {
                continue;
            }
            let found = queue.iter_vm_back(&self.links, vm).find_map(|vcpu| {
                let it = &self.vcpus[vcpu.index()];
                let to = self.lightest(it.allowed, cpu, weights)?;
                (!it.sent && lighter(vm, to)).then_some((vcpu, to))
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// vCPU to send to a CPU that has as much to do with it as this one has: the one whose slice is
    /// over, if it has been here for longer than the others that could go.
    fn rotation(&self, cpu: CpuId, ended: VcpuId, weights: &[u64; CPUS]) -> Option<(VcpuId, CpuId)> {
        let destination = |vcpu: VcpuId| self.lightest(self.vcpus[vcpu.index()].allowed, cpu, weights);
        let to = destination(ended)?;
        let arrived = |vcpu: VcpuId| self.vcpus[vcpu.index()].arrived;
        let oldest = self.queues[cpu.index()].iter(&self.links).all(|other| {
            // The count wraps, so it is the distance that has a sign.
            arrived(other).wrapping_sub(arrived(ended)) <= u32::MAX / 2 || destination(other).is_none()
        });
        let weight = self.vcpu_weight(usize::from(ended.vm()));
        (oldest && weights[to.index()] + weight <= weights[cpu.index()]).then_some((ended, to))
    }

    /// Moves a vCPU from one queue, where it does not leave its CPU idle, to another. Returns the CPU
    /// to kick.
    fn transfer(&mut self, vcpu: VcpuId, from: CpuId, to: CpuId, now: u64) -> Option<CpuId> {
        self.unqueue(from, vcpu, now);
        self.vcpus[vcpu.index()].sent = true;
        self.enqueue(to, vcpu, now).then_some(to)
    }

    /// Load of each CPU.
    fn weights(&self) -> [u64; CPUS] {
        let mut weights = [0; CPUS];
        for cpu in self.online.iter() {
            weights[cpu.index()] = self.weight_on(cpu);
        }
        weights
    }

    /// The CPU of a set, without `near`, that has the least to do; of several, the next one after
    /// `near`, so that vCPUs that are sent on again and again come round to all of them.
    fn lightest(&self, cpus: CpuSet, near: CpuId, weights: &[u64; CPUS]) -> Option<CpuId> {
        cpus.without(near.into()).iter_after(near).min_by_key(|cpu| weights[cpu.index()])
    }

    /// How many vCPUs want this CPU: the one that runs, and those in the queue.
    fn load(&self, cpu: CpuId) -> usize {
        self.queues[cpu.index()].load
    }
}
