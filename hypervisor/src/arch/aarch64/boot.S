// Entry point of every CPU, with the MMU off: the Linux arm64 boot protocol's header (Documentation/arch/arm64/booting.rst), then the
// minimum needed to run at the image's virtual address, where Rust code takes over. UEFI firmware starts the image at `efi_entry` (efi.S),
// which branches here once the MMU is off.

.set BLOCK, 0x701                   // valid block, AF, inner shareable, MAIR attribute 0
.set BLOCK_AP1, 0x40                // AP[1] is RES1 in the EL2 regime without VHE
.set PHYSMAP, 0x400000000000

.section .text.head, "ax"
.global _start
_start:
    .long   0xfa405a4d              // "MZ" of an EFI program is CCMP X18, #0, #13, PL: it only changes flags
    b       first_cpu
    .quad   0                       // text_offset
    .quad   __image_size            // image_size; cli writes the size with the blob
    .quad   0xa                     // flags: little endian, 4 KiB pages, anywhere in memory
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .long   efi_header - _start
efi_header:                         // the PE header, which cli writes
    .space  256

.section .text.boot, "ax"
// Maps 2 MiB: x0 = virtual, x1 = physical. x27 = level 0 table, x28 = next unused table. Changes x2 to x4.
.macro descend shift
    ubfx    x2, x0, #\shift, #9
    ldr     x4, [x3, x2, lsl #3]
    cbnz    x4, 1f
    orr     x4, x28, #3
    str     x4, [x3, x2, lsl #3]
    add     x28, x28, #4096
1:  and     x3, x4, #0x0000fffffffff000
.endm
map_block:
    mov     x3, x27
    descend 39
    descend 30
    ubfx    x2, x0, #21, #9
    orr     x4, x1, x26
    str     x4, [x3, x2, lsl #3]
    ret

first_cpu:
    msr     daifset, #0xf
    mov     x20, x0                 // the device tree
    adr     x19, _start
    bl      choose_regime

    // The first tables: the code that turns the MMU on, at its physical address; the image, at its virtual one; and 4 MiB
    // from where the device tree starts, in the direct map. This is all the memory that is known to be memory.
    adrp    x27, __tables_start
    add     x28, x27, #4096
    mov     x26, #BLOCK
    cbnz    x21, 1f
    orr     x26, x26, #BLOCK_AP1
1:  and     x1, x19, #~0x1fffff
    mov     x0, x1
    bl      map_block
    mov     x1, x19
    ldr     x0, =__image_start
    ldr     x5, =__image_end
2:  bl      map_block
    add     x0, x0, #0x200000
    add     x1, x1, #0x200000
    cmp     x0, x5                  // and the blob's header, which follows
    b.ls    2b
    mov     x5, #PHYSMAP
    and     x1, x20, #~0x1fffff
    add     x0, x1, x5
    bl      map_block
    add     x0, x0, #0x200000
    add     x1, x1, #0x200000
    bl      map_block

    // Lines of the tables that were in a cache before the MMU was on must not hide what was just written to memory.
    mrs     x0, ctr_el0
    ubfx    x0, x0, #16, #4
    mov     x1, #4
    lsl     x1, x1, x0
    mov     x0, x27
    dmb     sy
3:  dc      ivac, x0
    add     x0, x0, x1
    cmp     x0, x28
    b.lo    3b
    dsb     sy

    bl      mmu_on
    ldr     x0, =__boot_stack_top
    mov     sp, x0
    mov     x0, x20
    mov     x1, x19
    mov     x29, xzr
    mov     x30, xzr
    b       boot

// Entry point of a CPU started by PSCI CPU_ON or by its spin table, which passes no argument.
.global secondary_cpu
secondary_cpu:
    msr     daifset, #0xf
    adrp    x0, HANDOFF             // cpu/start.rs
    add     x0, x0, :lo12:HANDOFF
    ldp     x27, x20, [x0]          // root of the tables, stack
    bl      choose_regime
    bl      mmu_on
    mov     sp, x20
    mov     x0, x20
    mov     x29, xzr
    mov     x30, xzr
    b       secondary_boot

// Changes from the first tables to others: x0 = physical address of their root, x1 = physical less virtual address of the image.
// The two map the same addresses by blocks of different sizes, so the MMU is off in between (Arm ARM, Using break-before-make when
// updating translation table entries). Both map this page at its physical address.
.global use_tables
use_tables:
    mov     x9, x21
    mov     x10, x27
    mov     x11, x30
    mov     x27, x0
    adr     x2, 1f
    add     x2, x2, x1
    br      x2
1:  bl      choose_regime
    cbz     x21, 2f
    mrs     x0, sctlr_el1
    bic     x0, x0, #(1 << 0)       // M
    bic     x0, x0, #(1 << 2)       // C
    msr     sctlr_el1, x0
    b       3f
2:  mrs     x0, sctlr_el2
    bic     x0, x0, #(1 << 0)
    bic     x0, x0, #(1 << 2)
    msr     sctlr_el2, x0
3:  isb
    bl      mmu_on
    mov     x21, x9
    mov     x27, x10
    ret     x11

// x21 = 1 if Stile accesses its registers by their EL1 names: at EL2 with VHE, which is enabled here; and at EL1, where Stile can only report
// that it needs EL2. 0 at EL2 without VHE.
choose_regime:
    mov     x21, #1
    mrs     x0, CurrentEL
    cmp     x0, #(2 << 2)
    b.ne    1f
    msr     spsel, #1
    mov     x0, #(1 << 31)          // HCR_EL2.RW
    mrs     x1, id_aa64mmfr1_el1
    ubfx    x21, x1, #8, #4         // VH
    cbz     x21, 2f
    mov     x21, #1
    orr     x0, x0, #(1 << 34)      // HCR_EL2.E2H
2:  msr     hcr_el2, x0
    isb
1:  ret

mmu_on:
    mrs     x0, id_aa64mmfr0_el1
    and     x0, x0, #0xf            // PARange; 48 bits are all that 4 KiB pages reach without LPA2
    mov     x1, #5
    cmp     x0, x1
    csel    x0, x0, x1, lo
    mov     x1, #0x04ff             // attribute 0: Normal, write-back; 1: Device-nGnRE
    movz    x2, #0x3510             // 48 bits of address, walks inner shareable and write-back
    cbz     x21, 1f
    msr     mair_el1, x1
    orr     x2, x2, #(1 << 23)      // EPD1: no second address range
    orr     x2, x2, x0, lsl #32
    msr     tcr_el1, x2
    msr     ttbr0_el1, x27
    isb
    tlbi    vmalle1
    mrs     x3, CurrentEL
    cmp     x3, #(2 << 2)
    b.ne    3f
    tlbi    alle2
3:  dsb     nsh
    isb
    ldr     x1, =0x30d0180d         // SCTLR: RES1 bits, SPAN, EIS, EOS, I, SA, C, M
    msr     sctlr_el1, x1
    b       2f
1:  msr     mair_el2, x1
    orr     x2, x2, x0, lsl #16
    mov     x1, #0x80800000         // RES1
    orr     x2, x2, x1
    msr     tcr_el2, x2
    msr     ttbr0_el2, x27
    isb
    tlbi    alle2
    dsb     nsh
    isb
    ldr     x1, =0x30c5183d         // SCTLR_EL2: RES1 bits, I, SA, C, M
    msr     sctlr_el2, x1
2:  isb
    // From the physical address to the virtual one.
    adr     x0, _start
    ldr     x1, =__image_start
    sub     x1, x1, x0
    add     x30, x30, x1
    ret

.ltorg
