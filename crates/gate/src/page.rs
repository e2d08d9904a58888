//! The code page.
//!
//! It has a slot of [`SLOT`] bytes for each target vCPU. All bytes that are not listed are INT3.
//!
//! | offset | bytes | 64-bit code |
//! | --- | --- | --- |
//! | 0 | `C7 04 25 00 F3 CC CC` VV `40 F3 CC` | `mov dword [ICR low], imm32`: sends |
//! | 11 | `D1 F9` | `sar ecx, 1`: 1, the index of the gate view, becomes 0 |
//! | 13 | `0F 01 D4` | `vmfunc`: to the guest's view, where the code at this linear address continues |
//! | 32 | `C7 04 25 10 F3 CC CC CC CC CC` DD | `mov dword [ICR high], imm32`: the destination; the entry |
//! | 43 | `EB D3` | `jmp` to offset 0 |
//!
//! DD and the first byte of the entry change while the page is in use, each by a store of one byte; every combination is
//! harmless.
//!
//! The other bytes are chosen for what they decode to when a guest enters in the middle of an instruction. So reserved
//! bits of the ICR, which the APIC ignores, are written as 1: a zero behind a zero would be `add [rax], al`. DD itself is
//! executed as well: see [`is_expressible`].

/// Bytes of a slot.
pub const SLOT: usize = 64;
/// Slots of a page: the most vCPUs of a VM with a gate.
pub const SLOTS: usize = SIZE / SLOT;
/// Bytes of the page.
pub const SIZE: usize = 4096;

/// Offset in a slot of the first instruction, which [`CLOSED`] replaces while the slot has no target.
pub const ENTRY: usize = 32;
/// Offset of the instruction behind the entry.
pub const JUMP: usize = ENTRY + 11;
/// Offset of the store that sends.
pub const SEND: usize = 0;
/// Offset of the instruction behind that store.
pub const SENT: usize = 11;
/// Offset of the VMFUNC that leaves.
pub const LEAVE: usize = 13;
/// Bytes of VMFUNC, which a guest executes in front of the entry.
pub const VMFUNC: usize = 3;
/// First byte of an open slot's entry.
pub const OPEN: u8 = 0xc7;
/// INT3: first byte of a closed slot's entry, and all unused bytes.
pub const CLOSED: u8 = 0xcc;
/// Offset in a slot of the destination's APIC ID.
pub const DESTINATION: usize = ENTRY + 10;
/// Offset in a slot of the vector.
pub const VECTOR: usize = 7;
/// The vector that slots send. The proof covers no other.
pub const NOTIFICATION: u8 = 0xf0;
/// Offset in a slot behind the VMFUNC that leaves: where the code of the guest's own view continues.
pub const RETURN: usize = LEAVE + VMFUNC;

/// A slot, closed, with destination and vector zero.
const TEMPLATE: [u8; SLOT] = {
    const CODE: [(usize, &[u8]); 2] = [
        (0, &[0xc7, 0x04, 0x25, 0x00, 0xf3, 0xcc, 0xcc, 0, 0x40, 0xf3, 0xcc, 0xd1, 0xf9, 0x0f, 0x01, 0xd4]),
        (ENTRY, &[CLOSED, 0x04, 0x25, 0x10, 0xf3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0, 0xeb, 0xd3]),
    ];
    let mut slot = [CLOSED; SLOT];
    let mut part = 0;
    while part < CODE.len() {
        let mut at = 0;
        while at < CODE[part].1.len() {
            slot[CODE[part].0 + at] = CODE[part].1[at];
            at += 1;
        }
        part += 1;
    }
    slot
};

/// APIC ID of the CPU that a slot notifies, which its code can contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target(u8);

impl Target {
    /// A target; `None` if no slot can have the destination.
    pub const fn new(apic_id: u32) -> Option<Target> {
        if apic_id < 255 && is_expressible(apic_id as u8) { Some(Target(apic_id as u8)) } else { None }
    }

    /// APIC ID of the destination.
    pub const fn destination(self) -> u8 {
        self.0
    }
}

/// Whether a slot can contain this APIC ID. A guest can execute the byte as the first of an instruction; these would
/// access memory at an address of the guest's, load a segment register, or be a prefix of the next instruction that
/// changes it.
pub const fn is_expressible(apic_id: u8) -> bool {
    REFUSED[apic_id as usize >> 6] >> (apic_id & 63) & 1 == 0
}

/// Bit n: APIC ID n is refused. `tests/proof` shows that these are the ones that must be refused.
const REFUSED: [u64; 4] = [0, 0x0000_f500_ffff_0000, 0x0000_fcff_3000_4000, 0x0010_0100_0080_8f0c];

/// The bytes of a slot that sends `vector`: closed without a target.
pub const fn slot(target: Option<Target>, vector: u8) -> [u8; SLOT] {
    let mut slot = TEMPLATE;
    slot[VECTOR] = vector;
    if let Some(target) = target {
        slot[ENTRY] = OPEN;
        slot[DESTINATION] = target.0;
    }
    slot
}
