//! Booted by PVH: checks the information that such a loader must provide ("x86/HVM direct boot ABI", struct
//! hvm_start_info, version 1).
//!
//! Started with the command line `one two`, and with a module that is an ELF file.
#![no_std]
#![no_main]

use core::ffi::{CStr, c_char};

use common::fail::Outcome;
use common::{check, check_eq};
use pc::console::println;
use pc::{console, exception, machine};

pc::program!(pvh);

/// The start information's magic number.
const MAGIC: u32 = 0x336e_c578;
/// RAM in the memory map, as ACPI numbers types.
const RAM: u32 = 1;

#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

#[repr(C)]
struct Module {
    start: u64,
    length: u64,
    command_line: u64,
    reserved: u64,
}

#[repr(C)]
struct Memory {
    start: u64,
    length: u64,
    kind: u32,
    reserved: u32,
}

#[unsafe(no_mangle)]
extern "C" fn main(_: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite pvh");
    let failed = match run(info) {
        Ok(()) => {
            println!("PASS pvh");
            0
        }
        Err(why) => {
            println!("FAIL pvh: {why}");
            1
        }
    };
    println!("EXIT: STATUS={failed}");
    machine::off()
}

fn run(info: u32) -> Outcome {
    let info = at::<StartInfo>(info.into());
    check_eq!(info.magic, MAGIC, "magic");
    check_eq!(info.version, 1, "version");
    check_eq!(info.flags | info.reserved, 0, "flags and what is reserved");
    // SAFETY: the loader put a NUL-terminated line there; the first GiB is mapped.
    let line = unsafe { CStr::from_ptr(info.command_line as *const c_char) };
    check!(line == c"one two", "command line {line:?}");
    check!(at::<[u8; 8]>(info.rsdp) == b"RSD PTR ", "no ACPI root pointer");
    check_eq!(info.modules, 1, "modules");
    let module = at::<Module>(info.module_list);
    check!(module.length > 64, "a module of {} bytes", module.length);
    check!(at::<[u8; 4]>(module.start) == b"\x7fELF", "no ELF file as the module");
    let place = |n| at::<Memory>(info.memory_map + n * size_of::<Memory>() as u64);
    let ram = || (0..info.memory_entries.into()).map(place).filter(|memory| memory.kind == RAM);
    let holds = |start: u64, length: u64| ram().any(|memory| start >= memory.start && start + length <= memory.start + memory.length);
    check!(holds(module.start, module.length), "the module is not in RAM");
    check!(holds(1 << 20, 8 << 20), "no RAM where the program is");
    Ok(())
}

/// The loader's data at an address below 1 GiB.
fn at<T>(address: u64) -> &'static T {
    // SAFETY: the first GiB is mapped, nothing writes there, and the types read are valid for any bytes.
    unsafe { &*(address as *const T) }
}
