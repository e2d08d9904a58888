//! Zeroing and copying of guest RAM. A guest with MMU or caches off bypasses the caches, so that all data is cleaned
//! to the point of coherency.

use core::arch::asm;

use super::sysreg::read_sysreg;

/// Maximum number of bytes of RAM that one exit zeroes. A line of 64 bytes takes five instructions (`DC ZVA`, `DC
/// CVAC`): 160,000 in all.
pub const ZEROED_AT_ONCE: u64 = 2 << 20;
/// Maximum number of bytes of RAM that one exit copies, at eleven to twelve instructions for 64 bytes: 100,000 in
/// all.
pub const COPIED_AT_ONCE: u64 = 512 << 10;

/// Applies a cache instruction to each line of `[$start, $end)`, both multiples of `$line`, a power of two.
macro_rules! each_line {
    ($operation:literal, $start:expr, $end:expr, $line:expr) => {{
        let (start, end, line): (u64, u64, u64) = ($start, $end, $line);
        asm!(
            // Eight lines at a time up to `eights`, then one at a time.
            "2: cmp {at}, {eights}",
            "b.hs 3f",
            ".rept 8",
            concat!($operation, ", {at}"),
            "add {at}, {at}, {line}",
            ".endr",
            "b 2b",
            "3: cmp {at}, {end}",
            "b.hs 4f",
            concat!($operation, ", {at}"),
            "add {at}, {at}, {line}",
            "b 3b",
            "4:",
            at = inout(reg) start => _,
            eights = in(reg) start + ((end - start) & !(8 * line - 1)),
            end = in(reg) end,
            line = in(reg) line,
            options(nostack),
        )
    }};
}

/// Zeroes memory.
///
/// # Safety
/// The caller has exclusive access to these bytes of the direct map.
pub unsafe fn zero(memory: *mut u8, length: usize) {
    // DCZID_EL0: DZP forbids DC ZVA, BS is log2 of its block in words.
    let dczid = read_sysreg!(DCZID_EL0);
    let block = 4u64 << (dczid & 0xf);
    let (start, end) = (memory as u64, memory as u64 + length as u64);
    let first = start.next_multiple_of(block).min(end);
    let last = if dczid & 1 << 4 == 0 { (end & !(block - 1)).max(first) } else { first };
    // SAFETY: the caller guarantees exclusive access, and the three parts make up the range.
    unsafe {
        memory.write_bytes(0, (first - start) as usize);
        each_line!("dc zva", first, last, block);
        (last as *mut u8).write_bytes(0, (end - last) as usize);
    }
    flush(start, length);
}

/// Copies bytes of a file, which may be code: makes them visible to instruction fetches as well.
///
/// # Safety
/// The caller has exclusive access to `to`, `length` bytes of the direct map; `from` is readable and does not overlap
/// it.
pub unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    let whole = length & !127;
    // SAFETY: the caller guarantees both ranges. In assembly, because the compiler's own loop, without vector
    // registers, would move eight bytes at a time.
    unsafe {
        asm!(
            "2: cmp {to}, {end}",
            "b.hs 3f",
            ".irp offset, 0, 64",
            "ldp {a}, {b}, [{from}, #\\offset]",
            "ldp {c}, {d}, [{from}, #\\offset + 16]",
            "ldp {e}, {f}, [{from}, #\\offset + 32]",
            "ldp {g}, {h}, [{from}, #\\offset + 48]",
            "stp {a}, {b}, [{to}, #\\offset]",
            "stp {c}, {d}, [{to}, #\\offset + 16]",
            "stp {e}, {f}, [{to}, #\\offset + 32]",
            "stp {g}, {h}, [{to}, #\\offset + 48]",
            ".endr",
            "add {from}, {from}, #128",
            "add {to}, {to}, #128",
            "b 2b",
            "3:",
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            end = in(reg) to.add(whole),
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            e = out(reg) _, f = out(reg) _, g = out(reg) _, h = out(reg) _,
            options(nostack),
        );
        to.add(whole).copy_from_nonoverlapping(from.add(whole), length - whole);
    }
    flush(to as u64, length);
    // The instruction cache may hold stale instructions from before a reset.
    // SAFETY: instruction caches are never written back. They refetch from memory, to which the data was cleaned above, and
    // in which Stile's own code never changes.
    unsafe { asm!("ic ialluis", "dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// Writes `length` bytes back to the point of coherency, and drops them from the caches: for readers with caches off,
/// and for guests that write there with caches off and read with caches on, without an invalidation of their own.
pub fn flush(address: u64, length: usize) {
    // CTR_EL0.DminLine: log2 of words.
    let line = 4u64 << (read_sysreg!(CTR_EL0) >> 16 & 0xf);
    let end = (address + length as u64).next_multiple_of(line);
    // SAFETY: DC CIVAC writes a dirty line back before it invalidates it, so that no data is lost. Rounding to lines reaches
    // neighbouring data, for which the same holds.
    unsafe {
        each_line!("dc civac", address & !(line - 1), end, line);
        asm!("dsb sy", options(nostack, preserves_flags));
    }
}
