//! The CPU on which each vCPU with direct interrupts is direct: other CPUs send to it there, or force it to exit.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use stile_blob::{Interrupts, Techniques};
use stile_board::MAX_CPUS;
use stile_paging::PAGE_SIZE;
use stile_vgic::{Owner, PendingRequests};

use super::claims;
use crate::address_space;
use crate::arch::aarch64::host::cpu::{Cpu, this_index};
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::host::{gic, redistributor, sgi, timer};
use crate::arena::{self, Arena};
use crate::vm::{self, NOWHERE, Vcpu};

/// Entries of a second-stage root, and the bytes that each is for (4 KiB granule, level 1).
const ENTRIES: usize = PAGE_SIZE as usize / 8;
const ENTRY_SHIFT: u32 = 30;

/// VTTBR_EL2.VMID and BADDR.
const VMID: u64 = 0xffff << 48;
const ROOT: u64 = 0xffff_ffff_fffe;

/// The vCPU that is direct on each CPU: VM and number, or [`NOBODY`].
static HERE: [AtomicU16; MAX_CPUS] = [const { AtomicU16::new(NOBODY) }; MAX_CPUS];
const NOBODY: u16 = u16::MAX;
/// CPUs that are about to send to, or to revoke, a vCPU that they found direct. It stays so until they are done.
static SENDING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// The private interrupts that a guest has in hardware, as bits.
pub fn all() -> u32 {
    sgi::others() | super::linked(false)
}

/// A vCPU's state for direct interrupts.
pub struct Place {
    /// The CPU on which it is direct, or [`NOWHERE`].
    cpu: AtomicU32,
    /// Physical address of a separate second-stage root, which other CPUs can empty.
    root: u64,
    /// Number of its entries up to the last that is in use: all that a guest's exit must empty.
    filled: AtomicUsize,
    /// VTTBR_EL2 with that root.
    vttbr: AtomicU64,
    /// Attempts that failed in a row.
    failures: AtomicU32,
    /// While it is direct, its guest's SGIs leave without an exit.
    sends: AtomicBool,
}

impl Place {
    /// Bytes of the arena that [`Place::new`] takes.
    pub const MEMORY: u64 = PAGE_SIZE + arena::room::<Place>();

    /// For a vCPU with these techniques, if they include direct interrupts.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn new(techniques: Techniques, arena: &'static Arena) -> Result<Option<&'static Place>, &'static str> {
        if techniques.interrupts != Interrupts::Direct {
            return Ok(None);
        }
        let place = Place {
            cpu: AtomicU32::new(NOWHERE),
            root: arena.allocate_pages(PAGE_SIZE)?,
            filled: AtomicUsize::new(0),
            vttbr: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            sends: AtomicBool::new(false),
        };
        Ok(Some(&*arena.allocate()?.write(place)))
    }

    /// Whether the vCPU is direct now. Exact on its own CPU.
    pub fn is_direct(&self) -> bool {
        self.cpu.load(Ordering::Relaxed) != NOWHERE
    }

    /// Whether the guest's SGIs leave without an exit while it is direct. Read and written by its own CPU.
    pub fn sends(&self) -> bool {
        self.sends.load(Ordering::Relaxed)
    }

    /// Sets it, before the vCPU becomes direct.
    pub fn set_sends(&self, on: bool) {
        self.sends.store(on, Ordering::Relaxed);
    }

    fn entries(&self) -> &[AtomicU64; ENTRIES] {
        // SAFETY: the page belongs to this vCPU permanently, in the direct map; other CPUs and the table walk access it as words.
        unsafe { &*address_space::physical(self.root).cast() }
    }

    /// Calls `act` with the CPU on which the vCPU is direct, if it is, and keeps it direct during the call. Returns whether it is direct.
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

    /// Gives the vCPU, which is loaded here with this VTTBR_EL2, its root with what the VM's has: what that leads to is shared.
    pub fn fill_root(&self, vttbr: u64) {
        // SAFETY: the root of the VM's second stage, which stays; its words change only while none of the VM's vCPUs runs.
        let from: &[AtomicU64; ENTRIES] = unsafe { &*address_space::physical(vttbr & ROOT).cast() };
        let mut filled = 0;
        for (number, (entry, from)) in self.entries().iter().zip(from).enumerate() {
            let word = from.load(Ordering::Relaxed);
            entry.store(word, Ordering::Relaxed);
            if word != 0 {
                filled = number + 1;
            }
        }
        self.filled.store(filled, Ordering::Relaxed);
        self.vttbr.store(vttbr & VMID | self.root, Ordering::Relaxed);
    }

    /// Makes the root that [`fill_root`](Self::fill_root) filled this CPU's.
    pub fn load_root(&self) {
        // SAFETY: a barrier: walks of the table see its entries.
        unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) };
        write_sysreg!(VTTBR_EL2, self.vttbr.load(Ordering::Relaxed));
        isb();
    }

    /// Whether nothing is mapped around an IPA, as after [`revoke`](Self::revoke).
    pub fn is_empty_at(&self, ipa: u64) -> bool {
        self.entries().get((ipa >> ENTRY_SHIFT) as usize).is_some_and(|entry| entry.load(Ordering::Relaxed) == 0)
    }

    /// The vCPU became direct, or did not. Returns how many attempts have failed in a row until now.
    pub fn attempted(&self, success: bool) -> u32 {
        match success {
            true => self.failures.swap(0, Ordering::Relaxed),
            false => self.failures.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Sends the vCPU's pending requests on to where it is direct. False if it isn't.
    pub fn forward(&self, pending: &PendingRequests) -> bool {
        self.hold(this_index(), |cpu| {
            self.send_all(pending, cpu);
            // SGIs are sent before this CPU releases the vCPU.
            isb();
        })
    }

    /// Sends the requests of the vCPU, which is held direct on `cpu`.
    fn send_all(&self, pending: &PendingRequests, cpu: usize) {
        let requests = pending.take();
        let all = all();
        requests.sgis().filter(|intid| all >> intid & 1 != 0).for_each(|intid| gic::send_sgi(cpu, intid));
        if pending.put_back(requests, all) {
            self.revoke(cpu);
        }
    }

    /// Forces an exit of the vCPU, which is held direct on `cpu`, even if its guest masks everything: empties its second stage, and ends its wait.
    fn revoke(&self, cpu: usize) {
        let filled = self.filled.load(Ordering::Relaxed);
        self.entries().iter().take(filled).for_each(|entry| entry.store(0, Ordering::Relaxed));
        let before = read_sysreg!(VTTBR_EL2);
        // The TLBI takes the VMID from here. Speculative walks find a table in which nothing is mapped.
        write_sysreg!(VTTBR_EL2, self.vttbr.load(Ordering::Relaxed));
        // A masked interrupt ends WFI but not WFE (Arm ARM, WFE wake-up events): an event does.
        // SAFETY: forgetting translations is always right, and so is an event.
        unsafe { core::arch::asm!("dsb ishst", "isb", "tlbi vmalls12e1is", "dsb ish", "sev", options(nostack, preserves_flags)) };
        write_sysreg!(VTTBR_EL2, before);
        isb();
        // From here on that CPU executes no guest instruction. An interrupt only has to end a WFI.
        if cpu != this_index() {
            redistributor::let_kick_wake(cpu);
            gic::kick(cpu);
        }
    }

    /// Ends direct interrupts of the vCPU, wherever it is direct.
    pub fn end(&self) {
        self.hold(this_index(), |cpu| self.revoke(cpu));
    }

    /// From here on senders find the vCPU, which owns late SGIs of this CPU, direct there.
    pub fn publish(&self, cpu: &Cpu, vcpu: &Vcpu) {
        vcpu.runs_on.store(NOWHERE, Ordering::Relaxed);
        self.cpu.store(cpu.index as u32, Ordering::Relaxed);
        // Release: this CPU's accesses to other VMs precede (`is_confined`).
        HERE[cpu.index % MAX_CPUS].store(u16::from_be_bytes([vcpu.id.vm(), vcpu.id.vcpu()]), Ordering::Release);
        // The table walk sees the root; and a sender that does not find the vCPU here has its requests found here.
        dsb_ish();
    }

    /// Undoes [`publish`](Self::publish). When this returns, no CPU is about to send to it any more.
    pub fn unpublish(&self, cpu: &Cpu) {
        self.cpu.store(NOWHERE, Ordering::Relaxed);
        HERE[cpu.index % MAX_CPUS].store(NOBODY, Ordering::Relaxed);
        // Pairs with the fence in `sending`, and with that of the caller of `is_confined`.
        fence(Ordering::SeqCst);
        claims::late(cpu.index).leave(timer::now());
        for (_, sending) in SENDING.iter().enumerate().filter(|&(other, _)| other != cpu.index) {
            // Bounded: another CPU holds it for a few dozen instructions, and waits for no other CPU.
            while sending.load(Ordering::Acquire) {
                core::hint::spin_loop();
            }
        }
    }
}

/// Calls `act`. A vCPU found direct stays direct during the call, and its VM exists.
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

/// Whether a vCPU is direct on a CPU. The handlers of its exits refer to no VM except its own, and those that [`regain`] holds direct.
pub fn is_confined(cpu: usize) -> bool {
    HERE[cpu % MAX_CPUS].load(Ordering::Acquire) != NOBODY
}

/// Sends an SGI to a vCPU that is direct, from CPU `me`. False if it isn't, or can't be sent this way.
#[inline(always)]
pub fn send(target: &Vcpu, me: usize, intid: u32) -> bool {
    let Some(place) = target.arch.reachable else { return false };
    intid != sgi::KICK
        && place.hold(me, |cpu| {
            gic::send_sgi(cpu, intid);
            // Sent before this CPU releases the vCPU.
            isb();
        })
}

/// The name of a vCPU in [`claims`].
pub fn owner(vcpu: &Vcpu) -> Owner {
    Owner { vm: vcpu.id.vm(), vcpu: vcpu.id.vcpu() }
}

/// The vCPU of that name, if it is there.
pub fn find(owner: Owner) -> Option<&'static Vcpu> {
    vm::get(owner.vm.into())?.vcpus.get(usize::from(owner.vcpu)).copied()
}
