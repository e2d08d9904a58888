//! Hardware task switches: save the old task's state to its TSS, and load the new task's ("Task Management").
//!
//! In VMX operation the processor exits instead, after it has checked the gate, the privileges and the new TSS's descriptor ("Treatment
//! of Task Switches"). The checks that depend on no privilege level are repeated, because another processor may have changed the
//! descriptor since.
//!
//! The switch has three steps, because the first two change how the next one accesses memory: [`leave`] ends with other page tables,
//! [`load_segments`] with another privilege level, and [`begin`] completes the switch. A fault ends the sequence. Before the commit point
//! in `leave` nothing has changed; after it the fault belongs to the new task, whose segment registers hold the selectors of its TSS
//! without descriptors.

mod tss;

use crate::descriptor::{BUSY_ENTRY, Descriptor};
use crate::selector;
use crate::stack::RSP;
use crate::{Control, Fault, SegmentName, SelectorName, SystemSegment, TableName, Vcpu, Width};
use tss::{LARGEST, LINK, Layout, WORDS};

/// The processor state that a task switch needs, outside of IA-32e mode.
pub trait Tasks: Vcpu {
    /// TR: base, limit and access rights.
    fn task(&self) -> (u64, u32, u32);

    /// Writes RIP.
    fn set_rip(&mut self, rip: u64);

    /// Reads at a linear address with the supervisor's privilege, up to 104 bytes.
    fn load_system(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Writes at a linear address with the supervisor's privilege, up to 104 bytes.
    fn store_system(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Faults if [`load_system`](Self::load_system), or with `write` [`store_system`](Self::store_system), would.
    fn check_system(&mut self, linear: u64, bytes: u64, write: bool) -> Result<(), Fault>;

    /// Writes CR3 if it changes, and loads the PDPTEs of PAE paging; paging is on. #TS(0) if a PDPTE has reserved bits set.
    fn set_cr3(&mut self, cr3: u32) -> Result<(), Fault>;

    /// Sets CR0.TS, and clears the local breakpoints of DR7.
    fn mark_switched(&mut self);
}

/// The source of a task switch, numbered as in the exit qualification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// CALL.
    Call,
    /// IRET with EFLAGS.NT set.
    Return,
    /// JMP.
    Jump,
    /// An event through a task gate of the IDT.
    Gate,
}

impl Cause {
    /// Extracts the source from the exit qualification.
    pub const fn from_qualification(qualification: u64) -> Self {
        match qualification >> 30 & 0b11 {
            0 => Self::Call,
            1 => Self::Return,
            2 => Self::Jump,
            _ => Self::Gate,
        }
    }

    /// Whether the new task is nested: it returns to the old one.
    const fn nests(self) -> bool {
        matches!(self, Self::Call | Self::Gate)
    }
}

/// A requested task switch.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Selector of the new TSS.
    pub selector: u16,
    /// Its source.
    pub cause: Cause,
    /// The old task's next RIP.
    pub next: u64,
    /// The exception's error code, to be pushed on the new task's stack.
    pub error_code: Option<u32>,
}

/// The new task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    flags: u64,
    eip: u32,
    segments: [u16; 6],
    ldt: u16,
    wide: bool,
    trap: bool,
}

const NT: u64 = 1 << 14;
const VM: u64 = 1 << 17;
/// The defined bits of EFLAGS.
const FLAGS: u64 = 0x3f_7fd5;
const ALWAYS: u64 = 1 << 1;

const SEGMENTS: [SegmentName; 6] = [SegmentName::Es, SegmentName::Cs, SegmentName::Ss, SegmentName::Ds, SegmentName::Fs, SegmentName::Gs];

/// Saves the old task, and loads the new task's state except its descriptors.
pub fn leave(machine: &mut impl Tasks, request: &Request) -> Result<Task, Fault> {
    let Request { selector, cause, next, .. } = *request;
    let found = find(machine, selector, cause)?;
    let new = Layout::new(found.rights);
    let (old_base, old_limit, old_rights) = machine.task();
    let old = Layout::new(old_rights);
    let old_selector = machine.selector(SelectorName::Tr);
    if (old_limit as usize) < old.first + old.saved() - 1 {
        return Err(Fault::InvalidTask(selector::code_of(old_selector)));
    }
    // Check everything that can fault before changing any state.
    let old_state = old_base.wrapping_add(old.first as u64);
    let old_entry = machine.table(TableName::Gdt).0.wrapping_add((old_selector & !7).into());
    machine.check_system(found.base, new.size as u64, false)?;
    if cause.nests() {
        machine.check_system(found.base, LINK as u64, true)?;
    } else {
        machine.check_system(old_entry, 8, true)?;
    }
    machine.check_system(old_state, old.saved() as u64, true)?;
    if cause != Cause::Return {
        machine.check_system(found.at, 8, true)?;
    }
    if !cause.nests() {
        let entry = machine.load_descriptor(old_entry)?;
        machine.store_descriptor(old_entry, entry & !BUSY_ENTRY)?;
    }
    let mut tss = [0; LARGEST];
    save(machine, old, next, cause, &mut tss);
    machine.store_system(old_state, tss.get(..old.saved()).unwrap_or_default())?;
    if cause.nests() {
        machine.store_system(found.base, &old_selector.to_le_bytes())?;
    }
    machine.load_system(found.base, tss.get_mut(..new.size).unwrap_or_default())?;
    if cause != Cause::Return {
        machine.store_descriptor(found.at, found.entry | BUSY_ENTRY)?;
    }
    // The commit point.
    machine.set_system_segment(SystemSegment::Tr, selector, &found.busy());
    machine.mark_switched();
    load(machine, new, cause, &tss)
}

/// Returns the descriptor of the new TSS, checked.
fn find(machine: &mut impl Tasks, selector: u16, cause: Cause) -> Result<Descriptor, Fault> {
    let code = selector::code_of(selector);
    let returns = cause == Cause::Return;
    let wrong = if returns { Fault::InvalidTask(code) } else { Fault::Selector(code) };
    let found = selector::global(machine, selector)?.filter(|found| found.is_task(returns)).ok_or(wrong)?;
    if !found.is_present() {
        return Err(Fault::NotPresent(code));
    }
    if (found.limit as usize) < Layout::new(found.rights).size - 1 {
        return Err(Fault::InvalidTask(code));
    }
    Ok(found)
}

/// Writes the old task's words, from the instruction pointer on, to `into`.
fn save(machine: &impl Tasks, layout: Layout, next: u64, cause: Cause, into: &mut [u8]) {
    let flags = machine.flags() & !if cause == Cause::Return { NT } else { 0 };
    let general = (0..8).map(|index| machine.register(index));
    let selectors = SEGMENTS.iter().take(layout.segments).map(|&name| machine.selector(SelectorName::Segment(name)).into());
    let words = [next, flags].into_iter().chain(general).chain(selectors);
    for (place, word) in into.chunks_exact_mut(layout.word).zip(words) {
        place.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
}

/// Loads general registers, EFLAGS, EIP and CR3; and selectors without descriptors.
fn load(machine: &mut impl Tasks, layout: Layout, cause: Cause, tss: &[u8]) -> Result<Task, Fault> {
    const CR3: usize = 0x1c;
    const TRAP: usize = 0x64;
    const PG: u64 = 1 << 31;
    let word = |n: usize| layout.word(tss, layout.first + n * layout.word);
    // A 16-bit TSS sets the upper halves of general registers to ones (as Bochs does; the manual is silent).
    let above = if layout.is_wide() { 0 } else { 0xffff_0000 };
    let task = Task {
        eip: word(0),
        flags: u64::from(word(1)) & FLAGS | ALWAYS | if cause.nests() { NT } else { 0 },
        segments: core::array::from_fn(|n| if n < layout.segments { word(WORDS + n) as u16 } else { 0 }),
        ldt: word(WORDS + layout.segments) as u16,
        wide: layout.is_wide(),
        trap: layout.is_wide() && layout.word(tss, TRAP) & 1 != 0,
    };
    for index in 0..8 {
        machine.set_register(index, (word(2 + usize::from(index)) | above).into());
    }
    machine.set_rip(task.eip.into());
    machine.set_flags(task.flags);
    machine.set_system_segment(SystemSegment::Ldtr, task.ldt, &Descriptor::null(0));
    for (name, selector) in SEGMENTS.into_iter().zip(task.segments) {
        let empty = match name {
            _ if task.flags & VM != 0 => Descriptor::virtual_8086(selector),
            // The task has no usable stack yet. In user mode, an exception switches to the stack of an inner level.
            SegmentName::Cs => Descriptor::no_code(3),
            SegmentName::Ss => Descriptor::null(3),
            _ => Descriptor::null(0),
        };
        machine.set_segment(name, selector, Some(&empty));
    }
    if layout.is_wide() && machine.control(Control::Cr0) & PG != 0 {
        machine.set_cr3(layout.word(tss, CR3))?;
    }
    Ok(task)
}

/// Loads the new task's LDTR and segment registers.
pub fn load_segments(machine: &mut impl Tasks, task: &Task) -> Result<(), Fault> {
    if !selector::is_null(task.ldt) {
        let wrong = Fault::InvalidTask(selector::code_of(task.ldt));
        let found = selector::global(machine, task.ldt)?.filter(Descriptor::is_ldt).ok_or(wrong)?;
        machine.set_system_segment(SystemSegment::Ldtr, task.ldt, &found);
    }
    if task.flags & VM != 0 {
        return Ok(());
    }
    let [es, cs, ss, ds, fs, gs] = task.segments;
    let privilege = (cs & 3) as u8;
    if selector::is_null(ss) {
        return Err(Fault::InvalidTask(0));
    }
    selector::load_checked(machine, SegmentName::Ss, ss, privilege, Fault::InvalidTask)?;
    machine.set_segment(SegmentName::Cs, cs, Some(&Descriptor::no_code(privilege)));
    for (name, selector) in [(SegmentName::Ds, ds), (SegmentName::Es, es), (SegmentName::Fs, fs), (SegmentName::Gs, gs)] {
        if !selector::is_null(selector) {
            selector::load_checked(machine, name, selector, privilege, Fault::InvalidTask)?;
        }
    }
    selector::load_code(machine, cs, Fault::InvalidTask)
}

/// Pushes the error code, and checks the first instruction's address. Returns whether the TSS's T flag requests a debug exception.
pub fn begin(machine: &mut impl Tasks, task: &Task, request: &Request) -> Result<bool, Fault> {
    if let Some(code) = request.error_code {
        let stack = machine.segment(SegmentName::Ss);
        let (width, pointer_width) =
            (if task.wide { Width::Dword } else { Width::Word }, if stack.big { Width::Dword } else { Width::Word });
        let old = machine.register(RSP);
        let pointer = pointer_width.merge(old, old.wrapping_sub(width.bytes()));
        let offset = pointer & pointer_width.mask();
        if !stack.admits(offset, width.bytes(), true) {
            return Err(Fault::Stack);
        }
        machine.store(stack.base.wrapping_add(offset) & u64::from(u32::MAX), width, u64::from(code) & width.mask())?;
        machine.set_register(RSP, pointer);
    }
    if task.eip > machine.segment(SegmentName::Cs).limit {
        return Err(Fault::Protection);
    }
    Ok(task.trap)
}
