//! Entry from UEFI firmware: the image is also an EFI application. `efi.S` copies it to a multiple of 2 MiB and maps the
//! copy at the link address beside firmware's own mappings; from here it continues in `boot.S`.

use core::cell::UnsafeCell;

use stile_firmware::acpi::Tables;
use stile_firmware::e820::BIOS;
use stile_firmware::efi;
use stile_firmware::runtime::Runtime;
use uefi_raw::table::boot::{AllocateType, BootServices, MemoryType};
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Handle, Status};

use super::host::board::{self, Board, LOW};
use super::host::instructions::cpuid;
use super::host::mmu;
use crate::efi::files::read_medium;
use crate::efi::{ACPI, MAP, PAGE, TEXT, exit, figures, find, frame_buffer, memory, memory_map, refuse, refuse_after_exit};
use crate::once::Once;

core::arch::global_asm!(include_str!("efi.S"), include_str!("efi_no_memory.S"));

/// Execute-disable: EDX of CPUID leaf 0x8000_0001.
const EXECUTE_DISABLE: u32 = 1 << 20;

/// Buffer for the boot medium's configuration file.
struct Text(UnsafeCell<[u8; TEXT]>);

// SAFETY: `efi_main` writes it, before anything else runs; it is constant from then on.
unsafe impl Sync for Text {}

static TEXT_BUFFER: Text = Text(UnsafeCell::new([0; TEXT]));

/// The board, as firmware describes it.
static BOARD: Once<Board> = Once::new();

unsafe extern "C" {
    fn efi_leave(image: u64) -> !;
}

/// Firmware's services.
static RUNTIME: Once<Runtime> = Once::new();

/// Returns firmware's services, if firmware started a bench stick.
pub fn runtime() -> Option<&'static Runtime> {
    RUNTIME.try_get()
}

/// Returns the board, if firmware started the image.
pub fn board() -> Option<&'static Board> {
    BOARD.try_get()
}

/// Continues from `efi_entry`, which returns to firmware with the result. `image` is the image's physical address.
///
/// # Safety
/// Called by `efi_entry` with firmware's arguments: boot services have not ended.
#[unsafe(no_mangle)]
unsafe extern "C" fn efi_main(handle: Handle, system: &SystemTable, image: u64) -> Status {
    // SAFETY: firmware passes its system table, and boot services have not ended.
    let boot = unsafe { &*system.boot_services };
    if cpuid(0x8000_0001, 0).edx & EXECUTE_DISABLE == 0 {
        // Later only the first serial port would show this (boot.S).
        return refuse(system, "the CPU has no execute-disable bit, or the firmware hides it");
    }
    let Some(root) = find(system, ACPI) else { return refuse(system, "the firmware has no ACPI tables") };
    let Some(trampoline) = allocate(boot, LOW - 1, PAGE) else {
        return refuse(system, "the firmware has no memory below 1 MiB, where other CPUs start");
    };
    let Some(buffer) = allocate(boot, u64::MAX, MAP as u64) else { return refuse(system, "the firmware has no memory left") };
    let Some((map, descriptor, _)) = memory_map(boot, buffer) else { return refuse(system, "the firmware has no memory map") };
    // SAFETY: boot services have not ended, and 64-bit firmware maps the first 4 GiB; `tables` keeps no references to the bytes.
    let tables = match Tables::read_at(&unsafe { memory(map, descriptor, Some(BIOS)) }, root as u64) {
        Ok(tables) => tables,
        Err(what) => return refuse(system, what),
    };
    let ram = board::ram(efi::entries(map, descriptor));
    let frame_buffer = frame_buffer(system, boot, |buffer| board::is_apart(buffer, &ram));
    // SAFETY: nothing refers to the buffer yet, and nothing writes to it later.
    let text: &'static mut [u8] = unsafe { &mut *TEXT_BUFFER.0.get() };
    let set_variable = figures::deliver(system, boot, handle, text);
    // RAM beyond is not Stile's (`board::ram`).
    let medium = read_medium(boot, handle, text, mmu::first_mapped() - 1);
    let Some((map, descriptor)) = exit(boot, handle, buffer) else {
        return refuse_after_exit(system);
    };
    if let Some(runtime) = figures::runtime(set_variable, map, descriptor) {
        RUNTIME.set(runtime);
    }
    let ram = board::ram(efi::entries(map, descriptor));
    // This map may have more RAM than the one by which the screen was chosen.
    let frame_buffer = frame_buffer.filter(|buffer| board::is_apart(buffer, &ram));
    BOARD.set(Board { ram, tables, trampoline, frame_buffer, medium });
    // SAFETY: boot services have ended, and the image is at this address.
    unsafe { efi_leave(image) }
}

/// Allocates memory that ends at or below an address.
fn allocate(boot: &BootServices, last: u64, size: u64) -> Option<u64> {
    let mut start = last;
    // SAFETY: this runs before boot services are exited, so that the table is valid.
    let status = unsafe { (boot.allocate_pages)(AllocateType::MAX_ADDRESS, MemoryType::LOADER_DATA, (size / PAGE) as usize, &mut start) };
    (status == Status::SUCCESS).then_some(start)
}
