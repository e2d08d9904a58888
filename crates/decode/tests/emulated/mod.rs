//! A processor of memory and registers, for the emulator to work on.

use stile_decode::{Fault, Intent, Segment, SegmentName, Vcpu, Width};
use stile_walk::{ErrorCode, PageFault};

/// Linear, guest-physical and device addresses are the same here.
#[derive(Clone)]
pub struct Machine {
    pub general: [u64; 16],
    pub flags: u64,
    pub rip: u64,
    /// The address of the memory's first byte; outside of it accesses fault.
    pub base: u64,
    pub memory: Vec<u8>,
    pub segments: [Segment; 6],
    /// How many accesses went to a device, and how many to a linear address.
    pub device_accesses: usize,
    pub linear_accesses: usize,
}

impl Machine {
    pub fn new(base: u64, memory: &[u8]) -> Self {
        let flat = Segment { base: 0, limit: u32::MAX, readable: true, writable: true, expand_down: false, big: true };
        Self {
            general: [0; 16],
            flags: 2,
            rip: 0,
            base,
            memory: memory.to_vec(),
            segments: [flat; 6],
            device_accesses: 0,
            linear_accesses: 0,
        }
    }

    fn range(&mut self, address: u64, width: Width) -> Option<&mut [u8]> {
        let start = usize::try_from(address.checked_sub(self.base)?).ok()?;
        self.memory.get_mut(start..start.checked_add(width.bytes() as usize)?)
    }

    fn get(&mut self, address: u64, width: Width) -> Option<u64> {
        let bytes = self.range(address, width)?;
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }

    fn put(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        assert_eq!(value & !width.mask(), 0, "zero above the width");
        let bytes = self.range(address, width)?;
        bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
        Some(())
    }
}

fn fault(linear: u64, write: bool) -> Fault {
    Fault::Page(PageFault { linear, code: ErrorCode(if write { ErrorCode::WRITE } else { 0 }) })
}

impl Vcpu for Machine {
    fn register(&self, index: u8) -> u64 {
        self.general[usize::from(index)]
    }

    fn set_register(&mut self, index: u8, value: u64) {
        self.general[usize::from(index)] = value;
    }

    fn rip(&self) -> u64 {
        self.rip
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }

    fn segment_base(&self, name: SegmentName) -> u64 {
        self.segments[name as usize].base
    }

    fn segment(&self, name: SegmentName) -> Segment {
        self.segments[name as usize]
    }

    fn canonical(&self, linear: u64) -> bool {
        (linear << 16) as i64 >> 16 == linear as i64
    }

    fn device_read(&mut self, address: u64, width: Width) -> u64 {
        self.device_accesses += 1;
        // Whatever a device puts on the other lanes must not matter.
        self.get(address, width).expect("a device") | !width.mask() & 0xdead_beef_dead_beef
    }

    fn device_write(&mut self, address: u64, width: Width, value: u64) {
        self.device_accesses += 1;
        self.put(address, width, value).expect("a device");
    }

    fn load(&mut self, linear: u64, width: Width, intent: Intent) -> Result<u64, Fault> {
        self.linear_accesses += 1;
        self.get(linear, width).ok_or(fault(linear, intent == Intent::Modify))
    }

    fn store(&mut self, linear: u64, width: Width, value: u64) -> Result<(), Fault> {
        self.linear_accesses += 1;
        self.put(linear, width, value).ok_or(fault(linear, true))
    }
}
