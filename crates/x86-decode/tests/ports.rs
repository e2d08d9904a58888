//! INS and OUTS on a simulated port.

mod emulated;

use emulated::Machine;
use stile_x86_decode::{CodeSize, Fault, Intent, OtherRegisters, Outcome, Segment, SegmentName, Vcpu, Width, decode, execute};

const MEMORY: u64 = 0x1000;
const RCX: usize = 1;
const RDX: usize = 2;
const RSI: usize = 6;
const RDI: usize = 7;
const DF: u64 = 1 << 10;

/// A machine with one port, which reads 1, 2, 3, ... and records writes.
struct WithPort {
    machine: Machine,
    /// The exit was for a port.
    exited: bool,
    /// Width and direction of the access that exited, if they matter.
    access: Option<(Width, bool)>,
    read: u64,
    written: Vec<(u16, u64)>,
}

impl Vcpu for WithPort {
    fn register(&self, index: u8) -> u64 {
        self.machine.register(index)
    }
    fn set_register(&mut self, index: u8, value: u64) {
        self.machine.set_register(index, value);
    }
    fn rip(&self) -> u64 {
        self.machine.rip()
    }
    fn flags(&self) -> u64 {
        self.machine.flags()
    }
    fn set_flags(&mut self, flags: u64) {
        self.machine.set_flags(flags);
    }
    fn segment_base(&self, name: SegmentName) -> u64 {
        self.machine.segment_base(name)
    }
    fn segment(&self, name: SegmentName) -> Segment {
        self.machine.segment(name)
    }
    fn canonical(&self, linear: u64) -> bool {
        self.machine.canonical(linear)
    }
    fn device_read(&mut self, _: u64, _: Width) -> u64 {
        panic!("no device")
    }
    fn device_write(&mut self, _: u64, _: Width, _: u64) {
        panic!("no device")
    }
    fn may_use_port(&self, port: u16, width: Width, is_input: bool) -> bool {
        self.exited && port == 0xe0 && self.access.is_none_or(|access| access == (width, is_input))
    }
    fn port_read(&mut self, port: u16, width: Width) -> u64 {
        assert_eq!(port, 0xe0);
        self.read += 1;
        // The port ignores other byte lanes.
        self.read | !width.mask()
    }
    fn port_write(&mut self, port: u16, _: Width, value: u64) {
        self.written.push((port, value));
    }
    fn check_store(&mut self, linear: u64, bytes: u64) -> Result<(), Fault> {
        self.machine.check_store(linear, bytes)
    }
    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], intent: Intent) -> Result<(), Fault> {
        self.machine.load_bytes(linear, bytes, intent)
    }
    fn store_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.machine.store_bytes(linear, bytes)
    }
}

impl OtherRegisters for WithPort {}

fn with_port() -> WithPort {
    let memory: Vec<u8> = (1..=16).collect();
    let mut machine = Machine::new(MEMORY, &memory);
    // Only DX selects the port.
    machine.general[RDX] = 0xffff_0000_1234_00e0;
    machine.general[RSI] = MEMORY;
    machine.general[RDI] = MEMORY;
    WithPort { machine, exited: true, access: None, read: 0, written: Vec::new() }
}

fn run(vcpu: &mut WithPort, bytes: &[u8]) -> Result<Outcome, Fault> {
    execute(&decode(bytes, CodeSize::Bits64).unwrap(), vcpu, u64::MAX)
}

#[test]
fn ins_and_outs_of_each_width() {
    for (bytes, out, width) in [(vec![0x6c], 0x01, 1), (vec![0x66, 0x6d], 0x0201, 2), (vec![0x6d], 0x0403_0201, 4)] {
        let mut vcpu = with_port();
        assert_eq!(run(&mut vcpu, &bytes), Ok(Outcome::Complete));
        assert_eq!(vcpu.machine.memory[..5], [&1u32.to_le_bytes()[..width], &[1, 2, 3, 4, 5][width..]].concat()[..]);
        assert_eq!(vcpu.machine.general[RDI], MEMORY + width as u64);
        // OUTS follows INS by two opcodes.
        let mut vcpu = with_port();
        let outs: Vec<u8> = bytes.iter().map(|byte| if *byte == 0x66 { 0x66 } else { byte + 2 }).collect();
        assert_eq!(run(&mut vcpu, &outs), Ok(Outcome::Complete));
        assert_eq!((vcpu.written, vcpu.machine.general[RSI]), (vec![(0xe0, out)], MEMORY + width as u64));
    }
}

/// An instruction that another vCPU has replaced since the exit: of another width, or direction.
#[test]
fn another_access_than_the_one_that_exited() {
    for (bytes, width, is_input) in [(&[0x6d][..], Width::Byte, true), (&[0x6f], Width::Byte, false), (&[0x6e], Width::Byte, true)] {
        let mut vcpu = WithPort { access: Some((width, is_input)), ..with_port() };
        assert_eq!(run(&mut vcpu, bytes), Ok(Outcome::Changed));
        assert_eq!((vcpu.read, vcpu.written, vcpu.machine.general[RSI]), (0, vec![], MEMORY));
    }
}

#[test]
fn repetitions_in_both_directions() {
    let mut vcpu = with_port();
    vcpu.machine.general[RCX] = 3;
    assert_eq!(run(&mut vcpu, &[0xf3, 0x6e]), Ok(Outcome::Complete));
    assert_eq!((vcpu.written, vcpu.machine.general[RCX]), (vec![(0xe0, 1), (0xe0, 2), (0xe0, 3)], 0));
    let mut vcpu = with_port();
    vcpu.machine.general[RCX] = 2;
    vcpu.machine.general[RDI] = MEMORY + 8;
    vcpu.machine.flags |= DF;
    assert_eq!(run(&mut vcpu, &[0xf3, 0x66, 0x6d]), Ok(Outcome::Complete));
    assert_eq!(vcpu.machine.memory[6..10], [2, 0, 1, 0]);
    assert_eq!(vcpu.machine.general[RDI], MEMORY + 4);
    // A count of 0 has no effect.
    let mut vcpu = with_port();
    assert_eq!(run(&mut vcpu, &[0xf3, 0x6c]), Ok(Outcome::Complete));
    assert_eq!(vcpu.read, 0);
    // Long repetitions return Partial.
    let mut vcpu = with_port();
    vcpu.machine.general[RCX] = 1000;
    vcpu.machine.memory = vec![0; 1000];
    assert_eq!(run(&mut vcpu, &[0xf3, 0x6c]), Ok(Outcome::Partial));
    assert!(vcpu.machine.general[RCX] + vcpu.read == 1000 && vcpu.read > 0);
}

/// The processor has not checked the right to the port in this case.
#[test]
fn without_a_port_exit_nothing_is_done() {
    for bytes in [&[0x6c][..], &[0x6e], &[0xf3, 0x6c], &[0xf3, 0x6e]] {
        let mut vcpu = with_port();
        vcpu.exited = false;
        vcpu.machine.general[RCX] = 3;
        let before = vcpu.machine.clone();
        assert_eq!(run(&mut vcpu, bytes), Ok(Outcome::Changed));
        assert!(
            vcpu.machine.general == before.general && vcpu.machine.memory == before.memory && vcpu.read == 0 && vcpu.written.is_empty()
        );
    }
}

/// A port read cannot be repeated, so a fault of the store must precede it.
#[test]
fn store_faults_precede_the_port_read() {
    let mut vcpu = with_port();
    vcpu.machine.general[RDI] = MEMORY + 14;
    assert!(matches!(run(&mut vcpu, &[0x6d]), Err(Fault::Page(_))));
    assert_eq!((vcpu.read, vcpu.machine.general[RDI]), (0, MEMORY + 14));
    let mut vcpu = with_port();
    vcpu.machine.general[RSI] = MEMORY + 14;
    assert!(matches!(run(&mut vcpu, &[0x6f]), Err(Fault::Page(_))));
    assert!(vcpu.written.is_empty());
}
