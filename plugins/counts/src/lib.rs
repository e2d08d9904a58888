//! A plugin of QEMU's for AArch64 machines that counts crossings, and what runs outside of guests: instructions, system-register
//! reads and writes, barriers, maintenance operations, loads and stores.
//!
//! It writes a JSON object a line into the file that its argument `out` names: for each section that a guest marks ([`BEGIN`], [`END`]),
//! and one for the whole run. With `verify=on` it holds what it assumes of each translated block against the registers, each time that
//! one runs, which takes long. With `sharing=on` a section also has what EL2 does on the CPUs that have the guest loaded: its instructions, its
//! atomic writes, those to cache lines that EL2 writes on other CPUs, failed stores-exclusive, and YIELDs, at which CPUs wait for others.
//!
//! The figures are exact where one thread runs all CPUs in turn (`-icount`, or `-accel tcg,thread=single`). Guests must be in AArch64 state:
//! the emulator does not show the Exception level of those that aren't.

mod account;
mod counts;
mod decode;
// The tests run without the emulator, and so without its functions.
#[cfg(not(test))]
mod plugin;
#[cfg(not(test))]
mod qemu;
mod sharing;
mod world;

/// `HINT #126`: a section begins. Unallocated hints do nothing, anywhere, and never trap.
pub const BEGIN: u32 = hint(126);

/// `HINT #127`: the section ends.
pub const END: u32 = hint(127);

const fn hint(number: u32) -> u32 {
    0xd503_201f | number << 5
}
