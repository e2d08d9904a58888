//! Creation of a VM's AArch64 state.

use core::sync::atomic::AtomicU64;

use stile_blob::{Interrupts, Nested, Techniques};
use stile_board::intid;
use stile_board::map::RAM_BASE;
use stile_device::psci::PowerTable;
use stile_firmware::gicv2::Gicv2;
use stile_its::guest::GuestIts;
use stile_lock::TicketLock;
use stile_nested_arm::forward::Masks;
use stile_paging::frames::Piece;
use stile_paging::table::{Geometry, PageTable, Stage2};
use stile_paging::vmid::VmidSlot;
use stile_vgic::Distributor;

use super::Vm;
use super::doorbells::Doorbells;
use super::flash::Flash;
use super::stolen_time::StolenTime;
use super::tables::VmTables;
use crate::arch::aarch64::assigned::Functions;
use crate::arch::aarch64::host::board;
use crate::arch::aarch64::host::identity::Identity;
use crate::arch::aarch64::interrupts::claims::Claim;
use crate::arch::aarch64::interrupts::delivery::Targets;
use crate::arch::aarch64::interrupts::interface;
use crate::arch::aarch64::interrupts::read_shadow::ReadShadow;
use crate::arch::aarch64::interrupts::trusted::Trust;
use crate::arch::aarch64::nested;
use crate::arch::aarch64::vcpu::id_registers;
use crate::arena::Arena;
use crate::cpu::{SCHEDULE, classes};
use crate::served::Served;

impl Vm {
    /// [`VmPart::new`](crate::arch::contract::VmPart::new).
    pub(super) fn create(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        table: PageTable<Stage2>,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        let vcpus = usize::from(config.vcpus);
        let gicv2 = board::get().gicv2();
        check_gic(config, gicv2)?;
        nested::support::check(techniques.nested)?;
        let geometry = table.geometry();
        let end = pieces.iter().fold(RAM_BASE, |end, piece| end.max(piece.gpa + piece.size));
        let mut tables = VmTables::new(table, arena);
        let has_el2 = techniques.nested != Nested::Off;
        let flash = match config.firmware {
            0 => None,
            _ if has_el2 => return Err("a VM with an EL2 of its own can't start from firmware"),
            _ => Some(&*arena.allocate()?.write(Flash::new(arena)?)),
        };
        if let Some(flash) = flash {
            tables.map_read_only(&flash.piece())?;
        }
        let stolen_time = StolenTime::new(vcpus, arena)?;
        tables.map_read_only(&stolen_time.piece())?;
        if let Some(gic) = gicv2 {
            tables.map_interface(gic)?;
        }
        let mut id_registers = id_registers::for_guests(&identity(config), has_el2, nested::support::may_clear_e2h(techniques.nested));
        if config.gic == stile_blob::Gic::V2 {
            id_registers::hide_gic(&mut id_registers);
        }
        let nested = match has_el2 {
            true => Some(new_nested(geometry, vcpus, &id_registers, arena)?),
            false => None,
        };
        let functions = match &config.functions[..] {
            [] => None,
            _ if has_el2 => return Err("a VM with an EL2 of its own can't have PCI functions"),
            _ => Some(new_functions(number, config, tables.get_mut(), arena)?),
        };
        let served = Served::new(number, config, pieces, arena, |part| tables.reserve_window(part))?;
        if let Some(served) = served.filter(|_| config.serves != 0) {
            tables.reserve_events()?;
            served.event_pieces().for_each(|page| tables.map_events(&page));
        }
        let targets = match served {
            Some(_) => Some(&*arena.allocate()?.write(Targets::new())),
            None => None,
        };
        let (claim, trust) = match techniques.interrupts {
            Interrupts::Direct => {
                let usable = classes::usable_by(config);
                let claim = Claim::new(number, &config.cpus_of_all(&usable), &SCHEDULE.online())?;
                (Some(claim), Trust::of(number, config, techniques, &usable))
            }
            Interrupts::Virtual => (None, None),
        };
        let intids = if functions.is_some() || !config.served.is_empty() { intid::MSI_BASE + intid::MSI_COUNT } else { intid::COUNT };
        let distributor = new_distributor(vcpus, intids, arena)?;
        if config.gic == stile_blob::Gic::V2 {
            distributor.get_mut().become_gicv2();
        }
        if functions.is_some() {
            distributor.get_mut().add_lpis();
        }
        Ok(Vm {
            id_registers,
            tables,
            nested,
            functions,
            served,
            doorbells: match served {
                Some(served) => Doorbells::Served(served),
                None if config.gic == stile_blob::Gic::V2 => Doorbells::Sgis,
                None => Doorbells::None,
            },
            number,
            flash,
            stolen_time,
            _claim: claim,
            trust,
            ram: RAM_BASE..end,
            vmid: VmidSlot::new(),
            held_time: AtomicU64::new(0),
            read_shadow: ReadShadow::new(distributor.get_mut()),
            distributor,
            targets,
            power: arena.allocate()?.write(TicketLock::new(PowerTable::new(vcpus))),
        })
    }
}

/// Checks that a VM can have the machine's interrupt controller; `machine`: its registers, if it is a GICv2.
///
/// # Errors
/// A description: the VM was made for another one, or has something that a GICv2 can't provide.
fn check_gic(config: &stile_blob::Vm<'_>, machine: Option<&Gicv2>) -> Result<(), &'static str> {
    match (config.gic == stile_blob::Gic::V2, machine.is_some()) {
        (false, false) => Ok(()),
        (true, false) => Err("a VM was made for a GICv2, and the machine has a GICv3: without `gic = 2` in [machine], or --gic 2"),
        (false, true) => Err("a VM was made for a GICv3, and the machine has a GICv2: `gic = 2` in [machine], or --gic 2"),
        (true, true) if config.vcpus > stile_blob::MAX_GICV2_VCPUS => Err("a VM with a GICv2 has at most 8 vCPUs"),
        (true, true) if config.techniques.nested != Nested::Off => {
            Err("a VM with an EL2 of its own takes a GICv3, and the machine has a GICv2")
        }
        (true, true) if config.techniques.interrupts == Interrupts::Direct => {
            Err("direct interrupts take a GICv3, and the machine has a GICv2")
        }
        (true, true) if !config.functions.is_empty() => Err("messages of PCI functions take an ITS, and the machine has a GICv2"),
        (true, true) => Ok(()),
    }
}

/// The identity of the CPUs that a VM's first vCPU may use.
#[inline(never)]
fn identity(config: &stile_blob::Vm<'_>) -> Identity {
    classes::identity_of(&config.cpus_of(0, &classes::usable_by(config))).unwrap_or_else(Identity::read)
}

/// Creates what the vCPUs of a VM with an EL2 share. Not inlined, because the frame of [`Vm::new`] would have room for a copy.
#[inline(never)]
fn new_nested(
    geometry: Geometry,
    vcpus: usize,
    view: &[u64; 64],
    arena: &'static Arena,
) -> Result<&'static nested::support::Shared, &'static str> {
    let place = arena.allocate()?;
    Ok(place.write(nested::support::Shared { shadows: nested::shadows::new(geometry, vcpus, arena)?, masks: Masks::new(view) }))
}

/// Takes the PCI functions of a VM. Not inlined, as [`new_nested`] is not.
#[inline(never)]
fn new_functions(
    number: usize,
    config: &stile_blob::Vm<'_>,
    table: &PageTable<Stage2>,
    arena: &'static Arena,
) -> Result<&'static Functions, &'static str> {
    // With direct interrupts the guest takes physical interrupts, and none of its virtual interface.
    let injected = (config.techniques.interrupts == Interrupts::Virtual).then_some(config.vcpus);
    let its = arena.allocate()?.write(TicketLock::new(GuestIts::new(config.functions.len(), config.vcpus.into())));
    Ok(arena.allocate()?.write(Functions::new(number, config.name, &config.functions, table, its, injected)?))
}

/// Creates a distributor. Not inlined: a CPU's stack has no room for it beside the frames of its callers.
#[inline(never)]
fn new_distributor(vcpus: usize, intids: u32, arena: &'static Arena) -> Result<&'static mut TicketLock<Distributor>, &'static str> {
    Ok(arena.allocate()?.write(TicketLock::new(Distributor::new(vcpus, interface::shape().priority_bits, intids))))
}
