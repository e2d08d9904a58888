//! Creation of a VM's x86-64 state.

use core::sync::atomic::AtomicBool;

use stile_apic::IoApic;
use stile_blob::{DecodeCache, IpiAccess, Techniques};
use stile_board::pc;
use stile_lock::TicketLock;
use stile_paging::frames::Piece;
use stile_paging::table::PageTable;

use super::invalidations::Invalidations;
use super::protected::Protected;
use super::tables::VmTables;
use super::{Vm, cpuid};
use crate::arch::x86_64::assigned::{Functions, messages};
use crate::arch::x86_64::emulation::devices::Devices;
use crate::arch::x86_64::virt::second_stage::Format;
use crate::arch::x86_64::virt::{extension, nested, parts};
use crate::arena::Arena;
use crate::cpu::classes;
use crate::served::Served;

impl Vm {
    /// [`VmPart::new`](crate::arch::contract::VmPart::new).
    pub(super) fn create(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        mut table: PageTable<Format>,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        if config.served.iter().any(|served| served.device == stile_blob::BALLOON) {
            return Err("a PC's VMs can't have balloons yet");
        }
        if !config.served.is_empty() && techniques.decode_cache == DecodeCache::Protect {
            return Err("a VM with served devices, whose server changes code unseen, can't have decode_cache = \"protect\"");
        }
        if !config.functions.is_empty() && !extension::ASSIGNS_FUNCTIONS {
            return Err("PCI functions can be assigned on AMD-V only");
        }
        if !config.functions.is_empty() && techniques.decode_cache == DecodeCache::Protect {
            return Err("a VM with PCI functions, whose DMA changes code unseen, can't have decode_cache = \"protect\"");
        }
        let vcpus = usize::from(config.vcpus);
        let nested = nested::offer(techniques.nested)?;
        if nested.is_some() && vcpus > pc::MAX_NESTED_VCPUS {
            return Err("a VM with VMs of its own has at most 255 vCPUs");
        }
        if nested.is_some() && techniques.decode_cache == DecodeCache::Protect {
            return Err("a VM with VMs of its own can't have decode_cache = \"protect\"");
        }
        if nested.is_some() && techniques.ipi != IpiAccess::Trapped {
            return Err("a VM with VMs of its own can't have ipi = \"direct\" or \"gate\"");
        }
        let topology = config.arrangement();
        if !topology.fits_apic_ids() && techniques.ipi != IpiAccess::Trapped {
            return Err("a VM whose topology leaves gaps between APIC identifiers can't have ipi = \"direct\" or \"gate\"");
        }
        let last = topology.last_apic_id();
        if !(config.functions.is_empty() && config.served.is_empty()) && pc::has_extended_destinations(last) {
            return Err(
                "a VM with PCI functions or served devices can't have APIC identifiers above 255, which messages can't address: change its topology",
            );
        }
        let (place, direct) = parts::make(&mut table, techniques, vcpus, arena)?;
        let memory = heapless::Vec::from_slice(pieces).map_err(|()| "a VM's memory is in too many pieces")?;
        let ram = pieces.iter().map(|piece| piece.size).sum::<u64>();
        let tables = VmTables::new(table, arena)?;
        let protects = techniques.decode_cache == DecodeCache::Protect;
        let protected = if protects { Some(Protected::new(tables.table(), place.second_stage(), arena)?) } else { None };
        let served = Served::new(number, config, pieces, arena, |part| tables.reserve_window(part))?;
        let window_invalidations = match served.filter(|_| config.serves != 0) {
            None => None,
            Some(served) => {
                tables.reserve_events()?;
                served.event_pieces().for_each(|page| tables.map_events(&page));
                Some(&*arena.allocate()?.write(Invalidations::new(place.second_stage())))
            }
        };
        let functions = match &config.functions[..] {
            [] => None,
            _ => Some(new_functions(number, config, pieces, place.second_stage(), arena)?),
        };
        Ok(Vm {
            number,
            cpuid: cpuid::table(),
            topology,
            memory,
            tables,
            place,
            io_apic: TicketLock::new(io_apic(pc::has_extended_destinations(last))),
            direct,
            follows_loads: protected.is_some() || nested.is_some() || functions.is_some() || window_invalidations.is_some(),
            functions,
            served,
            window_invalidations,
            nested,
            starts_in_x2apic_mode: pc::starts_in_x2apic_mode(last),
            protected,
            devices: Devices::new(ram, vcpus, arena)?,
            silence_reported: AtomicBool::new(false),
        })
    }
}

/// Takes the PCI functions of a VM. Not inlined: their 40 KiB would be in the frame of the creation of any VM, which an operator's command may
/// begin on a CPU's stack.
#[inline(never)]
fn new_functions(
    number: usize,
    config: &stile_blob::Vm<'_>,
    ram: &[Piece],
    second_stage: u64,
    arena: &'static Arena,
) -> Result<&'static Functions, &'static str> {
    messages::check(&config.cpus_of_all(&classes::usable_by(config)))?;
    Ok(arena.allocate()?.write(Functions::new(number, config.name, &config.functions, ram, second_stage, arena)?))
}

/// An I/O APIC, with `extended` destinations if there are identifiers of more than eight bits.
const fn io_apic(extended: bool) -> IoApic {
    if extended { IoApic::new().with_extended_destinations() } else { IoApic::new() }
}
