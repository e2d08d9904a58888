//! Lookup of a vCPU's decoded instructions, by the scheme of its VM's configuration.

use stile_blob::DecodeCache;
use stile_x86_decode::cache::{Counters, Verify};
use stile_x86_decode::{Code, CodeSize, Context, Decoded, Refusal};
use stile_x86_walk::{Features, Paging, Registers};

use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arena::{self, Arena};
use crate::vm::Vm;

/// Decoder of a vCPU, with its cache.
pub struct Decoder {
    scheme: Scheme,
    /// Values of CR3, EFER and the access rights of CS, which alone determine 64-bit code, if the context is that: EFER.LMA
    /// implies four-level paging, as guests have no LA57.
    decisive: [u64; 3],
    /// The registers from which `context` was derived, as [`state::read_raw`] reads them.
    registers: [u64; REGISTERS.len()],
    context: Context,
    /// Storage for an instruction that is not in a cache of this vCPU.
    passing: Decoded,
}

enum Scheme {
    /// No cache: each instruction is fetched and decoded.
    Off,
    Verify(&'static mut Verify<Ram>),
    /// The VM's cache.
    Protect,
}

/// All registers that determine how code is fetched, except PAE pointers.
const REGISTERS: [Field; 6] =
    [Field::GUEST_CR3, Field::GUEST_EFER, Field::GUEST_CS_RIGHTS, Field::GUEST_CR4, Field::GUEST_CR0, Field::GUEST_SS_RIGHTS];

/// A value that no register has.
const NEVER: u64 = u64::MAX;

impl Decoder {
    /// Size of the default scheme's cache in the arena, in bytes.
    pub const MEMORY: u64 = arena::room::<Verify<Ram>>();

    /// Creates the decoder of a vCPU, with an empty cache.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(scheme: DecodeCache, arena: &Arena) -> Result<Decoder, &'static str> {
        let scheme = match scheme {
            DecodeCache::Off => Scheme::Off,
            DecodeCache::Verify => Scheme::Verify(arena.allocate::<Verify<Ram>>()?.write(const { Verify::new() })),
            DecodeCache::Protect => Scheme::Protect,
        };
        let none = Paging::new(&Registers::default(), FEATURES_OF_NONE);
        Ok(Decoder {
            scheme,
            decisive: [NEVER; 3],
            registers: [NEVER; REGISTERS.len()],
            context: Context::new(none, false, CodeSize::Bits16),
            passing: Decoded::NOTHING,
        })
    }

    /// Returns the loaded vCPU's instruction at `rip`, if it is 64-bit code in the cache.
    ///
    /// A change of privilege since the entry was cached does not matter: the processor has just fetched the
    /// instruction.
    #[inline(always)]
    pub fn hit(&mut self, vm: &'static Vm, rip: u64, counters: &Counters) -> Option<&Decoded> {
        // By constants: a loop over the fields would find out how to read each.
        let agree = state::read_raw(Field::GUEST_CR3) == self.decisive[0]
            && state::read_raw(Field::GUEST_EFER) == self.decisive[1]
            && state::read_raw(Field::GUEST_CS_RIGHTS) == self.decisive[2];
        if !agree {
            return None;
        }
        match &mut self.scheme {
            Scheme::Verify(cache) => cache.hit(&Ram(vm), &self.context, rip, counters),
            Scheme::Protect => {
                self.passing = vm.arch.protected.as_ref()?.hit(&self.context, rip)?;
                Some(&self.passing)
            }
            Scheme::Off => None,
        }
    }

    /// Returns the loaded vCPU's instruction at `rip`, and its execution context.
    pub fn find(&mut self, vm: &'static Vm, rip: u64, counters: &Counters) -> Result<(&Decoded, &Context), Refusal> {
        let registers = REGISTERS.map(state::read_raw);
        let differing = registers.iter().zip(&self.registers).fold(0, |all, (new, old)| all | new ^ old);
        if differing != 0 {
            self.renew(registers, vm);
        }
        let context = &self.context;
        let memory = Ram(vm);
        let code = Code { memory: &memory, context, linear: context.size().linear(rip, || state::read(Field::GUEST_CS_BASE)) };
        self.passing = match &mut self.scheme {
            Scheme::Verify(cache) => return Ok((cache.find(&code, counters)?, context)),
            Scheme::Protect => match &vm.arch.protected {
                Some(protected) => protected.find(&code)?,
                None => code.decode()?,
            },
            Scheme::Off => {
                counters.count_miss();
                code.decode()?
            }
        };
        Ok((&self.passing, context))
    }

    /// Execution context of the loaded vCPU.
    pub fn context(&mut self, vm: &'static Vm) -> &Context {
        let registers = REGISTERS.map(state::read_raw);
        if registers != self.registers {
            self.renew(registers, vm);
        }
        &self.context
    }

    #[cold]
    fn renew(&mut self, registers: [u64; REGISTERS.len()], vm: &'static Vm) {
        self.registers = registers;
        let decisive = [registers[0], registers[1], registers[2]];
        let [cr3, efer, code, cr4, cr0, stack] = core::array::from_fn(|n| state::of_raw(REGISTERS[n], registers[n]));
        let pdpte = state::pdptes(|| cr0::pdptes(vm, cr0::table()).unwrap_or_default());
        let features = Features { physical_bits: cpuid(0x8000_0008, 0).eax as u8, page_1g: true, pse36: true };
        let paging = Paging::new(&Registers { cr0, cr3, cr4, efer, pdpte }, features);
        if matches!(paging.tables(), stile_x86_walk::Tables::Pae(_)) {
            // PAE pointers can change while the registers do not.
            self.registers[0] = NEVER;
        }
        let size = CodeSize::new(efer & 1 << 10 != 0, code & 1 << 13 != 0, code & 1 << 14 != 0);
        self.context = Context::new(paging, stack >> 5 & 0b11 == 0b11, size);
        self.decisive = if size == CodeSize::Bits64 { decisive } else { [NEVER; 3] };
    }
}

/// A context that is never used.
const FEATURES_OF_NONE: Features = Features { physical_bits: 32, page_1g: false, pse36: false };
