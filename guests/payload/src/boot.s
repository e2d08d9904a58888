// How a CPU comes in: the first by the arm64 boot protocol (x0: device tree), the others by PSCI CPU_ON (x0: context).
// Both come with the MMU off, at EL1 or at EL2, where VHE makes EL1's names EL2's registers. Nothing is written to memory before it is on, and only then is RAM cacheable.

.section .text.boot, "ax"
.global _start
_start:
    mov     x20, #0                 // this is the first
    b       enter

.global secondary_start
secondary_start:
    mov     x20, #1

enter:
    mov     x19, x0
    mrs     x22, DAIF
    mrs     x23, CurrentEL
    cmp     x23, #(2 << 2)
    b.ne    1f
    ldr     x0, ={hcr}
    msr     HCR_EL2, x0
    isb
1:  mrs     x21, SCTLR_EL1          // as it was at entry; see entry.rs
    mrs     x24, SPSel
    mrs     x25, MPIDR_EL1

    msr     DAIFSet, #15
    msr     SPSel, #1
    mov     x0, #(3 << 20)          // CPACR_EL1.FPEN: no trap
    msr     CPACR_EL1, x0
    adrp    x0, vectors
    add     x0, x0, :lo12:vectors
    msr     VBAR_EL1, x0
    isb
    bl      mmu_on

    // Stack number Aff0. A CPU that has none waits for ever.
    and     x0, x25, #255
    cmp     x0, #{cpus}
    b.hs    halt
    add     x0, x0, #1
    mov     x1, #{stack_size}
    adrp    x2, {stacks}
    add     x2, x2, :lo12:{stacks}
    madd    x2, x0, x1, x2
    mov     sp, x2

    // struct Entry
    stp     x21, x22, [sp, #-48]!
    stp     x23, x24, [sp, #16]
    stp     x19, x25, [sp, #32]
    mov     x29, xzr
    mov     x30, xzr
    mov     x0, sp
    cbnz    x20, 1f
    bl      {first}
1:  bl      {secondary}
halt:
    wfi
    b       halt

// Turns the MMU on with the static tables of mmu.rs: 39 bits of virtual address, 4 KiB granule, from level 1.
mmu_on:
    ldr     x0, ={mair}
    msr     MAIR_EL1, x0
    ldr     x0, ={tcr}
    mrs     x1, ID_AA64MMFR0_EL1
    and     x1, x1, #15             // PARange
    mov     x2, #5                  // 48 bits are the most without LPA
    cmp     x1, x2
    csel    x1, x1, x2, lo
    orr     x0, x0, x1, lsl #32     // TCR_EL1.IPS
    msr     TCR_EL1, x0
    adrp    x0, {root}
    add     x0, x0, :lo12:{root}
    msr     TTBR0_EL1, x0
    msr     TTBR1_EL1, xzr
    tlbi    vmalle1
    ic      iallu
    dsb     nsh
    isb
    ldr     x0, ={sctlr}
    msr     SCTLR_EL1, x0
    isb
    ret

.ltorg
