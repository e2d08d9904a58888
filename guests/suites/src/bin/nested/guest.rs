//! L2: a VM of one CPU, which runs a few instructions until its next exit.

use core::cell::UnsafeCell;

use payload::board::MAX_CPUS;
use payload::entry::HCR as HOST_HCR;
use payload::prelude::*;

use crate::stage2::{self, Stage2};

pub use crate::hcr::{HCR, TGE};
pub use crate::layout::{CODE, DATA, VECTORS};

/// The immediate of the HVC in L2's first exception vector.
pub const VECTOR: u64 = 0x100;
/// SPSR_EL2: EL1h, all masked.
pub const EL1H: u64 = 0x3C5;
/// SPSR_EL2: EL0t, all masked.
pub const EL0T: u64 = 0x3C0;
/// SCTLR_EL1 without MMU and caches: the bits that are RES1 in Armv8.0.
pub const SCTLR: u64 = 0x30D0_0800;

/// Assembles instructions for L2, followed by HVC #0.
macro_rules! code {
    ($($line:expr),* $(,)?) => {{
        let (start, end): (*const u32, *const u32);
        // SAFETY: the instructions between the labels are jumped over.
        unsafe {
            core::arch::asm!("adr {0}, 770f", "adr {1}, 771f", "b 771f", "770:", $($line,)* "hvc #0", "771:",
                out(reg) start, out(reg) end, options(nomem, nostack, preserves_flags));
            core::slice::from_raw_parts(start, end.offset_from_unsigned(start))
        }
    }};
}
pub(crate) use code;

#[repr(C, align(4096))]
struct Pages(UnsafeCell<[[u64; 512]; 2]>);

// SAFETY: each CPU uses those of its own number: L2's memory.
unsafe impl Sync for Pages {}

static PAGES: [Pages; MAX_CPUS] = [const { Pages(UnsafeCell::new([[0; 512]; 2])) }; MAX_CPUS];

core::arch::global_asm!(include_str!("enter.s"), hcr = const HOST_HCR);

unsafe extern "C" {
    fn guest_enter(registers: *mut [u64; 31], pc: u64, pstate: u64, hcr: u64) -> u64;
}

/// The exit from L2 to EL2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// The number of the vector: 8 to 11 from a lower level, synchronous, IRQ, FIQ, SError.
    pub vector: u64,
    /// ESR_EL2.
    pub esr: u64,
    /// FAR_EL2.
    pub far: u64,
    /// HPFAR_EL2.
    pub hpfar: u64,
}

/// The vector of a synchronous exception of L2.
pub const SYNCHRONOUS: u64 = 8;
/// The vector of an IRQ while L2 runs.
pub const IRQ: u64 = 9;

impl Exit {
    /// ESR_EL2.EC.
    pub fn class(&self) -> u64 {
        self.esr >> 26 & 0x3F
    }

    /// The immediate of an HVC.
    pub fn hvc(&self) -> Option<u64> {
        (self.vector == SYNCHRONOUS && self.class() == 0x16).then_some(self.esr & 0xFFFF)
    }

    /// The number of the vector of L2's own, if it took an exception to EL1.
    pub fn own_vector(&self) -> Option<u64> {
        self.hvc()?.checked_sub(VECTOR)
    }
}

/// L2's registers, and EL2's controls for it.
pub struct Guest {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The program counter.
    pub pc: u64,
    /// SPSR_EL2.
    pub pstate: u64,
    /// HCR_EL2 while it runs.
    pub hcr: u64,
}

impl Guest {
    /// A VM of this CPU, with EL1 registers in reset state. Its code and data are in `stage2`, which is
    /// current.
    pub fn new(stage2: Stage2) -> Self {
        let pages = PAGES[smp::this()].0.get() as u64;
        stage2.page(CODE, pages, stage2::ALL);
        stage2.page(DATA, pages + 4096, stage2::ALL);
        stage2.activate();
        Self::bare()
    }

    /// A VM without a second stage.
    pub fn bare() -> Self {
        msr!("S3_5_C1_C0_0", SCTLR); // SCTLR_EL12, CPACR_EL12, TCR_EL12, VBAR_EL12, SP_EL1, CNTKCTL_EL12
        msr!("S3_5_C1_C0_2", 3 << 20);
        msr!("S3_5_C2_C0_2", 0);
        msr!("S3_5_C12_C0_0", VECTORS);
        msr!("SP_EL1", DATA + 0x1000);
        msr!("S3_5_C14_C1_0", 3);
        msr!("S3_5_C14_C2_1", 0); // CNTP_CTL_EL02, CNTV_CTL_EL02, CNTVOFF_EL2
        msr!("S3_5_C14_C3_1", 0);
        msr!("CNTVOFF_EL2", 0);
        msr!("VPIDR_EL2", mrs!("MIDR_EL1"));
        msr!("VMPIDR_EL2", 1 << 31);
        msr!("CNTHCTL_EL2", mrs!("CNTHCTL_EL2") | 0b11 << 10);
        for (index, word) in vectors() {
            write_code(0x800 + 0x80 * index, &[word]);
        }
        Self { x: [0; 31], pc: CODE, pstate: EL1H, hcr: HCR }
    }

    /// Runs `code` from its beginning, at EL1.
    pub fn run(&mut self, code: &[u32]) -> Exit {
        self.run_at(EL1H, code)
    }

    /// Runs `code` from its beginning, in this state.
    pub fn run_at(&mut self, pstate: u64, code: &[u32]) -> Exit {
        self.write(code);
        self.pc = CODE;
        self.pstate = pstate;
        self.resume()
    }

    /// Writes `code` to L2's entry point.
    pub fn write(&self, code: &[u32]) {
        write_code(0, code);
    }

    /// Continues to the next exit.
    pub fn resume(&mut self) -> Exit {
        // SAFETY: for any exit, the vectors of `guest_enter` return, with the registers that Rust relies on.
        let vector = unsafe { guest_enter(&mut self.x, self.pc, self.pstate, self.hcr) };
        self.pc = mrs!("ELR_EL2");
        self.pstate = mrs!("SPSR_EL2");
        Exit { vector, esr: mrs!("ESR_EL2"), far: mrs!("FAR_EL2"), hpfar: mrs!("HPFAR_EL2") }
    }

    /// Continues after the trapped instruction.
    pub fn skip(&mut self) -> Exit {
        self.pc += 4;
        self.resume()
    }
}

/// The instruction of each of L2's exception vectors.
fn vectors() -> impl Iterator<Item = (usize, u32)> {
    (0..16).map(|index| (index, payload::encode::hvc(VECTOR as u32 + index as u32)))
}

/// Writes instructions into the page of code, from this offset on.
fn write_code(offset: usize, code: &[u32]) {
    let start = PAGES[smp::this()].0.get() as u64 + offset as u64;
    for (address, word) in (start..).step_by(4).zip(code) {
        // SAFETY: this CPU's own page: the code is shorter than the space before the vectors, which are one
        // word each.
        unsafe { (address as *mut u32).write_volatile(*word) };
    }
    payload::probe::synchronise(start, start + 4 * code.len() as u64);
}
