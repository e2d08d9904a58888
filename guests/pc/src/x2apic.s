// Enables the x2APIC of a vCPU in real mode. Changes EAX, ECX and EDX.
.macro enable_x2apic
    mov     ecx, 0x1b                   // IA32_APIC_BASE: x2APIC mode
    rdmsr
    or      eax, 0xc00
    wrmsr
    xor     edx, edx
    mov     ecx, 0x80f                  // spurious-interrupt vector: enabled
    mov     eax, 0x1ff
    wrmsr
.endm
