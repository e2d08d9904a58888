//! Boot: from `boot.S` to the first guest, on the first CPU and on the others.

use core::sync::atomic::{AtomicU64, Ordering};

use fdt::Fdt;

use super::board::{Board, Span};
use super::cpu::Cpu;
use super::sysreg::read_sysreg;
use super::{features, firmware, gic, interface, interrupts, mmio::Mmio, mmu, uart, vm};
use crate::console::log;
use crate::once::Once;
use crate::{MAX_CPUS, memory, stacks, wall_clock};

core::arch::global_asm!(include_str!("boot.S"));

/// The most that a device tree may be long (Linux arm64 boot protocol).
const DTB_MAX: usize = 2 << 20;
/// MPIDR_EL1's affinity fields.
const AFFINITY: u64 = 0xff_00ff_ffff;

/// What a CPU that starts finds at the physical address in x0: `boot.S` knows this layout.
#[repr(C, align(64))]
struct Handoff {
    root: AtomicU64,
    stack: AtomicU64,
    /// Number and affinity of the CPU.
    index: AtomicU64,
    mpidr: AtomicU64,
    /// 1 when the CPU is there; 2 when it can't be used.
    arrived: AtomicU64,
}

static HANDOFF: Handoff = Handoff {
    root: AtomicU64::new(0),
    stack: AtomicU64::new(0),
    index: AtomicU64::new(0),
    mpidr: AtomicU64::new(0),
    arrived: AtomicU64::new(0),
};
static BOARD: Once<Board> = Once::new();

/// The first CPU, on the stack of `image.ld`, with the first tables.
#[unsafe(no_mangle)]
extern "C" fn boot(dtb: u64, image: u64) -> ! {
    features::set(features::detect());
    // SAFETY: the boot protocol puts a device tree of at most 2 MiB there, which nobody changes; boot.S mapped 4 MiB from there.
    let blob = unsafe { core::slice::from_raw_parts(mmu::physical(dtb), DTB_MAX) };
    // Without one there is no console to say so on.
    let Ok(tree) = Fdt::new(blob) else { halt() };
    let dtb = dtb..dtb + tree.total_size() as u64;
    let mpidr = read_sysreg!("mpidr_el1") & AFFINITY;
    let board = Board::new(&tree, mpidr);
    let stile = mmu::image(image);
    let blob = blob_span(&board, &stile);
    mmu::setup(&board, image, &blob);
    if let Some(device) = &board.uart {
        uart::setup(Mmio::new(mmu::device(device.registers.clone())));
    }
    if let Some(conduit) = board.psci {
        firmware::setup(conduit);
    }
    BOARD.set(board);
    let board = BOARD.get();
    log!("Stile {} on {}", env!("CARGO_PKG_VERSION"), board.model);
    if read_sysreg!("CurrentEL") != 2 << 2 {
        crate::refuse("it was started at EL1: the machine must give it EL2 (QEMU: -M virt,virtualization=on)");
    }
    let used = stile.start..blob.end;
    memory::setup(&board.ram, board.reserved.iter().chain([&dtb, &used]));

    let cpu = own_cpu(0, mpidr);
    if let Err(what) = setup_machine(board, cpu) {
        crate::refuse(what);
    }
    start_others(board);
    crate::start(cpu, &blob)
}

/// What was loaded after the image: the blob says itself how long it is, if it is there.
fn blob_span(board: &Board, stile: &Span) -> Span {
    let start = stile.end;
    let end = board.ram.iter().find(|ram| ram.contains(&stile.start)).map_or(start, |ram| ram.end);
    let header = mmu::after_image(stile_blob::HEADER_LEN);
    let len = stile_blob::Header::parse(header).map_or(0, |header| header.total_len);
    start..start.saturating_add(len).next_multiple_of(stile_paging::PAGE_SIZE).clamp(start, end.max(start))
}

fn setup_machine(board: &Board, cpu: &mut Cpu) -> Result<(), &'static str> {
    if board.psci.is_none() {
        return Err("the device tree has no PSCI node: other CPUs can't be started, nor the machine turned off");
    }
    if let Some(device) = &board.rtc {
        wall_clock::set(Mmio::new(mmu::device(device.registers.clone())).read32(0).into());
    }
    interrupts::setup(board)?;
    gic::setup_distributor(board.gicd.as_ref().ok_or("the device tree has no GICv3 (QEMU: -M virt,gic-version=3)")?);
    setup_cpu(board, cpu)?;
    interface::setup();
    vm::setup();
    vm::setup_cpu();
    if let Some(intid) = interrupts::uart() {
        gic::enable_spi(intid, cpu.mpidr);
    }
    Ok(())
}

fn setup_cpu(board: &Board, cpu: &mut Cpu) -> Result<(), &'static str> {
    cpu.setup();
    // Firmware may have left timers on.
    interrupts::stop_timers(interrupts::TIMER_ENABLE);
    super::timer::set_deadline(None);
    gic::setup_cpu(board, cpu.index, cpu.mpidr, &interrupts::private())?;
    crate::cpu::online(cpu);
    Ok(())
}

/// Gives a CPU its block, under the top of its stack.
fn own_cpu(index: usize, mpidr: u64) -> &'static mut Cpu {
    let top = mmu::stack(index, memory::allocate_pages(stacks::SIZE));
    // SAFETY: this is the only call for this CPU.
    unsafe { Cpu::install(top, index, mpidr) }
}

/// Starts the other CPUs, one after the other.
fn start_others(board: &Board) {
    unsafe extern "C" {
        fn secondary_cpu();
    }
    let entry = mmu::image_to_physical(secondary_cpu as *const () as u64);
    let handoff = mmu::image_to_physical(&raw const HANDOFF as u64);
    for (index, &mpidr) in board.cpus.iter().enumerate().skip(1).take(MAX_CPUS - 1) {
        let top = mmu::stack(index, memory::allocate_pages(stacks::SIZE));
        HANDOFF.root.store(mmu::root(), Ordering::Relaxed);
        HANDOFF.stack.store(top - size_of::<Cpu>().next_multiple_of(64) as u64, Ordering::Relaxed);
        HANDOFF.index.store(index as u64, Ordering::Relaxed);
        HANDOFF.mpidr.store(mpidr, Ordering::Relaxed);
        HANDOFF.arrived.store(0, Ordering::Relaxed);
        super::clean(&raw const HANDOFF as u64, size_of::<Handoff>());
        if let Err(error) = firmware::cpu_on(mpidr, entry, handoff) {
            log!("CPU {index} ({mpidr:#x}) does not start: {error}");
            continue;
        }
        while HANDOFF.arrived.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
        if HANDOFF.arrived.load(Ordering::Acquire) != 1 {
            log!("CPU {index} ({mpidr:#x}) can't be used: it differs from the first CPU, or has no redistributor");
        }
    }
}

/// Every other CPU, with the final tables, on its own stack.
#[unsafe(no_mangle)]
extern "C" fn secondary_boot(_stack: u64) -> ! {
    let index = HANDOFF.index.load(Ordering::Relaxed) as usize;
    let mpidr = HANDOFF.mpidr.load(Ordering::Relaxed);
    let top = mmu::STACKS.of_cpu(index).end;
    // SAFETY: `start_others` mapped this CPU's stack, and a CPU boots once.
    let cpu = unsafe { Cpu::install(top, index, mpidr) };
    let usable = features::detect() == *features::get() && setup_cpu(BOARD.get(), cpu).is_ok();
    if !usable {
        HANDOFF.arrived.store(2, Ordering::Release);
        halt();
    }
    vm::setup_cpu();
    HANDOFF.arrived.store(1, Ordering::Release);
    crate::start_other(cpu)
}

fn halt() -> ! {
    loop {
        super::wait_for_interrupt();
    }
}
