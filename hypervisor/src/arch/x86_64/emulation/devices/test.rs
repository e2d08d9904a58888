//! Devices of test programs, mostly compatible with QEMU's: a register, interrupt lines, failing VM entries, exit
//! with a status.

use core::sync::atomic::{AtomicU32, Ordering};

use super::set_line;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::virt::state;
use crate::device::bus::Device;
use crate::vm::power::End;

/// A 32-bit register that can be accessed in parts.
pub struct TestWord(AtomicU32);

impl TestWord {
    /// Returns a zeroed register.
    pub fn new() -> TestWord {
        TestWord(AtomicU32::new(0))
    }
}

impl Device for TestWord {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        u64::from(self.0.load(Ordering::Relaxed)) >> (8 * (offset & 3))
    }

    fn write(&self, _cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let shift = 8 * (offset & 3);
        let mask = (u64::MAX >> (64 - 8 * bytes.clamp(1, 4))) as u32;
        let change = |word: u32| Some(word & !(mask << shift) | (value as u32 & mask) << shift);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        None
    }
}

/// Interrupt lines, one port each: a write sets the level.
pub struct TestLines;

impl Device for TestLines {
    fn read(&self, _cpu: &mut Cpu, _offset: u64, _bytes: u64) -> u64 {
        u64::MAX
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        set_line(cpu.vcpu().vm(), offset as u8, value as u8 != 0);
        None
    }
}

/// Makes the next VM entry of the writing vCPU fail: see [`stile_board::pc::port::TEST_ENTRY`].
pub struct TestEntry;

impl Device for TestEntry {
    fn read(&self, _cpu: &mut Cpu, _offset: u64, _bytes: u64) -> u64 {
        u64::MAX
    }

    fn write(&self, _cpu: &mut Cpu, _offset: u64, _bytes: u64, value: u64) -> Option<End> {
        state::fail_entry(value);
        None
    }
}

/// Ends the VM with the status written to the first port.
pub struct DebugExit;

impl Device for DebugExit {
    fn read(&self, _cpu: &mut Cpu, _offset: u64, _bytes: u64) -> u64 {
        u64::MAX
    }

    fn write(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        (offset == 0).then_some(End::Exit(value as u32))
    }
}
