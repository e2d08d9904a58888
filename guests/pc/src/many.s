// The other vCPUs of many.rs, in real mode: copied to the page to which a startup message leads. Those that the mask selects
// send interrupts to all others continuously, the others wait for interrupts.

.text
.balign 16
.global many_start, many_interrupt, many_end
.code16
many_start:
    cli
    enable_x2apic
    mov     ecx, 0x802
    rdmsr
    lock inc dword ptr [{STARTED}]
    mov     bl, al                      // its identifier
    shl     ax, 5                       // a stack of 512 bytes
    add     ax, 0x2000
    mov     ss, ax
    mov     sp, 512
    and     bl, [{SENDERS}]
    cmp     bl, 1
    je      2f
    sti
1:  hlt
    jmp     1b
2:  xor     edx, edx
    mov     ecx, 0x830                  // ICR: to all others
    mov     eax, 0xc4040
    wrmsr
    jmp     2b
// Vector 0x40.
many_interrupt:
    push    eax
    push    ecx
    push    edx
    xor     eax, eax
    xor     edx, edx
    mov     ecx, 0x80b                  // end of interrupt
    wrmsr
    pop     edx
    pop     ecx
    pop     eax
many_return:
    iret
many_end:
.code64
