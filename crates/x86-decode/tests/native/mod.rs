//! Runs one instruction on the host's processor with given registers, flags and memory.
//!
//! A region below 4 GiB, in reach of 32-bit addresses, holds a page of code, a page with the registers before and after, and an arena for
//! memory operands. The code wraps the instruction: save callee-saved state, load all registers, run, store all registers, restore. It
//! addresses the registers' page relative to RIP, so that no register is reserved.

use std::ptr;

pub const PAGE: usize = 4096;
/// Pages of the arena.
const ARENA_PAGES: usize = 2;
pub const ARENA: usize = ARENA_PAGES * PAGE;

/// General registers in the order of their encoding, RFLAGS, AVX registers if available, and MMX registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub general: [u64; 16],
    pub flags: u64,
    pub vectors: [[u64; 4]; 16],
    pub mmx: [u64; 8],
}

pub fn has_avx() -> bool {
    std::arch::is_x86_feature_detected!("avx")
}

const RSP: u8 = 4;

/// Offsets in the registers' page.
const BEFORE: usize = 0;
const AFTER: usize = 256;
const FLAGS: usize = 128;
const HOST_STACK: usize = 512;
/// A stack for PUSHF and POPF.
const SCRATCH_STACK: usize = 1024;
/// Before and after.
const VECTORS: [usize; 2] = [1024, 1536];
const MMX: [usize; 2] = [2048, 2112];

pub struct Processor {
    region: *mut u8,
}

/// Code, registers, arena.
const SIZE: usize = 2 * PAGE + ARENA;

impl Processor {
    pub fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a new private mapping, at an address that the kernel chooses.
        let region = unsafe { libc::mmap(ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(region, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { region: region.cast() }
    }

    /// Address of the arena.
    pub fn arena(&self) -> u64 {
        self.region as u64 + 2 * PAGE as u64
    }

    /// The fixed address at which the instruction runs.
    pub fn rip(&mut self) -> u64 {
        self.region as u64 + frame(&[]).1 as u64
    }

    /// Runs `instruction` with these registers and this memory in the arena; returns the registers, and the arena in `memory`. The
    /// instruction must not fault, jump, or access memory outside of the arena.
    pub fn run(&mut self, instruction: &[u8], before: &Registers, memory: &mut [u8; ARENA]) -> Registers {
        let (code, _) = frame(instruction);
        assert!(code.len() <= PAGE);
        let mut registers = before.general.map(u64::to_le_bytes).concat();
        registers.extend(before.flags.to_le_bytes());
        let mut after = [0; 136];
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let (vectors, mmx) = (bytes(before.vectors.as_flattened()), bytes(&before.mmx));
        let (mut vectors_after, mut mmx_after) = ([0; 512], [0; 64]);
        // SAFETY: `&mut self` owns the region of SIZE bytes, and all copies stay within their part of it. Code is written while its page is
        // not executable, and run while it is not writable. The wrapper preserves all state that the calling convention requires; the
        // instruction obeys this function's contract.
        unsafe {
            self.region.copy_from(code.as_ptr(), code.len());
            self.region.add(PAGE + BEFORE).copy_from(registers.as_ptr(), registers.len());
            self.region.add(PAGE + VECTORS[0]).copy_from(vectors.as_ptr(), vectors.len());
            self.region.add(PAGE + MMX[0]).copy_from(mmx.as_ptr(), mmx.len());
            self.region.add(2 * PAGE).copy_from(memory.as_ptr(), ARENA);
            self.protect(libc::PROT_READ | libc::PROT_EXEC);
            let enter: extern "sysv64" fn() = std::mem::transmute(self.region);
            enter();
            self.protect(libc::PROT_READ | libc::PROT_WRITE);
            self.region.add(PAGE + AFTER).copy_to(after.as_mut_ptr(), after.len());
            self.region.add(PAGE + VECTORS[1]).copy_to(vectors_after.as_mut_ptr(), vectors_after.len());
            self.region.add(PAGE + MMX[1]).copy_to(mmx_after.as_mut_ptr(), mmx_after.len());
            self.region.add(2 * PAGE).copy_to(memory.as_mut_ptr(), ARENA);
        }
        let word = |bytes: &[u8], i: usize| u64::from_le_bytes(bytes[i * 8..][..8].try_into().unwrap());
        Registers {
            general: std::array::from_fn(|i| word(&after, i)),
            flags: word(&after, 16),
            vectors: std::array::from_fn(|i| std::array::from_fn(|j| word(&vectors_after, 4 * i + j))),
            mmx: std::array::from_fn(|i| word(&mmx_after, i)),
        }
    }

    /// Sets the access rights of the code page.
    fn protect(&self, rights: i32) {
        // SAFETY: the page is part of our mapping, and no reference to it exists.
        let result = unsafe { libc::mprotect(self.region.cast(), PAGE, rights) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Processor {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` created; no reference to it exists.
        unsafe { libc::munmap(self.region.cast(), SIZE) };
    }
}

/// Returns the wrapper with `instruction`, and the instruction's offset in it.
fn frame(instruction: &[u8]) -> (Vec<u8>, usize) {
    // push rbx, rbp, r12 to r15, flags
    let mut code = vec![0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x9c];
    let store = |code: &mut Vec<u8>, register: u8, slot: usize| reach(code, 0x89, register, slot);
    let load = |code: &mut Vec<u8>, register: u8, slot: usize| reach(code, 0x8b, register, slot);
    store(&mut code, RSP, HOST_STACK);
    // lea rsp, [scratch]; push [flags]; popfq
    reach(&mut code, 0x8d, RSP, SCRATCH_STACK);
    reach_plain(&mut code, 0xff, 6, BEFORE + FLAGS);
    code.push(0x9d);
    for register in 0..16 {
        vector(&mut code, 0x6f, register, VECTORS[0]);
    }
    for register in 0..8 {
        mmx(&mut code, 0x6f, register, MMX[0]);
    }
    for register in 0..16 {
        load(&mut code, register, BEFORE + 8 * usize::from(register));
    }
    let at = code.len();
    code.extend(instruction);
    for register in 0..16 {
        store(&mut code, register, AFTER + 8 * usize::from(register));
    }
    for register in 0..16 {
        vector(&mut code, 0x7f, register, VECTORS[1]);
    }
    for register in 0..8 {
        mmx(&mut code, 0x7f, register, MMX[1]);
    }
    // emms
    code.extend([0x0f, 0x77]);
    // lea rsp, [scratch]; pushfq; pop [flags]
    reach(&mut code, 0x8d, RSP, SCRATCH_STACK);
    code.push(0x9c);
    reach_plain(&mut code, 0x8f, 0, AFTER + FLAGS);
    load(&mut code, RSP, HOST_STACK);
    // pop flags, r15 to r12, rbp, rbx; ret
    code.extend([0x9d, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    (code, at)
}

/// `opcode register, [rip + distance to slot]`, 64 bits wide.
fn reach(code: &mut Vec<u8>, opcode: u8, register: u8, slot: usize) {
    code.push(0x48 | register >> 3 << 2);
    reach_plain(code, opcode, register & 7, slot);
}

/// VMOVDQU of a YMM register if available, otherwise MOVDQU of an XMM register; 6f loads, 7f stores.
fn vector(code: &mut Vec<u8>, opcode: u8, register: u8, slots: usize) {
    if has_avx() {
        code.extend([0xc5, if register < 8 { 0xfe } else { 0x7e }]);
    } else {
        code.extend([0xf3, 0x40 | register >> 3 << 2, 0x0f]);
    }
    reach_plain(code, opcode, register & 7, slots + 32 * usize::from(register));
}

/// MOVQ of an MMX register.
fn mmx(code: &mut Vec<u8>, opcode: u8, register: u8, slots: usize) {
    code.push(0x0f);
    reach_plain(code, opcode, register, slots + 8 * usize::from(register));
}

fn reach_plain(code: &mut Vec<u8>, opcode: u8, register: u8, slot: usize) {
    code.extend([opcode, register << 3 | 5]);
    let distance = PAGE + slot - (code.len() + 4);
    code.extend(u32::try_from(distance).unwrap().to_le_bytes());
}
