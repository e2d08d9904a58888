//! UEFI firmware's services until they end: tables, the screen, the memory map, messages.
//!
//! A back end may call this code before the image is at its link address. References relative to the program counter
//! work then; pointers in constant data (trait objects, formatting, arrays of strings) do not, and must not be used
//! here.

pub mod figures;
pub mod files;

use core::ops::Range;
use core::slice;

use stile_config::boot::LONGEST;
use stile_firmware::frame_buffer::{self, FrameBuffer};
use stile_firmware::within::Within;
use stile_firmware::{Memory, efi};
use uefi_raw::protocol::console::{
    GraphicsOutputModeInformation, GraphicsOutputProtocol, GraphicsOutputProtocolMode, GraphicsPixelFormat, SimpleTextOutputProtocol,
};
use uefi_raw::table::boot::BootServices;
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Guid, Handle, Status, guid};

/// The root pointer of ACPI tables, from version 2.0 on (UEFI Specification, 4.6 EFI Configuration Table).
pub const ACPI: Guid = guid!("8868e871-e4f1-11d3-bc22-0080c73c8881");

/// Page size of UEFI.
pub const PAGE: u64 = 4096;
/// Size reserved for the memory map: EDK2's has some 100 descriptors of 48 bytes.
pub const MAP: usize = 64 << 10;

/// Time for which a refusal stays on the screen, in microseconds.
const READING: usize = 15_000_000;

/// Message about screens on which only firmware can draw.
const NO_FRAME_BUFFER: &str = "Stile's log is on the serial line only: no screen has a usable frame buffer of 32 bits per pixel\r\n";

/// Size of a buffer for the file: the longest, and a byte by which longer ones are known.
pub const TEXT: usize = LONGEST + 1;

/// Fetches the memory map into a buffer of [`MAP`] bytes. Returns it, the size of its descriptors, and its key.
pub fn memory_map(boot: &BootServices, at: u64) -> Option<(&'static [u8], usize, usize)> {
    let (mut size, mut key, mut descriptor, mut version) = (MAP, 0, 0, 0);
    // SAFETY: boot services have not ended, and the buffer has `MAP` bytes.
    let status = unsafe { (boot.get_memory_map)(&mut size, at as *mut _, &mut key, &mut descriptor, &mut version) };
    // SAFETY: firmware wrote `size` bytes of the buffer.
    (status == Status::SUCCESS).then(|| (unsafe { slice::from_raw_parts(at as *const u8, size) }, descriptor, key))
}

/// Physical memory without limits. Only [`memory`] uses it, and limits it.
struct Identity;

impl Memory for Identity {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        // SAFETY: `memory` reads only what firmware identity-maps while boot services run (UEFI Specification, 2.3.4 x64 Platforms, 2.3.6
        // AArch64 Platforms), and by its contract they run as long as the bytes are used.
        Some(unsafe { slice::from_raw_parts(address as *const u8, len) })
    }
}

/// Returns the memory of firmware's map and the addresses `more`. A table elsewhere counts as missing, instead of faulting.
///
/// # Safety
/// Boot services run as long as the bytes are used, and firmware maps `more`.
pub unsafe fn memory(map: &[u8], descriptor: usize, more: Option<Range<u64>>) -> impl Memory {
    Within::new(Identity, efi::mapped(map, descriptor).chain(more))
}

/// Looks up a table in the configuration table.
pub fn find(system: &SystemTable, guid: Guid) -> Option<*const u8> {
    // SAFETY: the system table has the number of entries.
    let tables = unsafe { slice::from_raw_parts(system.configuration_table, system.number_of_configuration_table_entries) };
    tables.iter().find(|table| table.vendor_guid == guid).map(|table| table.vendor_table.cast::<u8>().cast_const())
}

/// Returns the first frame buffer of firmware's screens (UEFI Specification, 12.9 Graphics Output Protocol) that `accepts` takes. With
/// screens but no such frame buffer, a message on firmware's console says so.
pub fn frame_buffer(system: &SystemTable, boot: &BootServices, accepts: impl Fn(&FrameBuffer) -> bool) -> Option<FrameBuffer> {
    let screens = handles(boot, &GraphicsOutputProtocol::GUID).iter();
    let protocols = screens.filter_map(|&screen| protocol::<GraphicsOutputProtocol>(boot, screen, &GraphicsOutputProtocol::GUID));
    // SAFETY: firmware returned the protocols, which stay valid until boot services end.
    let found = protocols.filter_map(|protocol| unsafe { of_screen(&*protocol) }).find(accepts);
    if found.is_none() && has_screen(system, boot) {
        write_text(system, NO_FRAME_BUFFER.bytes().map(u16::from));
    }
    found
}

/// Returns the mode of a screen, and its information.
///
/// # Safety
/// The protocol is firmware's, and boot services have not ended.
unsafe fn mode(protocol: &GraphicsOutputProtocol) -> Option<(&GraphicsOutputProtocolMode, &GraphicsOutputModeInformation)> {
    // SAFETY: a protocol's mode and information are null or valid until boot services end.
    unsafe {
        let mode = protocol.mode.as_ref()?;
        Some((mode, mode.info.as_ref()?))
    }
}

/// Returns the frame buffer of a screen. `None` if only firmware can draw there, or its pixels are not 32 bits wide.
///
/// # Safety
/// The protocol is firmware's, and boot services have not ended.
unsafe fn of_screen(protocol: &GraphicsOutputProtocol) -> Option<FrameBuffer> {
    // SAFETY: the caller's contract.
    let (mode, info) = unsafe { mode(protocol) }?;
    let masks = info.pixel_information;
    let is_known = match info.pixel_format {
        GraphicsPixelFormat::PIXEL_RED_GREEN_BLUE_RESERVED_8_BIT_PER_COLOR
        | GraphicsPixelFormat::PIXEL_BLUE_GREEN_RED_RESERVED_8_BIT_PER_COLOR => true,
        GraphicsPixelFormat::PIXEL_BIT_MASK => frame_buffer::has_words(masks.red | masks.green | masks.blue | masks.reserved),
        _ => false,
    };
    let buffer = FrameBuffer {
        address: mode.frame_buffer_base,
        width: info.horizontal_resolution,
        height: info.vertical_resolution,
        stride: info.pixels_per_scan_line.checked_mul(4)?,
    };
    buffer.checked(mode.frame_buffer_size as u64).filter(|buffer| is_known && buffer.address != 0)
}

/// Whether firmware has a screen, with or without a frame buffer. The console may have the protocol on its own handle (EDK2's console
/// splitter), also without any screen: there it counts only with a frame buffer.
pub fn has_screen(system: &SystemTable, boot: &BootServices) -> bool {
    handles(boot, &GraphicsOutputProtocol::GUID).iter().any(|&screen| {
        // SAFETY: firmware returned the protocol, which stays valid until boot services end.
        let format = |protocol: *mut GraphicsOutputProtocol| unsafe { mode(&*protocol) }.map(|(_, info)| info.pixel_format);
        screen != system.stdout_handle
            || protocol(boot, screen, &GraphicsOutputProtocol::GUID)
                .and_then(format)
                .is_some_and(|format| format != GraphicsPixelFormat::PIXEL_BLT_ONLY)
    })
}

/// Returns the handles that have a protocol. Firmware's memory for them is never freed.
pub fn handles(boot: &BootServices, guid: &Guid) -> &'static [Handle] {
    /// EFI_LOCATE_SEARCH_TYPE: ByProtocol.
    const BY_PROTOCOL: i32 = 2;
    let (mut count, mut handles) = (0, core::ptr::null_mut());
    // SAFETY: this runs before boot services are exited, so that the table is valid.
    let status = unsafe { (boot.locate_handle_buffer)(BY_PROTOCOL, guid, core::ptr::null(), &mut count, &mut handles) };
    if status != Status::SUCCESS || handles.is_null() {
        return &[];
    }
    // SAFETY: firmware allocated and returned so many handles.
    unsafe { slice::from_raw_parts(handles, count) }
}

/// A protocol of a handle.
pub fn protocol<P>(boot: &BootServices, handle: Handle, guid: &Guid) -> Option<*mut P> {
    let mut found = core::ptr::null_mut();
    // SAFETY: this runs before boot services are exited, so that the table is valid.
    let status = unsafe { (boot.handle_protocol)(handle, guid, &mut found) };
    (status == Status::SUCCESS && !found.is_null()).then_some(found.cast())
}

/// Exits boot services. Returns the last memory map, and the size of its descriptors.
pub fn exit(boot: &BootServices, handle: Handle, at: u64) -> Option<(&'static [u8], usize)> {
    // The map may change while it is fetched; the second attempt then succeeds (UEFI Specification,
    // EFI_BOOT_SERVICES.ExitBootServices).
    for _ in 0..2 {
        if let Some((map, descriptor, key)) = memory_map(boot, at)
            // SAFETY: boot services have not ended, and the key belongs to the map just read.
            && unsafe { (boot.exit_boot_services)(handle, key) } == Status::SUCCESS
        {
            return Some((map, descriptor));
        }
    }
    None
}

/// Reports on firmware's console that Stile can't run on the machine, and returns to firmware.
pub fn refuse(system: &SystemTable, why: &str) -> Status {
    write_text(system, "Stile can't run here: ".bytes().map(u16::from));
    fail(system, why)
}

/// Reports on firmware's console that [`exit`] failed, and returns to firmware. The message does not stay: firmware may have ended a part
/// of its boot services by then, so that none but those for memory are called (UEFI Specification, EFI_BOOT_SERVICES.ExitBootServices).
pub fn refuse_after_exit(system: &SystemTable) -> Status {
    write_text(system, "Stile can't run here: the firmware did not end its boot services\r\n".bytes().map(u16::from));
    Status::UNSUPPORTED
}

/// Reports on firmware's console why Stile cannot start, and returns to firmware. Firmware clears the screen when it tries its next boot
/// option: on a machine with a screen, the message stays for [`READING`] before that.
pub fn fail(system: &SystemTable, why: &str) -> Status {
    write_text(system, why.bytes().chain(*b"\r\n").map(u16::from));
    // SAFETY: Stile has not started, so that boot services have not ended and their table is valid.
    let boot = unsafe { &*system.boot_services };
    if has_screen(system, boot) {
        // SAFETY: boot services have not ended. Stall accesses no memory of Stile's, and returns after the time.
        let _ = unsafe { (boot.stall)(READING) };
    }
    Status::UNSUPPORTED
}

/// Shows characters on firmware's console.
fn write_text(system: &SystemTable, text: impl Iterator<Item = u16>) {
    let out: *mut SimpleTextOutputProtocol = system.stdout;
    for char in text {
        let text = [char, 0];
        if !out.is_null() {
            // SAFETY: the console is firmware's, and the text is NUL-terminated.
            let _ = unsafe { ((*out).output_string)(out, text.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests;
