//! Stream-table entries (5.2).

/// A VM's second stage, as an entry describes it. Tables have the 4 KiB granule and VMSAv8-64 descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondStage {
    /// VMID that tags the stream's translations in the SMMU's TLBs.
    pub vmid: u16,
    /// Physical address of the root table.
    pub root: u64,
    /// Bits of an input address: 25 to 48.
    pub input_bits: u8,
    /// Level of the root: 0, 1 or 2.
    pub start_level: u8,
    /// Output address size, in the encoding of SMMU_IDR5.OAS.
    pub output_size: u8,
}

/// The entry of a stream: eight 64-bit words, of which the last four are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEntry(pub [u64; 4]);

/// STE.V.
const VALID: u64 = 1;

impl StreamEntry {
    /// Aborts all transactions, and records no event (Config = 0b000).
    pub const ABORT: StreamEntry = StreamEntry([VALID, 0, 0, 0]);

    /// Translates by a second stage only (Config = 0b110). Faults are recorded, and the transaction aborts.
    pub const fn second_stage(stage: SecondStage) -> StreamEntry {
        const CONFIG_STAGE2: u64 = 0b110 << 1;
        // SHCFG: the incoming shareability.
        const INCOMING: u64 = 1 << 44;
        // Table walks: inner shareable, write-back.
        const WALKS: u64 = 0b01 << 40 | 0b01 << 42 | 0b11 << 44;
        // S2AA64, S2R: faults are recorded.
        const AA64: u64 = 1 << 51;
        const RECORD: u64 = 1 << 58;
        let sl0 = match stage.start_level {
            0 => 0b10,
            1 => 0b01,
            _ => 0b00,
        };
        let shape = (64 - stage.input_bits as u64) << 32 | sl0 << 38 | (stage.output_size as u64 & 7) << 48;
        let word2 = stage.vmid as u64 | shape | WALKS | AA64 | RECORD;
        StreamEntry([VALID | CONFIG_STAGE2, INCOMING, word2, stage.root & 0x000f_ffff_ffff_fff0])
    }
}
