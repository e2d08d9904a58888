//! APIC virtualization by the processor: the VMCS's part of the loaded vCPU's local APIC (the manual, "APIC Virtualization and Virtual
//! Interrupts"). The registers are in the vCPU's `Pages`, whether the processor works on them or not.

use stile_apic::{Mode, Pages, Status, is_kept, offset};
use stile_blob::ApicVirtualization;
use stile_board::pc;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, Ept, EptPermissions, Mapping, MemoryType, PageTable, TableMemory, TableRead};
use stile_sched::lock::TicketLock;

use crate::arch::x86_64::host::apic::vector;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx::{self, pin, primary, secondary};
use crate::arena::Arena;
use crate::console::log;
use crate::memory::TableFrames;
use crate::vm::Vcpu;

/// Returns the requested level of APIC virtualization, or the highest that the CPU has: then the operator is told.
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

/// Where a VM's vCPUs find their local APICs' page in the second stage: a page by which the processor recognizes the accesses ("APIC-Access
/// Page"). It is there only while all of them have their APIC there: whoever has it elsewhere, or not in memory, must find nothing. Then
/// the others' accesses are emulated.
pub struct AccessPage {
    /// Its physical address.
    pub address: u64,
    /// The table with its entry, and the index in it; the entry itself.
    place: (u64, usize),
    entry: u64,
    /// Only one at a time decides.
    lock: TicketLock<()>,
}

impl AccessPage {
    /// Maps a page in a second stage whose root is at `root`.
    ///
    /// # Errors
    /// There is no memory for tables.
    pub fn new(table: &mut PageTable<Ept>, root: u64, arena: &'static Arena) -> Result<AccessPage, &'static str> {
        let address = arena.allocate_pages(PAGE_SIZE)?;
        let attributes = Attributes { memory: MemoryType::Normal, permissions: EptPermissions::ALL };
        let mapping = Mapping { address: pc::LOCAL_APIC, output: address, size: PAGE_SIZE, attributes };
        table.map(&mut { arena }, mapping).map_err(|_| "a VM's local APICs can't be mapped: no memory for tables")?;
        // Four levels of 512 entries each; a page that is alone in its 2 MiB is mapped by the last.
        let index = |level: u32| (pc::LOCAL_APIC >> (12 + 9 * level)) as usize & 511;
        let next = |from: u64, level: u32| TableFrames.read(from, index(level)).map_or(0, |entry| entry & 0x000f_ffff_ffff_f000);
        let place = ([3, 2, 1].into_iter().fold(root, next), index(0));
        let entry = TableFrames.read(place.0, place.1).unwrap_or(0);
        Ok(AccessPage { address, place, entry, lock: TicketLock::new(()) })
    }

    /// A vCPU's APIC has moved, or the VM was reset.
    pub fn choose<'a>(&self, mut apics: impl Iterator<Item = &'a Pages>) {
        let _guard = self.lock.lock();
        let entry = if apics.all(|apic| apic.is_at(pc::LOCAL_APIC)) { self.entry } else { 0 };
        TableFrames.write(self.place.0, self.place.1, entry);
    }
}

/// The loaded vCPU's APIC is in another mode or at another page.
pub fn moved(cpu: &mut Cpu) {
    write_controls(cpu);
    let vm = cpu.vcpu().vm();
    if let Some(page) = &vm.arch.place.apic_access {
        page.choose(vm.vcpus.iter().map(|vcpu| vcpu.arch.pages));
        // Stale translations of the page on other CPUs serve only vCPUs whose APIC is there; others come here, or flush them when they come to
        // that CPU.
        vmx::forget_ept(vm.arch.place.ept);
    }
}

/// Opens in an MSR bitmap what the processor answers for an x2APIC: registers that only hold a value, the task priority, and with
/// delivery the end of an interrupt and interrupts to oneself.
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

/// Writes the controls that depend on the mode of the loaded vCPU's APIC, and tells the processor its state.
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

/// Selects the MSR bitmap of the loaded vCPU by the mode of its APIC, and by whether IA32_TSC_DEADLINE is passed through.
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

/// Tells a processor that delivers interrupts which there are, and whose ends must exit.
#[cold]
pub fn write_status(status: Status) {
    vmcs::write(Field::GUEST_INTERRUPT_STATUS, status.interrupts.into());
    let fields = [Field::EOI_EXIT_0, Field::EOI_EXIT_1, Field::EOI_EXIT_2, Field::EOI_EXIT_3];
    for (field, word) in fields.into_iter().zip(status.exits.map(|exits| exits.words()).into_iter().flatten()) {
        vmcs::write(field, word);
    }
}

/// Tells it of an interrupt more ("Guest Interrupt Status": RVI is the low byte).
#[inline(always)]
pub fn request(vector: u8) {
    let status = vmcs::read(Field::GUEST_INTERRUPT_STATUS);
    if (status as u8) < vector {
        vmcs::write(Field::GUEST_INTERRUPT_STATUS, status & !0xff | u64::from(vector));
    }
}

/// Has the processor exit when the task priority falls below that of an interrupt which waits for this, and for nothing else.
pub fn write_threshold(cpu: &mut Cpu) {
    let apic = cpu.apic();
    let class = apic.request().map_or(0, |vector| vector >> 4);
    let threshold = if class <= apic.task_priority() >> 4 { class } else { 0 };
    if cpu.threshold != threshold {
        cpu.threshold = threshold;
        vmcs::write(Field::TPR_THRESHOLD, threshold.into());
    }
}
