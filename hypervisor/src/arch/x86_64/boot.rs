//! Boot: from `boot.S` to the first guest, on the first CPU and on the others.

use core::sync::atomic::{AtomicU64, Ordering};

use super::board::{Board, LOW, Span};
use super::cpu::Cpu;
use super::{apic, firmware, idt, mmu, rtc, timer, uart, vmx};
use crate::console::log;
use crate::once::Once;
use crate::{MAX_CPUS, memory, stacks, wall_clock};

/// Where a SIPI starts CPUs: a page below 1 MiB, where firmware leaves memory free after it has loaded the boot sector.
const TRAMPOLINE: u64 = 0x8000;

core::arch::global_asm!(include_str!("boot.S"), TRAMPOLINE = const TRAMPOLINE, FIRST_TABLES = const mmu::FIRST_TABLES);

/// What a CPU that starts finds: `boot.S` knows this layout.
#[repr(C, align(64))]
struct Handoff {
    root: AtomicU64,
    stack: AtomicU64,
    /// Number of the CPU.
    index: AtomicU64,
    /// 1 when the CPU is there; 2 when it can't be used.
    arrived: AtomicU64,
}

#[unsafe(no_mangle)]
static HANDOFF: Handoff =
    Handoff { root: AtomicU64::new(0), stack: AtomicU64::new(0), index: AtomicU64::new(0), arrived: AtomicU64::new(0) };
static BOARD: Once<Board> = Once::new();

/// The first CPU, on the stack of the linker script, with the first tables.
#[unsafe(no_mangle)]
extern "C" fn boot(magic: u32, info: u32) -> ! {
    uart::setup();
    log!("Stile {} on a PC", env!("CARGO_PKG_VERSION"));
    let board = match Board::new(magic, info.into()) {
        Ok(board) => board,
        Err(what) => crate::refuse(what),
    };
    firmware::setup(board.tables.power_off);
    BOARD.set(board);
    let board = BOARD.get();
    let features = match vmx::detect() {
        Ok(features) => features,
        Err(what) => crate::refuse(what),
    };
    vmx::set_features(features);
    let image = mmu::image();
    let blob = blob_span(board, &image);
    let used = image.start..blob.end;
    memory::setup(&board.ram, [&(0..LOW), &used]);
    mmu::setup(board, &blob);
    idt::setup();
    let cpu = own_cpu(0);
    timer::calibrate();
    if let Some(now) = rtc::seconds() {
        wall_clock::set(now);
    }
    if let Err(what) = setup_cpu(cpu) {
        crate::refuse(what);
    }
    stile_decode::prepare();
    apic::setup_board(&board.tables, uart::ISA_IRQ);
    start_others(board);
    crate::start(cpu, &blob)
}

/// What was loaded after the image: the blob says itself how long it is, if it is there.
fn blob_span(board: &Board, image: &Span) -> Span {
    let start = image.end;
    let end = board.ram.iter().find(|ram| ram.contains(&image.start)).map_or(start, |ram| ram.end);
    if end.saturating_sub(start) < stile_blob::HEADER_LEN as u64 {
        return start..start;
    }
    // SAFETY: the first tables map it, it is RAM that the loader may have written, and nobody else is here.
    let header = unsafe { core::slice::from_raw_parts(mmu::physical(start), stile_blob::HEADER_LEN) };
    let len = stile_blob::Header::parse(header).map_or(0, |header| header.total_len);
    start..start.saturating_add(len).next_multiple_of(stile_paging::PAGE_SIZE).clamp(start, end)
}

fn setup_cpu(cpu: &mut Cpu) -> Result<(), &'static str> {
    apic::setup_cpu(cpu.index);
    vmx::turn_on(vmx::features())?;
    crate::cpu::online(cpu);
    Ok(())
}

/// Gives this CPU its block, under the top of its stack.
fn own_cpu(index: usize) -> &'static mut Cpu {
    let top = mmu::stack(index, memory::allocate_pages(stacks::SIZE));
    // SAFETY: this is the only call for this CPU.
    unsafe { Cpu::install(top, index) }
}

/// Starts the other CPUs, one after the other.
fn start_others(board: &Board) {
    unsafe extern "C" {
        static trampoline: u8;
        static trampoline_end: u8;
    }
    let (code, end) = (&raw const trampoline, &raw const trampoline_end);
    // SAFETY: the trampoline's page is below `LOW`, which is nobody's; the code is shorter than it.
    unsafe { mmu::physical(TRAMPOLINE).copy_from_nonoverlapping(code, end as usize - code as usize) };
    let first = apic::id();
    let others = board.tables.cpus.iter().filter(|&&apic| apic != first).take(MAX_CPUS - 1);
    for (number, &apic) in others.enumerate() {
        let index = number + 1;
        let top = mmu::stack(index, memory::allocate_pages(stacks::SIZE));
        HANDOFF.root.store(mmu::root(), Ordering::Relaxed);
        HANDOFF.stack.store(top - size_of::<Cpu>().next_multiple_of(64) as u64, Ordering::Relaxed);
        HANDOFF.index.store(index as u64, Ordering::Relaxed);
        HANDOFF.arrived.store(0, Ordering::Release);
        apic::start(apic, (TRAMPOLINE >> 12) as u8);
        let until = timer::now() + timer::frequency();
        while HANDOFF.arrived.load(Ordering::Acquire) == 0 && timer::now() < until {
            core::hint::spin_loop();
        }
        match HANDOFF.arrived.load(Ordering::Acquire) {
            1 => {}
            0 => {
                // It may still come, and must not find another one's stack.
                log!("CPU {index} (APIC {apic}) does not start");
                break;
            }
            _ => log!("CPU {index} (APIC {apic}) can't be used: it differs from the first CPU"),
        }
    }
}

/// Every other CPU, with the final tables, on its own stack.
#[unsafe(no_mangle)]
extern "C" fn secondary_boot() -> ! {
    let index = HANDOFF.index.load(Ordering::Relaxed) as usize;
    let top = mmu::STACKS.of_cpu(index).end;
    // SAFETY: `start_others` mapped this CPU's stack, and a CPU boots once.
    let cpu = unsafe { Cpu::install(top, index) };
    let usable = vmx::detect().is_ok_and(|features| features == *vmx::features()) && setup_cpu(cpu).is_ok();
    if !usable {
        HANDOFF.arrived.store(2, Ordering::Release);
        loop {
            super::wait_for_interrupt();
        }
    }
    HANDOFF.arrived.store(1, Ordering::Release);
    crate::start_other(cpu)
}
