//! VMs that the operator creates: a package (crate `blob`) comes over the line in pieces, into the memory of the VM that it describes.

use core::fmt;

use stile_blob::{Checksum, Package};
use stile_sched::lock::TicketLock;
use stile_wire::{Answer, Event, Piece, VmState};

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::vm::{self, power, retire};
use crate::{arena, console, memory};

/// A package that is on its way.
struct Upload {
    tag: u32,
    /// The VM's number.
    vm: usize,
    /// Physical address.
    at: u64,
    size: u32,
    /// Bytes that have come.
    next: u32,
    checksum: Checksum,
}

static UPLOAD: TicketLock<Option<Upload>> = TicketLock::new(None);

/// The operator is told of this many bytes at least: it may send twice as many before it waits.
const TOLD_EACH: u32 = 4 << 10;

/// Makes room for a package of `size` bytes that describes VM number `vm`.
pub fn begin(tag: u32, vm: u8, size: u32) {
    if let Some(old) = UPLOAD.lock().take() {
        retire::abandon(old.vm);
    }
    let number = usize::from(vm);
    if !retire::claim(number) {
        return console::refuse(tag, format_args!("Stile has no VM number {number} to give"));
    }
    let Ok(room) = arena::of_vm(number).reserve(u64::from(size).next_multiple_of(stile_paging::PAGE_SIZE)) else {
        retire::abandon(number);
        return console::refuse(tag, format_args!("no memory for {} KiB of files: {} MiB are free", size >> 10, memory::available() >> 20));
    };
    *UPLOAD.lock() = Some(Upload { tag, vm: number, at: room.start, size, next: 0, checksum: Checksum::new() });
    console::event(&Event::Uploaded { tag, next: 0 });
}

/// Takes a piece, if it is the next one. Otherwise the operator is told which one that is.
pub fn take(tag: u32, offset: u32, piece: &Piece) {
    let told = {
        let mut upload = UPLOAD.lock();
        let Some(upload) = upload.as_mut().filter(|upload| upload.tag == tag) else { return };
        let bytes = piece.bytes();
        let before = upload.next;
        if offset == before && bytes.len() <= (upload.size - before) as usize {
            // SAFETY: the VM's memory, of which nobody has a reference yet, has `size` bytes from `at` on.
            unsafe { Arch::physical(upload.at + u64::from(before)).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            upload.checksum.update(bytes);
            upload.next += bytes.len() as u32;
        }
        let next = upload.next;
        (offset != before || next == upload.size || next / TOLD_EACH != before / TOLD_EACH).then_some(next)
    };
    if let Some(next) = told {
        console::event(&Event::Uploaded { tag, next });
    }
}

/// Makes the VM, and starts it. What has come is part of it then, or is given back.
pub fn create(tag: u32, crc: u32) {
    let Some(upload) = UPLOAD.lock().take_if(|upload| upload.tag == tag) else {
        return console::refuse(tag, format_args!("another VM's description came meanwhile"));
    };
    let number = upload.vm;
    if let Err(why) = make(upload, crc) {
        retire::abandon(number);
        return console::refuse(tag, format_args!("{why}"));
    }
    console::event(&Event::Answer { tag, answer: Answer::Done });
    console::event(&Event::Vm { vm: number as u8, state: VmState::Started });
    if let Some(vm) = vm::get(number) {
        power::start(vm);
    }
}

/// Why a VM is not made.
enum Refusal {
    Package(stile_blob::PackageError),
    Other(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Package(error) => error.fmt(f),
            Refusal::Other(why) => f.write_str(why),
        }
    }
}

fn make(upload: Upload, crc: u32) -> Result<(), Refusal> {
    if upload.next != upload.size || upload.checksum.finish() != crc {
        return Err(Refusal::Other("the VM's description was damaged on the way"));
    }
    // SAFETY: the bytes have come, and are not written any more; they are the VM's, and go with it.
    let bytes = unsafe { core::slice::from_raw_parts(Arch::physical(upload.at), upload.size as usize) };
    let Package { vm: config, files } = Package::parse(bytes, vm::image()).map_err(Refusal::Package)?;
    if vm::all().any(|vm| vm.name == config.name) {
        return Err(Refusal::Other("the machine has a VM of that name"));
    }
    if !config.functions.is_empty() {
        return Err(Refusal::Other("PCI functions can be given only to VMs of the machine's configuration"));
    }
    if config.techniques.ablate.is_some() {
        return Err(Refusal::Other("`ablate` is only for VMs of the machine's configuration"));
    }
    vm::create(upload.vm, &config, files).map(drop).map_err(Refusal::Other)
}
