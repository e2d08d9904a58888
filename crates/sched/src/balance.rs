//! Placement of woken vCPUs, and load balancing between CPUs.

use crate::{CPUS, CpuId, CpuSet, Scheduler, VcpuId};

/// Number of slices that expire on a contended CPU before it rotates: migrates a vCPU to a CPU with just one
/// vCPU less.
const ROTATION: u8 = 4;

/// The affinity of a vCPU according to its VM's configuration.
///
/// `cpus` are the CPUs that the VM may use, masked by `online`; an empty set means all. If the VM is
/// `pinned`, vCPU i gets CPU number i of them, modulo their number. The result is empty only if none of the
/// CPUs is online.
pub fn affinity(cpus: CpuSet, pinned: bool, vcpu: u8, online: CpuSet) -> CpuSet {
    let cpus = if cpus.is_empty() { online } else { cpus.and(online) };
    if !pinned {
        return cpus;
    }
    let place = usize::from(vcpu).checked_rem(cpus.len()).unwrap_or(0);
    cpus.iter().nth(place).map_or(CpuSet::EMPTY, CpuSet::from)
}

impl Scheduler {
    /// Selects the CPU for a vCPU that becomes ready.
    pub(crate) fn place(&self, vcpu: VcpuId) -> CpuId {
        // Its registers are still loaded there; that CPU may be asleep, so no other CPU can get them.
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
        // Prefer a CPU with nothing loaded to one that would first have to put a blocked vCPU.
        if let Some(cpu) = idle.without(self.holding).first().or(idle.first()) {
            return cpu;
        }
        // `allowed` isn't empty: a vCPU without a CPU can't be started.
        let least = || it.allowed.iter().min_by_key(|cpu| self.load(*cpu));
        it.last.or_else(least).unwrap_or(CpuId::BOOT)
    }

    /// Steals a vCPU for an idle CPU, from the queue of the CPU with the highest load.
    #[cold]
    pub(crate) fn steal(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        let mut found = None;
        // A CPU with one queued vCPU and none running has been kicked and is about to run it.
        let mut most = 1;
        for from in self.online.without(self.idle).without(cpu.into()).iter() {
            if self.load(from) > most && self.contended(from) {
                // Skip the vCPU whose registers are still loaded there.
                let held = self.cpus[from.index()].loaded;
                let waiting = self.cpus[from.index()].queue.iter(&self.vcpus).filter(|vcpu| Some(*vcpu) != held);
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

    /// Whether a vCPU's cap allows it to run on a CPU immediately.
    fn may_run(&self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        let vm = usize::from(vcpu.vm());
        !self.capped.contains(vm) || !self.cpus[cpu.index()].queue.throttled.contains(vm) && self.has_time(vm, now)
    }

    /// Migrates a vCPU that waits here to an idle CPU. Needed if the idle CPU could not steal it before, because it was still loaded here.
    /// Returns the CPU to kick.
    pub(crate) fn spread(&mut self, cpu: CpuId, now: u64) -> Option<CpuId> {
        let (vcpu, to) = self.to_spread(cpu)?;
        self.transfer(vcpu, cpu, to, now)
    }

    /// Selects a vCPU that waits here and an idle CPU that it may use.
    pub(crate) fn to_spread(&self, cpu: CpuId) -> Option<(VcpuId, CpuId)> {
        // A waiting vCPU is not loaded on this CPU: the running one is.
        self.cpus[cpu.index()].queue.iter(&self.vcpus).find_map(|vcpu| {
            let to = self.vcpus[vcpu.index()].allowed.and(self.idle).without(cpu.into()).first()?;
            Some((vcpu, to))
        })
    }

    /// After the slice of `ended`, with no vCPU running: migrates a vCPU to a less loaded CPU, by weight.
    /// Returns the CPU to kick.
    ///
    /// At least one vCPU stays and is loaded right after this, so the migrated vCPU is put if it was still
    /// loaded.
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
            Some(ended) if rotate && self.cpus[cpu.index()].queue.ready.contains(usize::from(ended.vm())) => {
                found.or_else(|| self.rotation(cpu, ended, &weights))
            }
            _ => found,
        }?;
        self.cpus[cpu.index()].turns = 0;
        self.transfer(vcpu, cpu, to, now)
    }

    /// Selects a vCPU to migrate to a CPU that is less loaded even with it: of the VM with the greatest
    /// virtual time, from the tail. Skips vCPUs already migrated since they last ran, so that none starves by
    /// being passed around.
    fn overload(&self, cpu: CpuId, weights: &[u64; CPUS]) -> Option<(VcpuId, CpuId)> {
        let queue = &self.cpus[cpu.index()].queue;
        let here = weights[cpu.index()];
        let least = self.lightest(self.online, cpu, weights)?;
        let lighter = |vm: usize, to: CpuId| weights[to.index()] + self.vcpu_weight(vm) < here;
        // First those that no CPU would be better for, in a balanced machine all: the search below takes quadratic time.
        let mut vms = queue.ready;
        queue.ready.iter().filter(|&vm| !lighter(vm, least)).for_each(|vm| vms.remove(vm));
        while let Some(vm) = vms.iter().max_by_key(|&vm| queue.entities[vm].vtime) {
            vms.remove(vm);
            let found = queue.iter_vm_back(&self.vcpus, vm).find_map(|vcpu| {
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

    /// Selects a vCPU to migrate to a CPU that is no more loaded with it than this one is now: the one whose
    /// slice expired, if it is the longest resident of those that could go.
    fn rotation(&self, cpu: CpuId, ended: VcpuId, weights: &[u64; CPUS]) -> Option<(VcpuId, CpuId)> {
        let destination = |vcpu: VcpuId| self.lightest(self.vcpus[vcpu.index()].allowed, cpu, weights);
        let to = destination(ended)?;
        let arrived = |vcpu: VcpuId| self.vcpus[vcpu.index()].arrived;
        let oldest = self.cpus[cpu.index()].queue.iter(&self.vcpus).all(|other| {
            // Arrival numbers wrap: compare the signed distance.
            arrived(other).wrapping_sub(arrived(ended)) <= u32::MAX / 2 || destination(other).is_none()
        });
        let weight = self.vcpu_weight(usize::from(ended.vm()));
        (oldest && weights[to.index()] + weight <= weights[cpu.index()]).then_some((ended, to))
    }

    /// Migrates a queued vCPU to another CPU's queue; it must not leave its CPU idle. Returns the CPU to
    /// kick.
    pub(crate) fn transfer(&mut self, vcpu: VcpuId, from: CpuId, to: CpuId, now: u64) -> Option<CpuId> {
        self.unqueue(from, vcpu, now);
        self.vcpus[vcpu.index()].sent = true;
        self.enqueue(to, vcpu, now).then_some(to)
    }

    /// The load of each CPU, by weight.
    fn weights(&self) -> [u64; CPUS] {
        let mut weights = [0; CPUS];
        for cpu in self.online.iter() {
            weights[cpu.index()] = self.weight_on(cpu);
        }
        weights
    }

    /// The least loaded CPU of a set, without `near`. Ties go to the next CPU after `near`, so that
    /// repeatedly migrated vCPUs reach all of them.
    fn lightest(&self, cpus: CpuSet, near: CpuId, weights: &[u64; CPUS]) -> Option<CpuId> {
        cpus.without(near.into()).iter_after(near).min_by_key(|cpu| weights[cpu.index()])
    }

    /// Number of vCPUs running or queued on a CPU.
    fn load(&self, cpu: CpuId) -> usize {
        self.cpus[cpu.index()].queue.load
    }
}
