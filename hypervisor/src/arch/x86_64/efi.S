// Entry point for UEFI firmware, as an EFI program (UEFI Specification, 2.3.4 x64 Platforms), and the way from there to boot.S.

.set KIB_4, 0x1000
.set PRESENT_WRITABLE, 0x3
.set LARGE, 0x80
.set CODE_32, 0x08
.set DATA, 0x10
.set LA57, 12
// Of the PE header.
.set SIZE_OF_IMAGE, 80
// Of the system table and of boot services.
.set BOOT_SERVICES, 0x60
.set ALLOCATE_PAGES, 0x28
.set BELOW, 1                       // AllocateMaxAddress
.set LOADER_DATA, 2                 // EfiLoaderData
// Tables, in pages from the first ones that boot.S does not use before it has left all of these: firmware's root with the image added,
// and the two levels below it; an identity mapping of 4 GiB; the level above, which both have on CPUs with five.
.set FIRMWARE_ROOT, 4
.set IMAGE_1, 5
.set IDENTITY_ROOT, 7
.set IDENTITY_1, 8
.set IDENTITY_2, 9
.set FIRMWARE_TOP, 13
.set IDENTITY_TOP, 14

.section .text.efi, "ax"
.code64
.global efi_entry
// RCX = handle of the image, RDX = system table. The image is not at its link address: `efi_main` runs in a copy that is mapped there.
efi_entry:
    push    rbx
    push    rbp
    push    rsi
    push    rdi
    push    r12
    push    r13
    push    r14
    push    r15
    sub     rsp, 56                 // the callee's 32 bytes, and an address
    mov     rbx, rcx
    mov     r13, rdx
    lea     r12, [rip + image_head]
    lea     rax, [rip + efi_header]
    mov     ebp, [rax + SIZE_OF_IMAGE]

    // Memory that 32-bit code reaches.
    lea     r8, [rbp + (1 << 21) + KIB_4 - 1]
    shr     r8, 12
    mov     eax, 0xffffffff
    mov     [rsp + 40], rax
    mov     ecx, BELOW
    mov     edx, LOADER_DATA
    lea     r9, [rsp + 40]
    mov     rax, [r13 + BOOT_SERVICES]
    call    [rax + ALLOCATE_PAGES]
    test    rax, rax
    jnz     5f
    mov     r14, [rsp + 40]
    add     r14, (1 << 21) - 1
    and     r14, -(1 << 21)
    cld
    mov     rsi, r12
    mov     rdi, r14
    mov     ecx, ebp
    rep movsb

    // As `choose` in boot.S, in the copy.
    cmp     dword ptr [r14 + other_program_offset], 0
    je      4f
    mov     r15, rbx
    mov     eax, 0x80000001         // there, since this is 64-bit mode
    cpuid
    mov     rbx, r15
    bt      ecx, SVM
    jnc     4f
    mov     rdi, r14
    mov     esi, [r14 + other_program_offset]
    mov     ecx, [r14 + other_program_offset + 4]
    add     rsi, r14
    rep movsb
    lea     rcx, [r14 + __image_size]
    sub     rcx, rdi
    xor     eax, eax
    rep stosb

4:  mov     edi, [r14 + chosen_tables_offset]
    lea     rdi, [r14 + rdi + FIRMWARE_ROOT * KIB_4]
    mov     r12, rdi
    mov     r15, cr3
    mov     rsi, r15
    and     rsi, -KIB_4
    mov     ecx, 512
    rep movsq
    lea     rax, [r12 + (IMAGE_1 - FIRMWARE_ROOT) * KIB_4 + PRESENT_WRITABLE]
    mov     rcx, cr4
    bt      ecx, LA57
    jnc     1f
    lea     rdx, [r12 + (FIRMWARE_TOP - FIRMWARE_ROOT) * KIB_4]
    mov     [rdx + 8 * 511], rax
    lea     rax, [rdx + PRESENT_WRITABLE]
1:  mov     [r12 + 8 * 511], rax
    lea     rax, [rdi + KIB_4 + PRESENT_WRITABLE]
    mov     [rdi + 8 * 510], rax
    lea     rax, [r14 + LARGE + PRESENT_WRITABLE]
    mov     ecx, 1
2:  mov     [rdi + KIB_4 + 8 * rcx], rax
    add     rax, 1 << 21
    inc     ecx
    cmp     ecx, offset image_blocks
    jb      2b
    mov     cr3, r12
    mov     rdi, rbx
    mov     rsi, r13
    mov     rdx, r14
    mov     rax, [r14 + chosen_efi_main_offset]
    call    rax
    mov     cr3, r15
3:  add     rsp, 56
    pop     r15
    pop     r14
    pop     r13
    pop     r12
    pop     rdi
    pop     rsi
    pop     rbp
    pop     rbx
    ret
5:  mov     rbx, rax
    mov     rcx, r13
    call    efi_no_memory
    mov     rax, rbx
    jmp     3b

// Leaves 64-bit mode and starts the image, boot services having ended: RDI = its physical address.
.global efi_leave
efi_leave:
    cli
    cld
    mov     rbx, rdi
    // R8 = physical less linked address.
    mov     r8, rdi
    mov     rax, offset image_head
    sub     r8, rax
    lea     rax, [rbx + tables_offset + IDENTITY_ROOT * KIB_4]
    lea     rdx, [rax + (IDENTITY_1 - IDENTITY_ROOT) * KIB_4 + PRESENT_WRITABLE]
    mov     [rax], rdx
    lea     rdx, [rax + (IMAGE_1 - IDENTITY_ROOT) * KIB_4 + PRESENT_WRITABLE]
    mov     [rax + 8 * 511], rdx
    lea     rdi, [rax + (IDENTITY_1 - IDENTITY_ROOT) * KIB_4]
    lea     rdx, [rax + (IDENTITY_2 - IDENTITY_ROOT) * KIB_4 + PRESENT_WRITABLE]
    xor     ecx, ecx
1:  mov     [rdi + 8 * rcx], rdx
    add     rdx, KIB_4
    inc     ecx
    cmp     ecx, 4
    jb      1b
    lea     rdi, [rax + (IDENTITY_2 - IDENTITY_ROOT) * KIB_4]
    mov     edx, LARGE | PRESENT_WRITABLE
    xor     ecx, ecx
2:  mov     [rdi + 8 * rcx], rdx
    add     rdx, 1 << 21
    inc     ecx
    cmp     ecx, 4 * 512
    jb      2b
    mov     rcx, cr4
    bt      ecx, LA57
    jnc     3f
    // The image's half of the level below stands in the same table.
    lea     rdx, [rax + PRESENT_WRITABLE]
    add     rax, (IDENTITY_TOP - IDENTITY_ROOT) * KIB_4
    mov     [rax], rdx
    mov     [rax + 8 * 511], rdx
3:  mov     cr3, rax
    // To the same code at its physical address.
    lea     rax, [r8 + efi_leave_low]
    jmp     rax
efi_leave_low:
    lea     rax, [r8 + boot_gdt]
    mov     [r8 + boot_gdtr + 2], eax
    lgdt    [r8 + boot_gdtr]
    lea     rsp, [r8 + __boot_stack_top]
    push    CODE_32
    lea     rax, [rip + 5f]
    push    rax
    .byte   0x48                    // 64-bit operands
    retf
.code32
5:  mov     eax, cr0
    and     eax, 0x7fffffff         // PG
    mov     cr0, eax
    mov     ecx, 0xc0000080         // IA32_EFER
    rdmsr
    and     eax, ~(1 << 8)          // LME
    wrmsr
    xor     eax, eax
    mov     cr4, eax
    mov     eax, DATA
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    mov     ebp, ebx
    sub     ebp, offset image_pa
    xor     edi, edi
    xor     esi, esi
    jmp     start_displaced
.code64
