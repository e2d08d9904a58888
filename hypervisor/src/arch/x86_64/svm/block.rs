//! Fields of a CPU's block for AMD-V.

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicPtr, AtomicU8};

use stile_bus::Slot;
use stile_ledger::RowId;
use stile_svm::{Asids, VMCB_SIZE};

use crate::arch::x86_64::host::guest_word::GuestWord;

/// A VMCB.
#[repr(C, align(4096))]
pub struct Page(UnsafeCell<[u8; VMCB_SIZE]>);

// SAFETY: no processor enters with it: its contents do not matter, and no reference to them exists.
unsafe impl Sync for Page {}

/// The VMCB of CPUs on which none was loaded yet: what is written there has no effect.
pub static NONE_LOADED: Page = Page(UnsafeCell::new([0; VMCB_SIZE]));

/// A word of the guest's memory and its value, in this order for `exit.S`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Word {
    /// Its location.
    pub place: GuestWord,
    /// The value that it had.
    pub value: u64,
}

/// An instruction of 64-bit code that exited and has no prefix, with the words of memory that say where it is (`length.rs`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Site {
    /// RIP; [`Site::VACANT`]'s is not canonical.
    pub rip: u64,
    /// CR3.
    pub cr3: u64,
    /// Location of its bytes, and of five or more behind them in the same page.
    pub code: GuestWord,
    /// Entries of the guest's tables that lead to it, with their values.
    pub tables: [Word; Site::TABLES],
}

impl Site {
    /// Levels of 4-level paging.
    pub const TABLES: usize = 4;
    /// No instruction.
    pub const VACANT: Site =
        Site { rip: 1 << 63, cr3: 0, code: GuestWord::ZEROS, tables: [Word { place: GuestWord::ZEROS, value: 1 }; Site::TABLES] };
}

/// Sites of the exits that leaves answer, and of those answered at once.
pub mod leaf {
    /// CPUID.
    pub const CPUID: usize = 0;
    /// RDMSR.
    pub const RDMSR: usize = 1;
    /// VMMCALL.
    pub const VMMCALL: usize = 2;
    /// WRMSR of the x2APIC's EOI.
    pub const EOI: usize = 3;
    /// WRMSR of the x2APIC's ICR.
    pub const ICR: usize = 4;
    /// WRMSR of the x2APIC's SELF IPI.
    pub const SELF_IPI: usize = 5;
    /// Number of these sites.
    pub const COUNT: usize = 6;
}

/// Sites of other exits; a power of two.
pub const OTHER_SITES: usize = 16;

/// The answer that CPUID's leaf has given last, of those whose answer is the same each time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LastAnswer {
    /// EAX before it; [`LastAnswer::NONE`]'s is in no VM's table.
    pub leaf: u32,
    /// EAX, EBX, ECX and EDX.
    pub registers: [u32; 4],
}

impl LastAnswer {
    /// None.
    pub const NONE: LastAnswer = LastAnswer { leaf: u32::MAX, registers: [0; 4] };
}

/// The port that the loaded vCPU has read last by a byte.
#[derive(Clone, Copy)]
pub struct LastPort {
    /// Its number; out of range in [`LastPort::NONE`].
    pub port: u32,
    /// Its region on the bus of the loaded vCPU's VM, if that takes such reads.
    pub slot: Option<Slot>,
    /// The offset there.
    pub offset: u16,
    /// The ledger's row of such reads.
    pub row: RowId,
}

impl LastPort {
    /// None.
    pub const NONE: LastPort = LastPort { port: u32::MAX, slot: None, offset: 0, row: RowId::masked(0) };
}

/// State of a CPU. All zero before [`turn_on`](super::extension::turn_on).
#[repr(C)]
pub struct OfCpu {
    /// Physical address of the loaded vCPU's VMCB.
    pub loaded: Cell<u64>,
    /// Physical address of the VMCB from which VMLOAD loads Stile's own state at exits.
    pub own: Cell<u64>,
    /// Address in `exit.S` of the entry: it chooses the exit path, and with that whether exits are recorded.
    pub entry: Cell<u64>,
    /// Address-space identifiers.
    pub asids: Cell<Option<Asids>>,
    /// Whether exits save the next RIP.
    pub has_next_rip: Cell<bool>,
    /// Instructions of the loaded vCPU that exited: of the leaves, and of others by RIP.
    pub sites: [Cell<Site>; leaf::COUNT + OTHER_SITES],
    /// The last answer to the loaded vCPU's CPUID, for `exit.S`.
    pub last: Cell<LastAnswer>,
    /// The port read last.
    pub port: Cell<LastPort>,
}

impl OfCpu {
    /// Begins with another vCPU: drops what is remembered of the last one.
    pub fn forget(&self) {
        self.last.set(LastAnswer::NONE);
        self.port.set(LastPort::NONE);
        self.forget_sites();
    }

    /// Drops the remembered instructions.
    pub fn forget_sites(&self) {
        self.sites.iter().for_each(|site| site.set(Site::VACANT));
    }
}

/// Words that are accessed while the block is borrowed: see [`local`](super::local).
#[repr(C)]
pub struct OfLocal {
    /// The loaded vCPU's VMCB.
    pub vmcb: AtomicPtr<u8>,
    /// Whether translations of vCPUs that are not loaded are stale: they need other address-space identifiers.
    pub stale: AtomicU8,
}

impl OfLocal {
    /// The VMCB while no vCPU is loaded.
    pub const NO_VMCB: *mut u8 = (&raw const NONE_LOADED).cast_mut().cast();

    /// Their first values.
    pub const fn new() -> OfLocal {
        OfLocal { vmcb: AtomicPtr::new(Self::NO_VMCB), stale: AtomicU8::new(0) }
    }
}

/// Whether a global interrupt flag masks interrupts at entries and exits ("Global Interrupt Flag, STGI and CLGI").
pub const HAS_GLOBAL_FLAG: bool = true;
