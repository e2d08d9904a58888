//! The log of the boot and of panics on the firmware's frame buffer, for machines without a serial line.
//!
//! Text ends when the VMs start, unless they measure ([`show_consoles`]): a line of it takes some 100,000 stores to device memory.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use stile_lock::TicketLock;
use stile_screen::{Pixels, Screen};

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::figures;

/// A frame buffer of 32-bit pixels that is mapped as device memory.
pub struct Frame {
    address: usize,
    width: u32,
    height: u32,
    /// Distance between lines in bytes.
    stride: u32,
}

/// Consoles of guests are shown, too ([`show_consoles`]).
static SHOWS_CONSOLES: AtomicBool = AtomicBool::new(false);

static SCREEN: TicketLock<Option<Screen<Frame>>> = TicketLock::new(None);

impl Frame {
    /// A frame buffer at a virtual address.
    ///
    /// # Safety
    /// All `height` lines of `stride` bytes are mapped as device memory and stay so, nothing else uses them, and a line has
    /// at least `4 * width` bytes. Address and stride are multiples of 4.
    #[cfg_attr(not(target_os = "none"), expect(dead_code, reason = "the developer's machine has none"))]
    pub unsafe fn new(address: usize, width: u32, height: u32, stride: u32) -> Frame {
        Frame { address, width, height, stride }
    }
}

impl Pixels for Frame {
    fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn set(&mut self, x: u32, y: u32, white: bool) {
        assert!(x < self.width && y < self.height, "a pixel outside the frame buffer");
        let offset = y as usize * self.stride as usize + 4 * x as usize;
        // SAFETY: the pixel is in a line of the frame buffer, as was just checked, which `new`'s caller mapped for this value.
        unsafe { ((self.address + offset) as *mut u32).write_volatile(if white { u32::MAX } else { 0 }) };
    }
}

/// Shows text on a frame buffer from here on.
#[cfg_attr(not(target_os = "none"), expect(dead_code, reason = "the developer's machine has none"))]
pub fn setup(frame: Frame) {
    *SCREEN.lock() = Screen::new(frame);
}

/// Shows consoles of guests, too, from here on: a machine that measures may have no serial line for its figures.
pub fn show_consoles() {
    SHOWS_CONSOLES.store(true, Ordering::Relaxed);
}

/// Whether consoles are shown.
pub fn shows_consoles() -> bool {
    SHOWS_CONSOLES.load(Ordering::Relaxed)
}

/// Last line on the screen of a machine that has ended.
const STAYS_ON: &str = "The machine stays on, so that this can be read. It can be turned off now.\n";

/// Powers the machine off, unless a screen shows why it ends, or its figures.
pub fn end_machine() -> ! {
    if !is_on() {
        Arch::power_off()
    }
    write(format_args!("{STAYS_ON}"));
    stay_on()
}

/// Powers the machine off at the end of a panic, unless a screen shows figures: firmware may have faulted before it stored them. Does not
/// wait for a lock.
pub fn end_panic() -> ! {
    // A screen that is locked exists.
    if !shows_consoles() || SCREEN.try_lock().is_some_and(|screen| screen.is_none()) {
        Arch::power_off()
    }
    write_now(STAYS_ON);
    stay_on()
}

fn stay_on() -> ! {
    loop {
        Arch::wait_for_interrupt();
    }
}

/// Shows a byte of a guest's console, after [`show_consoles`].
#[inline]
pub fn guest(byte: u8) {
    if shows_consoles() {
        write_guest(byte);
    }
}

#[cold]
#[inline(never)]
fn write_guest(byte: u8) {
    figures::byte(byte);
    // Guests end lines with CR LF; LF alone ends one here.
    if byte != b'\r' && byte.is_ascii() {
        write(format_args!("{}", char::from(byte)));
    }
}

/// Whether there is a screen.
pub fn is_on() -> bool {
    SCREEN.lock().is_some()
}

/// Writes text, if there is a screen.
pub fn write(text: fmt::Arguments<'_>) {
    if let Some(screen) = SCREEN.lock().as_mut() {
        let _ = screen.write_fmt(text);
    }
}

/// Writes text during a panic: nothing if this or another CPU was writing.
pub fn write_now(text: &str) {
    if let Some(mut screen) = SCREEN.try_lock()
        && let Some(screen) = screen.as_mut()
    {
        let _ = screen.write_str(text);
    }
}
