//! Properties of all blobs, valid and hostile.

use crate::write::{File, Function, Machine, blob, symbols};
use crate::*;
use alloc::{format, string::String, vec, vec::Vec};
use proptest::prelude::*;
use stile_board::{CpuId, CpuSet, MAX_VCPUS, map};

/// A virtual machine that satisfies every rule; tests set the other fields.
fn vm(name: &str, memory: u64) -> Vm<'_> {
    Vm {
        name,
        memory,
        ram_base: map::RAM_BASE,
        firmware: 0,
        disks: heapless::Vec::new(),
        vcpus: 1,
        topology: None,
        class: None,
        cpus: CpuSet::EMPTY,
        pinned: false,
        share: Share::default(),
        entry: map::RAM_BASE,
        info: map::RAM_BASE + memory - map::RAM_GRANULE,
        mode: Mode::Reset,
        loads: heapless::Vec::new(),
        on_reset: OnReset::Restart,
        techniques: Techniques::default(),
        functions: heapless::Vec::new(),
        served: heapless::Vec::new(),
        serves: 0,
        gic: Gic::default(),
    }
}

fn machine<'a>(vms: &[Vm<'a>]) -> Machine<'a> {
    Machine { settings: Settings { report_exits: true, slice_us: 5000, mitigations: Mitigations::Auto }, vms: vms.to_vec(), text: "" }
}

fn function(start: u32, len: u32, name: &str) -> Function {
    Function { start, len, name: String::from(name) }
}

/// A blob that uses every feature.
fn sample() -> Vec<u8> {
    let memory = 8 * map::RAM_GRANULE;
    let mut second = vm("guest-1", memory);
    second.vcpus = 3;
    second.topology = Some(Topology { sockets: 3, cores: 1, threads: 1 });
    second.cpus = CpuSet::from_bits(0b110);
    second.pinned = true;
    second.share = Share { weight: 250, cap: Some(150) };
    second.on_reset = OnReset::Stop;
    second.techniques.wfi_passthrough = false;
    let names = symbols(&[function(0, 8, "_start"), function(0x1000, 0, "stile::exit::handle")]);
    let kernel = vec![0xaa; 5000];
    let file = |vm, gpa, bytes| File { vm, bytes, gpa, mem_len: 8192 };
    let files = [
        file(0, map::RAM_BASE, &kernel[..]),
        file(1, map::RAM_BASE + 4096, &kernel[..]),
        file(1, map::RAM_BASE + map::RAM_GRANULE, b"dtb"),
    ];
    blob(&machine(&[vm("guest-0", memory), second]), &names, &files).expect("valid")
}

/// The hypervisor's assumptions about a parsed blob, stated independently.
fn assert_invariants(blob: &Blob<'_>) {
    assert_ne!(blob.vms.len(), 0);
    assert!((100..=1_000_000).contains(&blob.settings.slice_us));
    let vms: Vec<_> = blob.vms.clone().collect();
    assert_eq!(vms.len(), blob.vms.len());
    for (index, vm) in vms.iter().enumerate() {
        assert!(!vm.name.is_empty() && vm.name.len() <= 32);
        assert!(vm.name.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == '-'));
        assert!(vms.iter().skip(index + 1).all(|other| other.name != vm.name));
        assert!(vm.memory % map::RAM_GRANULE == 0 && vm.memory > 0);
        let ram_end = vm.ram_base.checked_add(vm.memory).expect("no overflow");
        assert!(ram_end <= 1 << 38);
        assert!((1..=MAX_VCPUS).contains(&usize::from(vm.vcpus)));
        assert!(vm.entry >= vm.ram_base && vm.entry < ram_end || vm.entry < vm.firmware);
        assert!(vm.info >= vm.ram_base && vm.info < ram_end);
        assert!(vm.info % 8 == 0 && (vm.mode != Mode::Reset || vm.entry % 4 == 0));
        if let Mode::Long { tables } = vm.mode {
            assert!(tables >= vm.ram_base && tables < ram_end && tables % 4096 == 0);
        }
        for load in &vm.loads {
            let load_end = load.gpa.checked_add(load.mem_len).expect("no overflow");
            assert!(load.mem_len >= load.len);
            let is_disk = vm.disk_regions().any(|disk| load.gpa >= disk.start && load_end <= disk.end && disk.start >= ram_end);
            assert!(load.gpa >= vm.ram_base && load_end <= ram_end || load_end <= vm.firmware || is_disk);
            if load.len != 0 {
                assert_eq!(blob.file(load).expect("in the blob").len() as u64, load.len);
            }
        }
    }
    // They may be damaged.
    for at in blob.symbols.iter().map(|(start, _)| start).chain([u32::MAX]) {
        let _ = blob.symbols.lookup(at);
    }
}

#[test]
fn sample_round_trips() {
    let mut bytes = sample();
    bytes.extend_from_slice(b"what follows the blob");
    let blob = Blob::parse(&bytes).expect("valid");
    assert_invariants(&blob);
    let vms: Vec<_> = blob.vms.clone().collect();
    assert_eq!(blob.len() % 4096, 0);
    let [first, second] = &vms[..] else { panic!("two VMs") };
    assert_eq!(blob.file(&first.loads[0]), Some(&vec![0xaa; 5000][..]));
    assert_eq!(blob.file(&second.loads[1]), Some(&b"dtb"[..]));
    assert_eq!(first.loads[0].offset, second.loads[0].offset, "equal files are stored once");
    assert_eq!(second.name, "guest-1");
    assert!(second.pinned && !second.techniques.wfi_passthrough);
    assert_eq!(second.on_reset, OnReset::Stop);
    assert_eq!(blob.symbols.lookup(4), Some(("_start", 4)));
}

#[test]
fn every_prefix_is_refused() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert!(Blob::parse(&bytes[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn errors_tell_what_is_wrong() {
    let good = sample();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Blob::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(0, 0), Err(Error::Magic));
    assert_eq!(with(8, 99), Err(Error::Version(99)));
    assert_eq!(with(15, 0x10), Err(Error::Length), "configuration longer than all");
    assert_eq!(with(23, 1), Err(Error::Truncated));
    assert_eq!(with(28, good[28] ^ 1), Err(Error::Checksum));
    assert_eq!(with(HEADER_LEN, good[HEADER_LEN] ^ 1), Err(Error::Checksum));
    assert_eq!(Blob::parse(&[]).map(|_| ()), Err(Error::Truncated));
}

/// A function belongs to one VM.
#[test]
fn functions_are_not_shared() {
    let with = |name, id| {
        let mut vm = vm(name, 4 * map::RAM_GRANULE);
        vm.functions.push(id).expect("first");
        vm
    };
    let made = |second| blob(&machine(&[with("one", 0x10), with("two", second)]), &[], &[]).map(|_| ());
    assert_eq!((made(0x18), made(0x10)), (Ok(()), Err(Error::Vm(1, Rule::Functions))));
}

/// A VM whose only device another one serves.
fn client(name: &'static str, server: u8) -> Vm<'static> {
    let mut vm = vm(name, 4 * map::RAM_GRANULE);
    vm.served.push(Served { device: 2, server }).expect("first");
    vm
}

/// The windows of a server's clients are behind its RAM, each at a GiB; devices have the order of their clients.
#[test]
fn devices_are_served() {
    let mut server = vm("server", 4 * map::RAM_GRANULE);
    server.serves = 3;
    let mut two = client("two", 1);
    two.served.push(Served { device: 1, server: 1 }).expect("second");
    let bytes = blob(&machine(&[client("one", 1), server, two]), &[], &[]).expect("valid");
    let vms = Blob::parse(&bytes).expect("valid").vms;
    let slots: Vec<_> = vms.served_by(1).expect("valid").iter().map(|slot| (slot.client, slot.index, slot.device, slot.window)).collect();
    let (first, second) = (2 << 30, 3 << 30);
    assert_eq!(slots, [(0, 0, 2, first), (2, 0, 2, second), (2, 1, 1, second)]);
    assert_eq!(vms.served_by(0).map(|slots| slots.len()), Some(0));
}

#[test]
fn devices_that_nobody_can_serve_are_refused() {
    let server = |serves| {
        let mut server = vm("server", 4 * map::RAM_GRANULE);
        server.serves = serves;
        server
    };
    let made = |vms: &[Vm<'static>]| blob(&machine(vms), &[], &[]).map(|_| ());
    let refused = |vm| Err(Error::Vm(vm, Rule::Served));
    assert_eq!(made(&[client("one", 1), server(1)]), Ok(()));
    let mut huge = client("huge", 0);
    huge.disks.extend([!0 << 21; 2]);
    assert_eq!(made(&[server(1), huge]), Err(Error::Vm(1, Rule::Disks)));
    assert_eq!(made(&[client("one", 1), server(0)]), refused(0));
    assert_eq!(made(&[client("one", 1), server(2)]), refused(1));
    assert_eq!(made(&[client("one", 2), server(1)]), refused(0));
    assert_eq!(made(&[client("one", 0), server(0)]), refused(0));
    let change = |change: fn(&mut Vm<'static>)| {
        let mut vms = [client("one", 1), server(1)];
        change(&mut vms[1]);
        made(&vms)
    };
    assert_eq!(change(|server| server.techniques.nested = Nested::Nv2), refused(1));
    assert_eq!(change(|server| server.firmware = map::RAM_GRANULE), refused(1));
    assert_eq!(change(|server| server.served.push(Served { device: 2, server: 0 }).expect("first")), refused(1));
    let large = |name, memory| {
        let mut vm = client(name, 2);
        vm.memory = memory;
        vm
    };
    let with = |first| made(&[large("one", first), large("two", map::RAM_MAX), server(2)]);
    assert_eq!(with(map::RAM_MAX), Ok(()), "512 GiB in all");
    let three = made(&[large("one", map::RAM_MAX), large("two", map::RAM_MAX), server(3), large("three", map::RAM_GRANULE * 4)]);
    assert_eq!(three, refused(2));
}

/// Violates each rule separately.
#[test]
fn each_violated_rule_is_reported() {
    let ram = 4 * map::RAM_GRANULE;
    let check = |change: &dyn Fn(&mut Vm<'_>)| {
        let mut broken = vm("broken", ram);
        change(&mut broken);
        blob(&machine(&[vm("whole", ram), broken]), &[], &[]).map(|_| ())
    };
    let end = map::RAM_BASE + ram;
    let load = |offset, len, gpa, mem_len| {
        move |vm: &mut Vm<'_>| {
            vm.loads.push(Load { offset, len, gpa, mem_len }).expect("first");
        }
    };
    let broken = |rule| Err(Error::Vm(1, rule));
    assert_eq!(check(&|_| {}), Ok(()));
    assert_eq!(check(&|vm| vm.name = ""), broken(Rule::Name));
    assert_eq!(check(&|vm| vm.name = "Upper"), broken(Rule::Name));
    assert_eq!(check(&|vm| vm.name = "a-name-of-more-than-32-characters"), broken(Rule::Name));
    assert_eq!(check(&|vm| vm.name = "whole"), broken(Rule::UniqueName));
    assert_eq!(check(&|vm| vm.functions.extend([0x10, 0x18])), Ok(()));
    assert_eq!(check(&|vm| vm.functions.extend([0x10, 0x18, 0x10])), broken(Rule::Functions));
    assert_eq!(check(&|vm| vm.memory = 0), broken(Rule::Memory));
    assert_eq!(check(&|vm| vm.memory = ram + 4096), broken(Rule::Memory));
    assert_eq!(check(&|vm| vm.memory = !0 << 21), broken(Rule::Memory));
    let disks = |sizes: &'static [u64]| move |vm: &mut Vm<'_>| vm.disks = heapless::Vec::from_slice(sizes).expect("few");
    assert_eq!(check(&disks(&[map::RAM_GRANULE, 4 * map::RAM_GRANULE])), Ok(()));
    for sizes in [&[0][..], &[4096], &[map::RAM_MAX], &[!0 << 21, !0 << 21]] {
        assert_eq!(check(&disks(sizes)), broken(Rule::Disks), "{sizes:?}");
    }
    assert_eq!(check(&|vm| vm.vcpus = 0), broken(Rule::Vcpus));
    assert_eq!(check(&|vm| vm.vcpus = MAX_VCPUS as u16 + 1), broken(Rule::Vcpus));
    let two = |threads| Some(Topology { sockets: 1, cores: 1, threads });
    assert_eq!(check(&|vm| vm.topology = two(2)), broken(Rule::Topology));
    assert_eq!(check(&|vm| vm.topology = two(0)), broken(Rule::Topology));
    assert_eq!(check(&|vm| vm.entry = end), broken(Rule::Entry));
    assert_eq!(check(&|vm| vm.entry = map::RAM_BASE + 2), broken(Rule::Entry));
    assert_eq!(check(&|vm| vm.info = 0), broken(Rule::Info));
    assert_eq!(check(&|vm| vm.ram_base = map::RAM_BASE + map::RAM_GRANULE), broken(Rule::Memory));
    assert_eq!(check(&|vm| vm.ram_base = 4096), broken(Rule::Memory));
    let firmware = |size, base| {
        move |vm: &mut Vm<'_>| {
            vm.firmware = size;
            vm.ram_base = base;
            vm.entry = size - 4;
            vm.mode = Mode::Reset;
        }
    };
    assert_eq!(check(&firmware(map::RAM_GRANULE, map::RAM_BASE)), Ok(()));
    assert_eq!(check(&firmware(map::FIRMWARE_MAX, map::RAM_BASE)), Ok(()));
    assert_eq!(check(&firmware(map::FIRMWARE_MAX + map::RAM_GRANULE, map::RAM_BASE)), broken(Rule::Memory));
    assert_eq!(check(&firmware(map::RAM_GRANULE + 4096, map::RAM_BASE)), broken(Rule::Memory));
    assert_eq!(check(&firmware(map::RAM_GRANULE, 0)), broken(Rule::Memory), "RAM would overlap");
    let low = |mode| {
        move |vm: &mut Vm<'_>| {
            vm.ram_base = 0;
            vm.entry = 0x10_0001;
            vm.info = 0x1000;
            vm.mode = mode;
        }
    };
    assert_eq!(check(&low(Mode::Reset)), broken(Rule::Entry));
    assert_eq!(check(&low(Mode::Protected)), Ok(()));
    assert_eq!(check(&low(Mode::Long { tables: 0x2000 })), Ok(()));
    assert_eq!(check(&low(Mode::Long { tables: 0x2008 })), broken(Rule::Tables));
    assert_eq!(check(&low(Mode::Long { tables: ram })), broken(Rule::Tables));
    assert_eq!(check(&|vm| vm.info = end - 4), broken(Rule::Info));
    assert_eq!(check(&load(0, 0, map::RAM_BASE, ram)), Ok(()), "only zeroes");
    assert_eq!(check(&load(0, 1, map::RAM_BASE, 1)), broken(Rule::LoadFile));
    assert_eq!(check(&load(4096, 1, map::RAM_BASE, 1)), broken(Rule::LoadFile));
    assert_eq!(check(&load(u64::MAX, 2, map::RAM_BASE, 2)), broken(Rule::LoadFile));
    assert_eq!(check(&load(0, 0, map::RAM_BASE, ram + 1)), broken(Rule::LoadAddress));
    assert_eq!(check(&load(0, 0, map::RAM_BASE - 1, 1)), broken(Rule::LoadAddress));
    assert_eq!(check(&load(0, 0, u64::MAX, u64::MAX)), broken(Rule::LoadAddress));
    let file = File { vm: 1, bytes: b"xyz", gpa: map::RAM_BASE, mem_len: 2 };
    let small = blob(&machine(&[vm("a", ram), vm("b", ram)]), &[], &[file]);
    assert_eq!(small, Err(Error::Vm(1, Rule::LoadSize)));
    assert_eq!(blob(&machine(&[]), &[], &[]), Err(Error::NoVms));
    let mut slow = machine(&[vm("a", ram)]);
    slow.settings.slice_us = 99;
    assert_eq!(blob(&slow, &[], &[]), Err(Error::Slice));
}

#[test]
fn as_many_vms_as_there_may_be() {
    let names: Vec<_> = (0..=stile_board::MAX_VMS).map(|number| format!("vm-{number}")).collect();
    let vms: Vec<_> = names.iter().map(|name| vm(name, map::RAM_GRANULE)).collect();
    let most = blob(&machine(&vms[1..]), &[], &[]).expect("not too many");
    assert!(Blob::parse(&most).expect("valid").vms.map(|vm| vm.name).eq(names[1..].iter()));
    assert_eq!(blob(&machine(&vms), &[], &[]), Err(Error::Encoding));
}

#[test]
fn disks_in_memory_are_loaded_behind_ram() {
    const SIZE: u64 = map::RAM_GRANULE;
    let mut with_disks = vm("a", 2 * SIZE);
    with_disks.disks = [SIZE, 2 * SIZE].into_iter().collect();
    let end = map::RAM_BASE + 2 * SIZE;
    let entry = Vm { entry: end, ..with_disks.clone() };
    assert_eq!(blob(&machine(&[entry]), &[], &[]).map(|_| ()), Err(Error::Vm(0, Rule::Entry)));
    assert!(with_disks.disk_regions().eq([end..end + SIZE, end + 2 * SIZE..end + 4 * SIZE]));
    assert_eq!(with_disks.memory_span(), map::RAM_BASE..end + 4 * SIZE);
    let made = |gpa, mem_len| blob(&machine(&[with_disks.clone()]), &[], &[File { vm: 0, bytes: b"x", gpa, mem_len }]).map(|_| ());
    assert_eq!(made(end, SIZE), Ok(()));
    assert_eq!(made(end + 2 * SIZE, 2 * SIZE), Ok(()));
    for (gpa, len) in [(end, SIZE + 1), (end + SIZE, 1), (end + 2 * SIZE, 2 * SIZE + 1), (end - 1, 2)] {
        assert_eq!(made(gpa, len), Err(Error::Vm(0, Rule::LoadAddress)), "{gpa:#x}");
    }
}

#[test]
fn too_many_files() {
    let file = File { vm: 0, bytes: b"x", gpa: map::RAM_BASE, mem_len: 1 };
    let machine = machine(&[vm("a", map::RAM_GRANULE)]);
    assert!(blob(&machine, &[], &[file; MAX_LOADS]).is_ok());
    assert_eq!(blob(&machine, &[], &[file; MAX_LOADS + 1]), Err(Error::Length));
    assert_eq!(blob(&machine, &[], &[File { vm: 1, ..file }]), Err(Error::Length));
}

#[test]
fn cpus_of_vcpus() {
    let mut vm = vm("a", map::RAM_GRANULE);
    let set = CpuSet::from_bits;
    assert_eq!(vm.cpus_of(0, &set(0b1111)), set(0b1111));
    vm.cpus = set(0b1_1010);
    assert_eq!(vm.cpus_of(5, &set(0b1111)), set(0b1010));
    vm.pinned = true;
    assert_eq!([0, 1, 2, 3].map(|vcpu| vm.cpus_of(vcpu, &set(0b1111))), [0b10, 0b1000, 0b10, 0b1000].map(set));
    assert_eq!(vm.cpus_of(2, &CpuSet::ALL), set(0b1_0000));
    assert_eq!(vm.cpus_of(0, &set(0b101)), CpuSet::EMPTY);
    vm.cpus = CpuSet::EMPTY;
    assert_eq!(vm.cpus_of(65, &set(u64::MAX)), set(0b10));
    assert_eq!(vm.cpus_of(63, &set(u64::MAX)), set(1 << 63));
    assert_eq!(vm.cpus_of(65, &CpuSet::ALL).only(), CpuId::new(65));
}

#[test]
fn gaps_between_functions_have_no_name() {
    let bytes = symbols(&[
        function(0x100, 0x10, "b"),
        function(0, 0x10, "a"),
        function(0x110, 0, "c"),
        function(0x200, 4, "d::ü"),
        function(0x200, 8, "e"),
        function(0x300, 8, ""),
    ]);
    let symbols = Symbols::parse(&bytes).expect("valid");
    assert_eq!(symbols.lookup(0), Some(("a", 0)));
    assert_eq!(symbols.lookup(0xf), Some(("a", 0xf)));
    assert_eq!(symbols.lookup(0x10), None);
    assert_eq!(symbols.lookup(0x10c), Some(("b", 0xc)));
    assert_eq!(symbols.lookup(0x1ff), Some(("c", 0xef)));
    assert_eq!(symbols.lookup(0x207), Some(("e", 7)));
    assert_eq!(symbols.lookup(0x208), None);
    assert_eq!(symbols.lookup(u32::MAX), None);
    assert_eq!(Symbols::default().lookup(0), None);
    assert_eq!(Symbols::parse(&[]).map(|s| s.len()), Ok(0));
}

/// xorshift64*, for reproducible mutations.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.below(bytes.len());
        match self.below(6) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
            2 => bytes[at] = self.below(256) as u8,
            3 => bytes.truncate(at),
            4 => bytes.insert(at, self.below(256) as u8),
            _ => {
                let from = self.below(bytes.len());
                let len = self.below(8).min(bytes.len() - from.max(at));
                bytes.copy_within(from..from + len, at);
            }
        }
    }
}

/// Recomputes checksum and lengths of mutated parts, so that the checks after those are reached.
fn seal(config: &[u8], symbols: &[u8], total_len: u64) -> Vec<u8> {
    let (config_len, symbols_len) = (config.len() as u32, symbols.len() as u32);
    let mut header = Header { config_len, symbols_len, total_len, crc: 0 };
    header.crc = header.checksum(config);
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(config);
    bytes.extend_from_slice(symbols);
    bytes.resize((total_len as usize).min(1 << 16), 0);
    bytes
}

#[test]
fn mutated_blobs_never_violate_a_rule() {
    let good = sample();
    let header = Header::parse(&good).expect("valid");
    let (config, rest) = good[HEADER_LEN..].split_at(header.config_len as usize);
    let names = &rest[..header.symbols_len as usize];
    let mut accepted = 0;
    for seed in 1..=20_000 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut raw = good[..HEADER_LEN + config.len() + names.len()].to_vec();
        let (mut config, mut names) = (config.to_vec(), names.to_vec());
        for _ in 0..=random.below(4) {
            random.mutate(&mut raw);
            random.mutate(&mut config);
            if random.below(4) == 0 {
                random.mutate(&mut names);
            }
        }
        if let Ok(blob) = Blob::parse(&raw) {
            assert_invariants(&blob);
        }
        if let Ok(blob) = Blob::parse(&seal(&config, &names, header.total_len)) {
            assert_invariants(&blob);
            accepted += 1;
        }
    }
    // The mutations are small: some configurations remain valid.
    assert!(accepted > 500, "only {accepted} of the sealed blobs passed the checksum and were validated");
}

prop_compose! {
    fn any_ablation()(state: bool, fp: bool, timer: bool, lists: bool, traps: bool) -> Ablation {
        Ablation { state, fp, timer, lists, traps }
    }
}

prop_compose! {
    fn any_vm()(
        granules in 1..64u64,
        vcpus in 1..=8u16,
        cpus: u64,
        class in prop::option::of(prop_oneof![any::<u8>().prop_map(CpuClass::Nth), Just(CpuClass::Last)]),
        pinned: bool,
        entry in 0..1024u64,
        info in 0..1024u64,
        mode in prop_oneof![
            Just(Mode::Reset),
            Just(Mode::Protected),
            (0..100u64).prop_map(|page| Mode::Long { tables: map::RAM_BASE + page * 4096 }),
        ],
        weight in 1..=Share::MAX_WEIGHT,
        cap in prop::option::of(1..=Share::MAX_CAP),
        stop: bool,
        wfi_passthrough: bool,
        apic in prop::sample::select(ApicVirtualization::WORDS.map(|(_, apic)| apic).to_vec()),
        nested in prop::sample::select(Nested::WORDS.map(|(_, nested)| nested).to_vec()),
        decode_cache in prop::sample::select(DecodeCache::WORDS.map(|(_, cache)| cache).to_vec()),
        binary_point in prop::sample::select(BinaryPoint::WORDS.map(|(_, point)| point).to_vec()),
        interrupts in prop::sample::select(Interrupts::WORDS.map(|(_, interrupts)| interrupts).to_vec()),
        timer in prop::sample::select(TimerAccess::WORDS.map(|(_, timer)| timer).to_vec()),
        ipi in prop::sample::select(IpiAccess::WORDS.map(|(_, ipi)| ipi).to_vec()),
        ablate in prop::option::of(any_ablation()),
        counters: bool,
        loads in prop::collection::vec((0..100u64, 0..2000usize, 0..100u64), 0..4),
    ) -> (Vm<'static>, Vec<(u64, usize, u64)>) {
        let mut vm = vm("", granules * map::RAM_GRANULE);
        vm.vcpus = vcpus;
        vm.topology = pinned.then_some(Topology { sockets: vcpus, cores: 1, threads: 1 });
        vm.cpus = CpuSet::from_bits(cpus);
        vm.class = class;
        vm.pinned = pinned;
        vm.entry = map::RAM_BASE + entry * 4;
        vm.info = map::RAM_BASE + info * 8;
        vm.mode = mode;
        vm.share = Share { weight, cap };
        vm.on_reset = if stop { OnReset::Stop } else { OnReset::Restart };
        vm.techniques = Techniques { wfi_passthrough, apic_virtualization: apic, nested, decode_cache, binary_point, timer, ipi, interrupts, ablate, counters };
        (vm, loads)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip(
        vms in prop::collection::vec(any_vm(), 1..=8),
        report_exits: bool,
        slice_us in 100..=1_000_000u32,
        functions in prop::collection::vec((0..5000u32, 0..100u32, "[a-z:<>ü]{0,20}"), 0..40),
    ) {
        let names: Vec<String> = (0..vms.len()).map(|n| format!("vm-{n}")).collect();
        let contents: Vec<Vec<u8>> = (0..2000).step_by(100).map(|n| vec![n as u8; n]).collect();
        let mut machine = Machine { settings: Settings { report_exits, slice_us, mitigations: Mitigations::All }, vms: Vec::new(), text: "slice = 1\n" };
        let mut files = Vec::new();
        for (index, (vm, loads)) in vms.iter().enumerate() {
            machine.vms.push(Vm { name: &names[index], ..vm.clone() });
            for &(page, len, extra) in loads {
                let bytes = &contents[len / 100][..];
                let mem_len = bytes.len() as u64 + extra;
                files.push(File { vm: index, bytes, gpa: map::RAM_BASE + page * 4096, mem_len });
            }
        }
        let functions: Vec<_> = functions.iter().map(|(at, len, name)| function(*at, *len, name)).collect();
        let table = symbols(&functions);
        let bytes = blob(&machine, &table, &files).expect("valid");

        let blob = Blob::parse(&bytes).expect("what is written can be read");
        assert_invariants(&blob);
        for (start, name) in blob.symbols.iter() {
            prop_assert_eq!(blob.symbols.lookup(start), (!name.is_empty()).then_some((name, 0)));
        }
        prop_assert_eq!(&blob.settings, &machine.settings);
        let mut files = files.iter();
        for (vm, (wanted, loads)) in blob.vms.clone().zip(&vms) {
            prop_assert_eq!(vm.loads.len(), loads.len());
            for load in &vm.loads {
                let file = files.next().expect("as many as there were");
                prop_assert_eq!(blob.file(load).expect("in the blob"), file.bytes);
                prop_assert_eq!((load.gpa, load.mem_len), (file.gpa, file.mem_len));
            }
            let bare = Vm { name: "", loads: heapless::Vec::new(), ..vm.clone() };
            prop_assert_eq!(&bare, wanted);
        }
        for function in &functions {
            let alone = functions.iter().filter(|other| !other.name.is_empty() && other.start == function.start).count() == 1;
            if alone && !function.name.is_empty() {
                prop_assert_eq!(blob.symbols.lookup(function.start), Some((&function.name[..], 0)));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Blob::parse(&bytes);
        let _ = Symbols::parse(&bytes);
        let _ = Package::parse(&bytes, Files::default());
        let _ = Blob::parse(&seal(&bytes, &[], 4096));
    }

    #[test]
    fn any_symbol_table_is_searched_safely(count in 0..6u32, bytes in prop::collection::vec(0..8u8, 0..60), at: u32) {
        let mut table = count.to_le_bytes().to_vec();
        table.extend_from_slice(&bytes);
        if let Ok(symbols) = Symbols::parse(&table) {
            let _ = symbols.lookup(at);
            let _ = symbols.iter().count();
        }
    }

    /// Pinned vCPUs together use every CPU of the set, and none outside it.
    #[test]
    fn pinned_cpus(cpus: u64, present in 1u64.., vcpu in 0..8usize) {
        let mut vm = vm("a", map::RAM_GRANULE);
        vm.cpus = CpuSet::from_bits(cpus);
        let present = CpuSet::from_bits(present);
        let all = vm.cpus_of(vcpu, &present);
        vm.pinned = true;
        let one = vm.cpus_of(vcpu, &present);
        prop_assert!(one.without(&all).is_empty());
        prop_assert_eq!(one.len(), usize::from(!all.is_empty()));
    }
}

/// An image with a kernel, and a package whose VM uses that kernel and a file in the package.
fn packed(kernel: &[u8], own: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let vm = vm("late", 8 * map::RAM_GRANULE);
    let file = |gpa, bytes| File { vm: 0, bytes, gpa, mem_len: 8192 };
    let image = blob(&machine(core::slice::from_ref(&vm)), &[], &[file(map::RAM_BASE, kernel)]).expect("valid");
    let offset = Blob::parse(&image).expect("valid").vms.next().expect("one").loads[0].offset;
    let files = [file(map::RAM_BASE, kernel), file(map::RAM_BASE + map::RAM_GRANULE, own), file(map::RAM_BASE + 2 * map::RAM_GRANULE, own)];
    let package = write::package(&vm, &files, |bytes| (bytes == kernel).then_some(offset)).expect("valid");
    (image, package)
}

#[test]
fn a_package_has_its_own_files_and_those_of_the_image() {
    let (image, package) = packed(&[0xaa; 5000], b"initrd");
    assert!(package.len() < 16384, "what the image has does not come with it");
    let image = Blob::parse(&image).expect("valid");
    let parsed = Package::parse(&package, image.files()).expect("valid");
    assert_eq!((parsed.vm.name, parsed.vm.loads.len()), ("late", 3));
    let files: Vec<_> = parsed.vm.loads.iter().map(|load| parsed.files.file(load).expect("is there")).collect();
    assert_eq!(files, [&[0xaa; 5000][..], b"initrd", b"initrd"]);
    assert_eq!(image.file(&parsed.vm.loads[1]), None, "the image has no file of a package");
}

#[test]
fn damaged_packages_and_those_of_other_images_are_refused() {
    let (image, package) = packed(&[0xaa; 5000], b"initrd");
    let image = Blob::parse(&image).expect("valid").files();
    let config = 16 + usize::from(package[8]);
    for at in 0..config {
        let mut damaged = package.clone();
        damaged[at] ^= 1;
        assert!(Package::parse(&damaged, image).is_err(), "{at}");
    }
    for length in 0..package.len() {
        assert!(Package::parse(&package[..length], image).is_err(), "{length}");
    }
    let rule = Package::parse(&package, Files::default()).unwrap_err();
    assert_eq!(rule, PackageError::Rule(Rule::LoadFile), "the kernel is beyond the end of this image");
}
