// Reports that there is no memory for the image: no Rust code can run yet. Stays for 15 s, with or without a screen.

.set READING, 15000000              // microseconds, as in `efi`
// Offsets in the system table, EFI_SIMPLE_TEXT_OUTPUT_PROTOCOL and boot services.
.set CONSOLE_OUT, 0x40
.set BOOT_SERVICES, 0x60
.set OUTPUT_STRING, 0x8
.set STALL, 0xf8

.section .text.efi, "ax"
.code64
.global efi_no_memory
// RCX = system table.
efi_no_memory:
    push    rbx
    push    rsi
    push    rdi
    sub     rsp, 48                 // the callees' 32 bytes, and a character with its NUL
    mov     rbx, [rcx + BOOT_SERVICES]
    mov     rdi, [rcx + CONSOLE_OUT]
    lea     rsi, [rip + 3f]
    test    rdi, rdi
    jz      2f
1:  movzx   eax, byte ptr [rsi]
    test    eax, eax
    jz      2f
    inc     rsi
    mov     [rsp + 32], eax         // 16 bits, and 16 more of the NUL
    mov     rcx, rdi
    lea     rdx, [rsp + 32]
    call    [rdi + OUTPUT_STRING]
    jmp     1b
2:  mov     ecx, READING
    call    [rbx + STALL]
    add     rsp, 48
    pop     rdi
    pop     rsi
    pop     rbx
    ret
3:  .asciz  "Stile can't run here: the firmware has no memory below 4 GiB for the image\r\n"
.balign 16
