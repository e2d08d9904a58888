//! The architecture-independent part of a CPU's block: the loaded vCPU, and the ledger that its exits are accounted
//! in.

use super::Leave;
use crate::arch::{Cpu, Local};
use crate::stacks;
use crate::vm::Vcpu;

/// A CPU's block, followed by the words that its CPU accesses while the block is borrowed, such as its number.
#[repr(C)]
pub struct Block {
    /// The block.
    pub cpu: Cpu,
    /// The words. Never borrowed mutably.
    pub local: Local,
}

const _: () = assert!(size_of::<Block>() as u64 <= stacks::SIZE / 4, "the block shares its memory with the CPU's stack");

impl Block {
    /// Offset of a CPU's block below the upper end of its stack's memory. The stack grows down from the block.
    pub const fn address(top: u64) -> u64 {
        (top - size_of::<Block>() as u64) & !(align_of::<Block>() as u64 - 1)
    }
}

impl Cpu {
    /// Returns the block of CPU `index` below `top`, the upper end of its stack's memory.
    ///
    /// # Safety
    /// The memory is mapped, zeroed and used by this CPU alone, and the function is called once for it.
    pub unsafe fn place(top: u64, index: usize) -> &'static mut Cpu {
        let block = Block::address(top) as *mut Block;
        // SAFETY: the caller guarantees that the memory is this CPU's alone. All-zero is a valid `Cpu`, with `None`
        // for its references. This is the only place that creates a `&mut Cpu`, and it excludes `local`, which is
        // only shared from here on.
        let (cpu, local) = unsafe {
            (&raw mut (*block).local).write(Local::new(index));
            (&mut (*block).cpu, &(*block).local)
        };
        cpu.index = index;
        cpu.local = Some(local);
        cpu.leave = Leave::Resched;
        cpu
    }

    /// The vCPU whose exit is being handled.
    #[inline(always)]
    pub fn vcpu(&self) -> &'static Vcpu {
        debug_assert!(self.vcpu.is_some(), "no vCPU is loaded");
        // SAFETY: handlers run only for exits, an exit comes from a guest, and a guest runs only when its vCPU is loaded.
        unsafe { self.vcpu.unwrap_unchecked() }
    }
}
