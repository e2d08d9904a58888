//! Random bytes on random state: emulation terminates, does not panic, and changes only what it may.

mod emulated;

use emulated::Machine;
use proptest::prelude::*;
use stile_decode::{
    CodeSize, Control, Descriptor, Extent, Fault, OtherRegisters, Segment, SegmentName, SystemSegment, TableName, Vcpu, Width, decode,
    execute,
};

fn size() -> impl Strategy<Value = CodeSize> {
    prop_oneof![Just(CodeSize::Bits16), Just(CodeSize::Bits32), Just(CodeSize::Bits64)]
}

/// Devices with arbitrary answers, and memory that is partly present.
struct Wild(Machine, usize);

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
    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], _: stile_decode::Intent) -> Result<(), Fault> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn random_bytes_on_random_state(
        bytes in prop::collection::vec(any::<u8>(), 0..20),
        opcode in prop::sample::select(
            &[
                0_u8, 0x8b, 0x89, 0x0f, 0x0f, 0x0f, 0xab, 0xa5, 0xff, 0x8f, 0xc7, 0x81, 0xf7, 0xd3, 0x8e, 0xc4, 0xc5, 0xc3, 0xc8, 0xa6, 0x60, 0x61, 0x9c,
                0x9d, 0xd7,
            ][..]
        ),
        general in prop::array::uniform16(any::<u64>()),
        size in size(),
        (exit, flags, base, limit, rights) in (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()),
    ) {
        let mut bytes = bytes;
        if let (Some(first), true) = (bytes.first_mut(), opcode != 0) {
            *first = opcode;
        }
        let Ok(decoded) = decode(&bytes, size) else { return Ok(()) };
        prop_assert!((1..=15).contains(&decoded.len()));
        let mut machine = Machine::new(0, &[]);
        (machine.general, machine.flags) = (general, flags);
        // Derived from the same random bits as the other state.
        machine.other.privilege = (base & 3) as u8;
        (machine.other.cr0, machine.other.cr4, machine.other.efer) = (limit.into(), rights.into(), base >> 8);
        machine.other.tables = [(exit, rights as u16); 2];
        machine.segments = [Segment::from_vmcs(base, limit, rights, flags & 1 != 0); 6];
        let mut wild = Wild(machine, 0);
        let _ = execute(&decoded, &mut wild, exit);
        prop_assert!(wild.1 <= 2 * 64, "{} accesses", wild.1);
    }
}
