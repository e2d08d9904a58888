//! L1's enlightened VMCSs (crate `nested-vmx`, `enlightened`). L1 names the page in its VP assist page, and enters L2 without VMPTRLD. Both
//! pages are RAM that other vCPUs and devices write at any time: what an entry uses is read once, and checked as a copy. Each vCPU has its
//! own copy, also of a page that several use.

use stile_nested_vmx::enlightened::{
    self, CLEAN_OFFSET, ERROR_OFFSET, REVISION_OFFSET, Region, STORED_GUEST, VERSION, assist, store_guest, store_information,
};
use stile_nested_vmx::fields::{COUNT, slot_of};
use stile_nested_vmx::{Field, Vmcs12, Width};
use stile_x86_decode::Width as Access;

use super::forward::{BY_CONTROLS, FREQUENT};
use super::operand::Page;
use super::state::{Enlightened, GuestVmx};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vmx::extension::entry;
use crate::arch::x86_64::vmx::vmcs;

impl Region for Page {
    #[inline(always)]
    fn read(&self, offset: usize, width: Width) -> u64 {
        self.read_at(offset, access(width))
    }

    #[inline(always)]
    fn write(&self, offset: usize, width: Width, value: u64) {
        self.write_at(offset, access(width), value);
    }
}

/// The width of an access to a field.
#[inline(always)]
const fn access(width: Width) -> Access {
    match width {
        Width::Bits16 => Access::Word,
        Width::Bits32 => Access::Dword,
        Width::Bits64 | Width::Natural => Access::Qword,
    }
}

/// Whether a page has the revision of version 1.
fn has_version(page: &Page) -> bool {
    page.read_at(REVISION_OFFSET, Access::Dword) == VERSION.into()
}

/// Defines a list of fields, and a function that reads them from VMCS02, which is current, into VMCS12, as an exit stores them.
macro_rules! saved {
    ($($(#[$comment:meta])* $list:ident, $function:ident { $($field:ident)+ })+) => {
        $($(#[$comment])*
        const $list: &[Field] = &[$(Field::$field),+];

        #[inline(always)]
        fn $function(vmcs12: &mut Vmcs12) {
            $(vmcs::read_to::<{ slot_of(Field::$field) }, COUNT>(Field::$field, vmcs12.values_mut());)+
        })+
    };
}

saved! {
    /// State of L2 that every exit saves, and whose value in VMCS02 is L2's.
    AT_EACH_EXIT, save_at_each_exit {
        GUEST_CR3 GUEST_ES GUEST_CS GUEST_SS GUEST_DS GUEST_FS GUEST_GS GUEST_LDTR GUEST_TR GUEST_ES_LIMIT GUEST_CS_LIMIT
        GUEST_SS_LIMIT GUEST_DS_LIMIT GUEST_FS_LIMIT GUEST_GS_LIMIT GUEST_LDTR_LIMIT GUEST_TR_LIMIT GUEST_GDTR_LIMIT GUEST_IDTR_LIMIT
        GUEST_ES_RIGHTS GUEST_DS_RIGHTS GUEST_FS_RIGHTS GUEST_GS_RIGHTS GUEST_LDTR_RIGHTS GUEST_TR_RIGHTS GUEST_ES_BASE GUEST_CS_BASE
        GUEST_SS_BASE GUEST_DS_BASE GUEST_FS_BASE GUEST_GS_BASE GUEST_LDTR_BASE GUEST_TR_BASE GUEST_GDTR_BASE GUEST_IDTR_BASE
        GUEST_SYSENTER_CS GUEST_SYSENTER_ESP GUEST_SYSENTER_EIP GUEST_ACTIVITY GUEST_PENDING_DEBUG
    }
    /// Used by PAE paging only.
    PDPTES, save_pdptes { GUEST_PDPTE0 GUEST_PDPTE1 GUEST_PDPTE2 GUEST_PDPTE3 }
}

/// Fields that [`forward`](super::forward::forward) and `save_control_registers` compose.
const COMPOSED: [Field; 4] = [Field::GUEST_CR0, Field::GUEST_CR4, Field::ENTRY_INTERRUPTION, Field::ENTRY_CONTROLS];

// An exit saves each field that it then stores in the page, and no other: a missing one would be the last entry's.
const _: () = {
    const SAVED: [&[Field]; 5] = [AT_EACH_EXIT, PDPTES, &FREQUENT, &BY_CONTROLS, &COMPOSED];
    let (mut list, mut count) = (0, 0);
    while list < SAVED.len() {
        let mut at = 0;
        while at < SAVED[list].len() {
            assert!(has(STORED_GUEST, SAVED[list][at]), "a saved field is not stored");
            at += 1;
        }
        count += SAVED[list].len();
        list += 1;
    }
    assert!(count == STORED_GUEST.len(), "a stored field is not saved");
};

const fn has(fields: &[Field], field: Field) -> bool {
    let mut at = 0;
    while at < fields.len() && fields[at].0 != field.0 {
        at += 1;
    }
    at < fields.len()
}

impl GuestVmx {
    /// Loads the VMCS of an entry: the enlightened one that the assist page names (changed groups only, if it is active), else the current
    /// one. Returns false if there is none: its page is outside RAM or not of version 1, or no VMCS is current. Cold: plain entries have a
    /// shadow VMCS instead.
    #[cold]
    #[inline(never)]
    pub fn load_enlightened(&mut self, cpu: &mut Cpu, launch: bool) -> bool {
        let assist = cpu.vcpu().arch.msrs.assist.page().map(Page::in_machine);
        let Some(assist) = assist.filter(|page| page.read_at(assist::ENLIGHTEN_ENTRY, Access::Byte) != 0) else {
            self.enlightened = None;
            return self.has_current();
        };
        let address = assist.read_at(assist::CURRENT_VMCS, Access::Qword);
        if let Some(vmcs) = self.enlightened.filter(|vmcs| vmcs.address == address) {
            let page = Page::in_machine(vmcs.page);
            let clean = page.read_at(CLEAN_OFFSET, Access::Dword) as u32;
            enlightened::reload(&mut self.vmcs12, &page, clean);
        } else if !self.activate_enlightened(cpu, address) {
            return false;
        }
        // There is no launch state ("Enlightened VMCS"): either instruction enters.
        self.vmcs12.set_launched(!launch);
        true
    }

    /// Reads an enlightened VMCS that was not active here, if it can be.
    #[cold]
    fn activate_enlightened(&mut self, cpu: &mut Cpu, address: u64) -> bool {
        let page = if address & 0xfff == 0 { Page::at(cpu, address) } else { None };
        let place = page.filter(has_version).and_then(|page| Some((page, cpu.vcpu().vm().arch.physical(address)?)));
        let Some((page, machine)) = place else {
            self.enlightened = None;
            return false;
        };
        self.flush(cpu);
        self.enlightened = Some(Enlightened { address, page: machine });
        enlightened::activate(&mut self.vmcs12, &page);
        self.choose_vmcs02();
        true
    }

    /// Whether an address is that of an enlightened VMCS. VMCLEAR must not write a launch state there: the layout has other fields.
    #[cold]
    pub fn is_enlightened(&self, cpu: &Cpu, address: u64) -> bool {
        self.enlightened.is_some_and(|vmcs| vmcs.address == address)
            || cpu.vcpu().vm().arch.nested.as_ref().is_some_and(|offer| offer.partition.is_some())
                && Page::at(cpu, address).is_some_and(|page| has_version(&page))
    }

    /// Stores an exit in the enlightened VMCS, if one is active: L1 reads its memory. VMCS02 is current, unless the entry failed.
    #[cold]
    #[inline(never)]
    pub fn store_enlightened_exit(&mut self) {
        let Some(Enlightened { page, .. }) = self.enlightened else { return };
        let page = Page::in_machine(page);
        store_information(&self.vmcs12, &page);
        // A failed entry leaves L2's state alone.
        if let Some(controls) = self.unsaved.take() {
            self.save_all(controls);
            store_guest(&self.vmcs12, &page);
        }
    }

    /// Stores exit information again, after a change.
    #[cold]
    pub fn store_enlightened_information(&self) {
        if let Some(Enlightened { page, .. }) = self.enlightened {
            store_information(&self.vmcs12, &Page::in_machine(page));
        }
    }

    /// Stores the number of an instruction's failure.
    #[cold]
    pub fn store_enlightened_error(&self, error: u32) {
        if let Some(Enlightened { page, .. }) = self.enlightened {
            Page::in_machine(page).write_at(ERROR_OFFSET, Access::Dword, error.into());
        }
    }

    /// Saves all state of L2 that an exit with these VM-exit controls saves and that only VMCS02 has, which is current.
    #[inline(always)]
    fn save_all(&mut self, controls: u32) {
        self.save_control_registers();
        save_at_each_exit(&mut self.vmcs12);
        if self.vmcs12.get32(Field::ENTRY_CONTROLS) & entry::IA32E_GUEST == 0 {
            save_pdptes(&mut self.vmcs12);
        }
        self.save_by_controls(controls);
    }
}
