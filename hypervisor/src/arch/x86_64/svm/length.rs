//! Length of the instruction that exited. Processors without next-RIP saving do not tell it: the instruction is fetched
//! and decoded.
//!
//! Instructions without prefixes are remembered by RIP and CR3 ([`Site`]). One is found again if the same entries of the
//! guest's tables lead to it, and its bytes are the same: then it has the same length, whoever writes code or tables, and
//! whenever. `exit.S` compares in leaves, [`find`] in handlers. Changes of what else decides about translation and the
//! meaning of bytes (CR0.PG, CR4, EFER) exit, and drop the sites ([`OfCpu::forget_sites`](super::block::OfCpu::forget_sites)); CS.L is compared.

use stile_svm::Field;
use stile_x86_decode::{Code, CodeSize, Intercepted, Kind};
use stile_x86_walk::{GuestMemory, PAGE, trail};

use super::block::{OTHER_SITES, Site, Word, leaf};
use super::state::{self, Vmcb};
use crate::arch::x86_64::handler::complete::refetch;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vm::guest_memory::Ram;

/// CS.L in the VMCB's format.
const LONG: u16 = 1 << 9;

/// Makes the next RIP known if the loaded vCPU's instruction is one of `kinds`. Returns false if it is not in memory any
/// more: the processor executes what is there now.
#[inline]
pub fn find(cpu: &mut WholeCpu, kind: Kind) -> bool {
    if cpu.virt.has_next_rip.get() {
        return true;
    }
    let vmcb = state::loaded();
    match recall(cpu, &vmcb, kind, index(kind, vmcb.read(Field::GUEST_RIP))) {
        Some(next) => {
            vmcb.write(Field::NEXT_RIP, next);
            true
        }
        None => decode(cpu, &[kind]).is_some(),
    }
}

/// Returns the next RIP of a WRMSR whose x2APIC register has its own `site`, if it is known without decoding and the APIC is in x2APIC
/// mode. Accesses nothing by GS.
#[inline(always)]
pub fn of_write(cpu: &Cpu, vmcb: &Vmcb, site: usize) -> Option<u64> {
    if cpu.virt.has_next_rip.get() {
        return cpu.has_x2apic().then(|| vmcb.read(Field::NEXT_RIP));
    }
    // Outside of x2APIC mode the site is empty: `find_write` does not fill it, and a change of the mode drops it.
    recall(cpu, vmcb, Kind::Wrmsr, site)
}

/// [`find`] of a WRMSR whose x2APIC register has its own `site`. While the APIC stays in x2APIC mode, the instruction is remembered there,
/// too, for [`of_write`].
#[inline]
pub fn find_write(cpu: &mut WholeCpu, site: usize) -> bool {
    let vmcb = state::loaded();
    if let Some(next) = of_write(cpu, &vmcb, site) {
        vmcb.write(Field::NEXT_RIP, next);
        return true;
    }
    let found = find(cpu, Kind::Wrmsr);
    let by_rip = index(Kind::Wrmsr, vmcb.read(Field::GUEST_RIP));
    if found
        && cpu.has_x2apic()
        && let (Some(to), Some(from)) = (cpu.virt.sites.get(site), cpu.virt.sites.get(by_rip))
    {
        to.set(from.get());
    }
    found
}

/// The bytes of an instruction without prefixes, and their number: 8 or less.
const fn plain(kind: Kind) -> Option<(u64, u8)> {
    Some(match kind {
        Kind::Cpuid => (0xa20f, 2),
        Kind::Rdmsr => (0x320f, 2),
        Kind::Wrmsr => (0x300f, 2),
        Kind::Vmmcall => (0xd9_010f, 3),
        Kind::Hlt => (0xf4, 1),
        Kind::Pause => (0x90f3, 2),
        _ => return None,
    })
}

/// Index of the site of an instruction.
#[inline(always)]
const fn index(kind: Kind, rip: u64) -> usize {
    match kind {
        Kind::Cpuid => leaf::CPUID,
        Kind::Rdmsr => leaf::RDMSR,
        Kind::Vmmcall => leaf::VMMCALL,
        _ => leaf::COUNT + (rip ^ rip >> 4) as usize % OTHER_SITES,
    }
}

/// Returns the next RIP, if the instruction is remembered in a site.
#[inline(always)]
fn recall(cpu: &Cpu, vmcb: &Vmcb, kind: Kind, site: usize) -> Option<u64> {
    let (bytes, length) = plain(kind)?;
    let rip = vmcb.read(Field::GUEST_RIP);
    let site = cpu.virt.sites.get(site).map(core::cell::Cell::as_ptr)?;
    // SAFETY: the cell is this CPU's, and nothing sets it before the end of this function.
    let site = unsafe { &*site };
    let memory = Ram(cpu.vcpu().vm());
    let holds = site.rip == rip
        && site.cr3 == vmcb.read(Field::GUEST_CR3)
        && vmcb.code_segment() & LONG != 0
        && site.tables.iter().all(|word| memory.look(word.place) == word.value)
        && (memory.look(site.code) ^ bytes) << (64 - 8 * u32::from(length)) == 0;
    holds.then(|| rip.wrapping_add(length.into()))
}

/// Decodes the loaded vCPU's instruction, which is one of `kinds`, and makes the next RIP known.
#[cold]
pub fn decode(cpu: &mut WholeCpu, kinds: &[Kind]) -> Option<Intercepted> {
    let context = cpu.context();
    let rip = state::read(Field::GUEST_RIP);
    let memory = Ram(cpu.vcpu().vm());
    let linear = context.size().linear(rip, || state::read(Field::GUEST_CS_BASE));
    let code = Code { memory: &memory, context: &context, linear };
    match code.intercepted() {
        Ok(found) if kinds.contains(&found.kind) => {
            state::write(Field::NEXT_RIP, context.size().advance(rip, found.length));
            remember(cpu, &code, found, rip);
            Some(found)
        }
        _ => {
            refetch();
            None
        }
    }
}

/// Remembers an instruction of 64-bit code that has no prefix.
fn remember(cpu: &Cpu, code: &Code<'_, Ram>, found: Intercepted, rip: u64) {
    let Code { memory, context, linear } = *code;
    let is_plain = plain(found.kind).is_some_and(|(_, length)| length == found.length);
    if !is_plain || context.size() != CodeSize::Bits64 || linear % PAGE > PAGE - 8 {
        return;
    }
    let Ok(trail) = trail(memory, context.paging(), linear, context.user()) else { return };
    if trail.narrow() || trail.entries().len() > Site::TABLES {
        return;
    }
    let mut tables = [Word { place: Ram::ZEROS, value: 0 }; Site::TABLES];
    for (slot, &(address, value)) in tables.iter_mut().zip(trail.entries()) {
        let Some(place) = memory.place(address) else { return };
        *slot = Word { place, value };
    }
    let Some(place) = memory.place(trail.address()) else { return };
    if let Some(site) = cpu.virt.sites.get(index(found.kind, rip)) {
        site.set(Site { rip, cr3: state::read(Field::GUEST_CR3), code: place, tables });
    }
}
