//! Memory of test programs, like QEMU's test device: it is not RAM, and each access exits.

use stile_board::pc::TEST_MEMORY;
use stile_x86_decode::Width;

use crate::address_space;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vm::shared;
use crate::arena::Arena;
use crate::device::bus::Device;
use crate::vm::power::End;

const SIZE: u64 = TEST_MEMORY.end - TEST_MEMORY.start;

/// The memory of one VM.
pub struct TestMemory {
    /// Physical address.
    at: u64,
}

impl TestMemory {
    /// Allocates the memory of a new VM.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(arena: &Arena) -> Result<TestMemory, &'static str> {
        Ok(TestMemory { at: arena.allocate_pages(SIZE)? })
    }

    /// Pointer for an access. The bus rejects accesses that extend beyond the region.
    fn place(&self, offset: u64, width: Width) -> Option<*mut u8> {
        (offset.checked_add(width.bytes())? <= SIZE).then(|| address_space::physical(self.at + offset))
    }
}

impl Device for TestMemory {
    #[cold]
    fn read(&self, _cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        let width = Width::of_bytes(bytes);
        let Some(from) = self.place(offset, width) else { return u64::MAX };
        // SAFETY: the pointer is within the memory, to which no reference exists.
        unsafe { shared::read(from, width) }
    }

    #[cold]
    fn write(&self, _cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let width = Width::of_bytes(bytes);
        let to = self.place(offset, width)?;
        // SAFETY: the pointer is within the memory, to which no reference exists.
        unsafe { shared::write(to, width, value) };
        None
    }
}
