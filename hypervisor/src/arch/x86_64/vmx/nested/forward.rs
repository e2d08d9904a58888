//! VM exits to L1: stores exit information and L2's state in VMCS12, and loads L1's host state into VMCS01 (the
//! manual, "VM Exits").

use stile_nested_vmx::fields::{self, COUNT, slot_of};
use stile_nested_vmx::intercepts::{has_addresses, has_instruction_information};
use stile_nested_vmx::{Field, Kind, Vmcs12};
use stile_speculation::x86_64::leaf_7;

use super::end::{self, Abort};
use super::lists;
use super::rows::forwarded_row;
use super::state::{Entering, GuestVmx, NMI_WAS_BLOCKED, to_vmcs01};
use crate::arch::x86_64::host::cpu::{Cpu, Launch};
use crate::arch::x86_64::host::speculation;
use crate::arch::x86_64::interrupts::events;
use crate::arch::x86_64::vcpu::cr0::{self, HELD};
use crate::arch::x86_64::vcpu::inject::{self, NMI_BLOCKED, TYPE, VALID};
use crate::arch::x86_64::vcpu::msrs;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension::{self, entry, exit, pin, secondary};
use crate::arch::x86_64::vmx::vmcs;
use crate::cpu::Outcome;

/// An exit to L1.
#[derive(Clone, Copy, Default)]
pub struct Exit {
    pub reason: u64,
    pub qualification: u64,
    /// Event that caused the exit, with its error code.
    pub event: u64,
    pub code: u64,
    /// Event that was being delivered, with its error code.
    pub delivering: u64,
    pub delivering_code: u64,
}

/// Interruption-information bit: error code valid.
const HAS_CODE: u64 = 1 << 11;

impl Exit {
    /// The processor's exit information, with another reason.
    pub fn read(reason: u64) -> Exit {
        // Exits by external interrupts are not read.
        let event = if reason == basic::EXCEPTION { vmcs::read(Field::EXIT_INTERRUPTION) } else { 0 };
        let exit = Exit { reason, qualification: vmcs::read(Field::EXIT_QUALIFICATION), event, ..Exit::default() };
        let code = if event & VALID != 0 && event & HAS_CODE != 0 { vmcs::read(Field::EXIT_INTERRUPTION_CODE) } else { 0 };
        Exit { code, ..exit.with_delivery() }
    }

    /// With the event whose delivery the exit interrupted.
    fn with_delivery(self) -> Exit {
        let delivering = vmcs::read(Field::VECTORING);
        if delivering & VALID == 0 {
            return Exit { delivering: 0, ..self };
        }
        let delivering_code = if delivering & HAS_CODE != 0 { vmcs::read(Field::VECTORING_CODE) } else { 0 };
        Exit { delivering, delivering_code, ..self }
    }
}

macro_rules! frequent {
    ($count:literal: $($field:ident),+) => {
        /// Guest state that L1 reads at most exits, or writes before most entries. Of CS and SS it reads whether code has 64 bits, and the
        /// privilege level.
        pub const FREQUENT: [Field; $count] = [$(Field::$field),+];

        /// Saves it, with VMCS02 current.
        #[inline(always)]
        fn save_frequent(vmcs12: &mut Vmcs12) {
            $(vmcs::read_to::<{ slot_of(Field::$field) }, COUNT>(Field::$field, vmcs12.values_mut());)+
        }
    };
}

frequent!(6: GUEST_RIP, GUEST_RSP, GUEST_RFLAGS, GUEST_INTERRUPTIBILITY, GUEST_CS_RIGHTS, GUEST_SS_RIGHTS);

/// Copies fields of VMCS12 to VMCS01, which is current.
macro_rules! copy {
    ($vmcs12:expr, $($guest:ident = $host:ident),+ $(,)?) => {
        $(vmcs::write_from::<{ slot_of(Field::$host) }, COUNT>(Field::$guest, $vmcs12.values());)+
    };
}

/// Exits to L1, with VMCS02 current.
#[inline(never)]
pub fn forward(cpu: &mut Cpu, vmx: &mut GuestVmx, exit: &Exit) -> Outcome {
    forward_at_once(cpu, vmx, exit)
}

/// [`forward`], in the place of the call.
#[inline(always)]
pub fn forward_at_once(cpu: &mut Cpu, vmx: &mut GuestVmx, exit: &Exit) -> Outcome {
    let vmcs12 = &mut vmx.vmcs12;
    let information = [
        (Field::EXIT_REASON, exit.reason),
        (Field::EXIT_QUALIFICATION, exit.qualification),
        (Field::EXIT_INTERRUPTION, exit.event),
        (Field::EXIT_INTERRUPTION_CODE, exit.code),
        (Field::VECTORING, exit.delivering),
        (Field::VECTORING_CODE, exit.delivering_code),
        (Field::EXIT_LENGTH, vmcs::read(Field::EXIT_LENGTH)),
    ];
    for (field, value) in information {
        vmcs12.set_from_exit(field, value);
    }
    // Other exits leave these undefined.
    if has_instruction_information(exit.reason) {
        vmcs12.set_from_exit(Field::EXIT_INSTRUCTION, vmcs::read(Field::EXIT_INSTRUCTION));
    }
    if has_addresses(exit.reason) {
        vmcs12.set_from_exit(Field::GUEST_LINEAR, vmcs::read(Field::GUEST_LINEAR));
        vmcs12.set_from_exit(Field::GUEST_PHYSICAL, vmcs::read(Field::GUEST_PHYSICAL));
    }
    save_frequent(vmcs12);
    if vmx.secondary12() & secondary::INTERRUPT_DELIVERY != 0 {
        vmx.vmcs12.set_from_exit(Field::GUEST_INTERRUPT_STATUS, vmcs::read(Field::GUEST_INTERRUPT_STATUS));
    }
    vmx.stop_timer(cpu, exit.reason);
    let vmcs12 = &mut vmx.vmcs12;
    let event = vmcs12.get(Field::ENTRY_INTERRUPTION);
    vmcs12.set_from_exit(Field::ENTRY_INTERRUPTION, event & !VALID);
    if vmx.secondary12() & secondary::UNRESTRICTED_GUEST != 0 {
        // The processor stores EFER.LMA there.
        let ia32e = u64::from(entry::IA32E_GUEST);
        let stored = vmcs::read(Field::ENTRY_CONTROLS);
        let controls = vmx.vmcs12.get(Field::ENTRY_CONTROLS) & !ia32e | stored & ia32e;
        vmx.vmcs12.set_from_exit(Field::ENTRY_CONTROLS, controls);
        vmx.vmcs02().note_entry_controls(stored);
    }
    vmx.unsaved = Some(vmx.vmcs12.get32(Field::EXIT_CONTROLS));
    let stored = vmx.vmcs12.get32(Field::EXIT_MSR_STORES) == 0 || lists::store(cpu, vmx);
    leave_l2(cpu, vmx, exit, stored)
}

/// Exits to L1 because its tables deny an access that Stile made for L2, whose addresses the processor has not
/// reported. VMCS02 is current.
#[cold]
pub fn forward_access(cpu: &mut Cpu, vmx: &mut GuestVmx, exit: &Exit, linear: u64, physical: u64) -> Outcome {
    let outcome = forward(cpu, vmx, exit);
    vmx.vmcs12.set_from_exit(Field::GUEST_LINEAR, linear);
    vmx.vmcs12.set_from_exit(Field::GUEST_PHYSICAL, physical);
    vmx.fill_shadow(cpu);
    vmx.store_enlightened_information();
    outcome
}

/// Exits to L1 instead of entering L2 with the pending injection `event`, which L1 sees in the IDT-vectoring fields. VMCS02 is current.
#[cold]
pub fn forward_instead_of_entry(cpu: &mut Cpu, vmx: &mut GuestVmx, reason: u64, event: u64) -> Outcome {
    const SOFTWARE_INTERRUPT: u64 = 4 << 8;
    const OTHER: u64 = 7 << 8;
    vmcs::write(Field::ENTRY_INTERRUPTION, 0);
    let (code, length) = (vmcs::read(Field::ENTRY_ERROR_CODE), vmcs::read(Field::ENTRY_LENGTH));
    let exit = match event & TYPE {
        _ if event & VALID == 0 => Exit { reason, ..Exit::default() },
        // A pending exit of the monitor trap flag precedes others.
        OTHER => Exit { reason: basic::MONITOR_TRAP, ..Exit::default() },
        _ => Exit { reason, delivering: event, delivering_code: if event & HAS_CODE != 0 { code } else { 0 }, ..Exit::default() },
    };
    if inject::is_nmi(exit.delivering) {
        inject::block_nmis();
    }
    let outcome = forward(cpu, vmx, &exit);
    if exit.delivering & TYPE >= SOFTWARE_INTERRUPT {
        vmx.vmcs12.set_from_exit(Field::EXIT_LENGTH, length);
        vmx.fill_shadow(cpu);
        vmx.store_enlightened_information();
    }
    outcome
}

/// A failed entry to L2: L1's guest state is unchanged. VMCS02 or VMCS01 is current.
pub fn refused(cpu: &mut Cpu, vmx: &mut GuestVmx, exit: &Exit) -> Outcome {
    vmx.vmcs12.set_from_exit(Field::EXIT_REASON, exit.reason);
    vmx.vmcs12.set_from_exit(Field::EXIT_QUALIFICATION, exit.qualification);
    vmx.timer = None;
    if vmx.entering.take() == Some(Entering::Launch) {
        vmx.vmcs12.set_launched(false);
    }
    // The event remains L1's.
    vmcs::write(Field::ENTRY_INTERRUPTION, 0);
    let outcome = leave_l2(cpu, vmx, exit, true);
    vmx.restore_nmi_blocking(cpu);
    outcome
}

/// Loads L1's host state. `stored`: L1's MSR-store list was valid.
#[inline(always)]
fn leave_l2(cpu: &mut Cpu, vmx: &mut GuestVmx, exit: &Exit, stored: bool) -> Outcome {
    // L1 relies on IBRS against the code that it runs, but the processor does not know L2 from L1.
    if msrs::has(leaf_7::IBRS_IBPB) {
        speculation::barrier();
    }
    let controls = vmx.vmcs12.get32(Field::EXIT_CONTROLS);
    let kept = |loaded: u32, field| if controls & loaded == 0 { vmcs::read(field) } else { 0 };
    let (efer, pat) = (kept(exit::LOAD_EFER, Field::GUEST_EFER), kept(exit::LOAD_PAT, Field::GUEST_PAT));
    match &mut vmx.shadow {
        Some(shadow) if shadow.is_plain() => shadow.fill_at_exit(&vmx.vmcs12),
        Some(_) => vmx.fill_shadow(cpu),
        None => vmx.store_enlightened_exit(),
    }
    to_vmcs01(cpu);
    vmx.in_l2 = false;
    cpu.launched = u64::from(vmx.l1_launched);
    let has_pdptes = load_host_state(cpu, vmx, exit, efer, pat);
    let row = forwarded_row(cpu, vmx, exit.reason);
    let loads_none = vmx.vmcs12.get32(Field::EXIT_MSR_LOADS) == 0;
    if !(stored && has_pdptes && (loads_none || lists::load_at_exit(cpu, vmx))) {
        let cause = match (stored, has_pdptes) {
            (false, _) => Abort::SavingMsrs,
            (true, false) => Abort::HostPdptes,
            (true, true) => Abort::LoadingMsrs,
        };
        return end::abort(cpu, vmx, row, cause);
    }
    let outcome = Outcome::again(row);
    if cpu.launched == Launch::LAUNCHED { outcome } else { outcome.choosing_entry() }
}

/// Returns whether the PDPTEs are valid, if there are any ("Checking and Loading Host Page-Directory-Pointer-Table Entries").
#[inline(always)]
fn load_host_state(cpu: &Cpu, vmx: &GuestVmx, exit: &Exit, efer: u64, pat: u64) -> bool {
    const LMA_LME: u64 = 1 << 10 | 1 << 8;
    const UNUSABLE: u64 = 1 << 16;
    /// Access rights as an exit loads them ("Loading Host Segment and Descriptor-Table Registers").
    const CODE: u64 = 0x809b;
    const CODE_64: u64 = 1 << 13;
    const SIZE_32: u64 = 1 << 14;
    const DATA: u64 = 0xc093;
    const TASK: u64 = 0x8b;
    const PAE: u64 = 1 << 5;
    let get = |field| vmx.vmcs12.get(field);
    let controls = vmx.vmcs12.get32(Field::EXIT_CONTROLS);
    let is_64 = controls & exit::HOST_64 != 0;
    let host_cr0 = get(Field::HOST_CR0);
    // CD and NW keep L1's values.
    let cr0_shadow = host_cr0 & !(HELD & !cr0::NE) | vmcs::read(Field::CR0_SHADOW) & HELD & !cr0::NE;
    let cr4 = get(Field::HOST_CR4);
    let efer = if controls & exit::LOAD_EFER != 0 { get(Field::HOST_EFER) } else { efer & !LMA_LME | if is_64 { LMA_LME } else { 0 } };
    let fields = [
        // RFLAGS has had that value, which an exit sets, since the entry to L2.
        (Field::GUEST_CR0, host_cr0 & !(HELD & !cr0::NE) | cr0::NE | cr0::ET),
        (Field::CR0_SHADOW, cr0_shadow),
        (Field::GUEST_CR4, cr4 | extension::features().cr4.0),
        (Field::CR4_SHADOW, cr4),
        (Field::GUEST_EFER, efer),
        (Field::GUEST_PAT, if controls & exit::LOAD_PAT != 0 { get(Field::HOST_PAT) } else { pat }),
        (Field::GUEST_DR7, 0x400),
        (Field::GUEST_DEBUGCTL, 0),
        // L1 has executed VMRESUME: it is active and has no pending debug exception, and the entry has ended its blocking of interrupts.
        (Field::GUEST_CS_BASE, 0),
        (Field::GUEST_CS_LIMIT, 0xffff_ffff),
        (Field::GUEST_CS_RIGHTS, CODE | if is_64 { CODE_64 } else { SIZE_32 }),
        (Field::GUEST_ES_BASE, 0),
        (Field::GUEST_SS_BASE, 0),
        (Field::GUEST_DS_BASE, 0),
        (Field::GUEST_ES_LIMIT, 0xffff_ffff),
        (Field::GUEST_SS_LIMIT, 0xffff_ffff),
        (Field::GUEST_DS_LIMIT, 0xffff_ffff),
        (Field::GUEST_FS_LIMIT, 0xffff_ffff),
        (Field::GUEST_GS_LIMIT, 0xffff_ffff),
        (Field::GUEST_TR_LIMIT, 0x67),
        (Field::GUEST_TR_RIGHTS, TASK),
        (Field::GUEST_LDTR, 0),
        (Field::GUEST_LDTR_RIGHTS, UNUSABLE),
        (Field::GUEST_GDTR_LIMIT, 0xffff),
        (Field::GUEST_IDTR_LIMIT, 0xffff),
    ];
    copy!(
        vmx.vmcs12,
        GUEST_RIP = HOST_RIP,
        GUEST_RSP = HOST_RSP,
        GUEST_CR3 = HOST_CR3,
        GUEST_CS = HOST_CS,
        GUEST_TR = HOST_TR,
        GUEST_FS_BASE = HOST_FS_BASE,
        GUEST_GS_BASE = HOST_GS_BASE,
        GUEST_TR_BASE = HOST_TR_BASE,
        GUEST_GDTR_BASE = HOST_GDTR_BASE,
        GUEST_IDTR_BASE = HOST_IDTR_BASE,
        GUEST_SYSENTER_CS = HOST_SYSENTER_CS,
        GUEST_SYSENTER_ESP = HOST_SYSENTER_ESP,
        GUEST_SYSENTER_EIP = HOST_SYSENTER_EIP,
    );
    for (field, value) in fields {
        vmcs::write(field, value);
    }
    let blocking = vmx.nmi_blocking(cpu, exit);
    if blocking != 0 {
        vmcs::write(Field::GUEST_INTERRUPTIBILITY, blocking);
    }
    let selectors = [
        (Field::GUEST_ES, Field::HOST_ES, Field::GUEST_ES_RIGHTS),
        (Field::GUEST_SS, Field::HOST_SS, Field::GUEST_SS_RIGHTS),
        (Field::GUEST_DS, Field::HOST_DS, Field::GUEST_DS_RIGHTS),
        (Field::GUEST_FS, Field::HOST_FS, Field::GUEST_FS_RIGHTS),
        (Field::GUEST_GS, Field::HOST_GS, Field::GUEST_GS_RIGHTS),
    ];
    for (field, host, rights) in selectors {
        let selector = get(host);
        vmcs::write(field, selector);
        vmcs::write(rights, DATA | if selector == 0 { UNUSABLE } else { 0 });
    }
    let has_pdptes = is_64 || cr4 & PAE == 0 || cr0::load_cr3(cpu.vcpu().vm());
    // Without VPIDs each exit invalidates as well.
    if vmx.secondary12() & secondary::VPID == 0 {
        extension::invalidate_vpid(vmcs::read(Field::VPID));
    }
    has_pdptes
}

/// Makes an NMI that the next entry to L1 would inject pending again: L1 blocks it. VMCS01 is current.
#[cold]
fn hold_nmi(cpu: &Cpu) {
    if inject::is_nmi(vmcs::read(Field::ENTRY_INTERRUPTION)) {
        vmcs::write(Field::ENTRY_INTERRUPTION, 0);
        events::nmi(cpu.vcpu());
    }
}

impl GuestVmx {
    /// Blocking by NMI after an exit, in the format of the interruptibility field: an exit by an NMI causes it, and others leave it as it
    /// was in L2 ("Updating Non-Register State"), where virtual NMIs exclude it ("Interruptibility State"). VMCS01 is current.
    #[inline(always)]
    fn nmi_blocking(&self, cpu: &Cpu, exit: &Exit) -> u64 {
        if inject::is_nmi(exit.event) {
            return NMI_BLOCKED;
        }
        let has_virtual_nmis = self.vmcs12.get32(Field::PIN_CONTROLS) & pin::VIRTUAL_NMIS != 0;
        let blocking = if has_virtual_nmis { 0 } else { self.vmcs12.get(Field::GUEST_INTERRUPTIBILITY) & NMI_BLOCKED };
        if blocking != 0 {
            hold_nmi(cpu);
        }
        blocking
    }

    /// Restores blocking by NMI in L1 after an entry that failed. VMCS01 is current.
    pub fn restore_nmi_blocking(&self, cpu: &Cpu) {
        let was_blocked = self.l1_flags & NMI_WAS_BLOCKED != 0;
        if was_blocked {
            hold_nmi(cpu);
        }
        vmcs::write(Field::GUEST_INTERRUPTIBILITY, if was_blocked { NMI_BLOCKED } else { 0 });
    }

    /// Saves a control register of L2 as L1 reads it: bits in L1's mask as L1 wrote them, bits in Stile's mask alone as L2 reads them.
    /// L1 has not written the mask since the exit. VMCS02 is current.
    fn save_control_register(&mut self, register: Field, mask: Field, shadow: Field) {
        let (held, of_l1) = (vmcs::read(mask), self.vmcs12.get(mask));
        let value = vmcs::read(register) & !held | self.vmcs12.get(register) & of_l1 | vmcs::read(shadow) & held & !of_l1;
        self.vmcs12.set_from_exit(register, value);
    }

    /// Saves L2's CR0 and CR4. VMCS02 is current.
    #[inline(always)]
    pub fn save_control_registers(&mut self) {
        self.save_control_register(Field::GUEST_CR0, Field::CR0_MASK, Field::CR0_SHADOW);
        self.save_control_register(Field::GUEST_CR4, Field::CR4_MASK, Field::CR4_SHADOW);
    }

    /// Saves those of [`BY_CONTROLS`] that an exit with these VM-exit controls saves. VMCS02 is current.
    #[inline(always)]
    pub fn save_by_controls(&mut self, controls: u32) {
        for field in BY_CONTROLS {
            if is_saved(field, controls) {
                self.vmcs12.set_from_exit(field, vmcs::read(field));
            }
        }
    }

    /// Saves the remaining state of L2, which only VMCS02 has. VMCS01 is current, before and after.
    pub fn save_rest(&mut self, cpu: &mut Cpu) {
        if self.unsaved.is_some() {
            self.save(cpu, fields::of_kind(Kind::Guest).map(|row| row.field));
            self.unsaved = None;
        }
    }

    /// Saves the state of L2 that is checked, or composed, together with fields that L1 often writes. VMCS01 is current, before and after.
    pub fn save_checked(&mut self, cpu: &mut Cpu) {
        const CHECKED: [Field; 5] =
            [Field::GUEST_CR0, Field::GUEST_CR4, Field::GUEST_ACTIVITY, Field::GUEST_PENDING_DEBUG, Field::GUEST_DEBUGCTL];
        self.save(cpu, CHECKED);
    }

    /// Saves fields of L2's state if only VMCS02 has them. VMCS01 is current, before and after.
    pub fn save(&mut self, cpu: &mut Cpu, fields: impl IntoIterator<Item = Field>) {
        let Some(controls) = self.unsaved else { return };
        self.enter_vmcs02(cpu);
        for field in fields {
            match field {
                Field::GUEST_CR0 => self.save_control_register(field, Field::CR0_MASK, Field::CR0_SHADOW),
                Field::GUEST_CR4 => self.save_control_register(field, Field::CR4_MASK, Field::CR4_SHADOW),
                _ if is_saved(field, controls) => self.vmcs12.set_from_exit(field, vmcs::read(field)),
                _ => {}
            }
        }
        to_vmcs01(cpu);
    }

    /// Whether the value of a field may be in VMCS02 only.
    #[inline(always)]
    pub fn is_unsaved(&self, field: Field) -> bool {
        self.unsaved.is_some_and(|controls| is_saved(field, controls))
    }
}

/// Registers of L2 that an exit saves only if VM-exit controls request it.
pub const BY_CONTROLS: [Field; 4] = [Field::GUEST_DEBUGCTL, Field::GUEST_DR7, Field::GUEST_PAT, Field::GUEST_EFER];

/// Whether an exit with these VM-exit controls saves a field, other than those that [`forward`] saves at once.
fn is_saved(field: Field, controls: u32) -> bool {
    match field {
        Field::GUEST_DEBUGCTL | Field::GUEST_DR7 => controls & exit::SAVE_DEBUG != 0,
        Field::GUEST_PAT => controls & exit::SAVE_PAT != 0,
        Field::GUEST_EFER => controls & exit::SAVE_EFER != 0,
        Field::VMCS_LINK
        | Field::GUEST_SMBASE
        | Field::GUEST_INTERRUPT_STATUS
        | Field::PREEMPTION_TIMER
        | Field::PAGE_MODIFICATION_LOG_INDEX => false,
        _ => matches!(field.kind(), Kind::Guest) && !FREQUENT.contains(&field),
    }
}
