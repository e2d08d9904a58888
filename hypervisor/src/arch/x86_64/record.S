// Records of exits for a trace (docs/trace.md): macros of the recording exit paths of VMX and AMD-V, which build.rs makes. RSP points to the
// CPU's block; frame.rs has the operands.

// Writes the record of this exit (crate stile-trace, Kind::Exit): EAX = ticks; the ledger's row is at offset \at, or at RCX if that is 0.
// Changes RAX, RCX and RDX.
.macro record_exit at
    mov     rdx, [rsp + {RECORD_SLOT}]
    cmp     qword ptr [rdx], 0
    jne     .Lfull\@                // also after the trace
.if \at
    mov     dword ptr [rdx + 12], \at
.else
    sub     rcx, [rsp + {ROWS}]
    mov     [rdx + 12], ecx
.endif
    mov     [rdx + 8], eax
    mov     rcx, [rsp + {SINCE}]
    shl     rcx, 16
    mov     rax, [rsp + {VCPU}]
    mov     cx, [rax + {VCPU_ID}]
    ror     rcx, 16
    mov     [rdx], rcx
    add     dx, 16                  // wraps in the ring, which is as large as its alignment
    mov     [rsp + {RECORD_SLOT}], rdx
.Lrecorded\@:
.subsection 1
.Lfull\@:
    mov     rcx, [rsp + {RECORDS_DROPPED}]
    inc     qword ptr [rcx]
    jmp     .Lrecorded\@
.previous
.endm

// Records the interrupts that this exit made pending, if condition \new_if holds, and those that it sent: EAX = row. Changes RCX and RDX, and
// the other caller-saved registers if there were any.
.macro record_interrupts new_if
    j\new_if .Lnew\@
.Lold\@:
    cmp     eax, {ROW_OF_ICR}
    je      .Lsent\@
    lea     edx, [rax - {ROWS_OF_APIC}]
    cmp     edx, {ROWS_OF_APIC_LAST} - {ROWS_OF_APIC}
    jbe     .Lsent\@
.Linterrupts_recorded\@:
.subsection 1
.Lnew\@:
    sub     rsp, 16
    mov     [rsp], rax
    lea     rdi, [rsp + 16]
    call    trace_injections
    mov     rax, [rsp]
    add     rsp, 16
    jmp     .Lold\@
.Lsent\@:
    sub     rsp, 16
    mov     [rsp], rax
    mov     rsi, rax
    lea     rdi, [rsp + 16]
    call    trace_ipi
    mov     rax, [rsp]
    add     rsp, 16
    jmp     .Linterrupts_recorded\@
.previous
.endm

