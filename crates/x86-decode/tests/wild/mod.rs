//! A processor with arbitrary state, whose devices and memory answer arbitrarily; it checks each access.

use stile_x86_decode::{Control, Descriptor, Extent, Fault, OtherRegisters, Segment, SegmentName, SystemSegment, TableName, Vcpu, Width};

use super::emulated::Machine;

/// Devices with arbitrary answers, and memory that is partly present.
/// The second field counts the accesses.
pub struct Wild(pub Machine, pub usize);

impl Vcpu for Wild {
    fn register(&self, index: u8) -> u64 {
        self.0.register(index)
    }
    fn set_register(&mut self, index: u8, value: u64) {
        self.0.set_register(index, value);
    }
    fn rip(&self) -> u64 {
        self.0.rip
    }
    fn flags(&self) -> u64 {
        self.0.flags
    }
    fn set_flags(&mut self, flags: u64) {
        assert_eq!((flags ^ self.0.flags) & !0x8d5, 0, "status flags only");
        self.0.flags = flags;
    }
    fn segment_base(&self, name: SegmentName) -> u64 {
        self.0.segment_base(name)
    }
    fn segment(&self, name: SegmentName) -> Segment {
        self.0.segment(name)
    }
    fn canonical(&self, linear: u64) -> bool {
        self.0.canonical(linear)
    }
    fn device_read(&mut self, address: u64, width: Width) -> u64 {
        self.1 += 1;
        assert!(address % 4096 + width.bytes() <= 4096, "one page");
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn device_write(&mut self, address: u64, width: Width, value: u64) {
        self.1 += 1;
        assert!(address % 4096 + width.bytes() <= 4096, "one page");
        assert_eq!(value & !width.mask(), 0);
    }
    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], _: stile_x86_decode::Intent) -> Result<(), Fault> {
        self.1 += 1;
        if linear.is_multiple_of(7) {
            return Err(Fault::Protection);
        }
        bytes.fill(!linear as u8);
        Ok(())
    }
    fn store_bytes(&mut self, linear: u64, _: &[u8]) -> Result<(), Fault> {
        self.1 += 1;
        if linear.is_multiple_of(5) { Err(Fault::Protection) } else { Ok(()) }
    }
    fn check_store(&mut self, linear: u64, _: u64) -> Result<(), Fault> {
        if linear.is_multiple_of(5) { Err(Fault::Protection) } else { Ok(()) }
    }
}

impl OtherRegisters for Wild {
    fn privilege(&self) -> u8 {
        self.0.other.privilege
    }
    fn control(&self, register: Control) -> u64 {
        self.0.control(register)
    }
    fn set_cr0(&mut self, value: u64) -> Result<(), Fault> {
        assert_eq!((value ^ self.0.other.cr0) & !0b1111, 0, "the status word only");
        self.0.set_cr0(value)
    }
    fn table(&self, name: TableName) -> (u64, u16) {
        self.0.table(name)
    }
    fn set_table(&mut self, name: TableName, base: u64, limit: u16) {
        assert!(self.canonical(base));
        self.0.set_table(name, base, limit);
    }
    fn load_descriptor(&mut self, linear: u64) -> Result<u64, Fault> {
        self.1 += 1;
        if linear.is_multiple_of(7) { Err(Fault::Protection) } else { Ok(linear.wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
    }
    fn store_descriptor(&mut self, _: u64, _: u64) -> Result<(), Fault> {
        self.1 += 1;
        Ok(())
    }
    fn set_segment(&mut self, name: SegmentName, selector: u16, descriptor: Option<&Descriptor>) {
        self.0.set_segment(name, selector, descriptor);
    }
    fn set_system_segment(&mut self, name: SystemSegment, selector: u16, descriptor: &Descriptor) {
        assert!(self.canonical(descriptor.base));
        self.0.set_system_segment(name, selector, descriptor);
    }
    fn set_vector(&mut self, index: u8, value: [u64; 4], extent: Extent) {
        self.0.set_vector(index, value, extent);
    }
    fn mmx(&mut self, index: u8) -> u64 {
        self.0.mmx(index)
    }
    fn set_mmx(&mut self, index: u8, value: u64) {
        self.0.set_mmx(index, value);
    }
}
