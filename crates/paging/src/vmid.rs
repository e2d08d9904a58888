//! VMID allocation by generations.
//!
//! There may be more VMs than VMIDs (a nested VM needs its own), so a VMID is assigned for the current
//! *generation* only. When all are used, a new generation begins: all TLBs are flushed once, and each VM gets
//! a new VMID at its next load. A VM loaded on some CPU at that moment can't switch: its VMID is carried over
//! into the new generation.
//!
//! `fuzz/tests/interleavings/vmids.rs` checks the order of the steps in all interleavings.
//!
//! VMID 0 is the host's: `VTTBR_EL2` holds it on a CPU with no VM loaded.
//!
//! Loading a VMID of the current generation, nearly every load, takes no lock ([`Vmids::try_load`]).
//! Assigning a VMID needs the caller's lock around the [`VmidPool`].

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The width of VMIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmidBits {
    /// 8 bits, supported by every CPU.
    Eight,
    /// 16 bits (FEAT_VMID16, and `VTCR_EL2.VS` set).
    Sixteen,
}

impl VmidBits {
    /// Decodes `ID_AA64MMFR1_EL1` (`VMIDBits` is bits 7 to 4).
    #[must_use]
    pub const fn from_mmfr1(id_aa64mmfr1: u64) -> Self {
        match (id_aa64mmfr1 >> 4) & 0xf {
            0b0010 => Self::Sixteen,
            _ => Self::Eight,
        }
    }

    /// The most CPUs among which the VMIDs may be divided.
    #[must_use]
    pub const fn cpus(self) -> usize {
        self.max() as usize - 1
    }

    /// The greatest VMID.
    const fn max(self) -> u16 {
        match self {
            Self::Eight => u8::MAX as u16,
            Self::Sixteen => u16::MAX,
        }
    }
}

/// A VMID (bits 15 to 0) and its generation (bits 63 to 16) in one word.
///
/// Generations count from 1; 2^48 of them don't run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tagged(u64);

impl Tagged {
    /// No generation. For a CPU: a new generation has begun since its last load.
    const NONE: Self = Self(0);
    /// The host's VMID. For a CPU: no VM is loaded.
    const HOST: Self = Self::new(1, 0);

    const fn new(generation: u64, vmid: u16) -> Self {
        Self(generation << 16 | vmid as u64)
    }

    const fn generation(self) -> u64 {
        self.0 >> 16
    }

    const fn vmid(self) -> u16 {
        self.0 as u16
    }
}

/// The VMID of one VM, or of a nested VM's shadow tables. Initially empty.
#[derive(Debug, Default)]
pub struct VmidSlot(AtomicU64);

impl VmidSlot {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(Tagged::NONE.0))
    }

    /// Releases the VMID: the next load assigns one without TLB entries. A cheap way to invalidate all
    /// translations of a VM that is loaded nowhere. An error if it is loaded on a CPU: CPUs could then use
    /// different VMIDs for the same VM.
    pub fn forget(&self) {
        self.set(Tagged::NONE);
    }

    fn get(&self) -> Tagged {
        // Pairs with `set`: a CPU that observes a VMID of a new generation also observes NONE in each CPU's
        // slot, stored when the generation began.
        Tagged(self.0.load(Acquire))
    }

    fn set(&self, tagged: Tagged) {
        self.0.store(tagged.0, Release);
    }
}

/// State that all CPUs share without a lock: the current generation, and each CPU's loaded VMID.
#[derive(Debug)]
pub struct Vmids<const CPUS: usize> {
    generation: AtomicU64,
    loaded: [Loaded; CPUS],
}

/// The VMID that a CPU has loaded, in a separate cache line: the CPU writes it often, others almost never.
#[derive(Debug)]
#[repr(align(64))]
struct Loaded(AtomicU64);

/// State for assigning VMIDs. Belongs to one [`Vmids`]; the caller holds it behind a lock.
#[derive(Debug)]
pub struct VmidPool<const CPUS: usize> {
    bits: VmidBits,
    /// The greatest VMID assigned in this generation.
    last: u16,
    /// The VMID that each CPU had loaded when the generation began; not assigned in this one.
    carried: [Tagged; CPUS],
}

impl<const CPUS: usize> Vmids<CPUS> {
    /// No VMID is loaded. No more CPUs than [`VmidBits::cpus`] may load VMIDs: those that they carry over could use up the range.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(CPUS < u16::MAX as usize) };
        Self { generation: AtomicU64::new(1), loaded: [const { Loaded(AtomicU64::new(Tagged::NONE.0)) }; CPUS] }
    }

    /// Returns the VMID in `slot` if `cpu` has it loaded already, and its `VTTBR_EL2` can stay as it is: it is this VM's
    /// by its table. A VMID that the VM got since then is another one, and needs [`try_load`](Vmids::try_load) with VMID 0
    /// in `VTTBR_EL2`: once that has been recorded as loaded, a new generation may give the one before to another VM.
    #[must_use]
    pub fn kept(&self, cpu: usize, slot: &VmidSlot) -> Option<u16> {
        let loaded = self.loaded.get(cpu)?.0.load(Relaxed);
        let tagged = slot.get();
        // A CPU that begins a new generation finds it here, and carries it over.
        (loaded == tagged.0 && tagged != Tagged::NONE).then_some(tagged.vmid())
    }

    /// Loads the VMID in `slot` on `cpu` without a lock. Succeeds if the VMID is of the current generation
    /// and `cpu` has already loaded one of this generation; otherwise (or if `cpu` is not less than `CPUS`)
    /// returns `None`, and the caller uses [`load`](Vmids::load).
    ///
    /// As for `load`, the CPU's `VTTBR_EL2` must already hold VMID 0, or the VMID in `slot`: for any other one, even an
    /// earlier one of this VM, the CPU could still allocate TLB entries, unaccounted.
    #[must_use]
    pub fn try_load(&self, cpu: usize, slot: &VmidSlot) -> Option<u16> {
        let Loaded(loaded) = self.loaded.get(cpu)?;
        let before = loaded.load(Relaxed);
        let tagged = slot.get();
        let is_current = tagged.generation() == self.generation.load(Relaxed);
        if before == Tagged::NONE.0 || !is_current {
            return None;
        }
        if before == tagged.0 {
            // It stays loaded. A CPU that begins a new generation finds it here, and carries it over.
            return Some(tagged.vmid());
        }
        // Another CPU may concurrently begin a new generation, which swaps NONE into every CPU's slot. Either
        // this exchange precedes it and the new VMID is carried over, or it finds NONE and fails. Only this
        // CPU stores other values here.
        let exchange = loaded.compare_exchange(before, tagged.0, AcqRel, Relaxed);
        exchange.is_ok().then(|| tagged.vmid())
    }

    /// Loads the VMID in `slot` on `cpu`, assigning a new one if it is of an old generation.
    ///
    /// Calls `flush_all` if that begins a new generation. It must flush the TLBs of all CPUs (`DSB ISHST;
    /// TLBI ALLE1IS; DSB ISH`) before it returns: VMIDs of the new generation are used then. The CPU's
    /// `VTTBR_EL2` must already hold VMID 0, or the VMID in `slot`.
    ///
    /// # Panics
    /// If `cpu` is not less than `CPUS`.
    pub fn load(&self, pool: &mut VmidPool<CPUS>, cpu: usize, slot: &VmidSlot, mut flush_all: impl FnMut()) -> u16 {
        let mut tagged = slot.get();
        let mut generation = self.generation.load(Relaxed);
        if tagged.generation() != generation {
            let vmid = loop {
                if let Some(vmid) = pool.carry_over(tagged, generation).or_else(|| pool.next()) {
                    break vmid;
                }
                generation += 1;
                self.begin(pool, generation);
                flush_all();
            };
            tagged = Tagged::new(generation, vmid);
            // Publishes the VMID: other CPUs may load it without the lock, so the flush must be complete.
            slot.set(tagged);
        }
        self.loaded[cpu].0.store(tagged.0, Release);
        tagged.vmid()
    }

    /// Records that `cpu` has no VM loaded. Its `VTTBR_EL2` must already hold VMID 0 (followed by an `ISB`):
    /// until then the CPU may allocate TLB entries for its previous VMID.
    ///
    /// Optional before the next load; but a VMID that is not put is carried over needlessly.
    pub fn put(&self, cpu: usize) {
        if let Some(Loaded(loaded)) = self.loaded.get(cpu) {
            // A swap, not a store: if it overwrites NONE, the CPU must observe the new generation from here
            // on. Otherwise `try_load` could take a VMID of the old one for current.
            loaded.swap(Tagged::HOST.0, AcqRel);
        }
    }

    /// Begins a new generation.
    fn begin(&self, pool: &mut VmidPool<CPUS>, generation: u64) {
        self.generation.store(generation, Relaxed);
        for (Loaded(loaded), carried) in self.loaded.iter().zip(&mut pool.carried) {
            match Tagged(loaded.swap(Tagged::NONE.0, AcqRel)) {
                // Retains the VMID that was carried over for it earlier.
                Tagged::NONE => {}
                Tagged::HOST => *carried = Tagged::NONE,
                tagged => *carried = tagged,
            }
        }
        pool.last = 0;
    }
}

impl<const CPUS: usize> Default for Vmids<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CPUS: usize> VmidPool<CPUS> {
    /// A pool of all VMIDs of this width but 0.
    #[must_use]
    pub const fn new(bits: VmidBits) -> Self {
        Self { bits, last: 0, carried: [Tagged::NONE; CPUS] }
    }

    /// If `tagged` was carried over, retags it with `generation`.
    fn carry_over(&mut self, tagged: Tagged, generation: u64) -> Option<u16> {
        if tagged == Tagged::NONE {
            return None;
        }
        let mut found = None;
        // Several CPUs may have had it loaded.
        for carried in self.carried.iter_mut().filter(|carried| **carried == tagged) {
            *carried = Tagged::new(generation, tagged.vmid());
            found = Some(tagged.vmid());
        }
        found
    }

    /// The next VMID unused in this generation.
    fn next(&mut self) -> Option<u16> {
        while self.last < self.bits.max() {
            self.last += 1;
            if self.carried.iter().all(|carried| carried.vmid() != self.last) {
                return Some(self.last);
            }
        }
        None
    }
}
