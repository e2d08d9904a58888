//! A VM that is being created, in pieces that each fit into an exit: its vCPUs one after another, and what they share.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_blob::{Files, Gic, Share, Techniques};
use stile_board::MAX_VCPUS;
use stile_ledger::Ledger;
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_sched::{CpuSet, VcpuId};

use super::power_state::Power;
use super::ram::Ram;
use super::{Start, Vcpu, Vm, power, publish};
use crate::arch::contract::{Counter, VcpuPart, VmPart};
use crate::arch::{self, Arch};
use crate::arena::{self, Arena};
use crate::cpu::{self, SCHEDULE};
use crate::device::{Devices, Optional};
use crate::{memory, nodes};

/// Maximum number of vCPUs created at once, in memory that is clear: some thousand instructions each.
const AT_ONCE: usize = 4;

/// A VM that is being created.
pub struct Creation {
    number: usize,
    config: stile_blob::Vm<'static>,
    techniques: Techniques,
    files: Files<'static>,
    /// The CPUs that it may use: [`usable_by`](cpu::classes::usable_by).
    usable: CpuSet,
    pieces: heapless::Vec<Piece, MAX_PIECES>,
    /// Second-stage tables, and the RAM that they are reserved for.
    tables: Option<<arch::Vm as VmPart>::Tables>,
    reserved: Reserved,
    /// Whether the VM is to be restored from a snapshot: all vCPUs but the first are reset as they are created, because no
    /// errand resets them.
    pub for_snapshot: bool,
    /// The vCPUs created so far.
    vcpus: heapless::Vec<&'static Vcpu, MAX_VCPUS>,
}

impl Creation {
    /// A VM of which nothing exists but its RAM.
    pub fn new(
        number: usize,
        config: stile_blob::Vm<'static>,
        techniques: Techniques,
        files: Files<'static>,
        usable: CpuSet,
        pieces: heapless::Vec<Piece, MAX_PIECES>,
    ) -> Self {
        share(number as u8, config.share);
        let (tables, reserved) = (None, Reserved::default());
        Creation { number, config, techniques, files, usable, pieces, tables, reserved, for_snapshot: false, vcpus: heapless::Vec::new() }
    }

    /// Creates a bounded piece of the VM. Returns the VM once it is complete.
    ///
    /// # Errors
    /// A description of what this board cannot provide: the creation must be [abandoned](Creation::abandon).
    pub fn advance(&mut self) -> Result<Option<&'static Vm>, &'static str> {
        let arena = arena::of_vm(self.number);
        let all = usize::from(self.config.vcpus);
        if self.vcpus.len() == all {
            if let Some(part) = self.reserved.next(&self.pieces) {
                self.reserve(&part, arena)?;
                return Ok(None);
            }
            let room = <arch::Vm as VmPart>::memory(&self.config) + Ram::memory(&self.pieces, has_balloon(&self.config));
            let is_clear = room < AHEAD || arena.clear_ahead(room)?;
            return if is_clear { build(self, arena).map(Some) } else { Ok(None) };
        }
        if self.vcpus.is_empty() {
            cpu::add_vm(self.number as u8, all, &nodes::near(&self.config.cpus_of_all(&self.usable)))?;
        }
        let (end, room) = (all.min(self.vcpus.len() + AT_ONCE), room(self.techniques));
        while self.vcpus.len() < end && arena.clear_ahead(room)? {
            let cpus = self.config.cpus_of(self.vcpus.len(), &self.usable);
            let vcpu = vcpu(self.number, self.vcpus.len() as u16, &self.config, cpus, self.techniques, arena)?;
            if self.for_snapshot && !self.vcpus.is_empty() {
                power::reset_vcpu(vcpu);
            }
            let _ = self.vcpus.push(vcpu);
        }
        Ok(None)
    }

    /// Reserves tables for a part of the RAM.
    fn reserve(&mut self, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
        let tables = match &mut self.tables {
            Some(tables) => tables,
            none => none.insert(<arch::Vm as VmPart>::tables(arena)?),
        };
        <arch::Vm as VmPart>::reserve(tables, part, arena)
    }

    /// Frees the RAM, and removes the vCPUs from the schedule. The number remains claimed, and the arena as it is.
    pub fn abandon(&self) {
        memory::free_guest(&self.pieces);
        cpu::remove_vm(self.number as u8);
    }
}

/// Bytes of RAM, in whole GiB, for which tables are reserved at once: a table of some hundred instructions for each GiB.
const RAM_AT_ONCE: u64 = 32 << 30;

/// RAM for which tables are reserved: all pieces before this one, and bytes of this one.
#[derive(Default)]
struct Reserved {
    piece: usize,
    bytes: u64,
}

impl Reserved {
    /// The next part, which is reserved from here on.
    fn next(&mut self, pieces: &[Piece]) -> Option<Piece> {
        let piece = pieces.get(self.piece)?;
        let start = piece.gpa + self.bytes;
        let left = piece.size - self.bytes;
        // A table is for a GiB: a part that ended within one would need it, too.
        let size = left.min((start / RAM_AT_ONCE + 1) * RAM_AT_ONCE - start);
        let part = Piece { gpa: start, pa: piece.pa + self.bytes, size };
        *self = if size == left { Reserved { piece: self.piece + 1, bytes: 0 } } else { Reserved { bytes: self.bytes + size, ..*self } };
        Some(part)
    }
}

/// Maximum number of bytes that are cleared as they are allocated for what the vCPUs share.
const AHEAD: u64 = 256 << 10;

/// Bytes of the arena that a vCPU takes.
fn room(techniques: Techniques) -> u64 {
    arena::room::<Vcpu>() + arena::room::<Ledger>() + <arch::Vcpu as VcpuPart>::memory(techniques)
}

/// Whether the VM can give RAM back. Functions reach all RAM of a VM by DMA.
fn has_balloon(config: &stile_blob::Vm<'_>) -> bool {
    config.functions.is_empty() && config.served.iter().any(|served| served.device == stile_blob::BALLOON)
}

/// Creates what the vCPUs share. Not inlined, as [`vcpu`] is not: one frame for all values would fill most of the stack.
#[inline(never)]
fn build(creation: &mut Creation, arena: &'static Arena) -> Result<&'static Vm, &'static str> {
    let tables = match creation.tables.take() {
        Some(tables) => tables,
        None => <arch::Vm as VmPart>::tables(arena)?,
    };
    let Creation { number, config, techniques, files, pieces, vcpus, .. } = creation;
    let (number, techniques) = (*number, *techniques);
    let place = arena.allocate::<Vm>()?;
    let arch = arch::Vm::new(number, config, pieces, tables, techniques, arena)?;
    let has_functions = !config.functions.is_empty();
    let ram = Ram::new(pieces.clone(), *files, config.loads.clone(), has_balloon(config), arena)?;
    let optional = Optional {
        pci: has_functions,
        flash: config.firmware != 0,
        served: !config.served.is_empty(),
        gicv2: config.gic == Gic::V2,
        serves: config.serves != 0,
    };
    let devices = Devices::new(number, usize::from(config.vcpus), optional)?;
    let place = ptr::from_mut(place.write(Vm {
        number,
        name: config.name,
        start: Start { pc: config.entry, info: config.info, mode: config.mode },
        ram,
        on_reset: config.on_reset,
        techniques,
        vcpus: core::mem::take(vcpus),
        power: Power::new(has_functions),
        has_functions,
        has_links: config.has_links(),
        turns: cpu::turns::of_vm(),
        devices,
        memory: AtomicU64::new(0),
        arch,
    }));
    // SAFETY: it was just written, and lives until the VM is retired.
    let vm = unsafe { &*place };
    for vcpu in &vm.vcpus {
        vcpu.belongs_to(vm);
    }
    vm.memory.store(vm.ram.size() + arena.size(), Ordering::Relaxed);
    publish(number, place);
    Ok(vm)
}

/// Creates a vCPU and registers it with the scheduler, to run on `cpus`.
#[inline(never)]
fn vcpu(
    number: usize,
    index: u16,
    config: &stile_blob::Vm<'_>,
    cpus: CpuSet,
    techniques: Techniques,
    arena: &'static Arena,
) -> Result<&'static Vcpu, &'static str> {
    let id = u8::try_from(index).ok().and_then(|index| VcpuId::new(number as u8, index)).ok_or("more VMs or vCPUs than Stile supports")?;
    // SAFETY: all-zero is a valid ledger, which `Vcpu::new` resets.
    let ledger = unsafe { arena.allocate::<Ledger>()?.assume_init_mut() };
    let place = arena.allocate()?;
    let arch = arch::Vcpu::new(id, config.arrangement(), techniques, arena)?;
    let configured = SCHEDULE.configure(id, cpus);
    configured.map_err(|_| "a VM may use only CPUs that this board does not have")?;
    Ok(place.write(Vcpu::new(id, arch, ledger, cpus.len() == 1)))
}

/// Sets a VM's weight and cap in the scheduler.
fn share(vm: u8, share: Share) {
    let hz = Arch::frequency();
    let period = hz * u64::from(Share::PERIOD_US) / 1_000_000;
    let cap = share.cap.map(|percent| (period * u64::from(percent) / 100, period));
    SCHEDULE.set_share(vm, share.weight, cap);
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn tables_are_reserved_in_parts_of_whole_gib() {
        let pieces = [
            Piece { gpa: GIB, pa: 7 * GIB, size: 2 << 20 },
            Piece { gpa: 2 * GIB, pa: 100 * GIB, size: 500 * GIB + (2 << 20) },
            Piece { gpa: 600 * GIB, pa: 700 * GIB, size: 32 * GIB },
        ];
        let mut reserved = Reserved::default();
        let parts: Vec<_> = core::iter::from_fn(|| reserved.next(&pieces)).collect();
        for part in &parts {
            assert!(part.size != 0 && part.size <= RAM_AT_ONCE, "{part:x?}");
            let whole = pieces.iter().any(|piece| part.gpa + part.size == piece.gpa + piece.size);
            assert!(whole || (part.gpa + part.size).is_multiple_of(GIB), "{part:x?} ends within a GiB");
        }
        // Together they are the pieces.
        let mut joined = Vec::<Piece>::new();
        for part in parts {
            match joined.last_mut() {
                Some(last) if last.gpa + last.size == part.gpa && last.pa + last.size == part.pa => last.size += part.size,
                _ => joined.push(part),
            }
        }
        assert_eq!(joined, pieces);
    }
}
