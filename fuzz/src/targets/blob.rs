//! The blob behind Stile in an image.

use std::ops::Range;

use stile_blob::write::{self, File, Function, Machine};
use stile_blob::{Blob, HEADER_LEN, Header, Mitigations, Mode, OnReset, Settings, Share, Techniques, Vm};
use stile_board::map;

use crate::marks::reach;
use crate::target::Target;

/// A damaged blob, as the hypervisor parses it: the checksum, which is no protection from an attacker, is corrected.
pub const BLOB: Target = Target {
    name: "blob",
    run: blob,
    seeds: blobs,
    mutations: 4000,
    marks: &["wrong checksum", "configuration", "symbols", "file", "disk", "served", "refused"],
};

/// An image, as `stile` looks for the names of its VMs.
pub const IMAGE: Target = Target { name: "image", run: image, seeds: blobs, mutations: 500, marks: &["vm"] };

/// A small VM.
pub fn vm(name: &'static str, mode: Mode) -> Vm<'static> {
    Vm {
        name,
        memory: 8 * map::RAM_GRANULE,
        ram_base: if mode == Mode::Reset { map::RAM_BASE } else { 0 },
        firmware: if mode == Mode::Reset { map::RAM_GRANULE } else { 0 },
        vcpus: 2,
        topology: Some(stile_blob::Topology { sockets: 1, cores: 1, threads: 2 }),
        class: Some(stile_blob::CpuClass::Nth(1)),
        cpus: stile_board::CpuSet::from_bits(0b11),
        pinned: true,
        share: Share { weight: 250, cap: Some(150) },
        entry: map::RAM_BASE,
        info: map::RAM_BASE + map::RAM_GRANULE,
        mode,
        loads: heapless::Vec::new(),
        on_reset: OnReset::Stop,
        techniques: Techniques::default(),
        functions: heapless::Vec::new(),
        disks: heapless::Vec::new(),
        served: heapless::Vec::new(),
        serves: 0,
        gic: stile_blob::Gic::default(),
    }
}

/// Blobs that the writer makes, small and large, and a damaged one.
pub fn blobs() -> Vec<Vec<u8>> {
    let mut pc = vm("pc", Mode::Long { tables: 0x2000 });
    (pc.entry, pc.info) = (0x10_0000, 0x1000);
    let function = |start, name: &str| Function { start, len: 16, name: name.to_owned() };
    let names = write::symbols(&[function(0, "_start"), function(0x1000, "stile::exit::handle")]);
    let files = [
        File { vm: 0, bytes: b"kernel", gpa: map::RAM_BASE, mem_len: 8192 },
        File { vm: 0, bytes: &[], gpa: map::RAM_BASE + 8192, mem_len: 4096 },
    ];
    let machine = |vms: &[Vm<'static>]| Machine {
        settings: Settings { report_exits: true, slice_us: 5000, mitigations: Mitigations::Auto },
        vms: vms.to_vec(),
        text: "[[vm]]\n",
    };
    let small = write::blob(&machine(&[vm("a", Mode::Reset)]), &[], &[]);
    let large = write::blob(&machine(&[vm("guest-0", Mode::Reset), pc]), &names, &files);
    let (mut client, mut server) = (vm("client", Mode::Reset), vm("server", Mode::Reset));
    (client.firmware, server.firmware, server.serves) = (0, 0, 1);
    client.served.push(stile_blob::Served { device: 2, server: 1 }).expect("room");
    client.disks.extend([map::RAM_GRANULE, 3 * map::RAM_GRANULE]);
    let disks = client.disk_regions().map(|region| File { vm: 0, bytes: b"disk", gpa: region.start, mem_len: region.end - region.start });
    let disks: Vec<_> = disks.collect();
    let served = write::blob(&machine(&[client, server]), &[], &disks);
    let mut all: Vec<Vec<u8>> = [small, large, served].into_iter().map(|blob| blob.expect("valid")).collect();
    let mut damaged = all[0].clone();
    damaged[HEADER_LEN + 2] ^= 1;
    all.push(damaged);
    all
}

fn blob(bytes: &[u8]) {
    let Err(error) = Blob::parse(bytes).map(|blob| check(&blob)) else { return };
    if error != stile_blob::Error::Checksum {
        return reach("refused");
    }
    reach("wrong checksum");
    let Ok(header) = Header::parse(bytes) else { return };
    let Some(config) = bytes.get(HEADER_LEN..).and_then(|rest| rest.get(..header.config_len as usize)) else { return };
    let mut bytes = bytes.to_vec();
    bytes[28..32].copy_from_slice(&header.checksum(config).to_le_bytes());
    match Blob::parse(&bytes) {
        Ok(blob) => check(&blob),
        Err(error) => {
            assert_ne!(error, stile_blob::Error::Checksum, "it was corrected");
            reach("refused");
        }
    }
}

/// Checks the hypervisor's assumptions, stated apart from `validate`.
fn check(blob: &Blob<'_>) {
    reach("configuration");
    assert!(blob.vms.len() != 0);
    assert!((100..=1_000_000).contains(&blob.settings.slice_us));
    for vm in blob.vms.clone() {
        check_vm(&vm);
        for load in vm.loads.iter().filter(|load| load.len != 0) {
            reach("file");
            assert_eq!(blob.file(load).expect("a file lies in the blob").len() as u64, load.len);
        }
        let first = blob.files().contents(&vm.loads, vm.ram_base, vm.ram_base + 4096);
        assert!(first.len > 0 && first.len <= 4096);
    }
    for (start, _) in blob.symbols.iter() {
        reach("symbols");
        let _ = blob.symbols.lookup(start);
    }
    for (number, vm) in blob.vms.clone().enumerate() {
        check_served(&blob.vms, number, &vm);
    }
    let _ = blob.symbols.lookup(u32::MAX);
}

/// Each device is in one slot of its server, whose windows are apart from its RAM and each other.
fn check_served(vms: &stile_blob::Vms<'_>, number: usize, vm: &Vm<'_>) {
    for (index, served) in vm.served.iter().enumerate() {
        reach("served");
        let slots = vms.served_by(usize::from(served.server)).expect("checked");
        let own: Vec<_> = slots.iter().filter(|slot| (usize::from(slot.client), usize::from(slot.index)) == (number, index)).collect();
        assert!(own.len() == 1 && own[0].device == served.device && (own[0].base..own[0].base + own[0].size) == vm.memory_span());
    }
    let slots = if vm.serves == 0 { Default::default() } else { vms.served_by(number).expect("checked") };
    assert_eq!(slots.len(), usize::from(vm.serves));
    let mut end = vm.memory_span().end;
    for slots in slots.chunk_by(|one, other| one.client == other.client) {
        assert!(slots[0].window >= end && slots.iter().all(|slot| slot.window == slots[0].window));
        end = slots[0].window + slots[0].size;
        assert!(end <= 1 << 39);
    }
}

/// Checks the hypervisor's assumptions on a VM.
pub fn check_vm(vm: &Vm<'_>) {
    assert!((1..=32).contains(&vm.name.len()) && vm.name.is_ascii());
    assert!(vm.memory > 0 && vm.memory.is_multiple_of(map::RAM_GRANULE));
    let ram = vm.ram_base..vm.ram_base.checked_add(vm.memory).expect("RAM does not wrap");
    assert!(ram.end <= 1 << 38);
    assert!((1..=stile_board::MAX_VCPUS).contains(&usize::from(vm.vcpus)));
    assert!(vm.share.weight != 0 && vm.share.cap != Some(0));
    let firmware = map::FIRMWARE_BASE..map::FIRMWARE_BASE + vm.firmware;
    assert!(firmware.end <= map::FIRMWARE_MAX && (firmware.is_empty() || ram.start == map::RAM_BASE));
    assert!(ram.contains(&vm.entry) || firmware.contains(&vm.entry));
    assert!(ram.contains(&vm.info) && vm.info.is_multiple_of(8));
    if let Mode::Long { tables } = vm.mode {
        assert!(ram.contains(&tables) && tables.is_multiple_of(4096));
    }
    let mut end = ram.end;
    for (disk, &size) in vm.disk_regions().zip(&vm.disks) {
        reach("disk");
        assert!(disk.start >= end && disk.end - disk.start == size && disk.start.is_multiple_of(map::RAM_GRANULE));
        end = disk.end;
    }
    assert!(end <= vm.memory_span().end && vm.memory_span().end <= 1 << 39);
    for load in &vm.loads {
        let end = load.gpa.checked_add(load.mem_len).expect("a load does not wrap");
        let inside = |range: &Range<u64>| range.start <= load.gpa && end <= range.end;
        assert!((inside(&ram) || inside(&firmware) || vm.disk_regions().any(|disk| inside(&disk))) && load.len <= load.mem_len);
    }
}

fn image(bytes: &[u8]) {
    for name in stile::image::guests(bytes) {
        reach("vm");
        assert!(stile_blob::is_name(&name));
    }
}
