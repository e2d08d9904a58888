//! Direct interrupts (`interrupts = "direct"`): while a vCPU has its CPU for itself, HCR_EL2.IMO is clear, and EL1 takes its timers and SGIs as
//! the physical interrupts that they are. docs/direct-interrupts.md has the registers' table and the bound on regaining the CPU.
//!
//! A vCPU whose interrupts are direct is not published as running ([`cpu::notify`]): a sender finds it here, and moves SGIs to the physical
//! redistributor ([`Place::forward`]). Anything else that a CPU has for it ends direct interrupts ([`Place::revoke`]): its second stage
//! becomes empty, so that its next fetch exits. It becomes direct again at the next decision of the scheduler at which nothing is against it, of
//! which there is one after [`retry_later`].

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use stile_blob::{Interrupts, Techniques};
use stile_board::{MAX_CPUS, intid};
use stile_ledger::RowId;
use stile_paging::PAGE_SIZE;
use stile_vgic::{HostPriorities, ListRegisters, Owner, PendingRequests};

use super::interface::Interface;
use super::{claims, delivery, physical_interface};
use crate::address_space;
use crate::arch::aarch64::exit::vectors::{self, Vectors};
use crate::arch::aarch64::host::cpu::{Cpu, this_index};
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::host::{features, gic, redistributor, timer};
use crate::arch::aarch64::vcpu::traps;
use crate::arena::Arena;
use crate::cpu::{self, Leave, Outcome};
use crate::vm::{self, NOWHERE, Vcpu};

/// SGIs that the guest never has in hardware.
const RESERVED: u32 = 1 << gic::OWNED_KICK;
/// The private interrupts that it has.
const ALL: u32 = 0xffff & !RESERVED | super::linked(false);

/// Entries of a second-stage root, and the bytes that each is for (4 KiB granule, level 1).
const ENTRIES: usize = PAGE_SIZE as usize / 8;
const ENTRY_SHIFT: u32 = 30;

/// VTTBR_EL2.VMID and BADDR.
const VMID: u64 = 0xffff << 48;
const ROOT: u64 = 0xffff_ffff_fffe;

/// The first wait before another attempt, in microseconds; it doubles with each that fails.
const RETRY_US: u64 = 100;
/// How often it doubles.
const DOUBLINGS: u32 = 7;

/// How long a CPU waits, in microseconds, before another vCPU becomes direct there: longer than an SGI takes from one CPU to another.
const SETTLE_US: u64 = 100;

/// The vCPU that is direct on each CPU: VM and number, or [`NOBODY`].
static HERE: [AtomicU16; MAX_CPUS] = [const { AtomicU16::new(NOBODY) }; MAX_CPUS];
const NOBODY: u16 = u16::MAX;
/// CPUs that are about to send to, or to revoke, a vCPU that they found direct. It stays so until they are done.
static SENDING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// A vCPU's state for direct interrupts.
pub struct Place {
    /// The CPU on which it is direct, or [`NOWHERE`].
    cpu: AtomicU32,
    /// Physical address of a second-stage root of its own, which others can empty.
    root: u64,
    /// VTTBR_EL2 with that root.
    vttbr: AtomicU64,
    /// Attempts that failed in a row.
    failures: AtomicU32,
}

impl Place {
    /// For a vCPU with these techniques, if they include direct interrupts.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(techniques: Techniques, arena: &'static Arena) -> Result<Option<&'static Place>, &'static str> {
        if techniques.interrupts != Interrupts::Direct {
            return Ok(None);
        }
        let place = Place {
            cpu: AtomicU32::new(NOWHERE),
            root: arena.allocate_pages(PAGE_SIZE)?,
            vttbr: AtomicU64::new(0),
            failures: AtomicU32::new(0),
        };
        Ok(Some(&*arena.allocate()?.write(place)))
    }

    /// Whether the vCPU is direct now. Exact on its own CPU.
    pub fn is_direct(&self) -> bool {
        self.cpu.load(Ordering::Relaxed) != NOWHERE
    }

    fn entries(&self) -> &[AtomicU64; ENTRIES] {
        // SAFETY: the page is this vCPU's alone, for good, in the direct map; other CPUs and the table walk access it as words.
        unsafe { &*address_space::physical(self.root).cast() }
    }

    /// Calls `act` with the CPU on which the vCPU is direct, if it is, and stays there meanwhile. Returns whether it is.
    #[inline(always)]
    fn hold(&self, me: usize, act: impl FnOnce(usize)) -> bool {
        sending(me, || {
            let cpu = self.cpu.load(Ordering::Relaxed);
            if cpu != NOWHERE {
                act(cpu as usize);
            }
            cpu != NOWHERE
        })
    }

    /// Sends the vCPU's pending requests on to where it is direct. False if it isn't.
    pub fn forward(&self, pending: &PendingRequests) -> bool {
        self.hold(this_index(), |cpu| {
            self.send_all(pending, cpu);
            // SGIs are on their way before this CPU lets go of the vCPU.
            isb();
        })
    }

    /// Sends the requests of the vCPU, which is held direct on `cpu`.
    fn send_all(&self, pending: &PendingRequests, cpu: usize) {
        let requests = pending.take();
        requests.sgis().filter(|intid| ALL >> intid & 1 != 0).for_each(|intid| gic::send_sgi(cpu, intid));
        if pending.put_back(requests, ALL) {
            self.revoke(cpu);
        }
    }

    /// Makes the vCPU, which is held direct on `cpu`, exit, whatever its guest masks: its second stage becomes empty, and if it waits, it is woken.
    fn revoke(&self, cpu: usize) {
        self.entries().iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
        let before = read_sysreg!(VTTBR_EL2);
        // The TLBI takes the VMID from here. Speculative walks find a table in which nothing is mapped.
        write_sysreg!(VTTBR_EL2, self.vttbr.load(Ordering::Relaxed));
        // A masked interrupt ends WFI but not WFE (Arm ARM, WFE wake-up events): an event does.
        // SAFETY: forgetting translations is always right, and so is an event.
        unsafe { core::arch::asm!("dsb ishst", "isb", "tlbi vmalls12e1is", "dsb ish", "sev", options(nostack, preserves_flags)) };
        write_sysreg!(VTTBR_EL2, before);
        isb();
        // From here on that CPU executes nothing of its guest's. An interrupt only has to end a WFI.
        if cpu != this_index() {
            redistributor::let_kick_wake(cpu);
            gic::kick(cpu);
        }
    }
}

/// Calls `act`. A vCPU that is found direct meanwhile stays so, and its VM is there.
#[inline(always)]
fn sending<T>(me: usize, act: impl FnOnce() -> T) -> T {
    let sending = &SENDING[me % MAX_CPUS];
    sending.store(true, Ordering::Relaxed);
    // Pairs with the fence in `unpublish`.
    fence(Ordering::SeqCst);
    let result = act();
    sending.store(false, Ordering::Release);
    result
}

/// Makes a CPU on which a vCPU is direct exit.
pub fn regain(cpu: usize) {
    sending(this_index(), || {
        let here = HERE[cpu % MAX_CPUS].load(Ordering::Acquire);
        let [vm, vcpu] = here.to_be_bytes();
        if here != NOBODY
            && let Some(place) = find(Owner { vm, vcpu }).and_then(|vcpu| vcpu.arch.direct)
            && place.cpu.load(Ordering::Relaxed) == cpu as u32
        {
            place.revoke(cpu);
        }
    });
}

/// Whether a vCPU is direct on a CPU. The handlers of its exits have references to no VM but its own, and to those that [`regain`] holds direct.
pub fn is_confined(cpu: usize) -> bool {
    HERE[cpu % MAX_CPUS].load(Ordering::Acquire) != NOBODY
}

/// Sends an SGI to a vCPU that is direct, from CPU `me`. False if it isn't, or can't be sent this way.
#[inline(always)]
pub fn send(target: &Vcpu, me: usize, intid: u32) -> bool {
    let Some(place) = target.arch.direct else { return false };
    ALL >> (intid & 31) & 1 != 0
        && place.hold(me, |cpu| {
            gic::send_sgi(cpu, intid);
            // It is on its way before this CPU lets go of the vCPU.
            isb();
        })
}

/// Whether the vCPU that is loaded on this CPU is direct.
#[inline]
pub fn is_here(vcpu: &Vcpu) -> bool {
    vcpu.arch.direct.is_some_and(Place::is_direct)
}

/// The loaded vCPU was published, and has no pending requests: makes it direct if nothing is against it.
#[cold]
#[inline(never)]
pub fn resume(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let Some(place) = vcpu.arch.direct else { return };
    // Stile needs the CPU again soon, or has nowhere else to be.
    let shared = cpu.slice_end.is_some() || cpu.deadline.is_some() || cpu.waiting_trapped;
    collect_strays(cpu, vcpu);
    let Some(priorities) = gic::priorities().filter(|_| !shared && claims::has_housekeeper()) else { return };
    let settled = claims::late(cpu.index).may_become(owner(vcpu), timer::now(), ticks(SETTLE_US));
    if settled && try_enter(cpu, vcpu, place, priorities) {
        place.failures.store(0, Ordering::Relaxed);
    } else {
        let failures = place.failures.fetch_add(1, Ordering::Relaxed);
        retry_later(cpu, failures.min(DOUBLINGS));
    }
}

/// Has the scheduler decide again after a while.
fn retry_later(cpu: &mut Cpu, doublings: u32) {
    let at = timer::now() + (ticks(RETRY_US) << doublings);
    cpu.deadline = Some(at);
    timer::set_deadline(cpu.deadline);
}

fn ticks(microseconds: u64) -> u64 {
    timer::frequency() * microseconds / 1_000_000
}

fn owner(vcpu: &Vcpu) -> Owner {
    Owner { vm: vcpu.id.vm(), vcpu: vcpu.id.vcpu() }
}

fn find(owner: Owner) -> Option<&'static Vcpu> {
    vm::get(owner.vm.into())?.vcpus.get(usize::from(owner.vcpu)).copied()
}

/// SGIs that were sent to a vCPU that was direct here, and come late, become pending for it as those to any vCPU. Nobody is direct here.
fn collect_strays(cpu: &Cpu, vcpu: &Vcpu) {
    let strays = redistributor::strays(cpu.index);
    if strays != 0
        && let Some(of) = claims::late(cpu.index).owner().and_then(find)
    {
        (0..16).filter(|intid| strays >> intid & 1 != 0).for_each(|intid| of.arch.requests.post_sgi(intid));
        if of.id != vcpu.id {
            cpu::notify(of);
        }
    }
    delivery::pull(cpu);
}

fn try_enter(cpu: &Cpu, vcpu: &'static Vcpu, place: &Place, priorities: HostPriorities) -> bool {
    let interface = Interface::new(cpu.index, vcpu);
    let vmcr = interface.vmcr();
    // A disabled group 1 would disable the kick that wakes. A common binary point must be the hypervisor's: the physical one may be read-only.
    if !vmcr.group_enabled(true) || vmcr.common_binary_point() != interface.has_common_binary_point() {
        return false;
    }
    let before = read_sysreg!(VTTBR_EL2);
    copy_root(before, place);
    place.vttbr.store(before & VMID | place.root, Ordering::Relaxed);
    publish(cpu, vcpu, place);
    let called = cpu::needs_resched(cpu) || !vcpu.arch.requests.is_empty();
    let direct = match called {
        true => None,
        false => {
            let mut interface = Interface::new(cpu.index, vcpu);
            let mut distributor = vcpu.vm().arch.distributor.lock();
            let (direct, kick) = vcpu.arch.redistributor.lock().enter_direct(&mut distributor, &mut interface, RESERVED);
            drop(distributor);
            delivery::deliver(vcpu.vm(), kick);
            direct
        }
    };
    let Some(direct) = direct else {
        unpublish(cpu, place);
        vcpu.runs_on.store(cpu.index as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        collect_strays(cpu, vcpu);
        return false;
    };
    redistributor::hand_over(cpu.index, &direct, priorities);
    physical_interface::hand_over(vmcr, priorities);
    traps::set_direct(true);
    Interface::new(cpu.index, vcpu).trap_common(true);
    write_sysreg!(VTTBR_EL2, place.vttbr.load(Ordering::Relaxed));
    write_sysreg!(VBAR_EL2, Vectors::Direct.base());
    true
}

/// Copies the second stage's root: what it leads to is shared.
fn copy_root(vttbr: u64, place: &Place) {
    // SAFETY: the root of the VM's second stage, which stays; its words change only while none of the VM's vCPUs runs.
    let from: &[AtomicU64; ENTRIES] = unsafe { &*address_space::physical(vttbr & ROOT).cast() };
    for (entry, from) in place.entries().iter().zip(from) {
        entry.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// From here on senders find the vCPU direct on this CPU.
fn publish(cpu: &Cpu, vcpu: &Vcpu, place: &Place) {
    vcpu.runs_on.store(NOWHERE, Ordering::Relaxed);
    claims::late(cpu.index).enter(owner(vcpu));
    place.cpu.store(cpu.index as u32, Ordering::Relaxed);
    // Release: what this CPU did with other VMs comes before (`is_confined`).
    HERE[cpu.index % MAX_CPUS].store(u16::from_be_bytes([vcpu.id.vm(), vcpu.id.vcpu()]), Ordering::Release);
    // The table walk sees the root; and a sender that does not find the vCPU here has its requests found here.
    dsb_ish();
}

/// Undoes [`publish`]. When this returns, no CPU is about to send to it any more.
fn unpublish(cpu: &Cpu, place: &Place) {
    place.cpu.store(NOWHERE, Ordering::Relaxed);
    HERE[cpu.index % MAX_CPUS].store(NOBODY, Ordering::Relaxed);
    // Pairs with the fence in `sending`, and with that of who asked `is_confined`.
    fence(Ordering::SeqCst);
    claims::late(cpu.index).leave(timer::now());
    for (_, sending) in SENDING.iter().enumerate().filter(|&(other, _)| other != cpu.index) {
        // A few dozen instructions of another CPU, which waits for nobody.
        while sending.load(Ordering::Acquire) {
            core::hint::spin_loop();
        }
    }
}

/// Ends direct interrupts of the vCPU that is loaded here. It is not published.
#[cold]
#[inline(never)]
fn leave(cpu: &Cpu, vcpu: &Vcpu, place: &Place) {
    unpublish(cpu, place);
    write_sysreg!(VBAR_EL2, vectors::base());
    traps::set_direct(false);
    let mut interface = Interface::new(cpu.index, vcpu);
    interface.trap_common(false);
    let vmcr = physical_interface::written_to(interface.vmcr());
    let active = redistributor::stop(cpu.index) & ALL;
    let mut redistributor = vcpu.arch.redistributor.lock();
    let ap1r = match gic::priorities() {
        Some(priorities) => {
            physical_interface::drop_priorities(vmcr, priorities, active, |intid| redistributor.acknowledged_priority(intid))
        }
        None => [0; 4],
    };
    gic::open_interface();
    let (_, ap0r, _) = interface.read_state();
    interface.write_state(vmcr.0, &ap0r, &ap1r);
    let lines = [intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL1_PHYSICAL];
    let lines = lines.into_iter().filter(|&line| interface.physical_line(line) == Some(true)).fold(0, |lines, line| lines | 1 << line);
    let observed = redistributor::take_back(cpu.index, ALL, lines);
    redistributor.leave_direct(observed, &interface);
    redistributor.accept(vcpu.arch.requests.take());
    drop(redistributor);
    vcpu.vm().arch.load_own_root();
    delivery::synchronize(vcpu, cpu.index);
}

/// Ends direct interrupts, if the loaded vCPU has them, because it is about to be left.
pub fn leave_for_scheduler(cpu: &Cpu) {
    let vcpu = cpu.vcpu();
    if let Some(place) = vcpu.arch.direct.filter(|place| place.is_direct()) {
        leave(cpu, vcpu, place);
    }
}

/// Ends direct interrupts, if the loaded vCPU has them, because the handler of this exit needs its list registers; it goes on after it.
pub fn leave_for_handler(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let Some(place) = vcpu.arch.direct.filter(|place| place.is_direct()) else { return };
    leave(cpu, vcpu, place);
    vcpu.runs_on.store(cpu.index as u32, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    collect_strays(cpu, vcpu);
    retry_later(cpu, 0);
}

/// The outcome of a second-stage fault by which this CPU was regained; `None` if it is another one.
pub fn regained(cpu: &mut Cpu, ipa: u64, row: RowId) -> Option<Outcome> {
    let vcpu = cpu.vcpu();
    let place = vcpu.arch.direct.filter(|place| place.is_direct())?;
    let entry = place.entries().get((ipa >> ENTRY_SHIFT) as usize)?;
    // Tables for all of RAM are always there.
    if !vcpu.vm().arch.ram.contains(&ipa) || entry.load(Ordering::Relaxed) != 0 {
        return None;
    }
    leave(cpu, vcpu, place);
    cpu.leave = Leave::Resched;
    Some(Outcome::leave(row))
}

/// The guest, whose interrupts are direct, wrote a register that [`Interface`] has the value of now.
pub fn written(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    if is_here(vcpu) {
        let interface = Interface::new(cpu.index, vcpu);
        let vmcr = interface.vmcr();
        match gic::priorities() {
            Some(priorities) if vmcr.common_binary_point() == interface.has_common_binary_point() => {
                physical_interface::mirror(vmcr, priorities);
            }
            _ => leave_for_handler(cpu),
        }
    }
}

/// ICC_RPR_EL1 of a guest whose interrupts are direct.
pub fn running_priority(vcpu: &Vcpu) -> Option<u64> {
    is_here(vcpu).then(physical_interface::running_priority)
}

/// ICC_DIR_EL1 of a guest whose interrupts are direct. False if they aren't.
pub fn deactivate(vcpu: &Vcpu, intid: u32) -> bool {
    let direct = is_here(vcpu);
    if direct && ALL.checked_shr(intid).is_some_and(|bits| bits & 1 != 0) {
        gic::deactivate(intid);
    }
    direct
}

/// ICC_IGRPEN1_EL1 of a guest whose interrupts are direct, if its writes trap: a disabled group would disable the kick that wakes, too.
pub fn set_group1(cpu: &mut Cpu, value: u64) {
    if value & 1 == 0 {
        leave_for_handler(cpu);
    }
    Interface::new(cpu.index, cpu.vcpu()).set_group1(value & 1 != 0);
}

/// Whether writes of ICC_IGRPEN1_EL1 can trap (FEAT_FGT).
pub fn traps_group_enables() -> bool {
    features::get().fgt
}
