// Interrupts: counted, and ended. Three ways to end them: through the APIC's page, by its register, and by a bit in memory.

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

.macro by_msr name, count:vararg
.balign 16
\name:
    \count
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

// By the CPU's bit, if that is set: only the hypervisor sets it, while the CPU is outside of the guest. RFLAGS is restored by IRETQ.
.macro by_bit name, slot, by_msr
.balign 16
\name:
    btr     dword ptr [rip + {slots} + \slot + {eoi}], 0
    jnc     \by_msr
    inc     qword ptr [rip + {slots} + \slot]
    iretq
.endm

.global first_by_page, first_by_msr, first_by_bit, second_by_page, second_by_msr, second_by_bit, all_by_msr
    by_page first_by_page, 0
    by_page second_by_page, {second_slot}
    by_msr  first_by_msr, inc qword ptr [rip + {slots}]
    by_msr  second_by_msr, inc qword ptr [rip + {slots} + {second_slot}]
    by_bit  first_by_bit, 0, first_by_msr
    by_bit  second_by_bit, {second_slot}, second_by_msr
    by_msr  all_by_msr, lock inc qword ptr [rip + {taken_by_all}]

// What is not there is skipped, and counted. Of instructions that are undefined, the probe has VMCALL only, which has three bytes; of those
// that are refused, RDMSR, WRMSR and RDPMC, which have two.
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

// Any other exception: there is an error code on the stack, or the address of the instruction.
.global exception
exception:
    mov     rdi, [rsp]
    mov     rsi, [rsp + 8]
    and     rsp, -16
    call    {unexpected}
    ud2
