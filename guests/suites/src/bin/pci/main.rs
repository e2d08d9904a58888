//! A PCI function that is assigned to this machine: QEMU's `edu` (docs/specs/edu in its source), which copies between memory and a
//! buffer of its own on request. Tests its configuration space, its BAR, DMA inside and outside of this machine's memory, DMA in
//! flight when the machine resets, and the ITS; or eight functions with MSI-X.
#![no_std]
#![no_main]

mod config;
mod dma;
mod edu;
mod its;
mod vectors;

use payload::entry::Entry;
use payload::harness::Harness;
use payload::prelude::*;
use payload::psci;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    if !dma::second_boot() {
        println!("boot 1");
        let mut harness = Harness::new("pci", entry);
        harness.run(edu::connect, config::TESTS);
        harness.run(edu::connect, dma::TESTS);
        harness.run(its::reset, its::TESTS);
        if edu::config(2, 0).read() != config::ABSENT {
            harness.run(its::reset, vectors::TESTS);
        }
        if harness.sum() != 0 {
            payload::harness::exit(1);
        }
        edu::connect();
        dma::leave_under_way();
        psci::system_reset()
    }
    println!("boot 2");
    let mut harness = Harness::new("pci", entry);
    harness.run(|| {}, dma::AFTER_RESET);
    harness.end()
}
