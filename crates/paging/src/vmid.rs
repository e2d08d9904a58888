//! VMIDs, handed out in generations.
//!
//! There may be more VMs than VMIDs (a nested VM needs one of its own, too), so a VM keeps the one that it
//! got only for the current *generation*. When all are used up, a new generation begins: all TLBs are flushed
//! once, and each VM gets another VMID when it is next loaded. A VM that some CPU has loaded at that moment
//! can't change over: its VMID is carried over, for as long as the new generation lasts.
//!
//! The order of the steps is delicate; `tests/vmid_interleavings.rs` tries all of them.
//!
//! VMID 0 is the host's: a CPU that has no VM loaded has it in `VTTBR_EL2`.
//!
//! Loading a VMID of the current generation takes no lock ([`Vmids::try_load`]), which is nearly every load.
//! A lock is needed to hand out a VMID, and is the caller's: it guards the [`VmidPool`].

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// How wide VMIDs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmidBits {
    /// 8 bits, which every CPU has.
    Eight,
    /// 16 bits (FEAT_VMID16, and `VTCR_EL2.VS` set).
    Sixteen,
}

impl VmidBits {
    /// From the value of `ID_AA64MMFR1_EL1` (`VMIDBits` is bits 7 to 4).
    #[must_use]
    pub const fn from_mmfr1(id_aa64mmfr1: u64) -> Self {
        match (id_aa64mmfr1 >> 4) & 0xf {
            0b0010 => Self::Sixteen,
            _ => Self::Eight,
        }
    }

    /// The greatest VMID.
    const fn max(self) -> u16 {
        match self {
            Self::Eight => u8::MAX as u16,
            Self::Sixteen => u16::MAX,
        }
    }
}

/// A VMID and its generation, in one word: the generation from bit 16 on.
///
/// Generations count from 1, and would last for 2^48.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tagged(u64);

impl Tagged {
    /// Of no generation. As a CPU's: a new generation has begun since the CPU last loaded a VMID.
    const NONE: Self = Self(0);
    /// The host's. As a CPU's: it has no VM loaded.
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

/// The VMID of one VM, or of a nested VM's shadow tables. Has none at first.
#[derive(Debug, Default)]
pub struct VmidSlot(AtomicU64);

impl VmidSlot {
    /// No VMID yet.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(Tagged::NONE.0))
    }

    /// Lets go of the VMID: the next load gets one that no TLB has an entry of. A cheap way to
    /// forget all translations of a VM that no CPU has loaded; with one that has, it is an error, as
    /// CPUs might then have different VMIDs for the same VM.
    pub fn forget(&self) {
        self.set(Tagged::NONE);
    }

    fn get(&self) -> Tagged {
        // Pairs with `set`: who sees a VMID of a new generation also sees that each CPU's was taken
        // from it when the generation began.
        Tagged(self.0.load(Acquire))
    }

    fn set(&self, tagged: Tagged) {
        self.0.store(tagged.0, Release);
    }
}

/// What all CPUs share without a lock: the current generation, and the VMID that each CPU has loaded.
#[derive(Debug)]
pub struct Vmids<const CPUS: usize> {
    generation: AtomicU64,
    loaded: [AtomicU64; CPUS],
}

/// What it takes to hand out a VMID. Belongs to one [`Vmids`], and behind a lock.
#[derive(Debug)]
pub struct VmidPool<const CPUS: usize> {
    bits: VmidBits,
    /// The greatest VMID handed out in this generation.
    last: u16,
    /// The VMID that each CPU had loaded when the generation began; not handed out in this one.
    carried: [Tagged; CPUS],
}

impl<const CPUS: usize> Vmids<CPUS> {
    /// Nothing loaded.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        // With that many CPUs each could have a VMID carried over, and none would be left.
        const { assert!(CPUS < u8::MAX as usize) };
        Self { generation: AtomicU64::new(1), loaded: [const { AtomicU64::new(Tagged::NONE.0) }; CPUS] }
    }

    /// Loads the VMID in `slot` on `cpu`, without a lock, if it is of the current generation and `cpu` has
    /// loaded one of this generation before. If not (or if `cpu` is not less than `CPUS`) returns
    /// `None`, and [`load`](Vmids::load) is needed.
    ///
    /// As with `load`, the CPU's `VTTBR_EL2` has VMID 0 at this time, or this VM's: no longer another's, for
    /// which it could go on making TLB entries unnoticed.
    #[must_use]
    pub fn try_load(&self, cpu: usize, slot: &VmidSlot) -> Option<u16> {
        let loaded = self.loaded.get(cpu)?;
        let before = loaded.load(Relaxed);
        let tagged = slot.get();
        let is_current = tagged.generation() == self.generation.load(Relaxed);
        if before == Tagged::NONE.0 || !is_current {
            return None;
        }
        // Another CPU may be beginning a new generation right now, and takes every CPU's VMID away. Either
        // this comes first, and what is carried over is the new VMID; or NONE is there now, and
        // this fails. Nobody but this CPU puts anything else there.
        let exchange = loaded.compare_exchange(before, tagged.0, AcqRel, Relaxed);
        exchange.is_ok().then(|| tagged.vmid())
    }

    /// Loads the VMID in `slot` on `cpu`, after it got a new one if its own is of an old generation.
    ///
    /// `flush_all` is called if a new generation begins for that. It flushes the TLBs of all CPUs
    /// (`DSB ISHST; TLBI ALLE1IS; DSB ISH`): when it returns, VMIDs of the new generation are used.
    /// The CPU's `VTTBR_EL2` has VMID 0 at this time, or this VM's.
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
            // From here on another CPU may load it, without the lock: the flush must be over.
            slot.set(tagged);
        }
        self.loaded[cpu].store(tagged.0, Release);
        tagged.vmid()
    }

    /// `cpu` has no VM loaded any more. Its `VTTBR_EL2` has VMID 0 already (with an `ISB` after it): until then
    /// the CPU may make TLB entries for the VMID that it had.
    ///
    /// Not needed before the next load; but a VMID that isn't put is carried over for nothing.
    pub fn put(&self, cpu: usize) {
        if let Some(loaded) = self.loaded.get(cpu) {
            // Not merely a store: if this overwrites NONE, the CPU must know of the new generation from
            // here on, or `try_load` could take a VMID of the old one for current.
            loaded.swap(Tagged::HOST.0, AcqRel);
        }
    }

    /// Begins a new generation.
    fn begin(&self, pool: &mut VmidPool<CPUS>, generation: u64) {
        self.generation.store(generation, Relaxed);
        for (loaded, carried) in self.loaded.iter().zip(&mut pool.carried) {
            match Tagged(loaded.swap(Tagged::NONE.0, AcqRel)) {
                // Still has the VMID that was carried over for it before.
                Tagged::NONE => {}
                Tagged::HOST => *carried = Tagged::NONE,
                tagged => *carried = tagged,
            }
        }
        pool.last = 0;
    }
}

#[cfg(not(loom))]
impl<const CPUS: usize> Default for Vmids<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Loom's atomics can't be made in constants.
#[cfg(loom)]
impl<const CPUS: usize> Default for Vmids<CPUS> {
    fn default() -> Self {
        let loaded = core::array::from_fn(|_| AtomicU64::new(Tagged::NONE.0));
        Self { generation: AtomicU64::new(1), loaded }
    }
}

impl<const CPUS: usize> VmidPool<CPUS> {
    /// All VMIDs of this width but 0.
    #[must_use]
    pub const fn new(bits: VmidBits) -> Self {
        Self { bits, last: 0, carried: [Tagged::NONE; CPUS] }
    }

    /// If `tagged` was carried over, makes it one of `generation`.
    fn carry_over(&mut self, tagged: Tagged, generation: u64) -> Option<u16> {
        if tagged == Tagged::NONE {
            return None;
        }
        let mut found = None;
        // More than one CPU may have had it loaded.
        for carried in self.carried.iter_mut().filter(|carried| **carried == tagged) {
            *carried = Tagged::new(generation, tagged.vmid());
            found = Some(tagged.vmid());
        }
        found
    }

    /// The next VMID that isn't used in this generation.
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
