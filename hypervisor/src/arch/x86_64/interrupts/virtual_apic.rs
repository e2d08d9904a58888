//! APIC virtualization of the loaded vCPU in the VMCS (the manual, "APIC Virtualization and Virtual Interrupts"). The
//! registers are in the vCPU's `Pages`, whether the processor virtualizes them or not.

use stile_apic::{Mode, Pages, Status, is_kept, offset};
use stile_blob::ApicVirtualization;
use stile_board::pc;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, Ept, EptPermissions, Mapping, MemoryType, PageTable, TableMemory, TableRead};

use crate::arch::x86_64::host::apic::vector;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx::{self, pin, primary, secondary};
use crate::arena::Arena;
use crate::console::log;
use crate::memory::TableFrames;
use crate::vm::Vcpu;

/// Returns the requested level of APIC virtualization, or the highest supported one, which is logged.
pub fn choose(asked: ApicVirtualization) -> ApicVirtualization {
    let level = asked.min(vmx::features().apic);
    if level < asked {
        let what = match level {
            ApicVirtualization::Off => "virtual-APIC page",
            ApicVirtualization::Registers => "virtual-interrupt delivery",
            _ => "posted interrupts",
        };
        let words = ApicVirtualization::WORDS;
        let word = words.iter().find(|(_, of)| *of == level).map_or("", |(word, _)| word);
        log!("this CPU has no {what}: APIC virtualization is \"{word}\"");
    }
    level
}

/// The APIC-access page of a VM in its second stage, by which the processor recognizes accesses ("APIC-Access Page").
/// It is mapped only while all vCPUs have their APICs at the default address in xAPIC mode; otherwise accesses fault,
/// and are emulated.
pub struct AccessPage {
    /// Physical address.
    pub address: u64,
    /// Table and index of the second-stage entry, and its value.
    place: (u64, usize),
    entry: u64,
    /// Serializes changes of the mapping.
    lock: TicketLock<()>,
}

impl AccessPage {
    /// Prepares the mapping in a second stage with this root.
    ///
    /// # Errors
    /// No memory is left for tables.
    pub fn new(table: &mut PageTable<Ept>, root: u64, arena: &'static Arena) -> Result<AccessPage, &'static str> {
        let address = arena.allocate_pages(PAGE_SIZE)?;
        let attributes = Attributes { memory: MemoryType::Normal, permissions: EptPermissions::ALL };
        let mapping = Mapping { address: pc::LOCAL_APIC, output: address, size: PAGE_SIZE, attributes };
        table.map(&mut { arena }, mapping).map_err(|_| "a VM's local APICs can't be mapped: no memory for tables")?;
        // Four levels of 512 entries; a single page within 2 MiB is mapped at the last level.
        let index = |level: u32| (pc::LOCAL_APIC >> (12 + 9 * level)) as usize & 511;
        let next = |from: u64, level: u32| TableFrames.read(from, index(level)).map_or(0, |entry| entry & 0x000f_ffff_ffff_f000);
        let place = ([3, 2, 1].into_iter().fold(root, next), index(0));
        let entry = TableFrames.read(place.0, place.1).unwrap_or(0);
        Ok(AccessPage { address, place, entry, lock: TicketLock::new(()) })
    }

    /// Updates the mapping after a vCPU's APIC has moved, or the VM was reset.
    pub fn choose<'a>(&self, mut apics: impl Iterator<Item = &'a Pages>) {
        let _guard = self.lock.lock();
        let entry = if apics.all(|apic| apic.is_at(pc::LOCAL_APIC)) { self.entry } else { 0 };
        TableFrames.write(self.place.0, self.place.1, entry);
    }
}

/// Updates the loaded vCPU after a change of its APIC's mode or address.
pub fn moved(cpu: &mut Cpu) {
    write_controls(cpu);
    let vm = cpu.vcpu().vm();
    if let Some(page) = &vm.arch.place.apic_access {
        page.choose(vm.vcpus.iter().map(|vcpu| vcpu.arch.pages));
        // Other CPUs' stale translations of the page serve only vCPUs whose APIC is there; other vCPUs come here, or
        // flush at load.
        vmx::invalidate_ept(vm.arch.place.ept);
    }
}

/// Clears bits of an MSR bitmap for x2APIC registers that the processor virtualizes: plain registers, the TPR, and
/// with virtual-interrupt delivery EOI and self-IPI.
pub fn open_x2apic(bitmap: &mut [u8], level: ApicVirtualization) {
    const WRITES: usize = 2048;
    let delivers = level >= ApicVirtualization::Delivery;
    let mut open = |half: usize, register: u32| bitmap[half + register as usize / 8] &= !(1 << (register % 8));
    for register in (msr::X2APIC..msr::X2APIC + 0x100).filter(|&register| is_kept(register, delivers)) {
        open(0, register);
    }
    let written = [offset::TPR, offset::EOI, offset::SELF_IPI];
    for register in written.into_iter().take(if delivers { written.len() } else { 1 }) {
        open(WRITES, msr::X2APIC + (register >> 4));
    }
}

/// Writes the controls that depend on the mode of the loaded vCPU's APIC, and its interrupt status.
pub fn write_controls(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let (arch, place, features) = (&vcpu.arch, &vcpu.vm().arch.place, vmx::features());
    let halts = if arch.direct.halts_exit(cpu.waiting_trapped) { primary::HLT } else { 0 };
    let (mut pin, mut primary, mut secondary) = (features.pin, features.primary | halts, features.secondary);
    let mode = arch.pages.mode();
    cpu.apic_level = arch.apic_level_now();
    if cpu.apic_level >= ApicVirtualization::Registers {
        primary = primary & !(primary::CR8_LOAD | primary::CR8_STORE) | primary::TPR_SHADOW;
        secondary |= secondary::APIC_REGISTERS;
        if mode == Mode::X2Apic {
            secondary |= secondary::X2APIC_MODE;
        } else if let Some(page) = &place.apic_access {
            secondary |= secondary::APIC_ACCESSES;
            vmcs::write(Field::APIC_ACCESS, page.address);
        }
        vmcs::write(Field::VIRTUAL_APIC, arch.pages_at);
        vmcs::write(Field::TPR_THRESHOLD, 0);
        cpu.threshold = 0;
    }
    if cpu.apic_level >= ApicVirtualization::Delivery {
        secondary |= secondary::INTERRUPT_DELIVERY;
    }
    if cpu.apic_level == ApicVirtualization::Posted {
        pin |= pin::POSTED_INTERRUPTS;
        vmcs::write(Field::POSTED_INTERRUPTS, arch.pages_at + Pages::DESCRIPTOR as u64);
        vmcs::write(Field::POSTED_INTERRUPT_VECTOR, vector::POSTED.into());
    }
    vmcs::write(Field::PIN_CONTROLS, pin.into());
    vmcs::write(Field::PRIMARY_CONTROLS, primary.into());
    Cpu::note_window(false);
    let context = cpu.loaded().context();
    let (pauses, shadowing) = (context.pauses.control(), context.shadowing);
    vmcs::write(Field::SECONDARY_CONTROLS, u64::from(secondary) | pauses | shadowing);
    write_msr_bitmap(vcpu, false);
    let delivers = cpu.apic_level >= ApicVirtualization::Delivery;
    cpu.apic().set_assisted(delivers);
}

/// Selects the MSR bitmap of the loaded vCPU by its APIC's mode and by whether IA32_TSC_DEADLINE is passed through.
pub fn write_msr_bitmap(vcpu: &Vcpu, passes_deadline: bool) {
    let place = &vcpu.vm().arch.place;
    let virtualized = vcpu.arch.apic_level_now() >= ApicVirtualization::Registers && vcpu.arch.pages.mode() == Mode::X2Apic;
    let bitmaps = match &vcpu.vm().arch.direct {
        Some(direct) if virtualized && vcpu.arch.direct.is_on() => &direct.bitmaps,
        _ if virtualized => &place.x2apic_bitmaps,
        _ => &place.msr_bitmaps,
    };
    vmcs::write(Field::MSR_BITMAP, bitmaps[usize::from(passes_deadline)]);
}

/// Writes RVI, SVI and the EOI-exit bitmap for virtual-interrupt delivery.
#[cold]
pub fn write_status(status: Status) {
    vmcs::write(Field::GUEST_INTERRUPT_STATUS, status.interrupts.into());
    let fields = [Field::EOI_EXIT_0, Field::EOI_EXIT_1, Field::EOI_EXIT_2, Field::EOI_EXIT_3];
    for (field, word) in fields.into_iter().zip(status.exits.map(|exits| exits.words()).into_iter().flatten()) {
        vmcs::write(field, word);
    }
}

/// Raises RVI, the low byte of "Guest Interrupt Status", for a further interrupt.
#[inline(always)]
pub fn request(vector: u8) {
    let status = vmcs::read(Field::GUEST_INTERRUPT_STATUS);
    if (status as u8) < vector {
        vmcs::write(Field::GUEST_INTERRUPT_STATUS, status & !0xff | u64::from(vector));
    }
}

/// Sets the TPR threshold, so that the processor exits when the TPR falls below the priority of an interrupt that
/// only it blocks.
pub fn write_threshold(cpu: &mut Cpu) {
    let apic = cpu.apic();
    let class = apic.request().map_or(0, |vector| vector >> 4);
    let threshold = if class <= apic.task_priority() >> 4 { class } else { 0 };
    if cpu.threshold != threshold {
        cpu.threshold = threshold;
        vmcs::write(Field::TPR_THRESHOLD, threshold.into());
    }
}
