//! The VMX operation of a vCPU, and its life on CPUs.

use core::ops::Range;

use stile_nested_vmx::shadow::Shadows;
use stile_nested_vmx::{Capabilities, FieldSet, Vmcs12};

use super::frames::Frames;
use super::shadow_vmcs::ShadowVmcs;
use super::vmcs02::{NONE, Vmcs02};
use crate::arch::x86_64::host::cpu::{Cpu, Launch};
use crate::arch::x86_64::host::instructions::rdmsr;
use crate::arch::x86_64::host::vmcs;
use crate::arch::x86_64::host::vmx::forget_vpid;
use crate::arch::x86_64::vcpu::context::CR4_OWNED;
use crate::arena::Arena;
use crate::cpu::Loaded;

/// The number of L1's VMCSs for each of which a VMCS02 is kept.
const VMCSS: usize = 4;

/// VMX as the vCPUs of a nested VM find it.
pub struct Offer {
    /// Capability MSRs.
    pub capabilities: Capabilities,
    /// Fields that its VMCSs have.
    pub existing: FieldSet,
}

impl Offer {
    /// Derives the offer from this CPU's capabilities.
    pub fn new() -> Offer {
        // SAFETY: VMX is there, with true and secondary controls (`vmx::detect`), and the MSRs that `read` asks for with them.
        let capabilities = Capabilities::read(|register| unsafe { rdmsr(register) }).offered(CR4_OWNED);
        Offer { existing: capabilities.existing_fields(), capabilities }
    }
}

/// The VMX operation of a vCPU.
pub struct GuestVmx {
    /// The address of the VMXON region, or [`NONE`].
    pub vmxon: u64,
    /// The address of the current VMCS, or [`NONE`].
    pub current: u64,
    pub vmcs12: Vmcs12,
    pub vmcs02: [Vmcs02; VMCSS],
    /// The one of the current VMCS.
    pub slot: usize,
    pub in_l2: bool,
    /// While in L2: whether VMCS01 is launched on this CPU.
    pub l1_launched: bool,
    /// L2 is entered by VMLAUNCH, and has not run since.
    pub launching: bool,
    /// L1's RFLAGS at the entry to L2, for one that fails.
    pub l1_flags: u64,
    /// The guest state that is seldom read after an exit is in VMCS02 only. The VM-exit controls of that exit, which say what it saves.
    pub unsaved: Option<u32>,
    /// Whether VMCS02 exits as soon as L2 can take an interrupt, for Stile.
    pub own_window: bool,
    pub shadows: Shadows,
    /// Where L1 reads and writes its current VMCS without exits, if the CPU can.
    pub shadow: Option<ShadowVmcs>,
    /// The processor's VPID of L2s, and L1's one that it stands for.
    pub vpid: u16,
    pub vpid12: u16,
    /// The CPU that the vCPU was loaded on last, counted from 1.
    pub host: usize,
    pub clock: u64,
}

impl GuestVmx {
    /// A vCPU that is not in VMX operation. `reserved`: the memory of its shadow tables; `vmcss`: that of each [`Vmcs02`].
    fn new(vpid: u16, reserved: Range<u64>, vmcss: u64, shadow: Option<ShadowVmcs>) -> GuestVmx {
        GuestVmx {
            vmxon: NONE,
            current: NONE,
            vmcs12: Vmcs12::new(),
            vmcs02: core::array::from_fn(|index| Vmcs02::new(vmcss + index as u64 * Vmcs02::MEMORY)),
            slot: 0,
            in_l2: false,
            l1_launched: false,
            launching: false,
            l1_flags: 0,
            unsaved: None,
            own_window: false,
            shadows: Shadows::new(reserved),
            shadow,
            vpid,
            vpid12: 0,
            host: 0,
            clock: 0,
        }
    }

    /// As after reset or INIT. Each VMCS02 is on no CPU.
    fn reset(&mut self) {
        self.vmxon = NONE;
        self.current = NONE;
        self.in_l2 = false;
        self.unsaved = None;
        self.own_window = false;
        self.shadows.reset(&mut Frames);
        self.vmcs02.iter_mut().for_each(Vmcs02::forget);
        if let Some(shadow) = &mut self.shadow {
            shadow.forget();
        }
    }

    /// The vCPU, which is off, begins anew. A CPU that let go of it while it was on has not reset this, and may have translations of its
    /// shadows: they are invalidated when it is loaded.
    pub fn begin_anew(&mut self) {
        self.reset();
        self.host = 0;
    }

    /// Takes every VMCS02 off this CPU.
    fn clear_all(&mut self) {
        self.vmcs02.iter_mut().for_each(Vmcs02::clear);
        if let Some(shadow) = &self.shadow {
            shadow.put();
        }
    }

    /// Whether a VMCS is current.
    pub fn has_current(&self) -> bool {
        self.current != NONE
    }
}

impl GuestVmx {
    /// Chooses the VMCS02 of L1's current VMCS: the one that it had, or that of the one that was least recently used.
    pub fn choose_vmcs02(&mut self) {
        self.clock += 1;
        let oldest = || self.vmcs02.iter().enumerate().min_by_key(|(_, vmcs02)| (vmcs02.of != NONE, vmcs02.used)).map_or(0, |(at, _)| at);
        let at = self.vmcs02.iter().position(|vmcs02| vmcs02.of == self.current).unwrap_or_else(oldest);
        let vmcs02 = &mut self.vmcs02[at];
        if vmcs02.of != self.current {
            vmcs02.clear();
            vmcs02.forget();
            vmcs02.of = self.current;
        }
        vmcs02.used = self.clock;
        self.slot = at;
    }

    /// L1 has cleared its VMCS at an address.
    pub fn drop_vmcs02(&mut self, address: u64) {
        if let Some(vmcs02) = self.vmcs02.iter_mut().find(|vmcs02| vmcs02.of == address) {
            vmcs02.clear();
            vmcs02.forget();
        }
    }

    /// The VMCS02 of the current VMCS.
    pub fn vmcs02(&mut self) -> &mut Vmcs02 {
        // Its index is one of an element.
        &mut self.vmcs02[self.slot % VMCSS]
    }

    /// Makes VMCS02 of the current VMCS the processor's.
    pub fn enter_vmcs02(&mut self, cpu: &Cpu) {
        let vpid = self.vpid;
        self.vmcs02().make_current(cpu, vpid);
    }
}

/// Brings the VMX operation of the loaded vCPU onto this CPU, after VMCS01.
pub fn load(cpu: &mut Cpu) {
    let Some((cpu, vmx)) = cpu.with_vmx() else { return };
    if vmx.host != cpu.index + 1 {
        vmx.host = cpu.index + 1;
        forget_vpid(vmx.vpid.into());
        vmx.shadows.arrive(&mut Frames);
    }
    if vmx.in_l2 {
        vmx.l1_launched = false;
        cpu.launched = Launch::L2;
        // The offset of the counter may have changed.
        vmx.vmcs02[vmx.slot].forget_offset();
    }
}

/// Takes the VMX operation of a vCPU that is put off this CPU.
pub fn put(cpu: &mut Cpu, vcpu: Loaded<'_>) {
    if let Some(vmx) = vcpu.vmx() {
        vmx.clear_all();
    }
    cpu.launched = Launch::CLEAR;
}

/// The vCPU was turned off: INIT ends VMX operation, and so does a reset.
pub fn power_down(vcpu: Loaded<'_>) {
    if let Some(vmx) = vcpu.vmx() {
        vmx.clear_all();
        vmx.reset();
    }
}

/// The VMX operation of a new vCPU, and the memory that it needs.
///
/// # Errors
/// There is not enough.
pub fn new_vcpu(vpid: u16, arena: &'static Arena) -> Result<&'static mut GuestVmx, &'static str> {
    let at = arena.allocate_pages(stile_board::SHADOW_MEMORY)?;
    let vmcss = arena.allocate_pages(VMCSS as u64 * Vmcs02::MEMORY)?;
    let shadow = ShadowVmcs::new(arena.allocate_pages(ShadowVmcs::MEMORY)?);
    Ok(arena.allocate::<GuestVmx>()?.write(GuestVmx::new(vpid, at..at + stile_board::SHADOW_MEMORY, vmcss, shadow)))
}

impl GuestVmx {
    /// L1, which is loaded, has a current VMCS that it reads and writes without exits, or none. VMCS01 is current.
    pub fn use_shadow(&self, cpu: &mut Cpu, on: bool) {
        if let Some(shadow) = &self.shadow {
            cpu.loaded().context().shadowing = shadow.use_it(on);
        }
    }

    /// L1 is about to run: it finds what has changed of its current VMCS. VMCS01 is current, before and after.
    pub fn fill_shadow(&mut self, cpu: &mut Cpu) {
        if let Some(shadow) = &mut self.shadow {
            shadow.fill(&self.vmcs12);
            to_vmcs01(cpu);
        }
    }

    /// Collects L1's writes to its current VMCS that made no exit. VMCS01 is current, before and after.
    pub fn collect_shadow(&mut self, cpu: &mut Cpu) {
        if let Some(shadow) = &mut self.shadow {
            shadow.collect(&mut self.vmcs12);
            to_vmcs01(cpu);
        }
    }
}

/// Makes VMCS01 of the loaded vCPU current.
pub fn to_vmcs01(cpu: &mut Cpu) {
    vmcs::make_current(cpu.loaded().context().vmcs());
}
