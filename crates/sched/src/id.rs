//! Names of CPUs and vCPUs: small numbers that are known to be in range.

/// Most physical CPUs.
pub const CPUS: usize = stile_board::MAX_CPUS;
/// Most vCPUs, over all VMs.
pub const VCPUS: usize = stile_board::MAX_VMS * stile_board::MAX_VCPUS;
/// Most VMs.
pub const VMS: usize = stile_board::MAX_VMS;
/// Most vCPUs of one VM.
const VCPUS_OF_VM: u8 = stile_board::MAX_VCPUS as u8;

// Sets of CPUs are 64-bit masks; numbers are bytes, and masking keeps them in range.
const _: () = assert!(CPUS.is_power_of_two() && CPUS <= 64);
const _: () = assert!(VCPUS.is_power_of_two() && VCPUS <= 256);
const _: () = assert!(VMS.is_power_of_two() && VMS <= 64);

/// A physical CPU, by its logical number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuId(u8);

impl CpuId {
    /// The CPU that booted.
    pub const BOOT: Self = Self(0);

    /// The CPU with this number, or `None` if it isn't below [`CPUS`].
    pub const fn new(number: usize) -> Option<Self> {
        if number < CPUS { Some(Self(number as u8)) } else { None }
    }

    /// The CPU's number, below [`CPUS`].
    #[inline]
    pub const fn index(self) -> usize {
        // Known to be in range; the mask lets the compiler know, too.
        self.0 as usize & (CPUS - 1)
    }
}

/// A vCPU: its VM's number and its own in the VM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcpuId(u8);

impl VcpuId {
    /// vCPU `vcpu` of VM `vm`, or `None` if there can't be one.
    pub const fn new(vm: u8, vcpu: u8) -> Option<Self> {
        if (vm as usize) < stile_board::MAX_VMS && vcpu < VCPUS_OF_VM { Some(Self(vm * VCPUS_OF_VM + vcpu)) } else { None }
    }

    /// The vCPU with this [`index`](Self::index), or `None` if it isn't below [`VCPUS`].
    pub const fn from_index(index: usize) -> Option<Self> {
        if index < VCPUS { Some(Self(index as u8)) } else { None }
    }

    /// A number below [`VCPUS`], dense over all VMs: 8 × VM + vCPU.
    #[inline]
    pub const fn index(self) -> usize {
        // As in `CpuId::index`.
        self.0 as usize & (VCPUS - 1)
    }

    /// The VM's number.
    #[inline]
    pub const fn vm(self) -> u8 {
        self.0 / VCPUS_OF_VM
    }

    /// The vCPU's number in its VM.
    #[inline]
    pub const fn vcpu(self) -> u8 {
        self.0 % VCPUS_OF_VM
    }
}

/// A set of physical CPUs: bit n is CPU n.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CpuSet(u64);

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self(0);

    /// The CPUs whose bits are set.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The set as a mask.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether there is no CPU in it.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many CPUs there are in it.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the CPU is in it.
    #[inline]
    pub const fn contains(self, cpu: CpuId) -> bool {
        self.0 >> cpu.index() & 1 != 0
    }

    /// The CPU with the lowest number.
    #[inline]
    pub const fn first(self) -> Option<CpuId> {
        CpuId::new(self.0.trailing_zeros() as usize)
    }

    /// The CPUs that are in both sets.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The CPUs of this set that are not in the other one.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Puts the CPU in or takes it out.
    #[inline]
    pub const fn set(&mut self, cpu: CpuId, member: bool) {
        let bit = 1 << cpu.index();
        if member {
            self.0 |= bit;
        } else {
            self.0 &= !bit;
        }
    }

    /// The CPUs, from the lowest number up.
    pub fn iter(self) -> impl Iterator<Item = CpuId> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let cpu = rest.first()?;
            rest.set(cpu, false);
            Some(cpu)
        })
    }

    /// The CPUs, from the first one after `cpu` up, and then from the lowest number up to `cpu`.
    pub fn iter_after(self, cpu: CpuId) -> impl Iterator<Item = CpuId> {
        // Not shifted by 64, where nothing is after the last CPU.
        let above = Self((u64::MAX - 1) << cpu.index());
        self.and(above).iter().chain(self.without(above).iter())
    }
}

impl From<CpuId> for CpuSet {
    fn from(cpu: CpuId) -> Self {
        Self(1 << cpu.index())
    }
}

/// A set of VMs: bit n is VM n.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct VmSet(u64);

impl VmSet {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether there are two VMs or more.
    #[inline]
    pub(crate) const fn is_several(self) -> bool {
        self.0 & self.0.wrapping_sub(1) != 0
    }

    #[inline]
    pub(crate) const fn contains(self, vm: usize) -> bool {
        self.0 >> (vm & (VMS - 1)) & 1 != 0
    }

    #[inline]
    pub(crate) const fn insert(&mut self, vm: usize) {
        self.0 |= 1 << (vm & (VMS - 1));
    }

    #[inline]
    pub(crate) const fn remove(&mut self, vm: usize) {
        self.0 &= !(1 << (vm & (VMS - 1)));
    }

    #[inline]
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The VM with the lowest number.
    #[inline]
    pub(crate) const fn first(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize & (VMS - 1)) }
    }

    /// The VMs, from the lowest number up.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let vm = rest.first()?;
            rest.remove(vm);
            Some(vm)
        })
    }

    /// The VMs above `vm`, and then those from the lowest number up to it.
    pub(crate) fn iter_after(self, vm: usize) -> impl Iterator<Item = usize> {
        let above = (u64::MAX - 1) << (vm & (VMS - 1));
        Self(self.0 & above).iter().chain(Self(self.0 & !above).iter())
    }
}
