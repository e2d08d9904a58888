//! Entry from UEFI firmware: the image is also an EFI application, which relocates itself and enters by the arm64
//! boot protocol.
//!
//! This code runs where firmware loaded the image, not at its link address. References relative to the program
//! counter work; pointers in constant data (trait objects, formatting, arrays of strings) do not, and must not be
//! used here.

use core::slice;

use heapless::Vec;
use stile_firmware::arm_pci::SEGMENT;
use stile_firmware::arm_tables::ArmTables;
use stile_firmware::root_bridge::{self, MOST_WINDOWS, Window};
use stile_firmware::runtime::Runtime;
use stile_firmware::{Memory, described, device_tree, efi};
use uefi_raw::protocol::pci::root_bridge::PciRootBridgeIoProtocol;
use uefi_raw::table::boot::{AllocateType, BootServices, MemoryType};
use uefi_raw::table::system::SystemTable;
use uefi_raw::time::Time;
use uefi_raw::{Guid, Handle, Status, guid};

use crate::arch::aarch64::host::bulk;
use crate::arch::aarch64::host::mmu;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::efi::files::read_medium;
use crate::efi::{
    ACPI, MAP, PAGE, TEXT, exit, fail, figures, find, frame_buffer, handles, memory, memory_map, protocol, refuse, refuse_after_exit,
};
use crate::once::Once;

core::arch::global_asm!(include_str!("efi.S"));

/// Device tree in the configuration table (Embedded Base Boot Requirements, Devicetree).
const DEVICE_TREE: Guid = guid!("b1b621d5-f19c-41a5-830b-d9152c69aae0");

/// Alignment of the image in bytes: boot.S maps it by blocks of 2 MiB.
const BLOCK: u64 = 2 << 20;
/// Size reserved for the device tree in bytes: the boot protocol's maximum (Linux, Documentation/arch/arm64/booting.rst).
const TREE: u64 = 2 << 20;
/// Maximum size of firmware's device tree in bytes. `MAP` bytes are left for a reservation of 16 bytes per descriptor of
/// the memory map, which has at least 40, and for a frame buffer's node, and as many as the configuration file has.
const FIRMWARE_TREE: usize = TREE as usize - MAP - TEXT.next_multiple_of(PAGE as usize);

/// Memory allocated from firmware.
struct Room {
    /// Address of the image's copy, aligned to a block.
    image: u64,
    /// Address of the device tree.
    tree: u64,
    /// Address of the memory map.
    map: u64,
    /// Address of the buffer for the configuration file.
    text: u64,
}

/// Firmware's services. Set before the image is entered, in the copy that is entered.
static RUNTIME: Once<Runtime> = Once::new();

/// Returns firmware's services, if firmware started a bench stick.
pub fn runtime() -> Option<&'static Runtime> {
    RUNTIME.try_get()
}

unsafe extern "C" {
    fn efi_leave(tree: u64, image: u64) -> !;
    static efi_leave_end: u8;
}

/// Entry point. `image` is the address at which firmware loaded the image.
///
/// # Safety
/// Called by firmware as the entry point of an EFI application.
#[unsafe(no_mangle)]
unsafe extern "efiapi" fn efi_main(handle: Handle, system: &SystemTable, image: u64) -> Status {
    if read_sysreg!(CURRENTEL) != 2 << 2 {
        return fail(system, "Stile needs EL2, and the firmware runs at EL1. QEMU: -M virt,virtualization=on");
    }
    // SAFETY: firmware passes its system table, and boot services have not ended.
    let boot = unsafe { &*system.boot_services };
    // SAFETY: firmware loaded the image including its header, which has the size at offset 16.
    let size = unsafe { *((image + 16) as *const u64) };
    let Some(room) = allocate(boot, size) else { return refuse(system, "the firmware has no memory for the image") };
    let Some((map, descriptor_size, _)) = memory_map(boot, room.map) else {
        return refuse(system, "the firmware has no memory map");
    };
    // SAFETY: boot services have not ended; nothing uses the tables' bytes once `exit` has ended them.
    let memory = unsafe { memory(map, descriptor_size, None) };
    let (tree, mut tables) = match (find(system, DEVICE_TREE), find(system, ACPI)) {
        (Some(tree), _) => match check_tree(tree) {
            Some(tree) => (Some(tree), None),
            None => return refuse(system, "the firmware's device tree is malformed, or too long"),
        },
        (None, Some(root)) => match ArmTables::read(&memory, root as u64) {
            Some(tables) => (None, Some(tables)),
            None => return refuse(system, "the firmware's ACPI tables are malformed, or have no MADT"),
        },
        (None, None) => return refuse(system, "the firmware has neither a device tree nor ACPI tables"),
    };
    // SAFETY: source and destination have `size` bytes each: the loaded image, and the pages that `allocate`
    // returned.
    unsafe { core::ptr::copy_nonoverlapping(image as *const u8, room.image as *mut u8, size as usize) };
    if let Some(pci) = tables.as_mut().and_then(|tables| tables.pci.as_mut()) {
        pci.windows = pci_windows(boot, &memory);
    }
    let (time, screen) = (time(system), frame_buffer(system, boot, |_| true));
    // SAFETY: `allocate` reserved these bytes, and nothing else refers to them.
    let text = unsafe { slice::from_raw_parts_mut(room.text as *mut u8, TEXT) };
    let set_variable = figures::deliver(system, boot, handle, text);
    let medium = read_medium(boot, handle, text, mmu::reach() - 1);
    let Some((map, descriptor_size)) = exit(boot, handle, room.map) else {
        return refuse_after_exit(system);
    };
    // SAFETY: `allocate` reserved these bytes, and nothing else refers to them.
    let to = unsafe { slice::from_raw_parts_mut(room.tree as *mut u8, TREE as usize) };
    let reserved = efi::reserved(map, descriptor_size);
    let length = match (tree, &tables) {
        (Some(tree), _) => device_tree::extend(tree, reserved, screen.as_ref(), medium.as_ref(), to),
        (None, Some(tables)) => {
            described::describe(tables, time, screen.as_ref(), medium.as_ref(), efi::memory(map, descriptor_size), reserved, to)
        }
        (None, None) => None,
    };
    // It fits: a tree from ACPI tables has a few KiB, and the reservation for a descriptor of the map has 16 bytes.
    let length = length.unwrap_or(0);
    if let Some(runtime) = figures::runtime(set_variable, map, descriptor_size) {
        let offset = &raw const RUNTIME as u64 - image;
        // SAFETY: the image's copy has the static at the same offset, unset, and with no pointers. Nothing else refers to it.
        unsafe { &*((room.image + offset) as *const Once<Runtime>) }.set(runtime);
    }
    bulk::flush(room.image, size as usize);
    bulk::flush(room.tree, length);
    if let Some(files) = medium.as_ref().and_then(|medium| medium.files.as_ref()?.range()) {
        bulk::flush(files.start, (files.end - files.start) as usize);
    }
    let code = efi_leave as *const () as u64;
    bulk::flush(code, (&raw const efi_leave_end as u64 - code) as usize);
    // SAFETY: image, tree and this code are clean to the point of coherency, the CPU is at EL2, and memory is
    // identity-mapped.
    unsafe { efi_leave(room.tree, room.image) }
}

/// Returns the device tree at an address, if it is well-formed.
fn check_tree(tree: *const u8) -> Option<&'static [u8]> {
    // SAFETY: firmware's configuration table says that a device tree is there, whose header has ten words, and memory
    // is identity-mapped until `efi_leave`.
    let length = device_tree::length(unsafe { slice::from_raw_parts(tree, 40) }).filter(|&length| length <= FIRMWARE_TREE)?;
    // SAFETY: the tree is as long as its header says. Nothing writes there until it is copied: firmware does not allocate
    // memory in use, and after boot services have ended Stile writes only to what it allocated before.
    let tree = unsafe { slice::from_raw_parts(tree, length) };
    device_tree::parse(tree).is_ok().then_some(tree)
}

/// Windows of the PCI host bridge with bus 0, as reported by firmware's driver; empty without such a driver.
fn pci_windows(boot: &BootServices, memory: &impl Memory) -> Vec<Window, MOST_WINDOWS> {
    for &handle in handles(boot, &PciRootBridgeIoProtocol::GUID) {
        let Some(bridge) = protocol::<PciRootBridgeIoProtocol>(boot, handle, &PciRootBridgeIoProtocol::GUID) else { continue };
        let mut resources = core::ptr::null();
        // SAFETY: firmware returned the protocol, which stays valid until boot services end.
        let (segment, status) = unsafe { ((*bridge).segment_number, ((*bridge).configuration)(bridge, &mut resources)) };
        if segment == u32::from(SEGMENT)
            && status == Status::SUCCESS
            && let Some(windows) = root_bridge::windows(memory, resources as u64)
        {
            return windows;
        }
    }
    Vec::new()
}

/// Unix time, if firmware has a clock.
fn time(system: &SystemTable) -> Option<u64> {
    let mut now = Time::invalid();
    // SAFETY: firmware's table of runtime services is valid, and boot services have not ended, so that its functions
    // are called at the addresses where they are.
    let status = unsafe { ((*system.runtime_services).get_time)(&mut now, core::ptr::null_mut()) };
    let offset = (now.time_zone != Time::UNSPECIFIED_TIMEZONE).then_some(now.time_zone);
    let fields = [now.month, now.day, now.hour, now.minute, now.second];
    if status == Status::SUCCESS { efi::seconds(now.year, fields, offset) } else { None }
}

/// Allocates memory for an image of `size` bytes, the device tree, the memory map and the configuration file. `None` if firmware has too
/// little.
fn allocate(boot: &BootServices, size: u64) -> Option<Room> {
    let image = size.next_multiple_of(PAGE);
    let all = BLOCK + image + TREE + (MAP + TEXT.next_multiple_of(PAGE as usize)) as u64;
    let mut start = 0;
    // SAFETY: boot services have not ended, so that their table is valid.
    let status = unsafe { (boot.allocate_pages)(AllocateType::ANY_PAGES, MemoryType::LOADER_DATA, (all / PAGE) as usize, &mut start) };
    let at = start.next_multiple_of(BLOCK);
    (status == Status::SUCCESS).then_some({
        let map = at + image + TREE;
        Room { image: at, tree: at + image, map, text: map + MAP as u64 }
    })
}
