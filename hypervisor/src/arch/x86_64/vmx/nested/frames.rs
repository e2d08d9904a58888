//! The frames of shadow tables.

use stile_nested_vmx::shadow;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{TableMemory, TableRead};

use crate::address_space;
use crate::arch::x86_64::vmx::extension::{self, ept_pointer};
use crate::memory::TableFrames;

/// Memory reserved for the shadow tables of vCPUs.
pub struct Frames;

impl shadow::Frames for Frames {
    fn read(&self, table: u64, index: usize) -> u64 {
        TableFrames.read(table, index).unwrap_or(0)
    }

    fn write(&mut self, table: u64, index: usize, entry: u64) {
        TableFrames.write(table, index, entry);
    }

    fn zero(&mut self, frame: u64) {
        // SAFETY: the frame is in the memory that was reserved for the vCPU's shadows.
        unsafe { address_space::physical(frame).write_bytes(0, PAGE_SIZE as usize) };
    }

    fn invalidate(&mut self, root: u64) {
        extension::invalidate_ept(ept_pointer(root));
    }
}
