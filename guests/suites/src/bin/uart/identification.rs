//! Identification registers of PrimeCells.

use payload::prelude::*;
use payload::uart::Reg32;

/// Peripheral and PrimeCell identification: four bytes each, one per word. The revision, the upper half of
/// the third, is not compared.
pub fn identification(registers: u64, wanted: [u32; 4]) -> Outcome {
    for (n, wanted) in wanted.into_iter().enumerate() {
        let found = Reg32(registers + 4 * n as u64).read();
        // Stile's PL011 has a later revision than QEMU's.
        let revision = if n == 2 && wanted & 0xF0 == 0 { 0xF0 } else { 0 };
        check_eq!(found & !revision, wanted, "identification {:#x}", registers + 4 * n as u64);
    }
    Ok(())
}
