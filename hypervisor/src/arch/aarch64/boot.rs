//! Boot, from `boot.S` to the first guest, on the boot CPU and the others.

use stile_firmware::frame_buffer::FrameBuffer;
use stile_firmware::nodes::exclude;
use stile_firmware::{device_tree, salvage};
use stile_speculation::aarch64::has_speculative_at;

use crate::address_space::Span;
use crate::arch::aarch64::exit::vectors;
use crate::arch::aarch64::host::board::{self, Board};
use crate::arch::aarch64::host::cpu::{Cpu, affinity};
use crate::arch::aarch64::host::firmware::Obstacle;
use crate::arch::aarch64::host::probe::Probed;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::host::{
    broadcom_power, bulk, features, firmware, gic, gicv2, mmu, probe, sgi, speculation, spin_table, timer, uart, wait_for_interrupt,
};
use crate::arch::aarch64::interrupts::{self, interface};
use crate::arch::aarch64::vcpu::{debug, registers, serror, traps};
use crate::arch::aarch64::vm::second_stage;
use crate::console::log;
use crate::cpu::start;
use crate::screen::{self, Frame};
use crate::{address_space, memory, nodes, wall_clock};

core::arch::global_asm!(include_str!("boot.S"));

/// Size of the blocks by which boot.S maps memory, and their number for the device tree.
const BLOCK: u64 = 2 << 20;
const TREE_BLOCKS: u64 = 2;

/// Entry of the boot CPU, on the stack of `image.ld`, with the boot tables.
#[unsafe(no_mangle)]
extern "C" fn boot(dtb: u64, image: u64) -> ! {
    features::set(features::detect());
    let mapped = TREE_BLOCKS * BLOCK - dtb % BLOCK;
    let place = address_space::physical(dtb);
    // SAFETY: by the boot protocol, `dtb` is the physical address of a device tree, which nothing else modifies; boot.S mapped the block
    // in which it begins, and the next one.
    let blob = unsafe { core::slice::from_raw_parts(place, mapped as usize) };
    // The boot protocol allows 2 MiB; of longer trees, space at the end may be out of reach.
    let (tree, is_malformed) = match device_tree::parse_start(blob) {
        Ok(tree) => (tree, false),
        Err(_) => {
            // SAFETY: the same memory, to which no other reference is left: the parser has returned none.
            let blob = unsafe { core::slice::from_raw_parts_mut(place, mapped as usize) };
            salvage::salvage(blob);
            // Without a device tree there is no console for a message.
            let Ok(tree) = device_tree::parse_start(blob) else { halt() };
            (tree, true)
        }
    };
    let dtb = dtb..dtb + tree.data().len() as u64;
    let mut board = Board::new(&tree, affinity());
    let image = address_space::image_at(image);
    exclude(&mut board.ram, &(mmu::reach()..u64::MAX));
    let has_memory = board.ram.iter().any(|ram| ram.contains(&image.start)) && board.ram.iter().any(|ram| ram.contains(&dtb.start));
    if !has_memory {
        // `mmu::setup` maps no memory that the tree does not describe: its texts can't be read from there on.
        board.model = "unknown board";
    }
    let blob = address_space::blob(&board.ram, &image);
    // SAFETY: the boot tables of boot.S map the image without restrictions, and no other CPU was started.
    unsafe { gicv2::adopt(board.gicv2().is_some(), sgi::leave_to_firmware()) };
    mmu::setup(&board.ram, &image, &blob);
    let taken = board.taken([&image, &blob, &dtb]);
    let silent_ports = uart::setup(&mut board, &taken);
    if let Some(buffer) = &board.frame_buffer {
        show_log(buffer, &taken);
    }
    if let Some(conduit) = board.psci {
        firmware::setup(conduit);
    }
    let board = board::set(board);
    log!("Stile {} on {}", env!("CARGO_PKG_VERSION"), board.model);
    for (address, fault) in silent_ports {
        log!("the serial port at {address:#x} {fault}");
    }
    if read_sysreg!(CURRENTEL) != 2 << 2 {
        crate::refuse(
            "it was started at EL1: the machine must give it EL2 (a VM of Stile: nested = true; QEMU: -M virt,virtualization=on)",
        );
    }
    if is_malformed {
        crate::refuse("the device tree is malformed (truncated, or an invalid token or name): check the file that the boot loader passes");
    }
    if !has_memory {
        crate::refuse("the device tree describes no memory at Stile's image or at the tree itself: check its memory nodes");
    }
    if board.reserves_more {
        crate::refuse("the device tree has too many memory reservations (at most 96)");
    }
    nodes::setup(&board.numa, board.cpus.iter().copied());
    let used = image.start..blob.end;
    let files = board.medium.as_ref().and_then(|medium| medium.files.as_ref()?.range());
    memory::setup(&board.ram, board.reserved.iter().chain([&dtb, &used]), files);

    let cpu = start::first(board.cpus.len()).unwrap_or_else(|why| crate::refuse(why));
    // From here on, an exception in Stile panics instead of hanging.
    write_sysreg!(VBAR_EL2, vectors::base());
    if let Err(what) = setup_machine(board, cpu) {
        crate::refuse(what);
    }
    start_others(board, &used);
    crate::start(cpu, &blob, board.medium.as_ref())
}

/// Shows the log on firmware's frame buffer, unless the buffer overlaps `taken` memory or does not answer.
fn show_log(buffer: &FrameBuffer, taken: &[Span]) {
    let registers = buffer.address..buffer.address + buffer.len();
    if let Ok(registers) = probe::map(&registers, taken, 4, Probed { at: 0, wide: true }) {
        // SAFETY: the buffer's geometry was checked; it is mapped as device memory here, and no part of it is RAM (`Board::new`).
        screen::setup(unsafe { Frame::new(registers.base(), buffer.width, buffer.height, buffer.stride) });
    }
}

fn setup_machine(board: &Board, cpu: &mut Cpu) -> Result<(), &'static str> {
    if board.psci.is_none() && board.power.is_none() {
        log!("the device tree has no PSCI node: the machine can't be turned off");
    }
    if let Some(registers) = &board.power
        && let Ok(registers) = probe::claim("power management", registers, &board.ram, broadcom_power::SIZE, 0)
    {
        broadcom_power::setup(registers);
    }
    if let Some(device) = &board.rtc
        && let Ok(registers) = probe::claim("real-time clock", &device.registers, &board.ram, 4, 0)
    {
        wall_clock::set(registers.read32(0).into());
    } else if let Some(time) = board.time {
        wall_clock::set(time);
    }
    let gic = board.gic.as_ref().ok_or(board.gic_obstacle)?;
    interrupts::setup(board)?;
    gic::setup_distributor(gic, &board.ram)?;
    setup_cpu(board, cpu)?;
    interface::setup();
    second_stage::setup()?;
    second_stage::setup_cpu();
    if let Some(intid) = interrupts::uart() {
        gic::enable_spi(intid, cpu.mpidr);
    }
    Ok(())
}

fn setup_cpu(board: &Board, cpu: &mut Cpu) -> Result<(), &'static str> {
    mmu::forbid_writable_code();
    write_sysreg!(VBAR_EL2, vectors::base());
    traps::setup();
    serror::setup();
    speculation::setup_cpu(cpu);
    if has_speculative_at(read_sysreg!(MIDR_EL1)) {
        features::close_el1();
        // `second_stage::setup_cpu` drops what there is of firmware's.
        registers::close();
    }
    // `vcpu::fp` accesses FP registers at EL2.
    features::enable_fp_for_el2();
    debug::disable();
    // Firmware may have left timers enabled.
    interrupts::stop_timers(interrupts::TIMER_ENABLE);
    timer::set_deadline(None);
    gic::setup_cpu(board, cpu.index, cpu.mpidr, &interrupts::private(), interrupts::timer())?;
    crate::cpu::online(cpu)
}

/// Starts the secondary CPUs. `used` is the image with the blob, in physical memory.
fn start_others(board: &Board, used: &Span) {
    unsafe extern "C" {
        fn secondary_cpu();
    }
    let entry = address_space::image_to_physical(secondary_cpu as *const () as u64);
    let handoff = &raw const start::HANDOFF as u64;
    let start = |mpidr| {
        // The secondary reads it with its caches off.
        bulk::flush(handoff, size_of::<start::Handoff>());
        match board.release(mpidr).map_err(Obstacle::Board)? {
            Some(release) => spin_table::start(release, entry, &board.ram, used).map_err(Obstacle::Board),
            None => firmware::cpu_on(mpidr, entry),
        }
    };
    // Nothing stops another CPU.
    start::others(board.cpus.iter().skip(1).copied(), start, |_| false);
}

/// Prepares a secondary CPU, with its block, to run vCPUs.
///
/// # Errors
/// A description of why it cannot be used.
pub fn join(cpu: &mut Cpu) -> Result<(), &'static str> {
    if features::detect() != *features::get() {
        return Err("its features differ from those of the first CPU");
    }
    if cpu.index >= second_stage::most_cpus() {
        return Err("the CPUs' 8-bit VMIDs do not suffice for more CPUs");
    }
    setup_cpu(board::get(), cpu)?;
    second_stage::setup_cpu();
    Ok(())
}

fn halt() -> ! {
    loop {
        wait_for_interrupt();
    }
}
