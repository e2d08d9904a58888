//! Commands ("Commands"). Each function returns the two 64-bit words of a command in the buffer.

const fn code(code: u64) -> u64 {
    code << 60
}

/// COMPLETION_WAIT with a store (S): writes `data` to a physical address, a multiple of 8, once all commands before it, and the
/// requests that they affect, are complete.
pub const fn completion_wait(address: u64, data: u64) -> [u64; 2] {
    [code(1) | address & 0x000f_ffff_ffff_fff8 | 1, data]
}

/// INVALIDATE_DEVTAB_ENTRY: drops the cached device-table entry of a function.
pub const fn invalidate_device(id: u16) -> [u64; 2] {
    [code(2) | id as u64, 0]
}

/// INVALIDATE_IOMMU_PAGES with S and PDE: drops all translations of a domain, and its cached tables.
pub const fn invalidate_domain(domain: u8) -> [u64; 2] {
    // The address of all pages: its lowest clear bit is 63.
    [code(3) | (domain as u64) << 32, 0x7fff_ffff_ffff_f000 | 0b11]
}

/// INVALIDATE_IOMMU_ALL: drops everything that is cached.
pub const fn invalidate_all() -> [u64; 2] {
    [code(8), 0]
}

/// INVALIDATE_INTERRUPT_TABLE: drops the cached interrupt remapping entries of a function.
pub const fn invalidate_interrupts(id: u16) -> [u64; 2] {
    [code(5) | id as u64, 0]
}
