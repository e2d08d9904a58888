//! Commands (Arm SMMUv3 architecture specification, chapter 4). Each function returns the two 64-bit words of a command in the queue.

/// CMD_CFGI_STE with Leaf set: invalidates a stream's cached stream table entry.
pub const fn invalidate_stream(stream: u32) -> [u64; 2] {
    [0x03 | (stream as u64) << 32, 1]
}

/// CMD_CFGI_ALL: invalidates all cached configuration.
pub const fn invalidate_all_streams() -> [u64; 2] {
    [0x04, 31]
}

/// CMD_TLBI_S12_VMALL: invalidates the stage 1 and stage 2 translations of a VMID.
pub const fn invalidate_vmid(vmid: u16) -> [u64; 2] {
    [0x28 | (vmid as u64) << 32, 0]
}

/// CMD_TLBI_NSNH_ALL: invalidates all Non-secure translations except those of EL2.
pub const fn invalidate_all_translations() -> [u64; 2] {
    [0x30, 0]
}

/// CMD_SYNC without a completion signal: consumed once all commands before it are complete, and so are the
/// transactions that they affect.
pub const fn sync() -> [u64; 2] {
    [0x46, 0]
}
