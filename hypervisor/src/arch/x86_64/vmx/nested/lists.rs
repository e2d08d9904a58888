//! L1's VM-entry MSR-load and VM-exit MSR-store and MSR-load areas (the manual, "Loading MSRs", "Saving MSRs").

use stile_nested_vmx::Field;
use stile_nested_vmx::checks::msr_area::{ENTRY_SIZE, Entry, LIMIT, SLOW_LIMIT};
use stile_paging::PAGE_SIZE;

use super::l1_msrs;
use super::merge::LBR;
use super::operand::Page;
use super::state::{GuestVmx, to_vmcs01};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::{cpuid, msr, rdmsr, wrmsr};
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::vmx::vmcs;

/// Loads the VM-entry MSR-load area, with VMCS02 current. Returns the number of the entry that fails, from 1.
pub fn load_at_entry(cpu: &mut Cpu, vmx: &mut GuestVmx) -> Result<(), u64> {
    let (count, area) = (vmx.vmcs12.get32(Field::ENTRY_MSR_LOADS), vmx.vmcs12.get(Field::ENTRY_MSR_LOAD_AREA));
    load(cpu, vmx, count, area)
}

/// Loads the VM-exit MSR-load area, with VMCS01 current. Returns false if an entry fails: a VMX abort.
pub fn load_at_exit(cpu: &mut Cpu, vmx: &mut GuestVmx) -> bool {
    let (count, area) = (vmx.vmcs12.get32(Field::EXIT_MSR_LOADS), vmx.vmcs12.get(Field::EXIT_MSR_LOAD_AREA));
    load(cpu, vmx, count, area).is_ok()
}

/// Stores the VM-exit MSR-store area, with VMCS02 current. Returns false if an entry fails: a VMX abort.
pub fn store(cpu: &mut Cpu, vmx: &mut GuestVmx) -> bool {
    let count = vmx.vmcs12.get32(Field::EXIT_MSR_STORES);
    let mut area = Area::new(vmx.vmcs12.get(Field::EXIT_MSR_STORE_AREA));
    let mut slow = SLOW_LIMIT;
    (0..u64::from(count)).all(|index| {
        let Some((page, word)) = area.place(cpu, index) else { return false };
        let entry = Entry::new([page.read(word), page.read(word + 1)]);
        let Some(value) = read(cpu, vmx, entry, &mut slow) else { return false };
        page.write(word + 1, value);
        true
    })
}

fn load(cpu: &mut Cpu, vmx: &mut GuestVmx, count: u32, area: u64) -> Result<(), u64> {
    let mut area = Area::new(area);
    let mut slow = SLOW_LIMIT;
    for index in 0..u64::from(count) {
        let is_last = index + 1 == u64::from(count);
        let loaded = area.entry(cpu, index).is_some_and(|entry| {
            let is_replaced = is_tsc(entry) && !is_last && area.entry(cpu, index + 1).is_some_and(is_tsc);
            is_replaced || write(cpu, vmx, entry, &mut slow)
        });
        if !loaded {
            return Err(index + 1);
        }
    }
    Ok(())
}

/// Whether an entry loads the time-stamp counter, which takes any value: of adjacent entries, only the last one has an effect.
fn is_tsc(entry: Entry) -> bool {
    entry.msr == msr::TSC && entry.reserved == 0
}

/// An area, which is translated once for each page: an exit may go through three of them.
struct Area {
    start: u64,
    /// The last page, and its number.
    page: Option<(u64, Page)>,
}

impl Area {
    /// An area at this address, which is a multiple of [`ENTRY_SIZE`].
    const fn new(start: u64) -> Area {
        Area { start, page: None }
    }

    /// The page with an entry, and the index of its first word. `None` beyond [`LIMIT`] and outside RAM.
    #[inline(always)]
    fn place(&mut self, cpu: &Cpu, index: u64) -> Option<(Page, usize)> {
        if index >= LIMIT.into() {
            return None;
        }
        let at = self.start.wrapping_add(index * ENTRY_SIZE);
        let number = at / PAGE_SIZE;
        let page = match self.page {
            Some((known, page)) if known == number => page,
            _ => {
                let page = Page::at(cpu, at)?;
                self.page = Some((number, page));
                page
            }
        };
        Some((page, at as usize / 8))
    }

    #[inline(always)]
    fn entry(&mut self, cpu: &Cpu, index: u64) -> Option<Entry> {
        let (page, word) = self.place(cpu, index)?;
        Some(Entry::new([page.read(word), page.read(word + 1)]))
    }
}

/// Field of the current VMCS with an MSR of the guest.
fn field(register: u32) -> Option<Field> {
    Some(match register {
        msr::SYSENTER_CS => Field::GUEST_SYSENTER_CS,
        msr::SYSENTER_ESP => Field::GUEST_SYSENTER_ESP,
        msr::SYSENTER_EIP => Field::GUEST_SYSENTER_EIP,
        msr::IA32_PAT => Field::GUEST_PAT,
        msr::IA32_EFER => Field::GUEST_EFER,
        msr::DEBUGCTL => Field::GUEST_DEBUGCTL,
        msr::FS_BASE => Field::GUEST_FS_BASE,
        msr::GS_BASE => Field::GUEST_GS_BASE,
        _ => return None,
    })
}

/// Whether the CPU holds an MSR of the loaded vCPU.
fn is_in_cpu(register: u32) -> bool {
    /// EDX of leaf 0x8000_0001.
    const RDTSCP: u32 = 1 << 27;
    match register {
        msr::STAR | msr::LSTAR | msr::CSTAR | msr::FMASK | msr::KERNEL_GS_BASE => true,
        msr::TSC_AUX => cpuid(0x8000_0001, 0).edx & RDTSCP != 0,
        _ => false,
    }
}

/// Calls the handler of an access of L1's to an MSR with VMCS01 current, then restores the current VMCS. Fails if its cost is more than
/// is left of `slow`.
fn with_vmcs01<T>(cpu: &mut Cpu, vmx: &mut GuestVmx, cost: u32, slow: &mut u32, work: impl FnOnce(&mut Cpu) -> Option<T>) -> Option<T> {
    *slow = slow.checked_sub(cost)?;
    to_vmcs01(cpu);
    let done = work(cpu);
    if vmx.in_l2 {
        vmx.enter_vmcs02(cpu);
    }
    done
}

fn read(cpu: &mut Cpu, vmx: &mut GuestVmx, entry: Entry, slow: &mut u32) -> Option<u64> {
    if !entry.may_store(cpu.has_x2apic()) {
        return None;
    }
    match field(entry.msr) {
        Some(field) => Some(vmcs::read(field)),
        // SAFETY: every CPU in 64-bit mode has these; TSC_AUX exists with RDTSCP, which `is_in_cpu` checks.
        None if is_in_cpu(entry.msr) => Some(unsafe { rdmsr(entry.msr) }),
        None if entry.msr == msr::TSC => Some(timer::now().wrapping_add(cpu.vcpu().arch.msrs.tsc_offset())),
        None => with_vmcs01(cpu, vmx, 1, slow, |cpu| l1_msrs::read(cpu, entry.msr)),
    }
}

fn write(cpu: &mut Cpu, vmx: &mut GuestVmx, entry: Entry, slow: &mut u32) -> bool {
    const LME: u64 = 1 << 8;
    const LMA: u64 = 1 << 10;
    const EFER: u64 = 1 << 11 | 1 << 0 | LMA | LME;
    let value = match entry.msr {
        // LMA is read-only.
        msr::IA32_EFER => entry.value & !LMA | vmcs::read(Field::GUEST_EFER) & LMA,
        _ => entry.value,
    };
    let is_canonical = (value as i64) << 16 >> 16 == value as i64;
    let is_valid = match entry.msr {
        msr::LSTAR | msr::CSTAR | msr::KERNEL_GS_BASE | msr::SYSENTER_ESP | msr::SYSENTER_EIP => is_canonical,
        msr::FMASK | msr::TSC_AUX => value >> 32 == 0,
        msr::IA32_PAT => value.to_le_bytes().iter().all(|kind| matches!(kind, 0 | 1 | 4..=7)),
        // "Loading MSRs": LME cannot change with paging enabled.
        msr::IA32_EFER => value & !EFER == 0 && (vmcs::read(Field::GUEST_EFER) ^ value) & LME == 0,
        msr::DEBUGCTL => value & !0b11 == 0,
        _ => true,
    };
    if !is_valid || !entry.may_load(cpu.has_x2apic()) {
        return false;
    }
    match field(entry.msr) {
        Some(field) => vmcs::write(field, if entry.msr == msr::DEBUGCTL { value & !LBR } else { value }),
        // SAFETY: guests may access the MSR; the value was checked, and STAR takes any.
        None if is_in_cpu(entry.msr) => unsafe { wrmsr(entry.msr, value) },
        None => return with_vmcs01(cpu, vmx, entry.slowness(), slow, |cpu| l1_msrs::write(cpu, entry.msr, value).then_some(())).is_some(),
    }
    true
}
