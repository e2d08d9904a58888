//! The used part of the emulator's plugin interface, version 3 and later (QEMU's documentation, "QEMU TCG Plugins"). No
//! Debian package has the header, so the declarations are here.
//!
//! All `unsafe` of the plugin except its entry is in this file. Functions take handles from the emulator, which outlive
//! the types here: blocks and instructions during their translation, all others for ever.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

/// Number that the emulator assigns to the plugin.
pub type Id = u64;

/// Function that the emulator calls before an instruction, or a block, runs, with the registered data. (The number of
/// the CPU is unusable: if one thread runs all CPUs, it is that of the CPU for which the block was translated.)
pub type Callback<T> = extern "C" fn(c_uint, &'static T);
type RawCallback = extern "C" fn(c_uint, *mut c_void);
/// Function that the emulator calls for a memory access of an instruction, with facts about it, the virtual address and the data.
pub type AccessCallback<T> = extern "C" fn(c_uint, c_uint, u64, &'static T);
type RawAccessCallback = extern "C" fn(c_uint, c_uint, u64, *mut c_void);

#[repr(C)]
struct RawBlock([u8; 0]);
#[repr(C)]
struct RawInstruction([u8; 0]);
#[repr(C)]
struct RawRegister([u8; 0]);

/// GLib's GArray and GByteArray.
#[repr(C)]
struct Array {
    data: *mut u8,
    len: c_uint,
}

#[repr(C)]
struct Descriptor {
    handle: *mut RawRegister,
    name: *const c_char,
    feature: *const c_char,
}

/// QEMU_PLUGIN_CB_NO_REGS.
const NO_REGISTERS: c_int = 0;
/// QEMU_PLUGIN_CB_R_REGS.
const READS_REGISTERS: c_int = 1;
/// QEMU_PLUGIN_MEM_W.
const WRITES: c_int = 2;

unsafe extern "C" {
    safe fn qemu_plugin_register_vcpu_init_cb(id: Id, callback: extern "C" fn(Id, c_uint));
    safe fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: extern "C" fn(Id, Block<'_>));
    fn qemu_plugin_register_atexit_cb(id: Id, callback: extern "C" fn(Id, *mut c_void), data: *mut c_void);
    safe fn qemu_plugin_num_vcpus() -> c_int;

    fn qemu_plugin_tb_n_insns(block: *const RawBlock) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const RawBlock) -> u64;
    fn qemu_plugin_tb_get_insn(block: *const RawBlock, index: usize) -> *mut RawInstruction;
    fn qemu_plugin_register_vcpu_tb_exec_cb(block: *mut RawBlock, callback: RawCallback, flags: c_int, data: *mut c_void);

    fn qemu_plugin_insn_vaddr(instruction: *const RawInstruction) -> u64;
    fn qemu_plugin_insn_data(instruction: *const RawInstruction, to: *mut c_void, size: usize) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_cb(instruction: *mut RawInstruction, callback: RawCallback, flags: c_int, data: *mut c_void);
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut RawInstruction,
        callback: RawAccessCallback,
        flags: c_int,
        accesses: c_int,
        data: *mut c_void,
    );

    fn qemu_plugin_get_registers() -> *mut Array;
    fn qemu_plugin_read_register(register: *mut RawRegister, to: *mut Array) -> c_int;

    // Of GLib, which the emulator links.
    fn g_array_free(array: *mut Array, free_elements: c_int) -> *mut c_char;
    safe fn g_byte_array_new() -> *mut Array;
    fn g_byte_array_free(array: *mut Array, free_bytes: c_int) -> *mut u8;
}

/// Information from the emulator when it loads the plugin.
#[repr(C)]
pub struct Info {
    target: *const c_char,
    oldest_version: c_int,
    version: c_int,
    is_system: bool,
}

impl Info {
    /// The architecture of the machine that the emulator runs; `None` for a user program.
    pub fn machine(&self) -> Option<&CStr> {
        // SAFETY: the emulator passes a string that lives as long as the information.
        self.is_system.then(|| unsafe { CStr::from_ptr(self.target) })
    }
}

/// Arguments of the plugin on the emulator's command line.
///
/// # Safety
/// `arguments` has `count` strings, as the emulator passes them.
pub unsafe fn arguments(count: c_int, arguments: *const *const c_char) -> Vec<String> {
    let argument = |index| {
        // SAFETY: the caller promises `count` pointers to strings.
        unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy().into_owned()
    };
    (0..usize::try_from(count).unwrap_or(0)).map(argument).collect()
}

/// Registers callbacks: for the creation of a CPU, the translation of a block, and the end.
pub fn register(id: Id, cpu: extern "C" fn(Id, c_uint), block: extern "C" fn(Id, Block<'_>), end: extern "C" fn(Id, *mut c_void)) {
    qemu_plugin_register_vcpu_init_cb(id, cpu);
    qemu_plugin_register_vcpu_tb_trans_cb(id, block);
    // SAFETY: nothing is passed to the function.
    unsafe { qemu_plugin_register_atexit_cb(id, end, std::ptr::null_mut()) };
}

/// Number of CPUs.
pub fn cpus() -> usize {
    usize::try_from(qemu_plugin_num_vcpus()).unwrap_or(0)
}

/// A block of instructions that is being translated.
#[repr(transparent)]
pub struct Block<'a>(*mut RawBlock, PhantomData<&'a mut RawBlock>);

impl Block<'_> {
    /// Its address.
    pub fn address(&self) -> u64 {
        // SAFETY: QEMU gave the handle for this translation, and `Block` does not outlive it.
        unsafe { qemu_plugin_tb_vaddr(self.0) }
    }

    /// Its instructions.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = Instruction<'_>> {
        // SAFETY: QEMU gave the handle for this translation, and `Block` does not outlive it.
        let count = unsafe { qemu_plugin_tb_n_insns(self.0) };
        // SAFETY: the index is below the number of instructions.
        (0..count).map(|index| Instruction(unsafe { qemu_plugin_tb_get_insn(self.0, index) }, PhantomData))
    }

    /// Registers a callback before each execution, which may read registers.
    pub fn call<T: Sync>(&self, callback: Callback<T>, data: &'static T) {
        let (callback, data) = raw(callback, data);
        // SAFETY: a handle of this translation, and the function's own data.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(self.0, callback, READS_REGISTERS, data) };
    }
}

/// An instruction in such a block.
pub struct Instruction<'a>(*mut RawInstruction, PhantomData<&'a mut RawInstruction>);

impl Instruction<'_> {
    /// Its address.
    pub fn address(&self) -> u64 {
        // SAFETY: the handle is that of the translation in progress, in which QEMU permits the call.
        unsafe { qemu_plugin_insn_vaddr(self.0) }
    }

    /// Its first bytes, followed by zeros.
    pub fn bytes(&self) -> [u8; 4] {
        let mut bytes = [0; 4];
        // SAFETY: a handle of this translation, and the size is that of the bytes.
        unsafe { qemu_plugin_insn_data(self.0, bytes.as_mut_ptr().cast(), bytes.len()) };
        bytes
    }

    /// Its bits; `None` if there are not 32.
    pub fn word(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        // SAFETY: a handle of this translation, and the size is that of the bytes.
        let size = unsafe { qemu_plugin_insn_data(self.0, bytes.as_mut_ptr().cast(), bytes.len()) };
        (size == bytes.len()).then_some(u32::from_le_bytes(bytes))
    }

    /// Registers a callback before each execution, which may read registers.
    pub fn call<T: Sync>(&self, callback: Callback<T>, data: &'static T) {
        self.register(callback, data, READS_REGISTERS);
    }

    /// Registers a callback before each execution, which does not read registers: faster.
    pub fn call_blind<T: Sync>(&self, callback: Callback<T>, data: &'static T) {
        self.register(callback, data, NO_REGISTERS);
    }

    /// Registers a callback for each of its writes to memory, which may read registers.
    pub fn call_for_writes<T: Sync>(&self, callback: AccessCallback<T>, data: &'static T) {
        // SAFETY: a reference is passed as a pointer is. The function gets the data of its own type, to which all
        // threads may have references.
        let callback = unsafe { std::mem::transmute::<AccessCallback<T>, RawAccessCallback>(callback) };
        let data = std::ptr::from_ref(data).cast_mut().cast();
        // SAFETY: a handle of this translation, and the function's own data.
        unsafe { qemu_plugin_register_vcpu_mem_cb(self.0, callback, READS_REGISTERS, WRITES, data) };
    }

    fn register<T: Sync>(&self, callback: Callback<T>, data: &'static T, flags: c_int) {
        let (callback, data) = raw(callback, data);
        // SAFETY: a handle of this translation, and the function's own data.
        unsafe { qemu_plugin_register_vcpu_insn_exec_cb(self.0, callback, flags, data) };
    }
}

/// A function and its data as the emulator takes them.
fn raw<T: Sync>(callback: Callback<T>, data: &'static T) -> (RawCallback, *mut c_void) {
    // SAFETY: a reference is passed as a pointer is. The function gets the data of its own type, to which all threads may have references.
    let callback = unsafe { std::mem::transmute::<Callback<T>, RawCallback>(callback) };
    (callback, std::ptr::from_ref(data).cast_mut().cast())
}

/// A register that can be read.
#[derive(Clone, Copy)]
pub struct Register(*mut RawRegister);

// SAFETY: the handle is the same for all CPUs, and the emulator takes it from any of their threads.
unsafe impl Send for Register {}
// SAFETY: the handle is the same for all CPUs, and the emulator takes it from any of their threads.
unsafe impl Sync for Register {}

impl Register {
    /// Its value on this thread's CPU; `None` in a callback that can't read registers.
    pub fn read(self) -> Option<u64> {
        let array = g_byte_array_new();
        // SAFETY: the emulator appends the value to the array, which is this function's own.
        let bytes = unsafe {
            qemu_plugin_read_register(self.0, array);
            slice(array.cast_const(), |array: &Array| array.data)
        };
        let value = (1..=8).contains(&bytes.len()).then(|| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        // SAFETY: the array is freed once, and nothing points into it any longer.
        unsafe { g_byte_array_free(array, 1) };
        value
    }
}

/// The registers with these names, of this thread's CPU.
pub fn registers<const N: usize>(names: [&CStr; N]) -> [Option<Register>; N] {
    // SAFETY: it is called when a CPU is made.
    let array = unsafe { qemu_plugin_get_registers() };
    // SAFETY: the emulator returns an array of descriptors, which is the caller's.
    let descriptors = unsafe { slice(array.cast_const(), |array: &Array| array.data.cast::<Descriptor>()) };
    let find = |name: &CStr| {
        // SAFETY: names of registers live for ever.
        descriptors.iter().find(|descriptor| unsafe { CStr::from_ptr(descriptor.name) } == name).map(|found| Register(found.handle))
    };
    let registers = names.map(find);
    // SAFETY: the array is freed once, and nothing points into it any longer.
    unsafe { g_array_free(array, 1) };
    registers
}

/// The elements of an array.
///
/// # Safety
/// The array has `len` elements of this type, and outlives the slice unchanged.
unsafe fn slice<'a, T>(array: *const Array, data: fn(&Array) -> *mut T) -> &'a [T] {
    // SAFETY: by the function's contract the array has `len` elements of this type, which outlive the slice unchanged.
    unsafe {
        let array = &*array;
        if array.len == 0 { &[] } else { std::slice::from_raw_parts(data(array).cast_const(), array.len as usize) }
    }
}
