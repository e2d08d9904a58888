// From the boot loader to `boot`, and from an INIT and a SIPI to `secondary_boot`.

.set KIB_4, 0x1000
.set PRESENT_WRITABLE, 0x3
.set LARGE, 0x80
.set MULTIBOOT_MAGIC, 0x1badb002
// Modules at pages; memory map; addresses are in this header: the image is no ELF file.
.set MULTIBOOT_FLAGS, 0x10003
.set MULTIBOOT2_MAGIC, 0xe85250d6
.set MULTIBOOT2_LENGTH, multiboot2_end - multiboot2_header
// Types of its tags, and the flag of one that a loader may ignore.
.set ADDRESS_TAG, 2
.set ENTRY_TAG, 3
.set FRAME_BUFFER_TAG, 5
.set RELOCATABLE_TAG, 10
.set OPTIONAL, 1
.set CODE_32, 0x08
.set DATA, 0x10
.set CODE_64, 0x18
// Offsets in the trampoline: operands of LGDT and of a far jump, and the image's displacement.
.set TRAMPOLINE_GDTR, {TRAMPOLINE_GDTR}
.set TRAMPOLINE_TARGET, {TRAMPOLINE_TARGET}
.set TRAMPOLINE_DISPLACEMENT, {TRAMPOLINE_DISPLACEMENT}
.set FIRST_TABLES, {FIRST_TABLES}
.set SVM, 2                         // CPUID leaf 8000_0001H, ECX
.set COM1, 0x3f8
.set LINE_CONTROL, COM1 + 3
.set LINE_STATUS, COM1 + 5
.set TRANSMIT_EMPTY, 1 << 5

.section .text.head, "ax"
.balign 8
image_head:
    .ascii  "MZ"                    // an EFI program, too
    .space  58
    .long   efi_header - image_head
// Multiboot Specification 0.6.96, "The layout of Multiboot header".
.global multiboot_header
.global multiboot2_header
multiboot_header:
    .long MULTIBOOT_MAGIC
    .long MULTIBOOT_FLAGS
    .long -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)
    .long multiboot_header_pa
    .long image_pa                  // load_addr
    .long 0                         // load_end_addr: the whole file
    .long 0                         // bss_end_addr: zeroed data is in the file
    .long start_pa
.global efi_header
efi_header:                         // the PE header, which cli writes
    .space  256

// Multiboot2 Specification 2.0, "The layout of Multiboot2 header", for 32-bit protected mode of i386.
.balign 8
multiboot2_header:
    .long   MULTIBOOT2_MAGIC
    .long   0
    .long   MULTIBOOT2_LENGTH
    .long   -(MULTIBOOT2_MAGIC + MULTIBOOT2_LENGTH)
    .short  ADDRESS_TAG, 0
    .long   24
    .long   multiboot2_header_pa, image_pa, 0, 0        // the whole file; zeroed data is in it
    .short  ENTRY_TAG, 0
    .long   12
    .long   start_multiboot2_pa
    .balign 8
    // UEFI firmware may use the memory at 2 MiB: the lowest free multiple of 2 MiB below 4 GiB.
    .short  RELOCATABLE_TAG, OPTIONAL
    .long   24
    .long   image_pa, 0xffffffff, 1 << 21, 1
    // 32 bits per pixel, which GRUB asks for with a size alone.
    .short  FRAME_BUFFER_TAG, OPTIONAL
    .long   20
    .long   1024, 768, 32
    .balign 8
    .long   0, 8
multiboot2_end:

// The image's first program is the one with VMX. The one with AMD-V lies behind the blob, as long as the two are the same in memory, up to
// the zeros at its end.
.balign 8
.global other_program
other_program:
    .long   0                       // offset from the image's start, which cli writes: 0 if there is none
    .long   0                       // length: whole words of 4 bytes
// Words of the chosen program that efi.S reads.
.global chosen_efi_main
chosen_efi_main:
    .quad   efi_main
.global chosen_tables
chosen_tables:
    .long   tables_offset

// With AMD-V the other program takes the place of this one: EDI, ESI and EBP are as at `start_displaced`. In both programs this code is at
// the same place, and the same, but for the operands of jumps to `start_displaced`. Changes EAX, EBX, ECX and EDX.
.code32
choose:
    cli
    cld
    cmp     dword ptr [ebp + other_program_pa], 0
    je      start_displaced
    mov     eax, 0x80000000
    cpuid
    cmp     eax, 0x80000001
    jb      start_displaced
    mov     eax, 0x80000001
    cpuid
    bt      ecx, SVM
    jnc     start_displaced
    mov     ebx, edi
    mov     edx, esi
    lea     edi, [ebp + image_pa]
    mov     esi, [ebp + other_program_pa]
    mov     ecx, [ebp + other_program_pa + 4]
    add     esi, edi
    shr     ecx, 2
    rep movsd
    // The rest is zero.
    lea     ecx, [ebp + image_end_pa]
    sub     ecx, edi
    shr     ecx, 2
    xor     eax, eax
    rep stosd
    mov     edi, ebx
    mov     esi, edx
    jmp     choose

.section .text.boot, "ax"
.code32
// EAX and EBX are the loader's. Protected mode, no paging, flat segments. The image is at its link address.
.global _start
_start:
    mov     edi, eax
    mov     esi, ebx
    xor     ebp, ebp
    jmp     choose
// As `_start`, with the image at any multiple of 2 MiB.
.global start_multiboot2
start_multiboot2:
    mov     edi, eax
    mov     esi, ebx
    // There is no stack: the information's second word is reserved.
    lea     esp, [ebx + 8]
    call    1f
.global multiboot2_here
multiboot2_here:
1:  pop     ebp
    sub     ebp, offset multiboot2_here_pa
    jmp     choose
// EDI and ESI are for `boot`. EBP = displacement of the image: its physical address less the one that it is linked for.
start_displaced:
    cli
    cld
    lea     esp, [ebp + boot_stack_top_pa]
    // Is there 64-bit mode?
    mov     eax, 0x80000000
    cpuid
    cmp     eax, 0x80000001
    jb      1f
    mov     eax, 0x80000001
    cpuid
    bt      edx, 29                 // 64-bit mode
    jnc     1f
    bt      edx, 20                 // execute-disable
    jc      2f
    lea     esi, [ebp + no_execute_disable_pa]
    jmp     refuse
1:  lea     esi, [ebp + no_long_mode_pa]
    jmp     refuse

    // The first tables: physical memory from 0 and from the middle of the address space on, and the image where it is linked, all of it
    // writable and executable. mmu.rs makes better ones.
2:  push    edx
    lea     ebx, [ebp + tables_pa]
    lea     eax, [ebx + KIB_4 + PRESENT_WRITABLE]
    mov     [ebx], eax
    mov     [ebx + 8 * 256], eax
    lea     eax, [ebx + 2 * KIB_4 + PRESENT_WRITABLE]
    mov     [ebx + 8 * 511], eax
    lea     edx, [ebx + 3 * KIB_4]
    lea     eax, [edx + PRESENT_WRITABLE]
    mov     [ebx + 2 * KIB_4 + 8 * 510], eax
    lea     eax, [ebp + image_pa + LARGE + PRESENT_WRITABLE]
    mov     ecx, 1
8:  mov     [edx + 8 * ecx], eax
    add     eax, 1 << 21
    inc     ecx
    cmp     ecx, offset image_blocks
    jb      8b
    lea     edx, [ebx + KIB_4]
    xor     ecx, ecx
    bt      dword ptr [esp], 26     // pages of 1 GiB
    jnc     6f
    // 512 GiB.
3:  mov     eax, ecx
    shl     eax, 30
    or      eax, LARGE | PRESENT_WRITABLE
    mov     [edx + 8 * ecx], eax
    mov     eax, ecx
    shr     eax, 2
    mov     [edx + 8 * ecx + 4], eax
    inc     ecx
    cmp     ecx, 512
    jb      3b
4:  lea     eax, [ebp + boot_gdt_pa]
    mov     [ebp + boot_gdtr_pa + 2], eax
    lgdt    [ebp + boot_gdtr_pa]
    call    enter_long
    push    CODE_64
    lea     eax, [ebp + start_long_pa]
    push    eax
    retf

    // FIRST_TABLES GiB: a table for each, and in these 2 MiB for each entry.
6:  lea     eax, [ebx + 4 * KIB_4 + PRESENT_WRITABLE]
5:  mov     [edx + 8 * ecx], eax
    add     eax, KIB_4
    inc     ecx
    cmp     ecx, FIRST_TABLES
    jb      5b
    lea     edx, [ebx + 4 * KIB_4]
    xor     ecx, ecx
7:  mov     eax, ecx
    shl     eax, 21
    or      eax, LARGE | PRESENT_WRITABLE
    mov     [edx + 8 * ecx], eax
    mov     eax, ecx
    shr     eax, 11
    mov     [edx + 8 * ecx + 4], eax
    inc     ecx
    cmp     ecx, 512 * FIRST_TABLES
    jb      7b
    jmp     4b

// Says the text at ESI on the first serial port, and ends here.
refuse:
    mov     dx, LINE_CONTROL
    mov     al, 0b11                // 8 bits
    out     dx, al
3:  mov     ah, [esi]
    inc     esi
    test    ah, ah
    jz      2f
    mov     dx, LINE_STATUS
1:  in      al, dx
    test    al, TRANSMIT_EMPTY
    jz      1b
    mov     dx, COM1
    mov     al, ah
    out     dx, al
    jmp     3b
2:  hlt
    jmp     2b
.global no_long_mode
no_long_mode:
    .asciz "Stile can't run here: the CPU has no 64-bit mode\r\n"
.global no_execute_disable
no_execute_disable:
    .asciz "Stile can't run here: the CPU has no execute-disable bit, or the firmware hides it\r\n"

// Turns 64-bit mode on (the manual, "Initializing IA-32e Mode"): the caller's far jump enters it. EBP = displacement of the image. Changes EAX, ECX and EDX.
enter_long:
    // All other bits are off: with LA57, which a loader may leave behind, the tables would be read as those of five-level paging.
    mov     eax, 1 << 5             // PAE
    mov     cr4, eax
    lea     eax, [ebp + tables_pa]
    mov     cr3, eax
    mov     ecx, 0xc0000080         // IA32_EFER
    rdmsr
    or      eax, 1 << 8 | 1 << 11   // LME, NXE
    wrmsr
    mov     eax, 0x80010033         // PG, WP, NE, ET, MP, PE
    mov     cr0, eax
    ret

.code64
.global start_long
start_long:
    mov     rax, offset start_high
    jmp     rax
start_high:
    mov     eax, DATA
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    mov     rsp, offset __boot_stack_top
    mov     edx, ebp
    xor     ebp, ebp
    mov     edi, edi
    mov     esi, esi
    call    boot
    ud2

.balign 8
.global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff        // 32-bit code
    .quad 0x00cf93000000ffff        // data
    .quad 0x00af9b000000ffff        // 64-bit code
.global boot_gdtr
boot_gdtr:
    .word 4 * 8 - 1
    .long boot_gdt_pa
    .long 0                         // efi.S loads it in 64-bit mode

// A SIPI starts a CPU in real mode at a page below 1 MiB, to which boot.rs copies this and adds the image's displacement to its data.
.code16
.global trampoline
trampoline:
    cli
    cld
    mov     ax, cs
    mov     ds, ax
    movzx   ebx, ax
    shl     ebx, 4                  // address of the page
    mov     ebp, [TRAMPOLINE_DISPLACEMENT]
    .byte   0x66                    // all 32 bits of the base
    lgdt    [TRAMPOLINE_GDTR]
    mov     eax, cr0
    or      al, 1
    mov     cr0, eax
    .byte   0x66, 0xff, 0x2e        // a far jump to the offset of 32 bits and the segment at this address
    .word   TRAMPOLINE_TARGET
.org trampoline + TRAMPOLINE_GDTR
    .word 4 * 8 - 1
    .long boot_gdt_pa
.org trampoline + TRAMPOLINE_TARGET
    .long   secondary_protected_pa
    .word   CODE_32
.org trampoline + TRAMPOLINE_DISPLACEMENT
    .long   0
.global trampoline_end
trampoline_end:

.code32
.global secondary_protected
secondary_protected:
    mov     eax, DATA
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    lea     esp, [ebx + KIB_4]
    call    enter_long
    push    CODE_64
    lea     eax, [ebp + secondary_long_pa]
    push    eax
    retf
.code64
.global secondary_long
secondary_long:
    mov     rax, offset secondary_high
    jmp     rax
secondary_high:
    mov     rdx, offset HANDOFF
    mov     rax, [rdx]              // root of the final tables
    mov     cr3, rax
    mov     rsp, [rdx + 8]
    xor     ebp, ebp
    call    secondary_boot
    ud2
