//! Commands (chapter 4). The results are the two 64-bit words of a command in the queue.

/// CMD_CFGI_STE: forgets what is cached of a stream's table entry.
pub const fn forget_stream(stream: u32) -> [u64; 2] {
    [0x03 | (stream as u64) << 32, 1]
}

/// CMD_CFGI_ALL: forgets all cached configuration.
pub const fn forget_all_streams() -> [u64; 2] {
    [0x04, 31]
}

/// CMD_TLBI_S12_VMALL: forgets the translations of a VMID.
pub const fn forget_vmid(vmid: u16) -> [u64; 2] {
    [0x28 | (vmid as u64) << 32, 0]
}

/// CMD_TLBI_NSNH_ALL: forgets all translations of the Non-secure state that are not EL2's.
pub const fn forget_all_translations() -> [u64; 2] {
    [0x30, 0]
}

/// CMD_SYNC without a completion signal: it is consumed when all commands before it are complete, and the
/// transactions that they affect.
pub const fn sync() -> [u64; 2] {
    [0x46, 0]
}
