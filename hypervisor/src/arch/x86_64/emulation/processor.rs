//! The vCPU as seen by instruction emulation (crate `stile-x86-decode`).

use stile_paging::PAGE_SIZE;
use stile_x86_decode::{Context, Fault, Intent, Segment, SegmentName, Vcpu, Width, device_parts};
use stile_x86_walk::{Access, Kind, translate};

use crate::arch::x86_64::emulation::ports;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vm::shared;
use crate::served::{self, Served};
use crate::vm::Vm;
use crate::vm::power::End;

/// The memory that an emulated instruction accesses: the vCPU's own, or that of a guest hypervisor's guest.
pub trait Space {
    /// Translates a linear address. Returns the VM's address, and the number of bytes up to the end of the 4 KiB page at
    /// most: RAM is not contiguous beyond it, whatever the guest's page size.
    fn translate(&self, cpu: &Cpu, context: &Context, linear: u64, write: bool, by: By) -> Result<(u64, u64), Fault>;

    /// Accesses a device of the VM, whose own VMCS must be current.
    fn at_device<T>(&mut self, cpu: &mut Cpu, access: impl FnOnce(&mut Cpu) -> T) -> T;

    /// Bits of CR0 whose changes exit to a guest hypervisor.
    fn cr0_mask(&self) -> u64;
}

/// The vCPU's own memory.
pub struct Own;

impl Space for Own {
    #[inline]
    fn translate(&self, cpu: &Cpu, context: &Context, linear: u64, write: bool, by: By) -> Result<(u64, u64), Fault> {
        let found = translate(&Ram(cpu.vcpu().vm()), context.paging(), linear, by.access(context, write))?;
        Ok((found.address, found.left.min(PAGE_SIZE - found.address % PAGE_SIZE)))
    }

    #[inline(always)]
    fn at_device<T>(&mut self, cpu: &mut Cpu, access: impl FnOnce(&mut Cpu) -> T) -> T {
        access(cpu)
    }

    fn cr0_mask(&self) -> u64 {
        0
    }
}

/// The vCPU whose instruction is emulated.
pub struct Processor<'a, S = Own> {
    /// The CPU on which it is loaded, with all general registers in the frame.
    pub cpu: &'a mut Cpu,
    /// Execution context of the instruction.
    pub context: &'a Context,
    /// Whether its interrupts may have changed.
    pub changed: bool,
    /// The exit reports an access to a port whose permission the processor has checked.
    pub has_port: bool,
    /// End of the VM, if a device access ended it.
    pub end: Option<End>,
    /// The memory that it accesses.
    pub space: S,
}

/// Origin of a memory access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// By the instruction, at its privilege.
    Instruction,
    /// By the processor, which accesses its tables at any privilege.
    Processor,
}

impl By {
    /// The access, as the rules of paging see it.
    #[inline]
    pub fn access(self, context: &Context, write: bool) -> Access {
        const AC: u64 = 1 << 18;
        Access {
            kind: if write { Kind::Write } else { Kind::Read },
            user: self == By::Instruction && context.user(),
            smap_override: self == By::Instruction && state::read(Field::GUEST_RFLAGS) & AC != 0,
        }
    }
}

impl<'a> Processor<'a> {
    /// Creates the emulation of an instruction that is not known to access a device.
    pub fn new(cpu: &'a mut Cpu, context: &'a Context) -> Processor<'a> {
        Processor { cpu, context, changed: false, has_port: false, end: None, space: Own }
    }
}

impl<S: Space> Processor<'_, S> {
    /// Translates a linear address: see [`Space::translate`].
    pub fn translate(&self, linear: u64, write: bool, by: By) -> Result<(u64, u64), Fault> {
        self.space.translate(self.cpu, self.context, linear, write, by)
    }

    /// Reads or writes a piece within one page.
    fn piece(&mut self, address: u64, bytes: &mut [u8], write: bool) {
        let memory = Ram(self.cpu.vcpu().vm());
        let ram = if write { memory.pointer_to_write::<u8>(address) } else { memory.pointer(address) };
        device_parts(address, bytes.len(), |address, at, width| {
            let mut word = [0; 8];
            let Some(part) = bytes.get_mut(at..at + width.bytes() as usize) else { return };
            let Some(of_word) = word.get_mut(..part.len()) else { return };
            if write {
                of_word.copy_from_slice(part);
                let value = u64::from_le_bytes(word);
                match ram {
                    // SAFETY: guest RAM; the piece lies within 4 KiB of it, as `translate` ensures.
                    Some(ram) => unsafe { shared::write(ram.add(at), width, value) },
                    None => self.device_write(address, width, value),
                }
            } else {
                let value = match ram {
                    // SAFETY: guest RAM; the piece lies within 4 KiB of it, as `translate` ensures.
                    Some(ram) => unsafe { shared::read(ram.add(at), width) },
                    None => self.device_read(address, width),
                };
                part.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
            }
        });
    }

    pub fn move_pieces(&mut self, pieces: [(u64, u64); 2], bytes: &mut [u8], write: bool) {
        let mut done = 0;
        for (address, len) in pieces {
            let end = done + len as usize;
            if let Some(part) = bytes.get_mut(done..end).filter(|part| !part.is_empty()) {
                self.piece(address, part, write);
            }
            done = end;
        }
    }

    /// Writes up to [`MOST`] bytes at a linear address.
    #[inline]
    pub fn store_by(&mut self, linear: u64, bytes: &[u8], by: By) -> Result<(), Fault> {
        let pieces = self.pieces(linear, bytes.len() as u64, true, by)?;
        let mut copy = [0; MOST];
        let Some(copy) = copy.get_mut(..bytes.len()) else { return Ok(()) };
        copy.copy_from_slice(bytes);
        self.move_pieces(pieces, copy, true);
        Ok(())
    }

    /// Splits an access into one or two pieces, of which the second is in another page. None is in memory that the VM shares with its
    /// clients, of which Stile has no address: #UD.
    pub fn pieces(&self, linear: u64, len: u64, write: bool, by: By) -> Result<[(u64, u64); 2], Fault> {
        let (first, left) = self.translate(linear, write, by)?;
        self.refuse_shared(first)?;
        if left >= len {
            return Ok([(first, len), (0, 0)]);
        }
        let (second, _) = self.translate(linear.wrapping_add(left), write, by)?;
        self.refuse_shared(second)?;
        Ok([(first, left), (second, len - left)])
    }

    #[inline(always)]
    fn refuse_shared(&self, address: u64) -> Result<(), Fault> {
        let vm = self.cpu.vcpu().vm();
        match vm.arch.served {
            Some(served) if is_shared(vm, served, address) => Err(Fault::InvalidOpcode),
            _ => Ok(()),
        }
    }
}

/// Whether an address is in an open window of a server's, where its client has RAM, or in a page of events.
#[cold]
#[inline(never)]
fn is_shared(vm: &Vm, served: &Served, address: u64) -> bool {
    served.event_pieces().any(|page| (page.gpa..page.gpa + page.size).contains(&address)) || served::touch(vm, address)
}

/// Maximum operand size, in bytes.
pub const MOST: usize = 32;

impl<S: Space> Vcpu for Processor<'_, S> {
    #[inline]
    fn register(&self, index: u8) -> u64 {
        match usize::from(index & 0xf) {
            gpr::RSP => state::read(Field::GUEST_RSP),
            index => self.cpu.frame.registers[index],
        }
    }

    #[inline]
    fn set_register(&mut self, index: u8, value: u64) {
        match usize::from(index & 0xf) {
            gpr::RSP => state::write(Field::GUEST_RSP, value),
            index => self.cpu.frame.registers[index] = value,
        }
    }

    fn rip(&self) -> u64 {
        state::read(Field::GUEST_RIP)
    }

    fn flags(&self) -> u64 {
        state::read(Field::GUEST_RFLAGS)
    }

    fn set_flags(&mut self, flags: u64) {
        state::write(Field::GUEST_RFLAGS, flags);
    }

    fn segment_base(&self, name: SegmentName) -> u64 {
        state::read(part(Field::GUEST_ES_BASE, name))
    }

    fn segment(&self, name: SegmentName) -> Segment {
        let limit = state::read(part(Field::GUEST_ES_LIMIT, name)) as u32;
        let rights = state::read(part(Field::GUEST_ES_RIGHTS, name)) as u32;
        let protected = state::read(Field::GUEST_CR0) & 1 != 0 && state::read(Field::GUEST_RFLAGS) & 1 << 17 == 0;
        Segment::from_vmcs(self.segment_base(name), limit, rights, protected)
    }

    fn canonical(&self, linear: u64) -> bool {
        !self.context.paging().non_canonical(linear)
    }

    #[inline]
    fn device_read(&mut self, address: u64, width: Width) -> u64 {
        self.read_device(address, width)
    }

    #[inline]
    fn device_write(&mut self, address: u64, width: Width, value: u64) {
        self.write_device(address, width, value);
    }

    fn may_use_port(&self, port: u16, width: Width, is_input: bool) -> bool {
        /// Exit qualification of I/O instructions: size, direction, port.
        const INPUT: u64 = 1 << 3;
        if !self.has_port {
            return false;
        }
        // The guest may have changed the instruction since: the processor has checked the I/O bitmap for the access that exited.
        let exit = state::read(Field::EXIT_QUALIFICATION);
        (exit >> 16) as u16 == port && (exit & 0b111) + 1 == width.bytes() && (exit & INPUT != 0) == is_input
    }

    fn port_read(&mut self, port: u16, width: Width) -> u64 {
        ports::read(self.cpu, port, width.bytes())
    }

    fn port_write(&mut self, port: u16, width: Width, value: u64) {
        self.changed = true;
        self.end = self.end.or(ports::write(self.cpu, port, width.bytes(), value));
    }

    fn check_store(&mut self, linear: u64, bytes: u64) -> Result<(), Fault> {
        self.pieces(linear, bytes, true, By::Instruction).map(drop)
    }

    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], intent: Intent) -> Result<(), Fault> {
        let pieces = self.pieces(linear, bytes.len() as u64, intent == Intent::Modify, By::Instruction)?;
        self.move_pieces(pieces, bytes, false);
        Ok(())
    }

    fn store_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.store_by(linear, bytes, By::Instruction)
    }
}

/// Field of a segment register. `first`: that of ES.
pub fn part(first: Field, name: SegmentName) -> Field {
    state::of_segment(first, name as u32)
}
