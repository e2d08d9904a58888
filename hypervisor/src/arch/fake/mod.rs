//! An architecture that is none: registers are numbers in memory, the clock moves when nobody has anything to do, and interrupts are made
//! up by the tests. With it the rest of Stile runs on the developer's machine.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_blob::Techniques;
use stile_ledger::Row;
use stile_paging::frames::Piece;
use stile_wire::Level;

use crate::cpu::{self, Leave};
use crate::device::Line;

/// Physical memory, from address 0.
pub const MEMORY: usize = 64 << 20;

/// The models of the devices that the guests of this architecture have.
pub mod models {
    pub use stile_device::pl011::Pl011 as Uart;
    pub use stile_device::pl011::offset::DR as UART_DATA;
    pub use stile_device::pl031::Pl031 as Clock;
}

pub mod devices {
    use stile_board::map;
    use stile_bus::{Region, Widths};

    use super::Cpu;
    use crate::device::bus::devices;

    devices! {
        vm:
        /// PL011.
        Uart => &vm.devices.uart,
        /// PL031.
        Clock => &vm.devices.clock,
    }

    pub fn memory_regions(_vcpus: usize) -> [Region<Device>; 1] {
        [Region::new(map::PL011_BASE..map::PL011_BASE + map::PL011_SIZE, Widths::WORD, Device::Uart)]
    }

    pub fn port_regions() -> [Region<Device>; 1] {
        [Region::new(0x70..0x78, Widths::ALL, Device::Clock)]
    }
}

/// A CPU's block.
pub struct Cpu {
    pub index: usize,
    pub local: Option<&'static Local>,
    pub vcpu: Option<&'static crate::vm::Vcpu>,
    pub leave: Leave,
    pub slice_end: Option<u64>,
    pub deadline: Option<u64>,
    pub waiting_trapped: bool,
    pub since: u64,
    /// What the loaded vCPU computes with.
    pub register: u64,
    pub rows: *mut Row,
    pub taken: u64,
}

/// The words behind a CPU's block: there is no such block.
pub struct Local;

impl Local {
    pub const fn new(_index: usize) -> Local {
        Local
    }
}

impl Cpu {
    pub fn new(index: usize) -> Cpu {
        Cpu {
            index,
            local: None,
            vcpu: None,
            leave: Leave::Resched,
            slice_end: None,
            deadline: None,
            waiting_trapped: false,
            since: 0,
            register: 0,
            rows: std::ptr::null_mut(),
            taken: 0,
        }
    }

    pub fn this_index() -> usize {
        0
    }

    pub fn complete_stores() {}

    pub fn kick(index: usize) {
        KICKED.lock().unwrap().push(index);
    }

    /// An exit, as the vectors count it.
    pub fn exit(&mut self) {
        self.taken += 1;
        self.since = timer::now();
    }
}

/// CPUs that were kicked and have not looked yet.
pub static KICKED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The architecture's part of a VM.
pub struct Vm {
    on: AtomicU64,
    /// How often it was reset.
    pub lives: AtomicU64,
    /// Addresses that are mapped, and their memory.
    pub mapped: Mutex<BTreeMap<u64, u64>>,
}

impl Vm {
    pub fn new(_vcpus: usize, _pieces: &[Piece], _techniques: Techniques) -> Result<Vm, &'static str> {
        Ok(Vm { on: AtomicU64::new(0), lives: AtomicU64::new(0), mapped: Mutex::default() })
    }

    pub fn reset(&self) {
        self.on.store(1, Ordering::Relaxed);
        self.lives.fetch_add(1, Ordering::Relaxed);
    }

    pub fn map_ram(&self, part: &Piece) -> Result<(), stile_paging::table::Error> {
        let before = self.mapped.lock().unwrap().insert(part.gpa, part.pa);
        assert_eq!(before, None, "mapped already");
        Ok(())
    }

    pub fn unmap_ram(&self, gpa: u64, _size: u64) {
        let before = self.mapped.lock().unwrap().remove(&gpa);
        assert!(before.is_some(), "not mapped");
    }

    pub fn complete_unmap(&self) {}

    pub fn tear_down(&self) {}
}

/// The architecture's part of a vCPU.
pub struct Vcpu {
    pub index: usize,
    /// Its register, while it is not loaded.
    pub saved: AtomicU64,
    /// The CPU that it is loaded on.
    pub loaded: Mutex<Option<usize>>,
    /// An interrupt is pending.
    pub pending: AtomicBool,
}

impl Vcpu {
    pub fn new(index: usize, _of: usize, _techniques: Techniques) -> Vcpu {
        Vcpu { index, saved: AtomicU64::new(0), loaded: Mutex::new(None), pending: AtomicBool::new(false) }
    }

    pub fn reset(&self) {
        self.pending.store(false, Ordering::Relaxed);
    }

    pub fn set_start(&self, start: &crate::vm::Start) {
        assert!(can_start(start.mode));
        self.set_entry(start.pc);
    }

    fn set_entry(&self, pc: u64) {
        self.saved.store(pc, Ordering::Relaxed);
    }
}

pub fn set_deadline(_cpu: &mut Cpu, _at: Option<u64>) {}

pub mod timer {
    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(0);

    pub fn now() -> u64 {
        NOW.fetch_add(1, Ordering::Relaxed)
    }

    pub fn frequency() -> u64 {
        1_000_000_000
    }

    pub fn pass(ticks: u64) {
        NOW.fetch_add(ticks, Ordering::Relaxed);
    }
}

pub mod uart {
    use super::*;

    /// What was sent over the line.
    pub static LINE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

    /// The line takes nothing.
    pub static BUSY: AtomicBool = AtomicBool::new(false);

    pub fn try_send(byte: u8) -> bool {
        if BUSY.load(Ordering::SeqCst) {
            return false;
        }
        LINE.lock().unwrap().push(byte);
        true
    }

    pub fn try_receive() -> Option<u8> {
        None
    }

    pub fn set_interrupts(_receive: bool, _send: bool) {}
}

pub mod panic {
    use std::fmt::{self, Write};
    use std::ops::Range;

    pub fn block() -> *const super::Cpu {
        std::ptr::null()
    }

    pub fn frame_pointer() -> u64 {
        0
    }

    pub fn stack_of(_address: u64) -> Option<Range<u64>> {
        None
    }

    pub fn code() -> Range<u64> {
        0..0
    }

    pub fn write_guest(_out: &mut dyn Write, _cpu: &super::Cpu) -> fmt::Result {
        Ok(())
    }
}

thread_local! {
    /// What happens when a CPU has nothing to do: the test makes up an interrupt.
    pub static NOTHING_TO_DO: Cell<fn()> = const { Cell::new(|| panic!("nothing to do, and nothing will happen")) };
}

pub fn wait_for_interrupt() {
    NOTHING_TO_DO.get()();
}

pub fn poll_interrupts(_cpu: &mut Cpu) {}

pub fn idle_interrupt(cpu: &mut Cpu) {
    KICKED.lock().unwrap().retain(|&index| index != cpu.index);
    cpu::take_resched(cpu);
}

/// Some of those that nothing waits for wait on.
pub fn take_interrupts(cpu: &mut Cpu) -> bool {
    static WAKES: AtomicU64 = AtomicU64::new(0);
    cpu.vcpu().arch.pending.swap(false, Ordering::Relaxed) || !WAKES.fetch_add(1, Ordering::Relaxed).is_multiple_of(7)
}

pub fn interrupt_pending(cpu: &mut Cpu) -> bool {
    cpu.vcpu().arch.pending.load(Ordering::Relaxed)
}

pub fn trap_waiting(_cpu: &Cpu, _on: bool) {}

pub fn load(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu, _turns: bool) {
    let before = vcpu.arch.loaded.lock().unwrap().replace(cpu.index);
    assert_eq!(before, None, "loaded on two CPUs");
    cpu.register = vcpu.arch.saved.load(Ordering::Relaxed);
}

pub fn put(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu, _sleeps: bool) -> Option<u64> {
    power_down(cpu, vcpu);
    vcpu.arch.saved.store(cpu.register, Ordering::Relaxed);
    None
}

pub fn power_down(cpu: &mut Cpu, vcpu: &crate::vm::Vcpu) {
    let before = vcpu.arch.loaded.lock().unwrap().take();
    assert_eq!(before, Some(cpu.index), "put where it was not loaded");
}

pub fn decoded(vm: &crate::vm::Vm) -> stile_wire::Decoded {
    stile_wire::Decoded { vm: vm.number as u8, ..stile_wire::Decoded::default() }
}

pub fn powered_off(_vm: &'static crate::vm::Vm, _vcpu: usize) {}

pub fn record_off(vm: &crate::vm::Vm, vcpu: usize) -> usize {
    vm.arch.on.fetch_and(!(1 << vcpu), Ordering::Relaxed);
    vm.arch.on.load(Ordering::Relaxed).count_ones() as usize
}

/// Turns a vCPU on, as a call of its guest would.
pub fn turn_on(vcpu: &'static crate::vm::Vcpu) {
    vcpu.vm().arch.on.fetch_or(1 << vcpu.arch.index, Ordering::Relaxed);
    vcpu.arch.set_entry(0);
    cpu::start(vcpu);
}

pub fn set_line(_vm: &crate::vm::Vm, _line: Line, _high: bool) {}

pub fn physical(address: u64) -> *mut u8 {
    static BASE: Mutex<usize> = Mutex::new(0);
    let mut base = BASE.lock().unwrap();
    if *base == 0 {
        let memory: Vec<u128> = vec![0; MEMORY / 16 + 256];
        *base = (memory.leak().as_mut_ptr() as usize).next_multiple_of(4096);
    }
    (*base + address as usize) as *mut u8
}

pub const ZEROED_AT_ONCE: u64 = 1 << 20;
pub const COPIED_AT_ONCE: u64 = 1 << 20;

pub unsafe fn zero(memory: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { memory.write_bytes(0, length) };
}

pub unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, length) };
}

pub fn ram(base: u64, size: u64) -> [std::ops::Range<u64>; 2] {
    [base..base + size, base + size..base + size]
}

/// Whether a VM's first vCPU can start in this state.
pub fn can_start(mode: stile_blob::Mode) -> bool {
    mode == stile_blob::Mode::Reset
}

/// It speculates nothing.
pub fn apply_mitigations(_: stile_blob::Mitigations) {}

pub fn level() -> Level {
    Level::Vhe
}

/// What [`power_off`] panics with: the test catches it.
pub struct PoweredOff;

pub fn power_off() -> ! {
    std::panic::panic_any(PoweredOff)
}

pub fn enter(_cpu: &mut Cpu) -> ! {
    unreachable!("the fake architecture has no guests to enter")
}
