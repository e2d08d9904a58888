// Entry point for UEFI firmware, as an EFI program (UEFI Specification, 2.3.6 AArch64 Platforms): at EL2, with the MMU on and
// memory identity-mapped. The image is not at its link address.

.section .text.efi, "ax"
.global efi_entry
// x0 = handle of the image, x1 = system table
efi_entry:
    adrp    x2, _start
    b       efi_main

// Turns the MMU off and starts an image by the arm64 boot protocol: x0 = device tree, x1 = image. Both, and this code, are clean to the
// point of coherency.
.balign 64
.global efi_leave
efi_leave:
    msr     daifset, #0xf
    mrs     x2, sctlr_el2
    bic     x2, x2, #(1 << 0)       // M
    bic     x2, x2, #(1 << 2)       // C
    msr     sctlr_el2, x2
    isb
    tlbi    alle2
    ic      iallu
    dsb     nsh
    isb
    mov     x4, x1
    mov     x1, xzr
    mov     x2, xzr
    mov     x3, xzr
    br      x4
.balign 64
.global efi_leave_end
efi_leave_end:
