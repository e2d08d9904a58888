//! Stacks of the CPUs. A CPU's block is at the upper end (`arch::Cpu`); an unmapped guard below makes an overflow
//! fault.

use core::ops::Range;

use stile_board::CpuId;

/// Distance between the stacks of two CPUs, in bytes.
const STRIDE: u64 = 0x2_0000;
/// Size of the mapped part, at the upper end, in bytes.
pub const SIZE: u64 = 0x1_0000;

/// Layout of the stacks in an address space.
#[derive(Clone, Copy)]
pub struct Stacks {
    base: u64,
}

impl Stacks {
    /// Stacks from `base` on, which is a multiple of 128 KiB.
    pub const fn at(base: u64) -> Stacks {
        assert!(base.is_multiple_of(STRIDE));
        Stacks { base }
    }

    /// Address range of a CPU's stack and block.
    pub const fn of_cpu(self, cpu: usize) -> Range<u64> {
        let top = self.base + (cpu as u64 + 1) * STRIDE;
        top - SIZE..top
    }

    /// Address range of the stack and block that contain an address.
    pub fn around(self, address: u64) -> Option<Range<u64>> {
        self.cpu_of(address).map(|cpu| self.of_cpu(cpu.index()))
    }

    /// The CPU whose stack and block contain an address.
    pub fn cpu_of(self, address: u64) -> Option<CpuId> {
        let cpu = address.checked_sub(self.base)? / STRIDE;
        let cpu = CpuId::new(usize::try_from(cpu).ok()?)?;
        self.of_cpu(cpu.index()).contains(&address).then_some(cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_stack_that_is_mapped_around_it() {
        let stacks = Stacks::at(0xffff_c000_0000_0000);
        for cpu in [0, 1, stile_board::MAX_CPUS - 1] {
            let stack = stacks.of_cpu(cpu);
            assert_eq!(stack.end - stack.start, SIZE);
            assert_eq!(stacks.around(stack.start), Some(stack.clone()));
            assert_eq!(stacks.around(stack.end - 1), Some(stack.clone()));
            assert_eq!(stacks.cpu_of(stack.start), CpuId::new(cpu));
            assert_eq!(stacks.around(stack.start - 1), None, "the hole below");
        }
        let end = stacks.of_cpu(stile_board::MAX_CPUS - 1).end;
        for outside in [0, 0xffff_c000_0000_0000 - 1, end, stacks.of_cpu(stile_board::MAX_CPUS).start, u64::MAX] {
            assert_eq!(stacks.around(outside), None);
        }
    }
}
