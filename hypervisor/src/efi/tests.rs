//! Simulated firmware: its console and screens, and the files of its boot medium.

mod files;

use core::ffi::c_void;
use core::mem::MaybeUninit;
use std::cell::RefCell;

use uefi_raw::protocol::console::PixelBitmask;
use uefi_raw::table::system::SystemTable;

use super::*;

/// Effects of Stile's calls, and the screens that firmware has. Thread-local, since services have no context argument.
#[derive(Default)]
struct State {
    shown: String,
    stalled: usize,
    screens: Vec<Handle>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Stands for services that a test does not expect.
extern "efiapi" fn unexpected() -> Status {
    std::process::abort()
}

/// A table of services, all of them unexpected. Its other fields have arbitrary values.
fn table<T>() -> T {
    let mut table = MaybeUninit::<T>::uninit();
    let words = table.as_mut_ptr().cast::<usize>();
    for word in 0..size_of::<T>() / size_of::<usize>() {
        // SAFETY: the word is in the table.
        unsafe { words.add(word).write(unexpected as *const () as usize) };
    }
    // SAFETY: each field of the tables is an integer or a pointer, and the pointers to functions are not null.
    unsafe { table.assume_init() }
}

extern "efiapi" fn output_string(_: *mut SimpleTextOutputProtocol, text: *const u16) -> Status {
    // SAFETY: the text is NUL-terminated.
    let letters = (0..).map(|at| unsafe { *text.add(at) }).take_while(|&letter| letter != 0);
    let text: String = char::decode_utf16(letters).map(Result::unwrap).collect();
    STATE.with_borrow_mut(|state| state.shown.push_str(&text));
    Status::SUCCESS
}

extern "efiapi" fn stall(time: usize) -> Status {
    STATE.with_borrow_mut(|state| state.stalled += time);
    Status::SUCCESS
}

extern "efiapi" fn locate_handle_buffer(_: i32, _: *const Guid, _: *const c_void, count: *mut usize, found: *mut *mut Handle) -> Status {
    let screens = STATE.with_borrow(|state| state.screens.clone()).leak();
    // SAFETY: the caller has places for them.
    unsafe { (*count, *found) = (screens.len(), screens.as_mut_ptr()) };
    if screens.is_empty() { Status::NOT_FOUND } else { Status::SUCCESS }
}

/// A handle is its protocol.
extern "efiapi" fn handle_protocol(handle: Handle, _: *const Guid, found: *mut *mut c_void) -> Status {
    // SAFETY: the caller has a place for it.
    unsafe { *found = handle };
    Status::SUCCESS
}

fn boot_services() -> BootServices {
    BootServices { stall, locate_handle_buffer, handle_protocol, ..table() }
}

fn handle_of(screen: &GraphicsOutputProtocol) -> Handle {
    (&raw const *screen).cast_mut().cast()
}

/// Calls `work` with firmware that has these screens. Returns the result, the text on its console, and the time that it waited.
fn with<T>(screens: &[&GraphicsOutputProtocol], work: impl FnOnce(&SystemTable, &BootServices) -> T) -> (T, String, usize) {
    with_console(core::ptr::null_mut(), screens, work)
}

/// Calls `work` as [`with`] does, with a handle of the console.
fn with_console<T>(
    stdout_handle: Handle,
    screens: &[&GraphicsOutputProtocol],
    work: impl FnOnce(&SystemTable, &BootServices) -> T,
) -> (T, String, usize) {
    let screens = screens.iter().map(|&screen| handle_of(screen)).collect();
    STATE.replace(State { screens, ..State::default() });
    let mut console = SimpleTextOutputProtocol { output_string, ..table() };
    let mut boot = boot_services();
    let system = SystemTable { stdout_handle, stdout: &mut console, boot_services: &mut boot, ..SystemTable::default() };
    // SAFETY: the table is valid.
    let result = work(&system, unsafe { &*system.boot_services });
    let state = STATE.take();
    (result, state.shown, state.stalled)
}

fn screen(address: u64, format: GraphicsPixelFormat, masks: [u32; 4]) -> GraphicsOutputProtocol {
    let [red, green, blue, reserved] = masks;
    let info = GraphicsOutputModeInformation {
        horizontal_resolution: 800,
        vertical_resolution: 600,
        pixel_format: format,
        pixel_information: PixelBitmask { red, green, blue, reserved },
        pixels_per_scan_line: 832,
        ..GraphicsOutputModeInformation::default()
    };
    let mode = GraphicsOutputProtocolMode {
        info: Box::leak(Box::new(info)),
        frame_buffer_base: address,
        frame_buffer_size: 4 * 832 * 600,
        ..GraphicsOutputProtocolMode::default()
    };
    GraphicsOutputProtocol { mode: Box::leak(Box::new(mode)), ..table() }
}

const RGB: GraphicsPixelFormat = GraphicsPixelFormat::PIXEL_RED_GREEN_BLUE_RESERVED_8_BIT_PER_COLOR;
const BITS: GraphicsPixelFormat = GraphicsPixelFormat::PIXEL_BIT_MASK;
const BLT_ONLY: GraphicsPixelFormat = GraphicsPixelFormat::PIXEL_BLT_ONLY;

#[test]
fn any_screen_with_a_frame_buffer_is_found() {
    let of = |screens: &[&GraphicsOutputProtocol]| {
        let (found, shown, _) = with(screens, |system, boot| frame_buffer(system, boot, |_| true));
        (found.map(|found| found.address), shown)
    };
    let blt_only = screen(0, BLT_ONLY, [0; 4]);
    let packed = screen(0x1000_0000, BITS, [0xff_0000, 0xff00, 0xff, 0]);
    let words = screen(0x2000_0000, BITS, [0xff_0000, 0xff00, 0xff, 0xff00_0000]);
    let rgb = screen(0x3000_0000, RGB, [0; 4]);
    let absent = screen(0, RGB, [0; 4]);
    let no_mode = GraphicsOutputProtocol { mode: core::ptr::null(), ..table() };
    assert_eq!(of(&[]), (None, String::new()));
    assert_eq!(of(&[&rgb, &words]), (Some(0x3000_0000), String::new()));
    assert_eq!(of(&[&blt_only, &packed, &no_mode, &absent, &words, &rgb]), (Some(0x2000_0000), String::new()));
    assert_eq!(of(&[&packed, &blt_only]), (None, NO_FRAME_BUFFER.to_owned()));
    let accepted = |not: u64| {
        let (found, shown, _) = with(&[&rgb], |system, boot| frame_buffer(system, boot, |buffer| buffer.address != not));
        (found.is_some(), shown)
    };
    assert_eq!((accepted(1), accepted(0x3000_0000)), ((true, String::new()), (false, NO_FRAME_BUFFER.to_owned())));
    let not_first = with(&[&words, &rgb], |system, boot| frame_buffer(system, boot, |buffer| buffer.address > 0x2000_0000)).0;
    assert_eq!(not_first.map(|found| found.address), Some(0x3000_0000));
}

#[test]
fn a_console_without_a_screen_is_none() {
    let (console, blt_only, rgb) = (screen(0, BLT_ONLY, [0; 4]), screen(0, BLT_ONLY, [0; 4]), screen(0x3000_0000, RGB, [0; 4]));
    let of = |console: &GraphicsOutputProtocol, screens: &[&GraphicsOutputProtocol]| {
        let (_, _, stalled) = with_console(handle_of(console), screens, |system, _| fail(system, "why"));
        let (_, shown, _) = with_console(handle_of(console), screens, |system, boot| frame_buffer(system, boot, |_| true));
        (stalled > 0, shown)
    };
    assert_eq!(of(&console, &[&console]), (false, String::new()));
    assert_eq!(of(&console, &[&console, &blt_only]), (true, NO_FRAME_BUFFER.to_owned()));
    assert_eq!(of(&console, &[&console, &rgb]), (true, String::new()));
    // The console splitter's, if it copies a screen's frame buffer.
    assert_eq!(of(&rgb, &[&rgb]), (true, String::new()));
}

#[test]
fn a_refusal_stays_on_every_screen() {
    let blt_only = screen(0, BLT_ONLY, [0; 4]);
    let message = "Stile can't run here: why\r\n".to_owned();
    assert_eq!(with(&[&blt_only], |system, _| refuse(system, "why")), (Status::UNSUPPORTED, message.clone(), READING));
    assert_eq!(with(&[], |system, _| refuse(system, "why")), (Status::UNSUPPORTED, message, 0));
}
