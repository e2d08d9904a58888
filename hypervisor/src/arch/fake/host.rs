//! The machine: memory, counter, serial line, and idle CPUs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use stile_blob::Mitigations;
use stile_wire::Level;

use super::Arch;
use super::physical_cpu::Cpu;
use crate::arch::contract::{Counter, Failure, Host, SerialLine};

/// Physical memory, from address 0.
pub const MEMORY: usize = 64 << 20;

/// The counter advances at each read, and when a test lets time pass.
static NOW: AtomicU64 = AtomicU64::new(0);

impl Counter for Arch {
    fn now() -> u64 {
        NOW.fetch_add(1, Ordering::Relaxed)
    }

    fn frequency() -> u64 {
        1_000_000_000
    }
}

/// Advances the counter.
pub fn pass(ticks: u64) {
    NOW.fetch_add(ticks, Ordering::Relaxed);
}

/// Bytes sent over the serial line.
pub static LINE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Makes the serial line reject output.
pub static BUSY: AtomicBool = AtomicBool::new(false);

/// Whether the line interrupts when it can send.
pub static SENDS: AtomicBool = AtomicBool::new(false);

/// Bytes to receive from the serial line.
pub static INPUT: Mutex<VecDeque<u8>> = Mutex::new(VecDeque::new());

impl SerialLine for Arch {
    fn try_send(byte: u8) -> bool {
        if BUSY.load(Ordering::SeqCst) {
            return false;
        }
        LINE.lock().unwrap().push(byte);
        true
    }

    fn try_receive() -> Option<u8> {
        INPUT.lock().unwrap().pop_front()
    }

    fn set_interrupts(_receive: bool, send: bool) {
        SENDS.store(send, Ordering::SeqCst);
    }
}

/// Stacks are not unwound.
impl Failure for Arch {
    fn block() -> *const Cpu {
        std::ptr::null()
    }

    fn frame_pointer() -> u64 {
        0
    }

    fn stack_of(_address: u64) -> Option<Range<u64>> {
        None
    }

    fn code() -> Range<u64> {
        0..0
    }

    fn write_guest(_out: &mut dyn fmt::Write, _cpu: &Cpu) -> fmt::Result {
        Ok(())
    }
}

/// Variables of the firmware; `None` if it keeps none.
pub static VARIABLES: Mutex<Option<Vec<Vec<u8>>>> = Mutex::new(None);

/// The part of the figures for which the firmware has no room.
pub static FULL: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The part of the figures at which the firmware faults.
pub static FAULTY: AtomicUsize = AtomicUsize::new(usize::MAX);

thread_local! {
    /// Called when a CPU is idle: the test generates an interrupt.
    pub static NOTHING_TO_DO: Cell<fn()> = const { Cell::new(|| panic!("nothing to do, and nothing will happen")) };
}

/// Payload of [`Host::power_off`]'s panic, which the test catches.
pub struct PoweredOff;

impl Host for Arch {
    const HAS_PCS: bool = false;
    const ZEROED_AT_ONCE: u64 = 1 << 20;
    const COPIED_AT_ONCE: u64 = 1 << 20;

    fn level() -> Level {
        Level::Vhe
    }

    fn physical(address: u64) -> *mut u8 {
        static BASE: Mutex<usize> = Mutex::new(0);
        let mut base = BASE.lock().unwrap();
        if *base == 0 {
            // Sufficient alignment for any value.
            let alignment = align_of::<stile_trace::Ring>();
            let memory: Vec<u128> = vec![0; (MEMORY + alignment) / 16];
            *base = (memory.leak().as_mut_ptr() as usize).next_multiple_of(alignment);
        }
        (*base + address as usize) as *mut u8
    }

    unsafe fn zero(memory: *mut u8, length: usize) {
        // SAFETY: by the function's contract the caller has exclusive access to `length` bytes.
        unsafe { memory.write_bytes(0, length) };
    }

    unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
        // SAFETY: by the function's contract both ranges are valid and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, length) };
    }

    /// No mitigations are needed.
    fn apply_mitigations(_: Mitigations) {}

    fn describe() {}

    fn prepare_variables() -> Result<bool, &'static str> {
        Ok(VARIABLES.lock().unwrap().is_some())
    }

    fn set_variable(part: usize, data: &[u8]) -> Result<(), usize> {
        assert_ne!(part, FAULTY.load(Ordering::SeqCst), "firmware faults");
        let mut variables = VARIABLES.lock().unwrap();
        let variables = variables.as_mut().ok_or(2_usize)?;
        variables.resize(variables.len().max(part + 1), Vec::new());
        // The firmware is full after some parts.
        if !data.is_empty() && part == FULL.load(Ordering::SeqCst) {
            return Err(9);
        }
        variables[part] = data.to_vec();
        Ok(())
    }

    fn wait_for_interrupt() {
        NOTHING_TO_DO.get()();
    }

    fn power_off() -> ! {
        std::panic::panic_any(PoweredOff)
    }
}
