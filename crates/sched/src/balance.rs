//! Placement of woken vCPUs, and load balancing between CPUs.

use core::sync::atomic::{Ordering, fence};

use stile_lock::Mark;

use crate::id::VmSet;
use crate::{CPUS, CpuId, CpuSet, Locked, VcpuId};

/// Number of slices that expire on a contended CPU before it rotates: migrates a vCPU to a CPU with just one
/// vCPU less.
const ROTATION: u8 = 4;

/// Number of other CPUs that a CPU compares its load with at the end of a slice, or before it steals.
const WINDOW: usize = 63;

/// Attempts to steal from the CPU with the highest load of the next few. From then on a CPU tries all others in order.
const BEST: usize = 4;

impl Locked<'_> {
    /// Selects the CPU for a vCPU that becomes ready, and takes its lock: without that the vCPU stays with its CPU.
    pub(crate) fn place(&mut self, vcpu: VcpuId) -> CpuId {
        let home = self.home(vcpu);
        // Its registers are still loaded there; that CPU may be asleep, so no other CPU can get them.
        if self[home].loaded == Some(vcpu) {
            return home;
        }
        let it = &self[vcpu];
        if it.only == Some(home) {
            return home;
        }
        self.place_among(vcpu, home)
    }

    #[inline(never)]
    fn place_among(&mut self, vcpu: VcpuId, home: CpuId) -> CpuId {
        let (allowed, last) = (self.usable_by(vcpu), self[vcpu].last);
        let idle = self.shared().idle(&allowed);
        if let Some(last) = last
            && idle.contains(last)
            && self.also_idle(last)
        {
            return last;
        }
        // Prefer a CPU with nothing loaded to one that would first have to put a blocked vCPU.
        if let Some(cpu) = idle.without(&self.shared().holding(&idle)).first().or(idle.first()) {
            if self.also_idle(cpu) {
                return cpu;
            }
            // The CPU that gets it looks for an idle one again.
            self.missed = true;
        }
        // `allowed` isn't empty: a vCPU without a CPU can't be started.
        let cpu = last.or_else(|| self.least_loaded(&allowed)).unwrap_or(home);
        if self.also(cpu) { cpu } else { home }
    }

    /// Steals a vCPU for an idle CPU, from the queue of the CPU with the highest load.
    #[inline]
    pub(crate) fn steal(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        // Before it looks, and `may_spread` has the other half: either this CPU sees a vCPU that begins to wait, or the CPU for
        // which that waits sees an idle one.
        self.shared().set_idle(cpu, true);
        fence(Ordering::SeqCst);
        if self.shared().is_any_offering() { self.steal_offered(cpu, now) } else { None }
    }

    /// Steals one of the vCPUs that wait for CPUs that offer them.
    #[cold]
    #[inline(never)]
    fn steal_offered(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        let mut rest = self.shared().offering(&self.online().except(cpu));
        let mut attempt = 0;
        loop {
            // The best of a few, then the next of all: so that the time is bounded.
            let (looks, is_choosy) = if attempt < BEST { (WINDOW, true) } else { (CPUS, false) };
            attempt += 1;
            // A CPU with one queued vCPU and none running has been kicked and is about to run it.
            let mut most = 1;
            let mut busiest = None;
            for from in rest.iter_after(cpu).take(looks) {
                if self.load(from) > most && self.load_of(from).is_usable_by(cpu) {
                    (busiest, most) = (Some(from), self.load(from));
                    if !is_choosy {
                        break;
                    }
                } else if !is_choosy {
                    rest.set(from, false);
                }
            }
            let Some(from) = busiest else {
                if is_choosy && rest.len() > WINDOW {
                    attempt = BEST;
                    continue;
                }
                return None;
            };
            rest.set(from, false);
            let held = self.held.mark();
            if !self.also(from) {
                self.missed = true;
                continue;
            }
            let stolen = self.steal_from(from, cpu, now);
            self.held.keep(held);
            if stolen.is_some() {
                return stolen;
            }
        }
    }

    /// Steals a vCPU from a CPU whose lock is held.
    fn steal_from(&mut self, from: CpuId, cpu: CpuId, now: u64) -> Option<VcpuId> {
        if self.load(from) < 2 {
            return None;
        }
        // Skip the vCPU whose registers are still loaded there.
        let held = self[from].loaded;
        let mut waiting = self[from].queue.iter(&self.held).filter(|vcpu| Some(*vcpu) != held);
        let vcpu = waiting.find(|&vcpu| self.may_use(vcpu, cpu) && self.may_run(cpu, vcpu, now))?;
        drop(waiting);
        self.unqueue(from, vcpu, now);
        self.move_to(vcpu, cpu);
        self.join(cpu, usize::from(vcpu.vm()), now);
        self.arrive(cpu, vcpu);
        Some(vcpu)
    }

    /// Whether a vCPU's cap allows it to run on a CPU immediately.
    fn may_run(&self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        let vm = usize::from(vcpu.vm());
        !self.capped().contains(vm) || !self[cpu].queue.throttled.contains(vm) && self.has_time(vm, now)
    }

    /// Migrates a vCPU that waits here to an idle CPU. Needed if the idle CPU could not steal it before, because it was still loaded here.
    /// Returns the CPU to kick.
    pub(crate) fn spread(&mut self, cpu: CpuId, now: u64) -> Option<CpuId> {
        let Some((vcpu, to)) = self.to_spread(cpu) else {
            self.update_usable(cpu);
            return None;
        };
        let held = self.held.mark();
        if !self.also_idle(to) {
            self.held.keep(held);
            self.missed = true;
            return None;
        }
        // It may be the vCPU that the next one has just replaced, which is not put yet: the lock is kept until it is.
        self.transfer(vcpu, to, self.held.mark(), now)
    }

    /// Forgets the CPUs that only vCPUs which no longer wait here may use.
    fn update_usable(&self, cpu: CpuId) {
        let mut usable = CpuSet::EMPTY;
        let mut vms = VmSet::EMPTY;
        for vcpu in self[cpu].queue.iter(&self.held) {
            let vm = usize::from(vcpu.vm());
            match self[vcpu].only {
                Some(only) => usable.set(only, true),
                None if vms.contains(vm) => {}
                None => {
                    vms.insert(vm);
                    usable = usable.or(&self.usable_by(vcpu));
                }
            }
        }
        self.shared().set_usable(cpu, &usable.except(cpu));
    }

    /// Whether an idle CPU may be able to run a vCPU that waits for this one: then this CPU must call
    /// [`pick_next`](Self::pick_next), which migrates it. Called after a vCPU was queued here without a kick of this CPU.
    pub fn may_spread(&self, cpu: CpuId) -> bool {
        // The other half is in `steal`.
        fence(Ordering::SeqCst);
        self.contended(cpu) && self.has_usable_idle(cpu)
    }

    /// Whether a CPU is idle that vCPUs which wait here may use; only a hint.
    #[inline]
    pub(crate) fn has_usable_idle(&self, cpu: CpuId) -> bool {
        self.load_of(cpu).has_usable() && self.is_one_usable_idle(cpu)
    }

    #[cold]
    #[inline(never)]
    fn is_one_usable_idle(&self, cpu: CpuId) -> bool {
        !self.usable_idle(cpu).is_empty()
    }

    /// The idle CPUs that vCPUs which wait here may use, or a few more.
    fn usable_idle(&self, cpu: CpuId) -> CpuSet {
        self.shared().idle(&self.load_of(cpu).usable())
    }

    /// Selects a vCPU that waits here and an idle CPU that it may use.
    pub(crate) fn to_spread(&self, cpu: CpuId) -> Option<(VcpuId, CpuId)> {
        let idle = self.usable_idle(cpu);
        // A waiting vCPU is not loaded on this CPU: the running one is.
        self[cpu].queue.iter(&self.held).find_map(|vcpu| {
            let to = match self[vcpu].only {
                Some(only) => idle.contains(only).then_some(only),
                None => self.usable_by(vcpu).and(&idle).first(),
            }?;
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
        let turns = &mut self[cpu].turns;
        *turns = turns.saturating_add(1);
        let rotate = *turns >= ROTATION;
        if self.load_of(cpu).has_usable() { self.balance_by_weight(cpu, ended, rotate, now) } else { None }
    }

    #[inline(never)]
    fn balance_by_weight(&mut self, cpu: CpuId, ended: Option<VcpuId>, rotate: bool, now: u64) -> Option<CpuId> {
        let window = self.window(cpu);
        let weights = self.weights(&window.or(&cpu.into()));
        let found = self.overload(cpu, &window, &weights);
        let (vcpu, to) = match ended {
            Some(ended) if rotate && self[cpu].queue.ready.contains(usize::from(ended.vm())) => {
                found.or_else(|| self.rotation(cpu, ended, &window, &weights))
            }
            _ => found,
        }?;
        let held = self.held.mark();
        if !self.also(to) || self.weight_on(to) > weights[to.index()] {
            // Others act on it, or have sent it vCPUs since. There is another slice.
            self.held.keep(held);
            return None;
        }
        self[cpu].turns = 0;
        self.transfer(vcpu, to, held, now)
    }

    /// Selects a vCPU to migrate to a CPU that is less loaded even with it: of the VM with the greatest
    /// virtual time, from the tail. Skips vCPUs already migrated since they last ran, so that none starves by
    /// being passed around.
    fn overload(&self, cpu: CpuId, window: &CpuSet, weights: &[u64; CPUS]) -> Option<(VcpuId, CpuId)> {
        let queue = &self[cpu].queue;
        let here = weights[cpu.index()];
        let least = self.lightest(window, cpu, weights)?;
        let lighter = |vm: usize, to: CpuId| weights[to.index()] + self.vcpu_weight(vm) < here;
        // First those that no CPU would be better for, in a balanced machine all: the search below takes quadratic time.
        let mut vms = queue.ready;
        queue.ready.iter().filter(|&vm| !lighter(vm, least)).for_each(|vm| vms.remove(vm));
        while let Some(vm) = vms.iter().max_by_key(|&vm| queue.entities[vm].vtime) {
            vms.remove(vm);
            // Those of its vCPUs that may use other CPUs may use the same.
            let to = self.lightest(&window.and(&self.shared().affinity(vm).usable.get()), cpu, weights);
            let Some(to) = to.filter(|&to| lighter(vm, to)) else { continue };
            let is_free = |vcpu: &VcpuId| self[*vcpu].only.is_none() && !self[*vcpu].migrated;
            if let Some(vcpu) = queue.iter_vm_back(&self.held, vm).find(is_free) {
                return Some((vcpu, to));
            }
        }
        None
    }

    /// Selects a vCPU to migrate to a CPU that is no more loaded with it than this one is now: the one whose
    /// slice expired, if it is the longest resident of those that could go.
    fn rotation(&self, cpu: CpuId, ended: VcpuId, window: &CpuSet, weights: &[u64; CPUS]) -> Option<(VcpuId, CpuId)> {
        let others = |vcpu: VcpuId| self.usable_by(vcpu).except(cpu);
        let to = self.lightest(&others(ended).and(window), cpu, weights)?;
        let arrived = |vcpu: VcpuId| self[vcpu].arrived;
        let oldest = self[cpu].queue.iter(&self.held).all(|other| {
            // Arrival numbers wrap: compare the signed distance.
            arrived(other).wrapping_sub(arrived(ended)) <= u32::MAX / 2 || others(other).is_empty()
        });
        let weight = self.vcpu_weight(usize::from(ended.vm()));
        (oldest && weights[to.index()] + weight <= weights[cpu.index()]).then_some((ended, to))
    }

    /// Migrates a vCPU from the queue that it is in to that of another CPU, whose lock is held; it must not leave its CPU
    /// idle. Then releases all locks that were taken since `keep`, if another CPU may load the vCPU. Returns the CPU to kick.
    pub(crate) fn transfer(&mut self, vcpu: VcpuId, to: CpuId, keep: Mark, now: u64) -> Option<CpuId> {
        let from = self.home(vcpu);
        let is_loaded = self[from].loaded == Some(vcpu);
        self.unqueue(from, vcpu, now);
        self[vcpu].migrated = true;
        let kick = self.enqueue(to, vcpu, now).then_some(to);
        if !is_loaded {
            self.held.keep(keep);
        }
        kick
    }

    /// The CPU of a set with the fewest vCPUs.
    pub(crate) fn least_loaded(&self, cpus: &CpuSet) -> Option<CpuId> {
        cpus.iter().min_by_key(|cpu| self.load(*cpu))
    }

    /// The CPUs that a CPU compares itself with: all others, or the next [`WINDOW`] of them, so that the time for that is bounded.
    fn window(&mut self, cpu: CpuId) -> CpuSet {
        let others = self.online().except(cpu);
        if others.len() <= WINDOW {
            return others;
        }
        let mut compared = self[cpu].compared.unwrap_or(cpu);
        let window = others.iter_after(compared).take(WINDOW).inspect(|&other| compared = other).collect();
        self[cpu].compared = Some(compared);
        window
    }

    /// The load of each of these CPUs, by weight.
    fn weights(&self, cpus: &CpuSet) -> [u64; CPUS] {
        let mut weights = [0; CPUS];
        for cpu in cpus.iter() {
            weights[cpu.index()] = self.weight_on(cpu);
        }
        weights
    }

    /// The least loaded CPU of a set that does not contain `near`. Ties go to the next CPU after `near`, so that
    /// repeatedly migrated vCPUs reach all of them.
    fn lightest(&self, cpus: &CpuSet, near: CpuId, weights: &[u64; CPUS]) -> Option<CpuId> {
        cpus.iter_after(near).min_by_key(|cpu| weights[cpu.index()])
    }

    /// Number of vCPUs running or queued on a CPU.
    fn load(&self, cpu: CpuId) -> usize {
        #[cfg(test)]
        crate::tests::count_look();
        self.load_of(cpu).get()
    }
}
