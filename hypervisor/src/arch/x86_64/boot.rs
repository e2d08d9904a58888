//! Boot, from `boot.S` to the first guest, on the boot CPU and the others.

use core::convert::Infallible;

use crate::arch::x86_64::efi;
use crate::arch::x86_64::host::board::{self, Board, LOW};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::{apic, description, firmware, heap, idt, mmu, rtc, speculation, timer, uart};
use crate::arch::x86_64::virt::{apic_mode, extension};
use crate::console::log;
use crate::cpu::start;
use crate::once::Once;
use crate::screen::{self, Frame};
use crate::{address_space, memory, nodes, wall_clock};

/// Offsets of the trampoline's data: its operand of LGDT (a limit and an address), the target of its far jump, and the
/// image's displacement.
const TRAMPOLINE_GDTR: usize = 0x30;
const TRAMPOLINE_TARGET: usize = 0x38;
const TRAMPOLINE_DISPLACEMENT: usize = 0x40;

core::arch::global_asm!(
    include_str!("boot.S"),
    TRAMPOLINE_GDTR = const TRAMPOLINE_GDTR,
    TRAMPOLINE_TARGET = const TRAMPOLINE_TARGET,
    TRAMPOLINE_DISPLACEMENT = const TRAMPOLINE_DISPLACEMENT,
    FIRST_TABLES = const mmu::FIRST_TABLES,
);

/// Bytes of memory without which there is no room for the tables of Stile's address space.
const LEAST_MEMORY: u64 = 1 << 20;

static BOARD: Once<Board> = Once::new();

/// Entry of the boot CPU, on the linker script's stack, with the boot tables. `magic` and `info` are a Multiboot loader's;
/// `displacement` is the image's distance from the physical address that it is linked for.
#[unsafe(no_mangle)]
extern "C" fn boot(magic: u32, info: u32, displacement: u32) -> ! {
    mmu::set_displacement(displacement.into());
    // A refusal may wait for interrupts.
    apic::mask_8259s();
    let board = board(magic, info);
    board::publish(board);
    uart::setup(Some(board));
    firmware::setup(board.tables.power_off);
    let image = mmu::image();
    if !board.ram.iter().any(|ram| ram.start <= image.start && image.end <= ram.end) {
        crate::refuse("by the memory map, Stile's image is not in usable memory");
    }
    let blob = address_space::blob(&board.ram, &image);
    let used = image.start..blob.end;
    let files = board.medium.as_ref().and_then(|medium| medium.files.as_ref()?.range());
    memory::setup(&board.ram, [&(0..LOW), &used], files);
    if memory::available() < LEAST_MEMORY {
        crate::refuse("there is no memory beside Stile's image");
    }
    mmu::setup(&board.ram, &blob);
    uart::setup_mapping();
    if let Some(buffer) = &board.frame_buffer {
        let registers = buffer.address..buffer.address + buffer.len();
        // SAFETY: the buffer's geometry was checked; it is mapped as device memory here, and no part of it is RAM (`is_apart`).
        screen::setup(unsafe { Frame::new(address_space::device(registers), buffer.width, buffer.height, buffer.stride) });
    }
    log!("Stile {} on a PC", env!("CARGO_PKG_VERSION"));
    if board.tables.power_off.is_none() {
        log!("the ACPI tables name no power-off register (FADT, _S5_): the machine can't be turned off");
    }
    let features = match extension::detect() {
        Ok(features) => features,
        Err(what) => crate::refuse(what),
    };
    extension::set_features(features);
    speculation::setup_first();
    idt::setup();
    // The tables may lack the boot CPU.
    let cpu = start::first(board.tables.cpus.len() + 1).unwrap_or_else(|why| crate::refuse(why));
    apic_mode::choose(board, &blob);
    if let Err(what) = timer::calibrate(board.tables.timer) {
        crate::refuse(what);
    }
    if let Some(now) = rtc::seconds() {
        wall_clock::set(now);
    }
    if let Err(what) = setup_cpu(cpu) {
        crate::refuse(what);
    }
    heap::setup();
    stile_x86_decode::prepare();
    apic::setup_board(board, uart::interrupt());
    nodes::setup(&board.tables.numa, cpus(board));
    start_others(board);
    crate::start(cpu, &blob, board.medium.as_ref())
}

/// The board, which UEFI firmware described, or a loader and firmware do.
fn board(magic: u32, info: u32) -> &'static Board {
    efi::board().unwrap_or_else(|| {
        match Board::new(magic, info.into()) {
            Ok(board) => BOARD.set(board),
            Err(what) => {
                uart::setup(None);
                crate::refuse(what)
            }
        }
        BOARD.get()
    })
}

/// Logs the board's description.
pub fn describe() {
    description::log(efi::board().unwrap_or_else(|| BOARD.get()));
}

fn setup_cpu(cpu: &mut Cpu) -> Result<(), &'static str> {
    apic::setup_cpu(cpu.index);
    extension::turn_on(extension::features(), cpu)?;
    crate::cpu::online(cpu)
}

/// APIC IDs of the CPUs: the boot CPU, then the others in the tables' order.
fn cpus(board: &'static Board) -> impl Iterator<Item = u64> {
    let first = apic::id();
    let others = board.tables.cpus.iter().copied().filter(move |&apic| apic != first);
    core::iter::once(first).chain(others).map(u64::from)
}

/// Starts the secondary CPUs.
fn start_others(board: &'static Board) {
    unsafe extern "C" {
        static trampoline: u8;
        static trampoline_end: u8;
    }
    let (code, end) = (&raw const trampoline, &raw const trampoline_end);
    let page = address_space::physical(board.trampoline);
    // SAFETY: the trampoline's page is below `LOW`, where Stile allocates nothing; the code is shorter than a page.
    unsafe { page.copy_from_nonoverlapping(code, end as usize - code as usize) };
    // The displacement is below 4 GiB, as the image's place is.
    let displacement = mmu::displacement() as u32;
    for at in [TRAMPOLINE_GDTR + 2, TRAMPOLINE_TARGET, TRAMPOLINE_DISPLACEMENT] {
        // SAFETY: the code's data is in the page.
        unsafe {
            let word = page.add(at).cast::<u32>();
            word.write_unaligned(word.read_unaligned() + displacement);
        }
    }
    let start = |apic| {
        apic::start(apic as u32, (board.trampoline >> 12) as u8);
        Ok::<(), Infallible>(())
    };
    let stop = |apic| {
        apic::stop(apic as u32);
        true
    };
    start::others(cpus(board).skip(1), start, stop);
}

/// Prepares a secondary CPU, with its block, to run vCPUs.
///
/// # Errors
/// A description of why it cannot be used.
pub fn join(cpu: &mut Cpu) -> Result<(), &'static str> {
    if extension::detect()? != *extension::features() || !speculation::is_like_first() {
        return Err("its features of virtualization, or its mitigations, differ from those of the first CPU");
    }
    apic_mode::check_cpu()?;
    setup_cpu(cpu)
}
