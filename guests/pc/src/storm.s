// The other vCPUs of storm.rs, in real mode: copied to the page to which a startup message leads. Each sends INIT, SIPI, NMI and
// interrupts to all vCPUs but the first, itself included, continuously.

.text
.balign 16
.global storm_start, storm_return, storm_end
.code16
storm_start:
    cli
    enable_x2apic
    mov     ax, 0x2000
    mov     ss, ax
    mov     sp, 0x8000
    sti
1:  rdtsc
    mov     ebx, eax
    shr     ebx, 4
    and     ebx, 3                      // a target of 0 to 3
    jz      1b
    mov     edx, ebx
    mov     ecx, 0x830
    mov     eax, 0x4500                 // INIT
    wrmsr
    mov     eax, 0x4600 + {PAGE}        // SIPI
    wrmsr
    mov     eax, 0x4400                 // NMI
    wrmsr
    mov     eax, 0x4040                 // vector 0x40
    wrmsr
    jmp     1b
storm_return:
    iret
storm_end:
.code64
