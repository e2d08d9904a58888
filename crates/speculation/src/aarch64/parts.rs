//! CPUs by MIDR_EL1: implementer (bits 31:24) and part number (bits 15:4).

/// Arm Limited.
const ARM: u8 = 0x41;
const QUALCOMM: u8 = 0x51;
/// Ampere Computing.
const AMPERE: u8 = 0xc0;

/// Number of taken branches that overwrite a CPU's branch history (Arm Security Center, Spectre-BHB, table of
/// "k").
const HISTORY_BRANCHES: &[(u8, u16, u8)] = &[
    (ARM, 0xd07, 8),     // Cortex-A57
    (ARM, 0xd08, 8),     // Cortex-A72
    (AMPERE, 0xac3, 11), // Ampere-1
    (ARM, 0xd0b, 24),    // Cortex-A76
    (ARM, 0xd0c, 24),    // Neoverse N1
    (ARM, 0xd0d, 24),    // Cortex-A77
    (ARM, 0xd0e, 24),    // Cortex-A76AE
    (ARM, 0xd40, 32),    // Neoverse V1
    (ARM, 0xd41, 32),    // Cortex-A78
    (ARM, 0xd42, 32),    // Cortex-A78AE
    (ARM, 0xd44, 32),    // Cortex-X1
    (ARM, 0xd47, 32),    // Cortex-A710
    (ARM, 0xd48, 32),    // Cortex-X2
    (ARM, 0xd49, 32),    // Neoverse N2
    (ARM, 0xd4b, 32),    // Cortex-A78C
    (ARM, 0xd4c, 32),    // Cortex-X1C
    (ARM, 0xd4d, 38),    // Cortex-A715
    (ARM, 0xd81, 38),    // Cortex-A720
    (ARM, 0xd4e, 132),   // Cortex-X3
    (ARM, 0xd4f, 132),   // Neoverse V2
];

/// CPUs that do not speculate past branches or stores: in-order pipelines.
const IN_ORDER: &[(u8, u16)] = &[
    (ARM, 0xd02), // Cortex-A34
    (ARM, 0xd03), // Cortex-A53
    (ARM, 0xd04), // Cortex-A35
    (ARM, 0xd05), // Cortex-A55
];

/// CPUs on which a speculatively executed AT instruction leaves translations by registers of a regime that is not in use
/// in the TLB, and the last variant and revision with it (Arm, Software Developer Errata Notices of these CPUs).
const SPECULATIVE_AT: &[(u8, u16, (u8, u8))] = &[
    (ARM, 0xd03, (15, 15)),      // Cortex-A53: 1530924
    (ARM, 0xd05, (2, 0)),        // Cortex-A55: 1530923
    (ARM, 0xd07, (15, 15)),      // Cortex-A57: 1319537
    (ARM, 0xd08, (15, 15)),      // Cortex-A72: 1319367
    (ARM, 0xd0b, (2, 0)),        // Cortex-A76: 1165522
    (ARM, 0xd0c, (2, 0)),        // Neoverse N1: 1165522
    (QUALCOMM, 0x805, (13, 14)), // Kryo 4xx Silver: 1530923
];

fn part(midr: u64) -> (u8, u16) {
    ((midr >> 24) as u8, (midr >> 4) as u16 & 0xfff)
}

/// Number of taken branches that overwrite the branch history, if this CPU is known to need them.
pub fn history_branches(midr: u64) -> Option<u8> {
    let (implementer, number) = part(midr);
    HISTORY_BRANCHES.iter().find(|row| (row.0, row.1) == (implementer, number)).map(|row| row.2)
}

/// Whether this CPU is known to be unaffected because it executes in order.
pub fn is_in_order(midr: u64) -> bool {
    IN_ORDER.contains(&part(midr))
}

/// Whether this CPU has the erratum of [`SPECULATIVE_AT`].
pub fn has_speculative_at(midr: u64) -> bool {
    let (implementer, number) = part(midr);
    let version = ((midr >> 20) as u8 & 0xf, midr as u8 & 0xf);
    SPECULATIVE_AT.iter().any(|&(of, part, last)| (of, part) == (implementer, number) && version <= last)
}

const _: () = {
    let mut i = 0;
    while i < HISTORY_BRANCHES.len() {
        let mut j = i + 1;
        while j < HISTORY_BRANCHES.len() {
            let (a, b) = (HISTORY_BRANCHES[i], HISTORY_BRANCHES[j]);
            assert!(a.0 != b.0 || a.1 != b.1, "duplicate rows for a CPU");
            j += 1;
        }
        i += 1;
    }
};
