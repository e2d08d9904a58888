//! Identifiers of vCPUs: small numbers, in range by construction; sets of CPUs and VMs.

use core::num::NonZeroU16;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::{CPU_WORDS, CpuId, CpuSet};

/// Maximum number of physical CPUs.
pub const CPUS: usize = stile_board::MAX_CPUS;
/// Maximum number of vCPUs in all VMs.
pub const VCPUS: usize = stile_board::MAX_VMS * stile_board::MAX_VCPUS;
/// Maximum number of VMs.
pub const VMS: usize = stile_board::MAX_VMS;
/// Bits of a vCPU's number in its VM.
const VCPU_BITS: u32 = stile_board::MAX_VCPUS.trailing_zeros();

// Numbers are kept in range by masking; sets of VMs are whole words.
const _: () = assert!(stile_board::MAX_VCPUS.is_power_of_two() && VCPUS <= VcpuId::EXISTS as usize);
const _: () = assert!(VMS.is_power_of_two() && VMS >= 64);

/// A vCPU: its VM's number and its own in the VM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcpuId(NonZeroU16);

impl VcpuId {
    /// Always set, so that an `Option` needs no more room.
    const EXISTS: u16 = 1 << 15;

    /// vCPU `vcpu` of VM `vm`, or `None` if either is out of range.
    pub const fn new(vm: u8, vcpu: u8) -> Option<Self> {
        if (vm as usize) < VMS && (vcpu as usize) < stile_board::MAX_VCPUS {
            Self::from_index((vm as usize) << VCPU_BITS | vcpu as usize)
        } else {
            None
        }
    }

    /// The vCPU with this [`index`](Self::index), or `None` if it isn't below [`VCPUS`].
    pub const fn from_index(index: usize) -> Option<Self> {
        match NonZeroU16::new(index as u16 | Self::EXISTS) {
            Some(number) if index < VCPUS => Some(Self(number)),
            _ => None,
        }
    }

    /// A number below [`VCPUS`], different for all vCPUs of all VMs.
    #[inline]
    pub const fn index(self) -> usize {
        // As in `CpuId::index`.
        self.0.get() as usize & (VCPUS - 1)
    }

    /// The VM's number.
    #[inline]
    pub const fn vm(self) -> u8 {
        (self.index() >> VCPU_BITS) as u8
    }

    /// Whether both are of one VM.
    #[inline]
    pub const fn is_sibling_of(self, other: Self) -> bool {
        (self.0.get() ^ other.0.get()) >> VCPU_BITS == 0
    }

    /// The vCPU's number in its VM.
    #[inline]
    pub const fn vcpu(self) -> u8 {
        (self.0.get() as usize & (stile_board::MAX_VCPUS - 1)) as u8
    }
}

/// Words of a [`VmSet`].
const VM_WORDS: usize = VMS / 64;

/// A set of CPUs that is read without a lock.
#[derive(Debug)]
pub(crate) struct SharedCpuSet([AtomicU64; CPU_WORDS]);

impl SharedCpuSet {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CPU_WORDS])
    }

    #[inline]
    pub(crate) fn get(&self) -> CpuSet {
        CpuSet::from_words(core::array::from_fn(|word| self.0[word].load(Ordering::Relaxed)))
    }

    #[inline]
    pub(crate) fn set(&self, cpus: &CpuSet) {
        for (word, value) in self.0.iter().zip(cpus.words()) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64].load(Ordering::Relaxed) >> (cpu.index() % 64) & 1 != 0
    }

    /// Adds CPUs, while no other CPU changes the set. Returns whether there are more now.
    pub(crate) fn add(&self, cpus: &CpuSet) -> bool {
        let mut is_more = false;
        for (word, more) in self.0.iter().zip(cpus.words()) {
            let before = word.load(Ordering::Relaxed);
            if more & !before != 0 {
                word.store(before | more, Ordering::Relaxed);
                is_more = true;
            }
        }
        is_more
    }
}

/// A [`VmSet`] that is read without a lock, and changed by one CPU at a time.
#[derive(Debug)]
pub(crate) struct SharedVmSet([AtomicU64; VM_WORDS]);

impl SharedVmSet {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; VM_WORDS])
    }

    #[inline]
    pub(crate) fn get(&self) -> VmSet {
        VmSet(core::array::from_fn(|word| self.0[word].load(Ordering::Relaxed)))
    }

    #[inline]
    pub(crate) fn set(&self, vms: VmSet) {
        for (word, value) in self.0.iter().zip(vms.0) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn insert(&self, vm: usize) {
        let (word, bit) = VmSet::place(vm);
        self.0[word].store(self.0[word].load(Ordering::Relaxed) | bit, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn remove(&self, vm: usize) {
        let (word, bit) = VmSet::place(vm);
        self.0[word].store(self.0[word].load(Ordering::Relaxed) & !bit, Ordering::Relaxed);
    }
}

/// A set of VMs: bit n % 64 of word n / 64 is VM n.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct VmSet([u64; VM_WORDS]);

impl VmSet {
    pub(crate) const EMPTY: Self = Self([0; VM_WORDS]);

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0.into_iter().fold(0, |all, word| all | word) == 0
    }

    /// Whether the set has at least two VMs.
    #[inline]
    pub(crate) fn is_several(self) -> bool {
        let mut rest = self;
        rest.first().is_some_and(|vm| {
            rest.remove(vm);
            !rest.is_empty()
        })
    }

    /// Word and bit of a VM.
    #[inline]
    const fn place(vm: usize) -> (usize, u64) {
        // As in `CpuId::index`.
        (vm / 64 % VM_WORDS, 1 << (vm % 64))
    }

    #[inline]
    pub(crate) const fn contains(self, vm: usize) -> bool {
        let (word, bit) = Self::place(vm);
        self.0[word] & bit != 0
    }

    #[inline]
    pub(crate) const fn insert(&mut self, vm: usize) {
        let (word, bit) = Self::place(vm);
        self.0[word] |= bit;
    }

    #[inline]
    pub(crate) const fn remove(&mut self, vm: usize) {
        let (word, bit) = Self::place(vm);
        self.0[word] &= !bit;
    }

    #[inline]
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The VM with the lowest number.
    #[inline]
    pub(crate) fn first(self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some((word * 64 + self.0[word].trailing_zeros() as usize) & (VMS - 1))
    }

    /// The VMs in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let vm = rest.first()?;
            rest.remove(vm);
            Some(vm)
        })
    }

    /// The VMs in ascending order from the first one after `vm`, wrapping around to `vm`.
    pub(crate) fn iter_after(self, vm: usize) -> impl Iterator<Item = usize> {
        let (at, bit) = Self::place(vm);
        let (mut above, mut rest) = (self, self);
        for word in 0..VM_WORDS {
            // The bits up to the VM's own.
            let up_to = if word < at {
                u64::MAX
            } else if word > at {
                0
            } else {
                bit | (bit - 1)
            };
            above.0[word] &= !up_to;
            rest.0[word] &= up_to;
        }
        above.iter().chain(rest.iter())
    }
}
