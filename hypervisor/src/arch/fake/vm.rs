//! A VM's part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_blob::Techniques;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_sched::{State, VcpuId};

use crate::arch::contract::VmPart;
use crate::arena::Arena;
use crate::cpu;

/// The operator creates a VM for a snapshot, and pays for its reset.
pub static RESTORES: AtomicBool = AtomicBool::new(false);

/// Whether the first vCPU of a VM has a CPU, and so is charged for what this CPU does.
pub fn is_charged(vm: u8) -> bool {
    if RESTORES.load(Ordering::Relaxed) {
        return true;
    }
    let first = VcpuId::new(vm, 0).unwrap();
    matches!(cpu::SCHEDULE.state(first), State::Running(_))
}

/// State of a VM.
pub struct Vm {
    number: u8,
    /// vCPUs that are on.
    pub on: Mutex<BTreeSet<usize>>,
    /// Number of resets.
    pub lives: AtomicU64,
    /// Mapped addresses, and their memory.
    pub mapped: Mutex<BTreeMap<u64, u64>>,
    /// Pages that are read-only.
    pub protected: Mutex<BTreeSet<u64>>,
    /// Number of calls of [`VmPart::permit_page`], of which each fourth finds no table.
    permits: AtomicU64,
    /// Memory allocated by the VM, as for a table: readable only while the VM exists.
    pub table: &'static u64,
}

impl Vm {
    /// Whether the guest can write to an address.
    pub fn can_write(&self, gpa: u64) -> bool {
        const BLOCK: u64 = 2 << 20;
        self.mapped.lock().unwrap().contains_key(&(gpa & !(BLOCK - 1)))
            && !self.protected.lock().unwrap().contains(&(gpa & !(PAGE_SIZE - 1)))
    }
}

impl VmPart for Vm {
    /// Bytes of RAM for which tables are reserved, and the tables.
    type Tables = (u64, &'static mut u64);

    fn tables(arena: &'static Arena) -> Result<(u64, &'static mut u64), &'static str> {
        Ok((0, arena.allocate::<u64>()?.write(0)))
    }

    fn reserve(tables: &mut (u64, &'static mut u64), part: &Piece, _arena: &'static Arena) -> Result<(), &'static str> {
        tables.0 += part.size;
        Ok(())
    }

    fn new(
        number: usize,
        _config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        (reserved, table): (u64, &'static mut u64),
        _techniques: Techniques,
        _arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        assert_eq!(reserved, pieces.iter().map(|piece| piece.size).sum::<u64>(), "bytes with reserved tables");
        Ok(Vm {
            number: number as u8,
            on: Mutex::default(),
            lives: AtomicU64::new(0),
            mapped: Mutex::default(),
            protected: Mutex::default(),
            permits: AtomicU64::new(0),
            table,
        })
    }

    fn reset(&self, _number: usize) {
        assert!(is_charged(self.number), "another VM pays for a reset");
        *self.on.lock().unwrap() = BTreeSet::from([0]);
        self.lives.fetch_add(1, Ordering::Relaxed);
    }

    fn map_ram(&self, part: &Piece) -> Result<(), stile_paging::table::Error> {
        let before = self.mapped.lock().unwrap().insert(part.gpa, part.pa);
        assert_eq!(before, None, "mapped already");
        Ok(())
    }

    fn protect_ram(&self, part: &Piece) -> bool {
        self.protected.lock().unwrap().extend((part.gpa..part.gpa + part.size).step_by(PAGE_SIZE as usize));
        part.size > PAGE_SIZE
    }

    fn permit_page(&self, page: u64) -> bool {
        let is_left = self.permits.fetch_add(1, Ordering::Relaxed) % 4 != 3;
        if is_left {
            self.protected.lock().unwrap().remove(&page);
        }
        is_left
    }

    fn permit_ram(&self, part: &Piece) {
        self.protected.lock().unwrap().retain(|page| !(part.gpa..part.gpa + part.size).contains(page));
    }

    fn unmap_ram(&self, gpa: u64, size: u64) {
        let before = self.mapped.lock().unwrap().remove(&gpa);
        assert!(before.is_some(), "not mapped");
        self.protected.lock().unwrap().retain(|page| !(gpa..gpa + size).contains(page));
    }

    fn complete_unmap(&self) {}

    fn tear_down(&self) {}
}
