//! Accesses to memory that is not there: the APICs' registers, by whatever instruction (crate `stile-decode`).

use stile_board::pc;
use stile_decode::{Code, CodeSize, Fault, Intent, Outcome as Done, Refusal, Segment, SegmentName, Vcpu, Width, execute};
use stile_ledger::RowId;
use stile_ledger::x86_64::{self as rows, key, reason};
use stile_walk::{Access, Features, GuestMemory, Kind, Paging, Registers, translate};
use stile_wire::CrashReason;

use super::{advance_to, crash, end, inject, io};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::{Outcome, basic};
use crate::arch::x86_64::instructions::cpuid;
use crate::arch::x86_64::vmcs::{self, Field};
use crate::arch::x86_64::{interrupts, mmu, timer};
use crate::vm::Vm;
use crate::vm::power::End;

/// A guest's RAM.
struct Ram(&'static Vm);

impl Ram {
    fn pointer<T>(&self, address: u64) -> Option<*mut T> {
        // An access does not leave its page, and RAM is made of pages.
        self.0.arch.physical(address).map(|address| mmu::physical(address).cast())
    }

    fn replace<A>(&self, address: u64, exchange: impl FnOnce(&A) -> bool) -> bool {
        // SAFETY: it is the guest's memory, aligned as the caller promises, and atomics of a size have no other alignment here.
        self.pointer::<A>(address).is_some_and(|pointer| exchange(unsafe { &*pointer }))
    }
}

impl GuestMemory for Ram {
    fn read_u64(&self, address: u64) -> Option<u64> {
        // SAFETY: it is the guest's memory, of which nobody has a reference.
        self.pointer::<u64>(address).map(|pointer| unsafe { pointer.read_unaligned() })
    }

    fn read_u32(&self, address: u64) -> Option<u32> {
        // SAFETY: as above.
        self.pointer::<u32>(address).map(|pointer| unsafe { pointer.read_unaligned() })
    }

    fn replace_u64(&self, address: u64, old: u64, new: u64) -> bool {
        use core::sync::atomic::{AtomicU64, Ordering};
        self.replace::<AtomicU64>(address, |word| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    fn replace_u32(&self, address: u64, old: u32, new: u32) -> bool {
        use core::sync::atomic::{AtomicU32, Ordering};
        self.replace::<AtomicU32>(address, |word| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }
}

/// The vCPU whose instruction is emulated.
struct Processor<'a> {
    cpu: &'a mut Cpu,
    paging: Paging,
    user: bool,
    /// How the VM ends, if what was written to a port ends it.
    end: Option<End>,
}

impl Processor<'_> {
    /// Where one byte at a linear address is, and how many follow it there.
    fn translate(&self, linear: u64, write: bool) -> Result<(u64, u64), Fault> {
        let access = Access {
            kind: if write { Kind::Write } else { Kind::Read },
            user: self.user,
            smap_override: vmcs::read(Field::GUEST_RFLAGS) & 1 << 18 != 0,
        };
        let found = translate(&Ram(self.cpu.vcpu().vm()), &self.paging, linear, access)?;
        Ok((found.address, found.left))
    }

    /// Reads or writes one piece that lies in one page.
    fn piece(&mut self, address: u64, bytes: &mut [u8], write: bool) {
        let memory = Ram(self.cpu.vcpu().vm());
        if let Some(pointer) = memory.pointer::<u8>(address) {
            // SAFETY: it is the guest's memory, and the piece lies in one page of it.
            unsafe {
                if write {
                    pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                } else {
                    bytes.as_mut_ptr().copy_from_nonoverlapping(pointer, bytes.len());
                }
            }
            return;
        }
        let mut word = [0; 8];
        let len = bytes.len().min(8);
        if write {
            word[..len].copy_from_slice(&bytes[..len]);
            device_write(self.cpu, address, u64::from_le_bytes(word));
        } else {
            word = device_read(self.cpu, address).to_le_bytes();
            bytes[..len].copy_from_slice(&word[..len]);
        }
    }

    /// The one or two pieces of an access: the second is in another page.
    fn pieces(&self, linear: u64, len: u64, write: bool) -> Result<[(u64, u64); 2], Fault> {
        let (first, left) = self.translate(linear, write)?;
        if left >= len {
            return Ok([(first, len), (0, 0)]);
        }
        let (second, _) = self.translate(linear.wrapping_add(left), write)?;
        Ok([(first, left), (second, len - left)])
    }
}

impl Vcpu for Processor<'_> {
    #[inline]
    fn register(&self, index: u8) -> u64 {
        match usize::from(index & 0xf) {
            gpr::RSP => vmcs::read(Field::GUEST_RSP),
            index => self.cpu.frame.registers[index],
        }
    }

    #[inline]
    fn set_register(&mut self, index: u8, value: u64) {
        match usize::from(index & 0xf) {
            gpr::RSP => vmcs::write(Field::GUEST_RSP, value),
            index => self.cpu.frame.registers[index] = value,
        }
    }

    fn rip(&self) -> u64 {
        vmcs::read(Field::GUEST_RIP)
    }

    fn flags(&self) -> u64 {
        vmcs::read(Field::GUEST_RFLAGS)
    }

    fn set_flags(&mut self, flags: u64) {
        vmcs::write(Field::GUEST_RFLAGS, flags);
    }

    fn segment_base(&self, name: SegmentName) -> u64 {
        vmcs::read(part(Field::GUEST_ES_BASE, name))
    }

    fn segment(&self, name: SegmentName) -> Segment {
        let limit = vmcs::read(part(Field::GUEST_ES_LIMIT, name)) as u32;
        let rights = vmcs::read(part(Field::GUEST_ES_RIGHTS, name)) as u32;
        let protected = vmcs::read(Field::GUEST_CR0) & 1 != 0 && vmcs::read(Field::GUEST_RFLAGS) & 1 << 17 == 0;
        Segment::from_vmcs(self.segment_base(name), limit, rights, protected)
    }

    fn canonical(&self, linear: u64) -> bool {
        !self.paging.non_canonical(linear)
    }

    #[inline]
    fn device_read(&mut self, address: u64, _width: Width) -> u64 {
        device_read(self.cpu, address)
    }

    #[inline]
    fn device_write(&mut self, address: u64, _width: Width, value: u64) {
        device_write(self.cpu, address, value);
    }

    fn port_read(&mut self, port: u16, width: Width) -> u64 {
        io::read(self.cpu, port, width.bytes())
    }

    fn port_write(&mut self, port: u16, width: Width, value: u64) {
        self.end = self.end.or(io::write(self.cpu, port, width.bytes(), value));
    }

    fn check_store(&mut self, linear: u64, width: Width) -> Result<(), Fault> {
        self.pieces(linear, width.bytes(), true).map(drop)
    }

    fn load(&mut self, linear: u64, width: Width, intent: Intent) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        let mut done = 0;
        for (address, len) in self.pieces(linear, width.bytes(), intent == Intent::Modify)? {
            let end = done + len as usize;
            if let Some(part) = bytes.get_mut(done..end).filter(|part| !part.is_empty()) {
                self.piece(address, part, false);
            }
            done = end;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, linear: u64, width: Width, value: u64) -> Result<(), Fault> {
        let mut bytes = value.to_le_bytes();
        let mut done = 0;
        for (address, len) in self.pieces(linear, width.bytes(), true)? {
            let end = done + len as usize;
            if let Some(part) = bytes.get_mut(done..end).filter(|part| !part.is_empty()) {
                self.piece(address, part, true);
            }
            done = end;
        }
        Ok(())
    }
}

/// The field of a segment register: they follow each other in the order of their encoding, two apart.
fn part(first: Field, name: SegmentName) -> Field {
    Field(first.0 + 2 * name as u32)
}

/// What is at a guest-physical address outside of RAM.
enum Device {
    LocalApic(u32),
    IoApic(u32),
    Nothing,
}

fn device(cpu: &Cpu, address: u64) -> Device {
    let offset = (address & 0xfff) as u32;
    let page = address - u64::from(offset);
    if cpu.vcpu().arch.pages.is_at(page) {
        Device::LocalApic(offset)
    } else if page == pc::IO_APIC {
        Device::IoApic(offset)
    } else {
        Device::Nothing
    }
}

fn device_read(cpu: &mut Cpu, address: u64) -> u64 {
    match device(cpu, address) {
        Device::LocalApic(offset) => cpu.apic().read(offset, timer::now()).into(),
        Device::IoApic(offset) => cpu.vcpu().vm().arch.io_apic.lock().read(offset).into(),
        Device::Nothing => u64::MAX,
    }
}

fn device_write(cpu: &mut Cpu, address: u64, value: u64) {
    let vcpu = cpu.vcpu();
    match device(cpu, address) {
        Device::LocalApic(offset) => {
            let effect = cpu.apic().write(offset, value as u32, timer::now());
            interrupts::follow(cpu, effect);
        }
        Device::IoApic(offset) => {
            vcpu.vm().arch.io_apic.lock().write(offset, value as u32);
            interrupts::send_from_io_apic(vcpu.vm(), Some(cpu));
        }
        Device::Nothing => {}
    }
}

/// An access that the EPT does not let through.
pub fn handle(cpu: &mut Cpu) -> Outcome {
    access(cpu, vmcs::read(Field::GUEST_PHYSICAL), vmcs::read(Field::EXIT_QUALIFICATION) >> 1 & 1 != 0)
}

/// An access to a guest-physical address that is to be emulated.
pub fn access(cpu: &mut Cpu, address: u64, write: bool) -> Outcome {
    let row = row(cpu, address, write);
    if vmcs::read(Field::VECTORING) & interrupts::VALID != 0 {
        // An event was being delivered, by way of a stack or a table that is a device: there is no instruction to emulate.
        return crash(cpu, row, CrashReason::NoSyndrome, basic::EPT_VIOLATION, address);
    }
    emulate(cpu, row, address)
}

/// Does what the vCPU's instruction does, which reached for a device at a guest-physical address, or moves strings to and from a port.
pub fn emulate(cpu: &mut Cpu, row: RowId, address: u64) -> Outcome {
    let registers = Registers {
        cr0: vmcs::read(Field::GUEST_CR0),
        cr3: vmcs::read(Field::GUEST_CR3),
        cr4: vmcs::read(Field::GUEST_CR4),
        efer: vmcs::read(Field::GUEST_EFER),
        pdpte: [Field::GUEST_PDPTE0, Field::GUEST_PDPTE1, Field::GUEST_PDPTE2, Field::GUEST_PDPTE3].map(vmcs::read),
    };
    let features = Features { physical_bits: cpuid(0x8000_0008, 0).eax as u8, page_1g: true, pse36: true };
    let paging = Paging::new(&registers, features);
    let rights = vmcs::read(Field::GUEST_CS_RIGHTS);
    let rip = vmcs::read(Field::GUEST_RIP);
    let user = vmcs::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 == 0b11;
    let code = Code {
        memory: &Ram(cpu.vcpu().vm()),
        paging: &paging,
        linear: vmcs::read(Field::GUEST_CS_BASE).wrapping_add(rip),
        user,
        size: CodeSize::new(registers.efer & 1 << 10 != 0, rights & 1 << 13 != 0, rights & 1 << 14 != 0),
    };
    // SAFETY: the vCPU is loaded here, so its cache is this CPU's.
    let decoded = match unsafe { cpu.vcpu().arch.cache() }.find(&code) {
        Ok(decoded) => *decoded,
        Err(Refusal::Fault(fault)) => return refuse(row, fault),
        Err(Refusal::Unsupported) => return refuse(row, Fault::InvalidOpcode),
        Err(Refusal::NoMemory(address)) => return crash(cpu, row, CrashReason::BadFetch, basic::EPT_VIOLATION, address),
    };
    let mut processor = Processor { cpu, paging, user, end: None };
    let done = execute(&decoded, &mut processor, address);
    if let Some(how) = processor.end {
        return end(cpu, row, how);
    }
    match done {
        Ok(Done::Complete) => advance_to(decoded.code_size().advance(rip, decoded.len())),
        Ok(Done::Partial) => {}
        Err(fault) => return refuse(row, fault),
    }
    interrupts::pull(cpu);
    Outcome::again(row)
}

fn row(cpu: &Cpu, address: u64, write: bool) -> RowId {
    match device(cpu, address) {
        Device::LocalApic(_) => rows::local_apic(write),
        Device::IoApic(_) => rows::io_apic(write),
        Device::Nothing => cpu.vcpu().with_ledger(|ledger| ledger.row_for(reason::MMIO, key::page(address, write))),
    }
}

fn refuse(row: RowId, fault: Fault) -> Outcome {
    match fault {
        Fault::InvalidOpcode => inject::undefined(),
        Fault::Protection => inject::general_protection(),
        Fault::Stack => inject::stack_fault(),
        Fault::Page(fault) => inject::page_fault(fault.linear, fault.code.0),
    }
    Outcome::again(row)
}
