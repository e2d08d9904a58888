//! A vCPU's part.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_blob::{Techniques, Topology};
use stile_sched::VcpuId;

use super::Arch;
use super::vm::is_charged;
use crate::arch::contract::{Platform, VcpuPart};
use crate::arena::Arena;
use crate::cpu;
use crate::vm::{self, Start};

/// vCPUs that were reset since an errand took interrupts.
pub static RESET: AtomicU64 = AtomicU64::new(0);

/// State of a vCPU.
pub struct Vcpu {
    vm: u8,
    pub index: usize,
    /// Its register, while it is not loaded.
    pub saved: AtomicU64,
    /// The CPU on which it is loaded.
    pub loaded: Mutex<Option<usize>>,
    /// An interrupt is pending.
    pub pending: AtomicBool,
}

impl VcpuPart for Vcpu {
    const MEMORY: u64 = 0;

    fn new(id: VcpuId, _topology: Topology, _techniques: Techniques, _arena: &'static Arena) -> Result<Vcpu, &'static str> {
        let index = usize::from(id.vcpu());
        Ok(Vcpu { vm: id.vm(), index, saved: AtomicU64::new(0), loaded: Mutex::new(None), pending: AtomicBool::new(false) })
    }

    fn index(&self) -> usize {
        self.index
    }

    fn reset(&self) {
        assert!(self.index == 0 || is_charged(self.vm), "another VM pays for the reset of a vCPU");
        assert!(self.loaded.lock().unwrap().is_none(), "its registers are on a CPU");
        if self.index != 0 {
            assert!(RESET.fetch_add(1, Ordering::Relaxed) < 8, "an exit resets many vCPUs");
        }
        self.pending.store(false, Ordering::Relaxed);
    }

    fn set_start(&self, start: &Start) {
        assert!(Arch::can_start(start.mode));
        self.set_entry(start.pc);
    }
}

impl Vcpu {
    fn set_entry(&self, pc: u64) {
        self.saved.store(pc, Ordering::Relaxed);
    }
}

/// Powers on a vCPU, as its guest would.
pub fn turn_on(vcpu: &'static vm::Vcpu) {
    vcpu.vm().arch.on.lock().unwrap().insert(vcpu.arch.index);
    vcpu.arch.set_entry(0);
    cpu::start(vcpu);
}
