//! Deactivation of functions.

use core::ops::Range;

use crate::bar::{probe_bars, register};
use crate::register::{BRIDGE_ROM, BUS_MASTER, CLASS, COMMAND, HEADER, ID, MEMORY, ROM};
use crate::{BARS, Bar, ConfigSpace};

/// Class and subclass of host bridges: they are the bus, and have nothing to turn off.
const HOST_BRIDGE: u32 = 0x0600;

/// Number of base address registers of a bridge.
const BRIDGE_BARS: usize = 2;
/// Of a bridge: base and limit of its windows of memory and of prefetchable memory, and the upper halves of the latter (PCI-to-PCI Bridge
/// Architecture Specification, 3.2.5).
const WINDOW: u8 = 0x20;
const PREFETCHABLE: u8 = 0x24;
const UPPER_BASE: u8 = 0x28;
const UPPER_LIMIT: u8 = 0x2c;

/// Stops a function from decoding and accessing anything, in any state that firmware left: memory, I/O, bus mastering
/// and the expansion ROM are off. A bridge then forwards nothing in either direction, which stops the functions behind
/// it, too.
///
/// If firmware let it decode a part of `screen`, the addresses of a frame buffer, the function, or the bridge before it, keeps decoding
/// memory, and nothing else: the screen stays visible.
pub fn silence(space: &mut impl ConfigSpace, screen: &Range<u64>) {
    if !is_present(space) || space.read(CLASS) >> 16 == HOST_BRIDGE {
        return;
    }
    let decoded = space.read(COMMAND) & MEMORY != 0;
    space.write(COMMAND, 0);
    let shows = match space.read(HEADER) >> 16 & 0x7f {
        0 => {
            space.write(ROM, 0);
            decoded && !screen.is_empty() && has_bar_in(space, screen)
        }
        1 => {
            space.write(BRIDGE_ROM, 0);
            decoded && windows(space).iter().any(|window| overlap(window, screen))
        }
        // CardBus bridges have no ROM, and no screens behind them.
        _ => false,
    };
    if shows {
        space.write(COMMAND, MEMORY);
    }
}

/// Whether a BAR of a function overlaps `span`. The function must decode nothing, since its BARs are probed.
fn has_bar_in(space: &mut impl ConfigSpace, span: &Range<u64>) -> bool {
    let bars = probe_bars(space);
    let decoded = |index: usize| {
        let bar = bars[index]?;
        let start = bar.address(space, index);
        Some(start..start.saturating_add(bar.size))
    };
    (0..BARS).filter_map(decoded).any(|bar| overlap(&bar, span))
}

/// Memory that a bridge forwards: two windows, each of which may be empty.
fn windows(space: &impl ConfigSpace) -> [Range<u64>; 2] {
    /// Of base and limit: address bits 20 to 31.
    const BITS: u32 = 0xfff0;
    let window = |register: u8, upper: [u32; 2]| {
        let [base, limit] = [space.read(register) & 0xffff, space.read(register) >> 16].map(|half| u64::from(half & BITS) << 16);
        let [upper_base, upper_limit] = upper.map(|half| u64::from(half) << 32);
        upper_base | base..(upper_limit | limit).saturating_add(1 << 20)
    };
    let is_wide = space.read(PREFETCHABLE) & 0xf == 1;
    let upper = if is_wide { [UPPER_BASE, UPPER_LIMIT].map(|half| space.read(half)) } else { [0; 2] };
    [window(WINDOW, [0; 2]), window(PREFETCHABLE, upper)]
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

/// Calls `visit` with the addresses on the bus at which BARs of memory, and an expansion ROM, begin that a function decodes. The BARs are not
/// sized: host bridges may need them at any time.
pub fn visit_decoded(space: &impl ConfigSpace, mut visit: impl FnMut(u64)) {
    if !is_present(space) || space.read(COMMAND) & MEMORY == 0 {
        return;
    }
    let (bars, rom) = match space.read(HEADER) >> 16 & 0x7f {
        0 => (BARS, ROM),
        1 => (BRIDGE_BARS, BRIDGE_ROM),
        _ => return,
    };
    let mut index = 0;
    while index < bars {
        let low = space.read(register(index));
        let bar = Bar { size: 0, wide: low & 0b111 == 0b100 && index + 1 < bars, prefetchable: false };
        // One without an address, or of I/O ports.
        let address = Some(bar.address(space, index)).filter(|&address| low & 1 == 0 && address != 0);
        address.into_iter().for_each(&mut visit);
        index += if bar.wide { 2 } else { 1 };
    }
    let rom = space.read(rom);
    if rom & 1 != 0 {
        visit(u64::from(rom & !0x7ff));
    }
}

/// Stops a function from accessing memory. It still decodes its BARs.
pub fn stop_master(space: &mut impl ConfigSpace) {
    if is_present(space) {
        // Ones would clear the status bits above.
        let command = space.read(COMMAND) & 0xffff;
        space.write(COMMAND, command & !BUS_MASTER);
    }
}

fn is_present(space: &impl ConfigSpace) -> bool {
    space.read(ID) & 0xffff != 0xffff
}
