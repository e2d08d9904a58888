//! AArch64 state of a vCPU.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use stile_blob::{BinaryPoint, Interrupts, Mode, Nested, Techniques, Topology};
use stile_board::{is_last_redistributor, mpidr};
use stile_lock::TicketLock;
use stile_sched::VcpuId;
use stile_vgic::{Config, PendingRequests, Redistributor, Shortcuts};

use crate::arch::aarch64::host::{board, sgi};
use crate::arch::aarch64::interrupts::{self, interface, place, trusted};
use crate::arch::aarch64::nested;
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::arch::contract::VcpuPart;
use crate::arena::{self, Arena};
use crate::vm::Start;

/// AArch64 state of a vCPU.
pub struct Vcpu {
    /// Index in the VM.
    pub index: usize,
    /// It has an EL2.
    pub has_el2: bool,
    context: UnsafeCell<&'static mut VcpuContext>,
    /// SGIs, PPIs, and list-register contents.
    pub redistributor: TicketLock<Redistributor>,
    /// Pending requests of other CPUs.
    pub requests: PendingRequests,
    /// State for direct interrupts, if configured.
    pub direct: Option<&'static place::Place>,
    /// `direct`, if other CPUs send it SGIs in hardware. `None` beside firmware with SGIs of its own, where senders post requests.
    pub reachable: Option<&'static place::Place>,
    /// It has an EL2, is configured for direct interrupts, or has a vPE. Set before it runs.
    pub special: AtomicBool,
    /// Constants of its virtual CPU interface.
    pub interface: interface::Kind,
    /// Interrupts that the CPU that has it loaded delivers without the redistributor's lock.
    pub shortcuts: Shortcuts,
}

// SAFETY: `context` is accessed only through `Vcpu::context`, whose callers own the vCPU.
unsafe impl Sync for Vcpu {}

impl VcpuPart for Vcpu {
    const MEMORY: u64 = arena::room::<VcpuContext>();

    fn memory(techniques: Techniques) -> u64 {
        let nested = if techniques.nested == Nested::Off { 0 } else { arena::room::<nested::state::Nested>() };
        let place = if techniques.interrupts == Interrupts::Direct { place::Place::MEMORY } else { 0 };
        Self::MEMORY + nested + place
    }

    fn new(id: VcpuId, topology: Topology, techniques: Techniques, arena: &'static Arena) -> Result<Vcpu, &'static str> {
        let index = usize::from(id.vcpu());
        let has_el2 = techniques.nested != Nested::Off;
        let shape = interface::shape();
        let common_binary_point = match techniques.binary_point {
            BinaryPoint::Own => false,
            BinaryPoint::Common => true,
            // A trusted VM reaches the physical interface, which QEMU's fault concerns in the same way.
            BinaryPoint::Auto => shape.is_ended_by_bpr1 && !has_el2 && !trusted::is_wanted(techniques),
        };
        // SAFETY: all-zero is a valid VcpuContext, which consists of integers.
        let context = unsafe { arena.allocate::<VcpuContext>()?.assume_init_mut() };
        if has_el2 {
            // SAFETY: all-zero is a valid Nested: integers, and enumerations with a variant of value 0.
            let nested = unsafe { arena.allocate::<nested::state::Nested>()?.assume_init_mut() };
            nested.nv_mode = nested::nv_mode::NvMode::new(techniques.nested);
            context.nested = Some(nested);
        }
        let direct = place::Place::new(techniques, arena)?;
        Ok(Vcpu {
            index,
            has_el2,
            context: UnsafeCell::new(context),
            redistributor: TicketLock::new(Redistributor::new(Config {
                vcpu: index as u8,
                last: is_last_redistributor(index, topology.vcpus()),
                list_registers: shape.list_registers as u8,
                priority_bits: shape.priority_bits,
                preemption_bits: shape.preemption_bits,
                hw_ppis: interrupts::linked(has_el2),
                behind: interrupts::BEHIND,
                common_binary_point,
                gicv2: board::get().gicv2().is_some(),
            })),
            requests: PendingRequests::new(),
            special: AtomicBool::new(has_el2 || techniques.interrupts == Interrupts::Direct),
            direct,
            reachable: direct.filter(|_| sgi::kick() == sgi::KICK),
            interface: if common_binary_point { interface::Kind::COMMON_BINARY_POINT } else { interface::Kind::PLAIN },
            shortcuts: Shortcuts::new(),
        })
    }

    fn index(&self) -> usize {
        self.index
    }

    fn reset(&self) {
        // From the previous boot.
        let _ = self.requests.take();
        self.redistributor.lock().reset();
        // SAFETY: the vCPU is loaded nowhere, and its VM is being reset, so that nothing else accesses it.
        if let Some(nested) = &mut unsafe { self.context() }.nested {
            nested.forget_shadow();
        }
    }

    fn show_stolen_time(&self, vm: &'static crate::vm::Vm, nanoseconds: u64) {
        vm.arch.stolen_time.set(self.index, nanoseconds);
    }

    fn forward_requests(&self) -> bool {
        self.direct.is_some_and(|place| place.forward(&self.requests))
    }

    fn set_start(&self, start: &Start) {
        debug_assert!(start.mode == Mode::Reset);
        self.set_entry(start.pc, start.info);
    }
}

impl Vcpu {
    /// Registers in memory.
    ///
    /// # Safety
    /// The caller owns the vCPU: it is loading or putting it, or the vCPU is off and the caller holds the lock that
    /// keeps it off.
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    pub unsafe fn context(&self) -> &mut VcpuContext {
        // SAFETY: by the function's contract no other reference to the context exists.
        unsafe { &mut *self.context.get() }
    }

    /// Whether it has an EL2, is configured for direct interrupts, or has a vPE.
    #[inline(always)]
    pub fn is_special(&self) -> bool {
        self.special.load(Ordering::Relaxed)
    }

    /// Sets the initial state of a vCPU that is off.
    pub fn set_entry(&self, pc: u64, argument: u64) {
        // SAFETY: the vCPU is loaded nowhere, and the lock of the power table, or the VM being reset, excludes
        // concurrent calls.
        unsafe { self.context() }.reset(1 << 31 | mpidr(self.index), pc, argument);
    }
}
