//! VMX operation of a vCPU: state, load and put.

use core::ops::Range;

use stile_blob::Nested;
use stile_ledger::RowId;
use stile_ledger::x86_64::{key, reason};
use stile_nested_vmx::shadow::Shadows;
use stile_nested_vmx::{Capabilities, Field, FieldSet, PreemptionTimer, Vmcs12, enlightened, hyper_v};
use stile_paging::PAGE_SIZE;

use super::frames::Frames;
use super::shadow_vmcs::ShadowVmcs;
use super::vmcs02::{NONE, Vmcs02};
use crate::address_space;
use crate::arch::x86_64::host::cpu::{Cpu, Launch};
use crate::arch::x86_64::host::instructions::{CpuidResult, rdmsr};
use crate::arch::x86_64::vcpu::cr4::CR4_OWNED;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension::invalidate_vpid;
use crate::arch::x86_64::vmx::hyper_v::Partition;
use crate::arch::x86_64::vmx::vmcs;
use crate::arena::Arena;

/// Number of VMCS12s for which a VMCS02 is kept.
const VMCSS: usize = 4;

/// VMX capabilities of the vCPUs of a nested VM.
pub struct Offer {
    /// Capability MSRs.
    pub capabilities: Capabilities,
    /// Supported VMCS fields.
    pub existing: FieldSet,
    /// Hyper-V's interface, if L1 may use enlightened VMCSs.
    pub partition: Option<Partition>,
}

impl Offer {
    /// Derives the capabilities from this CPU's.
    pub fn new() -> Offer {
        // SAFETY: VMX is supported, with true and secondary controls (`extension::detect`), and with them the MSRs that
        // `read` accesses.
        let capabilities = Capabilities::read(|register| unsafe { rdmsr(register) }).offered(CR4_OWNED);
        Offer { existing: capabilities.existing_fields(), capabilities, partition: None }
    }

    /// Derives the capabilities of an L1 that may use enlightened VMCSs.
    pub fn enlightened() -> Offer {
        let capabilities = enlightened::capabilities(Offer::new().capabilities);
        Offer { existing: capabilities.existing_fields(), capabilities, partition: Some(Partition::new()) }
    }
}

/// Returns the capabilities for a VM, if it is nested.
///
/// # Errors
/// None: with VMX each mode is supported.
pub fn offer(nested: Nested) -> Result<Option<Offer>, &'static str> {
    Ok(match nested {
        Nested::Off => None,
        Nested::Enlightened => Some(Offer::enlightened()),
        Nested::Nv | Nested::Nv2 => Some(Offer::new()),
    })
}

impl Offer {
    /// Resets what the VM's vCPUs share.
    pub fn reset(&self) {
        if let Some(partition) = &self.partition {
            partition.reset();
        }
    }

    /// CPUID of a leaf as an L1 reads it. `answer`: that of other guests.
    pub fn cpuid(&self, leaf: u32, answer: CpuidResult, vcpus: u32) -> CpuidResult {
        /// Bits 31:16 of hypervisor leaves. Linux searches this range for signatures, so all of it is Hyper-V's.
        const HYPERVISOR: u32 = 0x4000;
        /// In ECX of leaf 1.
        const VMX: u32 = 1 << 5;
        if leaf == 1 {
            CpuidResult { ecx: answer.ecx | VMX, ..answer }
        } else if leaf >> 16 == HYPERVISOR && self.partition.is_some() {
            let [eax, ebx, ecx, edx] = hyper_v::leaf(leaf, vcpus);
            CpuidResult { eax, ebx, ecx, edx }
        } else {
            answer
        }
    }
}

/// L1's instruction that enters L2.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Entering {
    Resume,
    Launch,
}

/// In [`GuestVmx::l1_flags`], a reserved bit of RFLAGS: NMIs were blocked in L1.
pub const NMI_WAS_BLOCKED: u64 = 1 << 63;

/// An active enlightened VMCS.
#[derive(Clone, Copy)]
pub struct Enlightened {
    /// L1's address.
    pub address: u64,
    /// Physical address of the page, which is in RAM.
    pub page: u64,
}

/// An event that L1 has injected.
#[derive(Clone, Copy)]
pub struct Replaced {
    /// L1's address of the VMCS.
    pub vmcs: u64,
    /// In the format of interruption-information fields.
    pub event: u64,
}

/// VMX operation of a vCPU.
pub struct GuestVmx {
    /// Address of the VMXON region, or [`NONE`].
    pub vmxon: u64,
    /// Address of the current VMCS, or [`NONE`], also while an enlightened one is active.
    pub current: u64,
    /// The enlightened VMCS whose contents [`vmcs12`](Self::vmcs12) has, if any.
    pub enlightened: Option<Enlightened>,
    pub vmcs12: Vmcs12,
    /// The VMCS02 of each VMCS of L1's; the current one's is the first.
    pub vmcs02: [Vmcs02; VMCSS],
    pub in_l2: bool,
    /// While in L2: whether VMCS01 is launched on this CPU.
    pub l1_launched: bool,
    /// L1's instruction that enters L2, until the processor has entered it.
    pub entering: Option<Entering>,
    /// VMCS02 may have an event to inject at its next entry.
    pub may_inject: bool,
    /// An exit of the monitor trap flag is pending, after an instruction that the exit being handled has completed.
    pub traps: bool,
    /// Event of an L2 that an exception has replaced.
    pub replaced: Option<Replaced>,
    /// Vector of the last interrupt of the 8259s that L2 took for L1, until L1 injects an event.
    pub external: Option<u8>,
    /// L1's RFLAGS at the entry to L2, and [`NMI_WAS_BLOCKED`], for an entry that fails.
    pub l1_flags: u64,
    /// Rarely read guest state is still in VMCS02 only. VM-exit controls of that exit, which determine what it saved.
    pub unsaved: Option<u32>,
    /// L1's VMX-preemption timer, while it runs.
    pub timer: Option<PreemptionTimer>,
    pub shadows: Shadows,
    /// Physical address of a page of this vCPU's for addresses of L2's virtual APIC outside RAM.
    pub spare: u64,
    /// Shadow VMCS of L1's current VMCS, if supported.
    pub shadow: Option<ShadowVmcs>,
    /// The processor's VPID of L2s, and L1's VPID that it represents.
    pub vpid: u16,
    pub vpid12: u16,
    /// CPU on which the vCPU was last loaded, plus 1.
    pub host: usize,
    pub clock: u64,
    /// Rows of exits that L1 gets, by reason; others than dynamic rows are unknown.
    pub rows: [RowId; 64],
}

impl GuestVmx {
    /// Creates the state of a vCPU outside VMX operation. `reserved`: memory of its shadow tables; `vmcss`: memory of
    /// each [`Vmcs02`]; `spare`: a page.
    fn new(vpid: u16, reserved: Range<u64>, vmcss: u64, spare: u64, shadow: Option<ShadowVmcs>) -> GuestVmx {
        GuestVmx {
            vmxon: NONE,
            current: NONE,
            enlightened: None,
            vmcs12: Vmcs12::new(),
            vmcs02: core::array::from_fn(|index| Vmcs02::new(vmcss + index as u64 * Vmcs02::MEMORY)),
            in_l2: false,
            l1_launched: false,
            entering: None,
            may_inject: false,
            traps: false,
            replaced: None,
            external: None,
            l1_flags: 0,
            unsaved: None,
            timer: None,
            shadows: Shadows::new(reserved),
            spare,
            shadow,
            vpid,
            vpid12: 0,
            host: 0,
            clock: 0,
            rows: [RowId::masked(0); 64],
        }
    }

    /// Reset and INIT state. No VMCS02 is in a CPU.
    fn reset(&mut self) {
        fill_spare(self.spare);
        self.vmxon = NONE;
        self.current = NONE;
        self.enlightened = None;
        self.in_l2 = false;
        self.entering = None;
        self.traps = false;
        self.replaced = None;
        self.external = None;
        self.unsaved = None;
        self.timer = None;
        self.shadows.reset(&mut Frames);
        self.vmcs02.iter_mut().for_each(Vmcs02::forget);
        if let Some(shadow) = &mut self.shadow {
            shadow.forget();
        }
    }

    /// Resets the state of a vCPU that is off. The CPU that dropped it did not reset this state, and may have TLB
    /// entries of its shadows, which the next load invalidates.
    pub fn begin_anew(&mut self) {
        self.reset();
        self.host = 0;
    }

    /// Clears every VMCS02 (VMCLEAR) on this CPU.
    fn clear_all(&mut self) {
        self.vmcs02.iter_mut().for_each(Vmcs02::clear);
        self.put_shadow();
    }

    /// Whether a VMCS is current that is not enlightened.
    pub fn has_current(&self) -> bool {
        self.current != NONE
    }

    /// L1's address of the VMCS that is current or enlightened, or [`NONE`].
    pub fn address(&self) -> u64 {
        self.enlightened.map_or(self.current, |vmcs| vmcs.address)
    }

    /// Whether a VMCS is current or enlightened: VMfailValid needs one.
    pub fn has_vmcs(&self) -> bool {
        self.address() != NONE
    }
}

impl GuestVmx {
    /// Selects the VMCS02 of L1's current VMCS: the one that it had, or the least recently used one.
    pub fn choose_vmcs02(&mut self) {
        let address = self.address();
        self.clock += 1;
        let oldest = || self.vmcs02.iter().enumerate().min_by_key(|(_, vmcs02)| (vmcs02.of != NONE, vmcs02.used)).map_or(0, |(at, _)| at);
        let at = self.vmcs02.iter().position(|vmcs02| vmcs02.of == address).unwrap_or_else(oldest);
        let vmcs02 = &mut self.vmcs02[at];
        if vmcs02.of != address {
            vmcs02.clear();
            vmcs02.forget();
            vmcs02.of = address;
        }
        vmcs02.used = self.clock;
        self.vmcs02.swap(0, at);
    }

    /// Called when L1 has cleared its VMCS at an address.
    pub fn drop_vmcs02(&mut self, address: u64) {
        if let Some(vmcs02) = self.vmcs02.iter_mut().find(|vmcs02| vmcs02.of == address) {
            vmcs02.clear();
            vmcs02.forget();
        }
        self.replaced.take_if(|replaced| replaced.vmcs == address);
    }

    /// The VMCS02 of the current VMCS.
    #[inline(always)]
    pub fn vmcs02(&mut self) -> &mut Vmcs02 {
        let [first, ..] = &mut self.vmcs02;
        first
    }

    /// Makes VMCS02 of L1's current VMCS the processor's current VMCS.
    #[inline(always)]
    pub fn enter_vmcs02(&mut self, cpu: &Cpu) {
        let vpid = self.vpid;
        self.vmcs02().make_current(cpu, vpid);
    }
}

/// Loads the VMX operation of the vCPU, after VMCS01.
pub fn load(cpu: &mut Cpu, vmx: &mut GuestVmx) {
    if vmx.host != cpu.index + 1 {
        vmx.host = cpu.index + 1;
        invalidate_vpid(vmx.vpid.into());
        vmx.shadows.arrive(&mut Frames);
    }
    if vmx.in_l2 {
        vmx.l1_launched = false;
        cpu.launched = Launch::L2;
        // The TSC offset may have changed.
        vmx.vmcs02().forget_offset();
    }
}

/// Puts the VMX operation of the vCPU.
pub fn put(cpu: &mut Cpu, vmx: Option<&mut GuestVmx>) {
    if let Some(vmx) = vmx {
        vmx.clear_all();
    }
    cpu.launched = Launch::CLEAR;
}

/// Ends VMX operation when the vCPU is powered off by INIT or a reset.
pub fn power_down(vmx: &mut GuestVmx) {
    vmx.clear_all();
    vmx.reset();
}

/// Bytes of the arena that [`new_vcpu`] takes.
pub const VCPU_MEMORY: u64 =
    stile_board::SHADOW_MEMORY + VMCSS as u64 * Vmcs02::MEMORY + ShadowVmcs::MEMORY + PAGE_SIZE + crate::arena::room::<GuestVmx>();

/// Creates the VMX operation of a new vCPU, with its memory.
///
/// # Errors
/// No memory is left.
pub fn new_vcpu(vpid: u16, nested: Nested, arena: &'static Arena) -> Result<&'static mut GuestVmx, &'static str> {
    let at = arena.allocate_pages(stile_board::SHADOW_MEMORY)?;
    let vmcss = arena.allocate_pages(VMCSS as u64 * Vmcs02::MEMORY)?;
    let shadow = arena.allocate_pages(ShadowVmcs::MEMORY)?;
    // Without a shadow VMCS, each entry reads the assist page.
    let shadow = if nested == Nested::Enlightened { None } else { ShadowVmcs::new(shadow, &Offer::new().existing) };
    let spare = spare_page(arena)?;
    let shadows = at..at + stile_board::SHADOW_MEMORY;
    Ok(arena.allocate::<GuestVmx>()?.write(GuestVmx::new(vpid, shadows, vmcss, spare, shadow)))
}

/// Returns a page that stands for what L1 points to outside its RAM, where reads return ones.
fn spare_page(arena: &Arena) -> Result<u64, &'static str> {
    let page = arena.allocate_pages(PAGE_SIZE)?;
    fill_spare(page);
    Ok(page)
}

/// Makes reads of a spare page return ones.
fn fill_spare(page: u64) {
    // SAFETY: the page is the vCPU's, in the direct map, and only its L2s access it; none runs, as the vCPU is new or off.
    unsafe { address_space::physical(page).write_bytes(0xff, PAGE_SIZE as usize) };
}

impl GuestVmx {
    /// Enables or disables the shadow VMCS after a change of L1's current VMCS. VMCS01 is current.
    pub fn use_shadow(&self, cpu: &mut Cpu, on: bool) {
        if let Some(shadow) = &self.shadow {
            cpu.loaded().context().shadowing = shadow.use_it(on);
        }
    }

    /// Copies changes of L1's current VMCS to the shadow before L1 runs. VMCS01 is current, before and after.
    pub fn fill_shadow(&mut self, cpu: &mut Cpu) {
        if let Some(shadow) = self.shadow.as_ref().filter(|shadow| !shadow.adopted.is_empty()) {
            let adopted = shadow.adopted.fields().map(|(field, ..)| field);
            self.save(cpu, adopted);
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.fill(&self.vmcs12);
            to_vmcs01(cpu);
        }
    }

    /// Clears the shadow VMCS (VMCLEAR), which is not current: L1 may access it.
    #[cold]
    pub fn put_shadow(&self) {
        if let Some(shadow) = &self.shadow {
            shadow.put();
        }
    }

    /// Counts an access to a field of the current VMCS that exited, and shadows the field if L1 accesses it often. VMCS01 is current,
    /// before and after.
    pub fn count_access(&mut self, cpu: &mut Cpu, field: Field) {
        let Some(shadow) = &mut self.shadow else { return };
        let ledger = cpu.loaded().ledger();
        let row = ledger.row_for(reason::VMX, key::instruction(basic::VMRESUME as u32));
        let entries = ledger.row(row).count;
        if shadow.adopted.count(field, entries) {
            self.collect_shadow(cpu);
            if self.shadow.as_mut().is_some_and(|shadow| shadow.adopt(entries)) {
                self.fill_shadow(cpu);
            }
        }
    }

    /// Copies L1's writes to the shadow to its current VMCS. VMCS01 is current, before and after.
    pub fn collect_shadow(&mut self, cpu: &mut Cpu) {
        if let Some(shadow) = &mut self.shadow {
            shadow.collect(&mut self.vmcs12);
            shadow.put();
            to_vmcs01(cpu);
        }
    }
}

/// Makes VMCS01 of the loaded vCPU current.
#[inline(always)]
pub fn to_vmcs01(cpu: &mut Cpu) {
    vmcs::make_current(cpu.loaded().context().control_structure());
}
