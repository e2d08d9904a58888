//! Snapshots of VMs.

use stile::snapshot::{Reader, Section};
use stile_apic::{IoApic, LocalApic, Pages};
use stile_device::keyboard::Keyboard;
use stile_device::pic::Pic;
use stile_device::pit::Pit;
use stile_device::pl011::Pl011;
use stile_device::pl031::Pl031;
use stile_device::power::Power;
use stile_device::rtc::Rtc;
use stile_device::screen::Screen;
use stile_device::uart16550::Uart16550;
use stile_snapshot::aarch64::{Machine, Vcpu};
use stile_snapshot::gic::{Private, Spis};
use stile_snapshot::pages::{Entry, PAGE, WINDOW, entries};
use stile_snapshot::section::{self, Arch, Header, Kind, MAGIC, PREFIX, VERSION};
use stile_snapshot::{decode, encode, pc, pstate, x86_64};
use stile_vgic::{Config, Distributor, ListRegisters, PendingRequests, Redistributor, SAME_PPIS};

use crate::marks::reach;
use crate::target::Target;

/// The first byte chooses between a file and each record.
pub const SNAPSHOT: Target = Target {
    name: "snapshot",
    run: snapshot,
    seeds,
    mutations: 4000,
    marks: &["header", "refused", "machine", "spis", "private", "vcpu", "piece", "page", "devices", "apic"],
};

fn seeds() -> Vec<Vec<u8>> {
    let record = |kind: u8, encode: &dyn Fn(&mut [u8]) -> Option<usize>| {
        let mut bytes = vec![0; 1 << 14];
        let length = encode(&mut bytes).expect("it fits");
        [&[kind][..], &bytes[..length]].concat()
    };
    let machine = Machine {
        id_registers: [[0; 32]; 2],
        vector_length: 16,
        frequency: 62_500_000,
        time: 1,
        virtual_count: 1,
        enables: 3,
        uart: Default::default(),
        input: [b"ls", b""],
        clock: Default::default(),
    };
    let vcpu = Vcpu {
        on: true,
        pc: 0x4000_0000,
        pstate: 0x3c5,
        serror: false,
        el1: [0; 28],
        keys: [0; 10],
        general: [0; 31],
        debug: Default::default(),
        fpcr: 0,
        fpsr: 0,
        zcr: 0,
        z: b"z",
        p: b"",
        private: Private::default(),
        stolen: None,
    };
    let devices = x86_64::Machine {
        features: [0; x86_64::FEATURES],
        frequency: 100_000_000,
        time: 1,
        acpi_timer: 0,
        uart: Default::default(),
        input: [b"ls", b""],
        clock: Default::default(),
        io_apic: Default::default(),
        pics: Default::default(),
        pit: Default::default(),
        keyboard: Default::default(),
        screen: Default::default(),
        power: Default::default(),
        fw_cfg: (0, 0),
    };
    let apic = pc::LocalApic { base: 0xfee0_0900, ..Default::default() };
    let header = Header { magic: MAGIC, version: VERSION, arch: Arch::Aarch64, vcpus: 1, memory: 2 << 20, config: 0 };
    let mut head = [0; 64];
    let length = encode(&header, &mut head).expect("it fits");
    let piece = [&[2][..], &2u64.to_le_bytes(), &0x4000_0001u64.to_le_bytes(), &0x4000_0000u64.to_le_bytes()].concat();
    vec![
        [&[0][..], &section::prefix(Kind::Header, 0, &head[..length]), &head[..length]].concat(),
        record(1, &|to| encode(&machine, to)),
        piece,
        record(3, &|to| encode(&Spis::default(), to)),
        record(4, &|to| encode(&Private::default(), to)),
        record(5, &|to| encode(&vcpu, to)),
        record(6, &|to| encode(&devices, to)),
        record(7, &|to| encode(&apic, to)),
    ]
}

fn snapshot(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind {
        0 => file(bytes),
        1 => {
            let Some(record) = decode::<Machine<'_>>(bytes) else { return reach("refused") };
            reach("machine");
            let _ = Pl011::new().restore(&record.uart);
            let mut clock = Pl031::new(0, 0);
            let _ = clock.restore(&record.clock, record.virtual_count, record.time);
            assert!(clock.deadline().is_none_or(|deadline| deadline > record.virtual_count));
        }
        2 => piece(bytes),
        3 | 4 => interrupts(*kind, bytes),
        6 => devices(bytes),
        7 => local_apic(bytes),
        _ => {
            let Some(record) = decode::<Vcpu<'_>>(bytes) else { return reach("refused") };
            reach("vcpu");
            assert!(pstate::allowed(record.pstate, true).is_none_or(|pstate| matches!(pstate & 0x1f, 0 | 4 | 5 | 16)));
        }
    }
}

/// A file, whose checksums are corrected.
fn file(bytes: &[u8]) {
    let (mut fixed, mut rest, mut position) = (Vec::new(), bytes, 0);
    while let Some((prefix, more)) = rest.split_first_chunk::<PREFIX>() {
        let length = u32::from_le_bytes([prefix[8], prefix[9], prefix[10], prefix[11]]) as usize;
        let Some((payload, more)) = more.split_at_checked(length) else { break };
        let kind = Kind::of(u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]));
        let Some(kind) = kind else { break };
        fixed.extend(section::prefix(kind, position, payload));
        fixed.extend(payload);
        (rest, position) = (more, position + 1);
    }
    fixed.extend(rest);
    if position > 0 {
        reach("header");
    }
    let Ok(mut reader) = Reader::new(&fixed[..]) else { return reach("refused") };
    while let Ok(Some(section)) = reader.next_section() {
        if let Section::Piece(piece) = section {
            assert!(piece.len() <= WINDOW && piece.len().is_multiple_of(PAGE));
        }
    }
}

fn piece(bytes: &[u8]) {
    reach("piece");
    let mut window = vec![0; WINDOW];
    let length = bytes.len().min(WINDOW);
    window[..length].copy_from_slice(&bytes[..length]);
    for entry in entries(&window[..], WINDOW) {
        match entry {
            Entry::Block(address) => assert!(address.is_multiple_of(stile_snapshot::pages::BLOCK_SIZE)),
            Entry::Zero(page) => assert!(page.is_multiple_of(PAGE as u64)),
            Entry::Page(address, offset) => {
                reach("page");
                assert!(address.is_multiple_of(PAGE as u64) && offset + PAGE <= WINDOW && offset >= PAGE);
            }
        }
    }
}

/// The devices of a PC answer every access afterwards.
fn devices(bytes: &[u8]) {
    let Some(record) = decode::<x86_64::Machine<'_>>(bytes) else { return reach("refused") };
    reach("devices");
    let (mut uart, mut pic, mut pit, mut rtc) = (Uart16550::new(), Pic::new(), Pit::new(), Rtc::new());
    let (mut keyboard, mut screen, mut power, mut io_apic) = (Keyboard::new(), Screen::new(), Power::new(), IoApic::new());
    uart.restore(&record.uart);
    pic.restore(&record.pics);
    pit.restore(&record.pit, record.frequency >> 8);
    rtc.restore(&record.clock, record.frequency, record.time);
    keyboard.restore(&record.keyboard);
    screen.restore(&record.screen);
    let _ = power.restore(&record.power);
    io_apic.restore(&record.io_apic);
    for now in [record.frequency >> 8, record.time >> 8] {
        (0..8).for_each(|offset| {
            let _ = uart.read(offset);
        });
        let _ = (pic.output().then(|| pic.acknowledge()), pit.expire(now), pit.read_speaker(now));
        (0..3).for_each(|offset| {
            let _ = pit.read(offset, now);
        });
        let _ = (rtc.read(1, now, false), keyboard.read(0x60), screen.read(0x3d5), power.read(0, 0));
        while io_apic.next_batch().is_some() {}
    }
    let mut again = Pic::new();
    again.restore(&pic.save());
    assert_eq!(again.save(), pic.save());
}

/// Requests are legal, and a state is unchanged when saved again.
fn local_apic(bytes: &[u8]) {
    let Some(saved) = decode::<pc::LocalApic>(bytes) else { return reach("refused") };
    let pages = Pages::default();
    pages.reset(1, false);
    let mut apic = LocalApic::new(&pages).with_least_period(100);
    if apic.restore(&saved, 40, 1000).is_err() {
        return reach("refused");
    }
    reach("apic");
    assert!(apic.request().is_none_or(|vector| vector >= 16));
    let reduced = apic.save(1000);
    pages.reset(1, false);
    assert!(apic.restore(&reduced, 40, 1000).is_ok() && apic.save(1000) == reduced);
    let _ = (apic.expire_timer(u64::MAX), apic.is_pending(), apic.acknowledge(), apic.end());
}

/// List registers have only interrupts that exist, and are linked to the vCPU's own timers only.
fn interrupts(kind: u8, bytes: &[u8]) {
    let mut distributor = Distributor::new(1, 5, 64);
    let mut redistributor = Redistributor::new(Config {
        vcpu: 0,
        last: true,
        list_registers: 4,
        priority_bits: 5,
        preemption_bits: 5,
        hw_ppis: 1 << 27 | 1 << 30,
        behind: SAME_PPIS,
        common_binary_point: false,
        gicv2: false,
    });
    distributor.restore_enables(3);
    if kind == 3 {
        let Some(spis) = decode::<Spis>(bytes) else { return reach("refused") };
        reach("spis");
        distributor.restore(0, &spis);
        redistributor.restore(&mut distributor, &Private::default());
    } else {
        let Some(private) = decode::<Private>(bytes) else { return reach("refused") };
        reach("private");
        redistributor.restore(&mut distributor, &private);
    }
    let _ = redistributor.sync_saved(&mut distributor);
    for n in 0..4 {
        let lr = redistributor.interface().read(n);
        assert!(lr.intid() < 64, "{lr:?}");
        assert!(!lr.hw() || matches!(lr.physical_intid(), 27 | 30), "{lr:?}");
    }
    let _ = redistributor.withdraw(&mut distributor, PendingRequests::new().take());
    let _ = redistributor.save();
}
