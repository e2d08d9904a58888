//! A processor of memory and registers, for the emulator to work on.

use stile_x86_decode::{
    Control, Descriptor, Extent, Fault, Intent, OtherRegisters, Segment, SegmentName, SelectorName, StateWord, SystemSegment, TableName,
    Vcpu, Width,
};
use stile_x86_walk::{ErrorCode, PageFault};

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
    /// Numbers of accesses to a device, and to a linear address.
    pub device_accesses: usize,
    pub linear_accesses: usize,
    pub other: Other,
}

/// Registers beyond the general ones. Descriptors are read from the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub vectors: [[u64; 4]; 16],
    pub mmx: [u64; 8],
    pub privilege: u8,
    pub cr0: u64,
    pub cr4: u64,
    pub efer: u64,
    pub xcr0: u64,
    pub floating_point_error: bool,
    /// The x87's control and status words, and MXCSR.
    pub state: [u32; 3],
    /// GDT and IDT.
    pub tables: [(u64, u16); 2],
    /// Those of the segment registers; then LDTR's and TR's.
    pub selectors: [u16; 8],
    /// The descriptor that was loaded last.
    pub loaded: Option<Descriptor>,
    /// Descriptors that selectors were loaded with.
    pub descriptors: [Option<Descriptor>; 8],
    pub cr3: u64,
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
            // Protected mode with SSE and AVX.
            other: Other {
                vectors: [[0; 4]; 16],
                mmx: [0; 8],
                privilege: 0,
                cr0: 1,
                cr4: 1 << 9 | 1 << 18,
                efer: 1 << 10,
                xcr0: 7,
                floating_point_error: false,
                state: [0x37f, 0x3800, 0x1f80],
                tables: [(0, 0); 2],
                selectors: [0; 8],
                loaded: None,
                descriptors: [None; 8],
                cr3: 0,
            },
        }
    }

    fn range(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(address.checked_sub(self.base)?).ok()?;
        self.memory.get_mut(start..start.checked_add(length)?)
    }

    fn get(&mut self, address: u64, width: Width) -> Option<u64> {
        let bytes = self.range(address, width.bytes() as usize)?;
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }

    fn put(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        assert_eq!(value & !width.mask(), 0, "zero above the width");
        let bytes = self.range(address, width.bytes() as usize)?;
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

    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], intent: Intent) -> Result<(), Fault> {
        self.linear_accesses += 1;
        let found = self.range(linear, bytes.len()).ok_or(fault(linear, intent == Intent::Modify))?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn store_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.linear_accesses += 1;
        self.range(linear, bytes.len()).ok_or(fault(linear, true))?.copy_from_slice(bytes);
        Ok(())
    }

    fn check_store(&mut self, linear: u64, bytes: u64) -> Result<(), Fault> {
        self.range(linear, bytes as usize).ok_or(fault(linear, true)).map(drop)
    }
}

impl OtherRegisters for Machine {
    fn privilege(&self) -> u8 {
        self.other.privilege
    }

    fn control(&self, register: Control) -> u64 {
        match register {
            Control::Cr0 => self.other.cr0,
            Control::Cr4 => self.other.cr4,
            Control::Efer => self.other.efer,
            Control::Xcr0 => self.other.xcr0,
        }
    }

    fn set_cr0(&mut self, value: u64) -> Result<(), Fault> {
        self.other.cr0 = value;
        Ok(())
    }

    fn table(&self, name: TableName) -> (u64, u16) {
        self.other.tables[name as usize]
    }

    fn set_table(&mut self, name: TableName, base: u64, limit: u16) {
        self.other.tables[name as usize] = (base, limit);
    }

    fn local_table(&self) -> Option<(u64, u32)> {
        const UNUSABLE: u32 = 1 << 16;
        self.other.descriptors[6].filter(|found| found.rights & UNUSABLE == 0).map(|found| (found.base, found.limit))
    }

    fn load_descriptor(&mut self, linear: u64) -> Result<u64, Fault> {
        self.get(linear, Width::Qword).ok_or(fault(linear, false))
    }

    fn store_descriptor(&mut self, linear: u64, descriptor: u64) -> Result<(), Fault> {
        self.put(linear, Width::Qword, descriptor).ok_or(fault(linear, true))
    }

    fn selector(&self, name: SelectorName) -> u16 {
        self.other.selectors[match name {
            SelectorName::Segment(name) => name as usize,
            SelectorName::Ldtr => 6,
            SelectorName::Tr => 7,
        }]
    }

    fn set_segment(&mut self, name: SegmentName, selector: u16, descriptor: Option<&Descriptor>) {
        self.other.selectors[name as usize] = selector;
        self.other.loaded = descriptor.copied();
        self.other.descriptors[name as usize] = descriptor.copied();
        match descriptor {
            Some(found) => self.segments[name as usize] = Segment::from_vmcs(found.base, found.limit, found.rights, true),
            None => self.segments[name as usize].base = u64::from(selector) << 4,
        }
    }

    fn set_system_segment(&mut self, name: SystemSegment, selector: u16, descriptor: &Descriptor) {
        self.other.selectors[6 + name as usize] = selector;
        self.other.loaded = Some(*descriptor);
        self.other.descriptors[6 + name as usize] = Some(*descriptor);
    }

    fn vector(&self, index: u8, wide: bool) -> [u64; 4] {
        let [a, b, c, d] = self.other.vectors[usize::from(index)];
        if wide { [a, b, c, d] } else { [a, b, !c, !d] }
    }

    fn set_vector(&mut self, index: u8, [a, b, c, d]: [u64; 4], extent: Extent) {
        let register = &mut self.other.vectors[usize::from(index)];
        *register = match extent {
            Extent::Low => [a, b, register[2], register[3]],
            Extent::LowAlone => [a, b, 0, 0],
            Extent::Wide => [a, b, c, d],
        };
    }

    fn floating_point_error(&self) -> bool {
        self.other.floating_point_error
    }

    fn state_word(&self, word: StateWord) -> u32 {
        self.other.state[word as usize]
    }

    fn set_state_word(&mut self, word: StateWord, value: u32) {
        assert_ne!(word, StateWord::X87Status);
        self.other.state[word as usize] = value;
    }

    fn mmx(&mut self, index: u8) -> u64 {
        self.other.mmx[usize::from(index)]
    }

    fn set_mmx(&mut self, index: u8, value: u64) {
        self.other.mmx[usize::from(index)] = value;
    }
}
