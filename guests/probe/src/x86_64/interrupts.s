// Interrupts: counted, and ended. Two ways to end them: through the APIC's page, and by its register.

.text

.macro by_page name, slot
.balign 16
\name:
    inc     qword ptr [rip + {slots} + \slot]
    push    rax
    mov     eax, 0xfee000b0         // EOI
    mov     dword ptr [rax], 0
    pop     rax
    iretq
.endm

.macro by_msr name, slot
.balign 16
\name:
    inc     qword ptr [rip + {slots} + \slot]
    push    rax
    push    rcx
    push    rdx
    mov     ecx, 0x80b              // EOI
    xor     eax, eax
    xor     edx, edx
    wrmsr
    pop     rdx
    pop     rcx
    pop     rax
    iretq
.endm

.global first_by_page, first_by_msr, second_by_page, second_by_msr
    by_page first_by_page, 0
    by_page second_by_page, {second_slot}
    by_msr  first_by_msr, 0
    by_msr  second_by_msr, {second_slot}

// What is not there is skipped, and counted. Of instructions that are undefined, the probe has VMCALL only, which has three bytes; of those
// that are refused, RDMSR and WRMSR, which have two.
.balign 16
.global undefined
undefined:
    add     qword ptr [rsp], 3
    inc     qword ptr [rip + {faults}]
    iretq
.balign 16
.global protection
protection:
    add     rsp, 8                  // the error code
    add     qword ptr [rsp], 2
    inc     qword ptr [rip + {faults}]
    iretq

.global spurious
spurious:
    iretq

.macro exception vector, code
.balign 16
    .if \code == 0
    push    0
    .endif
    push    \vector
    jmp     exception_common
.endm
.balign 16
.global exceptions
exceptions:
.irp vector, 0, 1, 2, 3, 4, 5, 6, 7
    exception \vector, 0
.endr
    exception 8, 1
    exception 9, 0
.irp vector, 10, 11, 12, 13, 14
    exception \vector, 1
.endr
.irp vector, 15, 16
    exception \vector, 0
.endr
    exception 17, 1
.irp vector, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    exception \vector, 0
.endr
exception_common:
    mov     rdi, [rsp]
    mov     rsi, [rsp + 16]
    and     rsp, -16
    call    {unexpected}
    ud2
