//! A QEMU plugin for AArch64 machines that counts exits and, outside of guests, instructions, system-register reads and
//! writes, barriers, maintenance operations, loads and stores.
//!
//! It writes a JSON object a line into the file that its argument `out` names: for each section that a guest marks
//! ([`BEGIN`], [`END`]), and one for the whole run. With `verify=on` it checks its assumptions about each translated
//! block against the registers each time that the block runs, which is slow. With `sharing=on` a section also has
//! counts at EL2 on the CPUs that have the guest loaded: its instructions, its atomic writes, those to cache lines that
//! EL2 writes on other CPUs, failed stores-exclusive, and YIELDs, which CPUs execute while they wait for others.
//!
//! Of x86-64 machines with AMD-V it counts instructions in guests and outside of them, and exits.
//!
//! The figures are exact where one thread runs all CPUs in turn (`-icount`, or `-accel tcg,thread=single`). Guests must
//! be in AArch64 state: for AArch32 the emulator does not show the Exception level.

mod account;
#[cfg(not(test))]
mod amd_v;
mod counts;
mod decode;
// The tests run without the emulator, whose functions are missing.
#[cfg(not(test))]
mod plugin;
#[cfg(not(test))]
mod qemu;
mod regime;
mod sharing;

/// `HINT #126`: a section begins. Unallocated hints have no effect, and never trap.
pub const BEGIN: u32 = hint(126);

/// `HINT #127`: the section ends.
pub const END: u32 = hint(127);

const fn hint(number: u32) -> u32 {
    0xd503_201f | number << 5
}
