//! Instructions of an emulated load from a device: run it under callgrind, which counts them.
//!
//! ```text
//! cargo build --profile hypervisor -p stile-x86-decode --example cost
//! for scheme in verify protect off; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='cost::trapped_load*' target/hypervisor/examples/cost $scheme
//! done
//! ```
//! "Collected" divided by [`LOADS`] is the cost of one: finding the instruction, and doing it. The guest is a kernel with four
//! levels of tables and its code in a 2 MiB page (or, with the second argument `small`, in one of 4 KiB).

use std::hint::black_box;
use stile_x86_decode::cache::{Counters, Protect, Protector, Verify};
use stile_x86_decode::{Code, CodeSize, Context, FastAccess, Fault, Intent, OtherRegisters, Segment, SegmentName, Vcpu, Width, execute};
use stile_x86_walk::{Features, GuestMemory, Paging, Registers};

const LOADS: u64 = 10_000;
const SIZE: u64 = 4 << 20;

/// Memory in one piece from address 0, as a hypervisor provides it.
struct Memory(Vec<u8>);

static ZERO: u64 = 0;

impl Memory {
    #[inline]
    fn get<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        if address > SIZE - N as u64 {
            return None;
        }
        // SAFETY: the memory is SIZE bytes long, and what is read ends in it.
        Some(unsafe { self.0.as_ptr().add(address as usize).cast::<[u8; N]>().read() })
    }

    fn put(&mut self, address: u64, entry: u64) {
        self.0[address as usize..][..8].copy_from_slice(&entry.to_le_bytes());
    }
}

/// Eight bytes of the memory, which is there until the end.
#[derive(Clone, Copy)]
struct Place(*const u64);

impl GuestMemory for Memory {
    type Place = Place;

    const ZEROS: Place = Place(&raw const ZERO);

    fn place(&self, address: u64) -> Option<Place> {
        self.get::<8>(address).map(|_| Place(self.0[address as usize..].as_ptr().cast()))
    }

    #[inline]
    fn look(&self, Place(pointer): Place) -> u64 {
        // SAFETY: it is `ZERO`, or `place` looked; the vector does not grow.
        unsafe { pointer.read_unaligned() }
    }

    #[inline]
    fn read_u64(&self, address: u64) -> Option<u64> {
        self.get(address).map(u64::from_le_bytes)
    }

    #[inline]
    fn read_u32(&self, address: u64) -> Option<u32> {
        self.get(address).map(u32::from_le_bytes)
    }

    fn replace_u64(&self, _: u64, _: u64, _: u64) -> bool {
        false
    }

    fn replace_u32(&self, _: u64, _: u32, _: u32) -> bool {
        false
    }
}

struct Guest {
    general: [u64; 16],
    rip: u64,
    local_apic_id: u32,
}

impl Vcpu for Guest {
    #[inline]
    fn register(&self, index: u8) -> u64 {
        self.general[usize::from(index & 15)]
    }
    #[inline]
    fn set_register(&mut self, index: u8, value: u64) {
        self.general[usize::from(index & 15)] = value;
    }
    fn rip(&self) -> u64 {
        self.rip
    }
    fn flags(&self) -> u64 {
        2
    }
    fn set_flags(&mut self, _: u64) {}
    fn segment_base(&self, _: SegmentName) -> u64 {
        0
    }
    fn segment(&self, _: SegmentName) -> Segment {
        Segment::from_vmcs(0, u32::MAX, 0xc093, true)
    }
    fn canonical(&self, _: u64) -> bool {
        true
    }
    #[inline]
    fn device_read(&mut self, address: u64, _: Width) -> u64 {
        if address & 0xfff == 0x20 { self.local_apic_id.into() } else { 0 }
    }
    fn device_write(&mut self, _: u64, _: Width, _: u64) {}
    fn load_bytes(&mut self, _: u64, _: &mut [u8], _: Intent) -> Result<(), Fault> {
        Err(Fault::Protection)
    }
    fn store_bytes(&mut self, _: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault::Protection)
    }
    fn check_store(&mut self, _: u64, _: u64) -> Result<(), Fault> {
        Ok(())
    }
}

impl OtherRegisters for Guest {}

struct Always;

impl Protector for Always {
    fn protect(&mut self, _: u64) -> bool {
        true
    }
}

#[expect(clippy::large_enum_variant, reason = "there is one")]
enum Cache {
    Off,
    Verify(Verify<Memory>, Counters),
    Protect(Protect),
}

#[inline(never)]
fn trapped_load(cache: &mut Cache, memory: &Memory, context: &Context, guest: &mut Guest, exit: u64) -> bool {
    let rip = guest.rip;
    let found = match cache {
        Cache::Off => None,
        Cache::Verify(cache, counters) => cache.hit(memory, context, rip, counters),
        Cache::Protect(cache) => cache.hit(context, rip),
    };
    if let Some(decoded) = found
        && let Some(FastAccess::Load(register)) = decoded.fast_path(&guest.general, 1 << 4, exit)
    {
        guest.general[register] = guest.device_read(exit, Width::Dword);
        guest.rip = rip + u64::from(decoded.len());
        return true;
    }
    slow(cache, &Code { memory, context, linear: rip }, guest, exit)
}

#[inline(never)]
fn slow(cache: &mut Cache, code: &Code<'_, Memory>, guest: &mut Guest, exit: u64) -> bool {
    let decoded = match cache {
        Cache::Off => code.decode(),
        Cache::Verify(cache, counters) => cache.find(code, counters).copied(),
        Cache::Protect(cache) => cache.find(code, &mut Always).copied(),
    };
    let Ok(decoded) = decoded else { return false };
    if execute(&decoded, guest, exit).is_err() {
        return false;
    }
    guest.rip = decoded.code_size().advance(guest.rip, decoded.len());
    true
}

fn main() {
    stile_x86_decode::prepare();
    let mut arguments = std::env::args().skip(1);
    let mut cache = match arguments.next().as_deref() {
        Some("protect") => Cache::Protect(Protect::new()),
        Some("off") => Cache::Off,
        _ => Cache::Verify(Verify::new(), Counters::new()),
    };
    let small = arguments.next().as_deref() == Some("small");

    const OPEN: u64 = 0x63;
    let mut memory = Memory(vec![0; SIZE as usize]);
    // The kernel's image at the top of the address space.
    memory.put(0x1000 + 511 * 8, 0x2000 | OPEN);
    memory.put(0x2000 + 510 * 8, 0x3000 | OPEN);
    memory.put(0x3000, if small { 0x4000 | OPEN } else { 0x20_0000 | OPEN | 0x80 });
    memory.put(0x4000 + 0x100 * 8, 0x30_0000 | OPEN);
    let rip = 0xffff_ffff_8010_0200;
    // mov eax, [rdi + 0x20]
    memory.put(0x30_0200, u64::from_le_bytes([0x8b, 0x47, 0x20, 0xc3, 0x90, 0x90, 0x90, 0x90]));

    let registers = Registers { cr0: 1 << 31 | 1, cr3: 0x1000, cr4: 1 << 5, efer: 0xd00, pdpte: [0; 4] };
    let paging = Paging::new(&registers, Features { physical_bits: 39, page_1g: true, pse36: true });
    let context = Context::new(paging, false, CodeSize::Bits64);
    let mut guest = Guest { general: [0; 16], rip, local_apic_id: 7 };
    guest.general[7] = 0xffff_ffff_ff5f_c000;
    for _ in 0..LOADS {
        guest.rip = rip;
        assert!(trapped_load(black_box(&mut cache), &memory, black_box(&context), black_box(&mut guest), black_box(0xfee0_0020)));
        assert_eq!(guest.general[0], 7);
    }
}
