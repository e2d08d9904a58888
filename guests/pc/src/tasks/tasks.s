// Tasks: 32-bit code outside of long mode, and the ways there and back. See mod.rs for the tables, and the words of a note.

.set MAIN, 0x20
.set OTHER, 0x28
.set SMALL, 0x30
.set GATE, 0x38
.set HOLE, 0x40000000
.set ICR, 0xfee00300
.set EOI, 0xfee000b0
.set NMI_TO_FIRST, 0x4400
.set TO_SELF, 0x440f0

.text
// tasks_run(code, registers): runs a program of those below as the main task, whose TSS's selector is MAIN. `registers`: the limits and bases of
// GDT (at 0) and IDT (at 8), CR4, CR3, and CR0's bits beyond those of protected mode.
.code64
.global tasks_run
tasks_run:
    push_preserved
    mov     [tasks_saved], rsp
    mov     rax, cr3
    mov     [tasks_saved + 8], rax
    mov     rax, cr0
    mov     [tasks_saved + 16], rax
    mov     rax, cr4
    mov     [tasks_saved + 24], rax
    sgdt    [tasks_saved + 32]
    sidt    [tasks_saved + 48]
    push    0x18
    lea     rax, [rip + 1f]
    push    rax
    .byte   0x48, 0xcb                          // RET far, 64 bits
.code32
1:  mov     eax, cr0
    and     eax, 0x7fffffff
    mov     cr0, eax
    mov     ecx, 0xc0000080                     // EFER.LME
    rdmsr
    and     eax, ~(1 << 8)
    wrmsr
    lgdt    [esi]
    lidt    [esi + 8]
    mov     eax, [esi + 16]
    mov     cr4, eax
    mov     eax, [esi + 20]
    mov     cr3, eax
    mov     eax, cr0
    or      eax, [esi + 24]
    mov     cr0, eax
    clts
    .byte   0xea                                // JMP far
    .long   2f
    .word   0x18
2:  mov     eax, 0x10
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    mov     fs, eax
    mov     gs, eax
    mov     esp, offset tasks_stack
    xor     eax, eax
    lldt    ax
    mov     eax, MAIN
    ltr     ax
    push    edi
    push    2
    popfd
    mov     eax, 0xa1a1a1a1
    mov     ecx, 0xc2c2c2c2
    mov     edx, 0xd3d3d3d3
    mov     ebx, 0xb4b4b4b4
    mov     ebp, 0xb5b5b5b5
    mov     esi, 0x51515151
    mov     edi, 0xd1d1d1d1
    ret

// The end of each program. The task register gets a TSS that 64-bit mode can have.
.global tasks_done
tasks_done:
    cli
    cld                                         // as the compiler's code has it
    mov     eax, 0x10
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    mov     esp, offset tasks_stack
    mov     eax, [tasks_gdt_base]
    and     byte ptr [eax + MAIN + 5], ~2
    mov     eax, MAIN
    ltr     ax
    mov     eax, cr0
    and     eax, 0x7fffffff
    mov     cr0, eax
    mov     eax, [tasks_saved + 24]
    mov     cr4, eax
    mov     eax, [tasks_saved + 8]
    mov     cr3, eax
    mov     ecx, 0xc0000080
    rdmsr
    or      eax, 1 << 8
    wrmsr
    mov     eax, [tasks_saved + 16]
    mov     cr0, eax
    lgdt    [tasks_saved + 32]
    .byte   0xea
    .long   1f
    .word   0x08
.code64
1:  mov     rsp, [tasks_saved]
    lidt    [tasks_saved + 48]
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    xor     eax, eax
    mov     fs, eax
    mov     gs, eax
    mov     eax, 0x400
    mov     dr7, rax
    pushfq
    and     dword ptr [rsp], ~0x4000            // NT
    popfq
    pop_preserved
    ret

// Exceptions that are not a task's: noted, and the end.
.code32
.macro tasks_fault vector
.balign 16
    .if (\vector != 8) && ((\vector < 10) || (\vector > 14)) && (\vector != 17)
    push    0
    .endif
    push    offset \vector
    jmp     tasks_fault_common
.endm
.balign 16
.global tasks_faults
tasks_faults:
.set tasks_vector, 0
.rept 32
    tasks_fault tasks_vector
.set tasks_vector, tasks_vector + 1
.endr
tasks_fault_common:
    push    eax
    mov     eax, 0x10
    mov     ds, eax
    pop     eax
    pop     dword ptr [tasks_end]
    pop     dword ptr [tasks_end + 4]
    pop     dword ptr [tasks_end + 8]
    pop     dword ptr [tasks_end + 12]
    pop     dword ptr [tasks_end + 16]
    str     eax
    mov     [tasks_end + 20], eax
    mov     eax, cr2
    mov     [tasks_end + 24], eax
    mov     eax, dr6
    mov     [tasks_end + 28], eax
    jmp     tasks_done

// Notes what the registers are.
note:
    pushfd
    pushad
    cld
    mov     esi, esp
    imul    edi, [tasks_count], 80
    add     edi, offset tasks_notes
    inc     dword ptr [tasks_count]
    mov     ecx, 10
    rep movsd
    str     eax
    stosd
    smsw    eax
    stosd
    mov     eax, ss
    stosd
    mov     eax, ds
    stosd
    mov     eax, es
    stosd
    mov     eax, fs
    stosd
    mov     eax, gs
    stosd
    mov     eax, cs
    stosd
    sldt    eax
    stosd
    mov     eax, [esi]
    stosd
    popad
    popfd
    ret

.macro far_call selector
    .byte   0x9a
    .long   0xf4f4f4f4                          // which nobody looks at
    .word   \selector
.endm
.macro far_jump selector
    .byte   0xea
    .long   0xf4f4f4f4
    .word   \selector
.endm

// Programs of the main task.
.global main_call, main_call_twice, main_call_gate, main_call_small, main_jump, main_jump_gate, main_int, main_int3, main_into, main_divide
.global main_touch, main_nmi, main_interrupt, main_return, main_debug, main_step, main_ud, main_odd_stack, main_user_touch
.macro finish
    call    note
    jmp     tasks_done
.endm
main_call_twice:
    far_call OTHER
    call    note
main_call:
    far_call OTHER
    finish
main_call_gate:
    far_call GATE
    finish
main_call_small:
    far_call SMALL
    finish
main_jump:
    far_jump OTHER
    finish
main_jump_gate:
    far_jump GATE
    finish
main_int:
    int     0x50
    finish
main_int3:
    int3
    finish
main_into:
    mov     al, 127
    add     al, al
    into
    finish
main_divide:
    mov     eax, 1500
    cdq
    div     dword ptr [tasks_divisor]
    finish
main_touch:
    mov     dword ptr [HOLE], eax
    finish
main_nmi:
    mov     dword ptr [ICR + 0x10], 0
    mov     dword ptr [ICR], NMI_TO_FIRST
    mov     ecx, 2000
1:  loop    1b
    finish
main_interrupt:
    sti
    mov     dword ptr [ICR], TO_SELF
    mov     ecx, 2000
1:  loop    1b
    cli
    finish
main_return:
    pushfd
    or      dword ptr [esp], 1 << 14
    popfd
    iretd
    finish
main_debug:
    mov     eax, 0xff                           // all four, local and global
    mov     dr7, eax
    far_call OTHER
    finish
main_step:
    pushfd
    or      dword ptr [esp], 1 << 8
    popfd
    far_call OTHER
    nop
    nop
    finish
main_ud:
    ud2
// Goes on in user mode at a label, with flags.
.macro to_user flags, label
    push    0x4b
    mov     eax, offset tasks_stack - 1025      // an odd one
    push    eax
    push    2 + (\flags)
    push    0x43
    mov     eax, offset \label
    push    eax
    iretd
.endm
main_odd_stack:                                 // alignment checks and interrupts are on
    mov     eax, cr0
    or      eax, 1 << 18
    mov     cr0, eax
    to_user (1 << 18) + (1 << 9), user_spin
user_spin:
    jmp     user_spin
main_user_touch:
    to_user 0, user_touch
user_touch:
    mov     eax, ss:[HOLE]                      // IRET has cleared DS
    ud2

// Those of the other one.
.global other_return, other_jump, other_divide, other_map, other_nmi, other_interrupt, other_debug, other_tables, other_small, other_end
other_return:
    call    note
    iretd
    call    note
    iretd
    jmp     other_return
other_jump:
    call    note
    far_jump MAIN
    call    note
    far_jump MAIN
other_divide:
    mov     dword ptr [tasks_divisor], 10
    call    note
    iretd
    jmp     other_divide
other_map:                                      // the error code is on its stack
    call    note
    mov     eax, [tasks_entry]
    mov     ecx, [tasks_entry + 4]
    mov     [eax], ecx
    pop     eax
    iretd
    jmp     other_map
other_nmi:
    call    note
    cmp     dword ptr [tasks_count], 1
    ja      2f
    mov     dword ptr [ICR], NMI_TO_FIRST       // which waits for IRET
    mov     ecx, 2000
1:  loop    1b
    call    note
2:  iretd
    jmp     other_nmi
other_interrupt:
    call    note
    mov     dword ptr [EOI], 0
    iretd
    jmp     other_interrupt
other_debug:
    mov     eax, dr7
    call    note
    iretd
    jmp     other_debug
other_tables:
    mov     eax, cr3
    mov     ebx, [HOLE]
    call    note
    iretd
    jmp     other_tables
other_small:                                    // by a segment that begins here
    str     [tasks_seen]
    mov     [tasks_seen + 4], eax
    mov     [tasks_seen + 8], esp
    pushfd
    pop     dword ptr [tasks_seen + 12]
    iretd
    jmp     other_small
other_end:
    finish
.code64

.section .bss
.balign 16
.skip 4096
tasks_stack:
tasks_saved: .skip 64
.global tasks_notes, tasks_count, tasks_end, tasks_divisor, tasks_entry, tasks_seen, tasks_gdt_base
tasks_notes: .skip 80 * 16
tasks_end: .skip 32
tasks_count: .skip 4
tasks_divisor: .skip 4
tasks_entry: .skip 8
tasks_seen: .skip 16
tasks_gdt_base: .skip 4
.text
