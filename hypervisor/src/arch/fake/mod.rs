//! A fake back end for tests on the developer's machine: registers are numbers in memory, time advances while CPUs
//! are idle, and tests generate the interrupts.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use stile_blob::{Mitigations, Mode, Techniques};
use stile_ledger::{Row, RowId};
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_sched::{State, VcpuId};
use stile_trace::Recorder;
use stile_wire::{Decoded, Level};

use super::contract::{Counter, Failure, Host, Kind, PhysicalCpu, Platform, SerialLine, Snapshots, VcpuPart, VmPart};
use crate::arena::Arena;
use crate::cpu::{self, Leave, Loaded};
use crate::device::{Line, Optional};
use crate::vm::{self, Start};
use crate::wall_clock;

/// The fake back end.
pub struct Arch;

/// Physical memory, from address 0.
pub const MEMORY: usize = 64 << 20;

/// Device models for guests of this back end.
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

    pub fn memory_regions(_vcpus: usize, _optional: super::Optional) -> [Region<Device>; 1] {
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
    pub vcpu: Option<&'static vm::Vcpu>,
    pub leave: Leave,
    pub slice_end: Option<u64>,
    pub deadline: Option<u64>,
    pub woken: Option<(VcpuId, u64)>,
    pub waiting_trapped: bool,
    pub since: u64,
    /// Register of the loaded vCPU.
    pub register: u64,
    pub rows: *mut Row,
    pub taken: u64,
    pub recorder: Recorder,
    /// Recording is on.
    pub traced: Cell<bool>,
}

/// The CPUs are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity;

/// Words behind a CPU's block: unused.
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
            woken: None,
            waiting_trapped: false,
            since: 0,
            register: 0,
            rows: std::ptr::null_mut(),
            taken: 0,
            recorder: Recorder::new(),
            traced: Cell::new(false),
        }
    }

    /// Counts an exit, as the vectors would.
    pub fn exit(&mut self) {
        self.taken += 1;
        self.since = Arch::now();
    }
}

/// CPUs with an untaken kick.
pub static KICKED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Bit mask of [confined](PhysicalCpu::is_confined) CPUs.
pub static CONFINED: AtomicU64 = AtomicU64::new(0);

/// vCPUs that were reset since an errand took interrupts.
static RESET: AtomicU64 = AtomicU64::new(0);

/// The operator creates a VM for a snapshot, and pays for its reset.
pub static RESTORES: AtomicBool = AtomicBool::new(false);

/// Whether the first vCPU of a VM has a CPU, and so is charged for what this CPU does.
fn is_charged(vm: u8) -> bool {
    if RESTORES.load(Ordering::Relaxed) {
        return true;
    }
    let first = VcpuId::new(vm, 0).unwrap();
    matches!(cpu::SCHEDULE.state(first), State::Running(_))
}

/// State of a VM.
pub struct Vm {
    number: u8,
    on: Mutex<BTreeSet<usize>>,
    /// Number of resets.
    pub lives: AtomicU64,
    /// Mapped addresses, and their memory.
    pub mapped: Mutex<BTreeMap<u64, u64>>,
    /// Pages that are read-only.
    pub protected: Mutex<BTreeSet<u64>>,
    /// Number of calls of [`VmPart::permit_page`], of which each fourth finds no table.
    permits: AtomicU64,
    /// Memory allocated by the VM, as for a table: readable only while the VM exists.
    pub table: &'static u64,
}

impl Vm {
    /// Whether the guest can write to an address.
    pub fn can_write(&self, gpa: u64) -> bool {
        const BLOCK: u64 = 2 << 20;
        self.mapped.lock().unwrap().contains_key(&(gpa & !(BLOCK - 1)))
            && !self.protected.lock().unwrap().contains(&(gpa & !(PAGE_SIZE - 1)))
    }
}

impl VmPart for Vm {
    /// Bytes of RAM for which tables are reserved, and the tables.
    type Tables = (u64, &'static mut u64);

    fn tables(arena: &'static Arena) -> Result<(u64, &'static mut u64), &'static str> {
        Ok((0, arena.allocate::<u64>()?.write(0)))
    }

    fn reserve(tables: &mut (u64, &'static mut u64), part: &Piece, _arena: &'static Arena) -> Result<(), &'static str> {
        tables.0 += part.size;
        Ok(())
    }

    fn new(
        number: usize,
        _config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        (reserved, table): (u64, &'static mut u64),
        _techniques: Techniques,
        _arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        assert_eq!(reserved, pieces.iter().map(|piece| piece.size).sum::<u64>(), "bytes with reserved tables");
        Ok(Vm {
            number: number as u8,
            on: Mutex::default(),
            lives: AtomicU64::new(0),
            mapped: Mutex::default(),
            protected: Mutex::default(),
            permits: AtomicU64::new(0),
            table,
        })
    }

    fn reset(&self, _number: usize) {
        assert!(is_charged(self.number), "another VM pays for a reset");
        *self.on.lock().unwrap() = BTreeSet::from([0]);
        self.lives.fetch_add(1, Ordering::Relaxed);
    }

    fn map_ram(&self, part: &Piece) -> Result<(), stile_paging::table::Error> {
        let before = self.mapped.lock().unwrap().insert(part.gpa, part.pa);
        assert_eq!(before, None, "mapped already");
        Ok(())
    }

    fn protect_ram(&self, part: &Piece) -> bool {
        self.protected.lock().unwrap().extend((part.gpa..part.gpa + part.size).step_by(PAGE_SIZE as usize));
        part.size > PAGE_SIZE
    }

    fn permit_page(&self, page: u64) -> bool {
        let is_left = self.permits.fetch_add(1, Ordering::Relaxed) % 4 != 3;
        if is_left {
            self.protected.lock().unwrap().remove(&page);
        }
        is_left
    }

    fn permit_ram(&self, part: &Piece) {
        self.protected.lock().unwrap().retain(|page| !(part.gpa..part.gpa + part.size).contains(page));
    }

    fn unmap_ram(&self, gpa: u64, size: u64) {
        let before = self.mapped.lock().unwrap().remove(&gpa);
        assert!(before.is_some(), "not mapped");
        self.protected.lock().unwrap().retain(|page| !(gpa..gpa + size).contains(page));
    }

    fn complete_unmap(&self) {}

    fn tear_down(&self) {}
}

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

    fn new(id: VcpuId, _of: usize, _techniques: Techniques, _arena: &'static Arena) -> Result<Vcpu, &'static str> {
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

    fn set_interrupts(_receive: bool, _send: bool) {}
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

thread_local! {
    /// Called when a CPU is idle: the test generates an interrupt.
    pub static NOTHING_TO_DO: Cell<fn()> = const { Cell::new(|| panic!("nothing to do, and nothing will happen")) };
}

/// Payload of [`Host::power_off`]'s panic, which the test catches.
pub struct PoweredOff;

impl Host for Arch {
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

    fn wait_for_interrupt() {
        NOTHING_TO_DO.get()();
    }

    fn power_off() -> ! {
        std::panic::panic_any(PoweredOff)
    }
}

/// Ticks for which VMs were paused.
pub static HELD: AtomicU64 = AtomicU64::new(0);
/// vCPUs that were prepared for snapshots.
pub static PREPARED: AtomicUsize = AtomicUsize::new(0);
/// Ticks by which clocks of restored VMs were advanced.
pub static ADVANCED: AtomicU64 = AtomicU64::new(0);

impl Platform for Arch {
    const RECORDS_EXITS: Result<(), &'static str> = Ok(());

    fn ram(config: &stile_blob::Vm<'_>) -> [Range<u64>; 2] {
        let end = config.ram_base + config.memory;
        [config.ram_base..end, end..end]
    }

    fn can_start(mode: Mode) -> bool {
        mode == Mode::Reset
    }

    fn set_line(_vm: &vm::Vm, _line: Line, _high: bool) {}

    fn record_off(vm: &vm::Vm, vcpu: usize) -> usize {
        let mut on = vm.arch.on.lock().unwrap();
        on.remove(&vcpu);
        on.len()
    }

    fn powered_off(_vm: &'static vm::Vm, _vcpu: usize) {}

    fn hold_time(vm: &vm::Vm, ticks: u64) {
        assert!(vm.vcpus.iter().all(|vcpu| vcpu.arch.loaded.lock().unwrap().is_none()), "a vCPU of a paused VM is loaded");
        HELD.fetch_add(ticks, Ordering::Relaxed);
    }

    fn forget_translations(vm: &vm::Vm) {
        assert!(vm.vcpus.iter().all(|vcpu| vcpu.arch.loaded.lock().unwrap().is_none()), "a vCPU of a paused VM is loaded");
    }

    fn press_power_button(_vm: &'static vm::Vm) -> bool {
        false
    }

    fn decoded(vm: &vm::Vm) -> Decoded {
        Decoded { vm: vm.number as u8, ..Decoded::default() }
    }
}

/// A part for each vCPU: its register, and whether it is on.
impl Snapshots for Arch {
    const PREPARES: bool = true;

    fn obstacle(vm: &vm::Vm) -> Option<&'static str> {
        (vm.name == "three").then_some("this VM can't be saved")
    }

    fn parts(vm: &vm::Vm) -> usize {
        vm.vcpus.len()
    }

    fn prepare(vm: &'static vm::Vm, vcpus: Range<usize>) {
        assert!(vcpus.len() <= 8 && vcpus.end <= vm.vcpus.len());
        PREPARED.fetch_add(vcpus.len(), Ordering::Relaxed);
    }

    fn save(vm: &'static vm::Vm, part: usize, since: u64, to: &mut [u8]) -> Option<usize> {
        let vcpu = &vm.vcpus.get(part)?.arch;
        assert_eq!(*vcpu.loaded.lock().unwrap(), None, "a vCPU of a paused VM is loaded");
        stile_snapshot::encode(&(vcpu.saved.load(Ordering::Relaxed), Self::is_on(vm, part), wall_clock::nanoseconds_at(since)), to)
    }

    fn restore(vm: &'static vm::Vm, part: usize, _since: u64, from: &[u8]) -> Result<(), &'static str> {
        let vcpu = vm.vcpus.get(part).ok_or("no such vCPU")?;
        let (register, on, time): (u64, bool, u64) = stile_snapshot::decode(from).ok_or("no record")?;
        vm.power.set_saved_at(time);
        vcpu.arch.saved.store(register, Ordering::Relaxed);
        let mut states = vm.arch.on.lock().unwrap();
        if on {
            states.insert(part)
        } else {
            states.remove(&part)
        };
        Ok(())
    }

    fn advance(_vm: &'static vm::Vm, ticks: u64) {
        ADVANCED.fetch_add(ticks, Ordering::Relaxed);
    }

    fn complete(_vm: &'static vm::Vm) {}

    fn is_on(vm: &vm::Vm, vcpu: usize) -> bool {
        vm.arch.on.lock().unwrap().contains(&vcpu)
    }
}

impl PhysicalCpu for Cpu {
    fn this_index() -> usize {
        0
    }

    fn kind(&self) -> Kind {
        Kind { capacity: 0, identity: Identity }
    }

    fn complete_stores() {}

    fn kick(index: usize) {
        KICKED.lock().unwrap().push(index);
    }

    fn is_confined(index: usize) -> bool {
        CONFINED.load(Ordering::Relaxed) >> index & 1 != 0
    }

    fn enter(&mut self) -> ! {
        unreachable!("the fake architecture has no guests to enter")
    }

    fn set_deadline(&mut self, _deadline: Option<u64>) {}

    fn idle_interrupt(&mut self) {
        KICKED.lock().unwrap().retain(|&index| index != self.index);
        cpu::take_resched(self);
    }

    fn poll_interrupts(&mut self) {
        RESET.store(0, Ordering::Relaxed);
    }

    fn load(&mut self, vcpu: &'static vm::Vcpu, _switched: bool) {
        let before = vcpu.arch.loaded.lock().unwrap().replace(self.index);
        assert_eq!(before, None, "loaded on two CPUs");
        self.register = vcpu.arch.saved.load(Ordering::Relaxed);
    }

    fn put(&mut self, vcpu: Loaded<'static>, sleeps: bool) -> Option<u64> {
        let saved = &vcpu.vcpu().arch.saved;
        self.power_down(vcpu);
        saved.store(self.register, Ordering::Relaxed);
        // Some guests have set a timer.
        (sleeps && (self.register >> 8).is_multiple_of(4)).then(|| Arch::now() + 200_000)
    }

    fn power_down(&mut self, vcpu: Loaded<'static>) {
        let before = vcpu.vcpu().arch.loaded.lock().unwrap().take();
        assert_eq!(before, Some(self.index), "put where it was not loaded");
    }

    fn forget_vms(&self) {}

    /// Some spurious wake-ups do not end the wait.
    fn take_interrupts(&mut self) -> bool {
        static WAKES: AtomicU64 = AtomicU64::new(0);
        self.vcpu().arch.pending.swap(false, Ordering::Relaxed) || !WAKES.fetch_add(1, Ordering::Relaxed).is_multiple_of(7)
    }

    fn interrupt_pending(&mut self) -> bool {
        self.vcpu().arch.pending.load(Ordering::Relaxed)
    }

    fn trap_waiting(&mut self, _on: bool) {}

    fn trace_exits(&self, on: bool) -> bool {
        self.traced.replace(on) != on
    }

    fn timer_expiry(&mut self) -> Option<u64> {
        Some(Arch::now() + 1)
    }

    /// Its number is the row's.
    fn sent_ipi(&self, row: RowId) -> Option<(u16, [u64; stile_board::VCPU_WORDS])> {
        (row.raw() == 7).then_some((7, core::array::from_fn(|word| u64::from(word == 0))))
    }

    fn became_pending(&self, before: Option<u64>, mut each: impl FnMut(u32)) {
        if before != Some(0) {
            each(5);
        }
    }
}

/// Powers on a vCPU, as its guest would.
pub fn turn_on(vcpu: &'static vm::Vcpu) {
    vcpu.vm().arch.on.lock().unwrap().insert(vcpu.arch.index);
    vcpu.arch.set_entry(0);
    cpu::start(vcpu);
}
