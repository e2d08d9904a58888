// Bochs' instrumentation interface (its `instrument/instrumentation.txt`): the events that are counted, and nothing at the others, which
// cost nothing then. Bochs is built with this in place of its stubs; see `cli/src/emulator/bochs/obtain.rs`.

#if BX_INSTRUMENTATION

void count_entry(unsigned cpu);
void count_exit(unsigned cpu, unsigned reason);
void count_msr_write(unsigned cpu);
void count_change(unsigned cpu, bx_phy_address at, unsigned length);
void count_pause(unsigned cpu);
void count_vmcs_read();
void count_vmcs_write();
void mark(unsigned cpu, bx_address at);
void close_counts();

#define BX_INSTR_VMEXIT(cpu, reason, qualification) count_exit(cpu, reason)
#define BX_INSTR_WRMSR(cpu, msr, value) count_msr_write(cpu)
#define BX_INSTR_PREFETCH_HINT(cpu, what, segment, offset) mark(cpu, offset)
#define BX_INSTR_LIN_ACCESS(cpu, linear, physical, length, type, access) do { if ((access) == BX_RW) count_change(cpu, physical, length); } while (0)
#define BX_INSTR_EXIT_ENV() close_counts()
// These are not Bochs' own: they stand where it enters a guest, and executes VMREAD, VMWRITE and PAUSE outside of guests.
#define BX_INSTR_VMENTRY(cpu) count_entry(cpu)
#define BX_INSTR_VMREAD() count_vmcs_read()
#define BX_INSTR_VMWRITE() count_vmcs_write()
#define BX_INSTR_PAUSE(cpu) count_pause(cpu)

#else

#define BX_INSTR_VMEXIT(cpu, reason, qualification)
#define BX_INSTR_WRMSR(cpu, msr, value)
#define BX_INSTR_PREFETCH_HINT(cpu, what, segment, offset)
#define BX_INSTR_EXIT_ENV()
#define BX_INSTR_VMENTRY(cpu)
#define BX_INSTR_VMREAD()
#define BX_INSTR_VMWRITE()
#define BX_INSTR_PAUSE(cpu)
#define BX_INSTR_LIN_ACCESS(cpu, linear, physical, length, type, access)

#endif

#define BX_INSTR_INIT_ENV()
#define BX_INSTR_INITIALIZE(cpu)
#define BX_INSTR_EXIT(cpu)
#define BX_INSTR_RESET(cpu, type)
#define BX_INSTR_HLT(cpu)
#define BX_INSTR_MWAIT(cpu, address, length, flags)
#define BX_INSTR_DEBUG_PROMPT()
#define BX_INSTR_DEBUG_CMD(command)
#define BX_INSTR_CNEAR_BRANCH_TAKEN(cpu, from, to)
#define BX_INSTR_CNEAR_BRANCH_NOT_TAKEN(cpu, from)
#define BX_INSTR_UCNEAR_BRANCH(cpu, what, from, to)
#define BX_INSTR_FAR_BRANCH(cpu, what, from_segment, from, to_segment, to)
#define BX_INSTR_OPCODE(cpu, instruction, bytes, length, is32, is64)
#define BX_INSTR_EXCEPTION(cpu, vector, code)
#define BX_INSTR_INTERRUPT(cpu, vector)
#define BX_INSTR_HWINTERRUPT(cpu, vector, segment, at)
#define BX_INSTR_CLFLUSH(cpu, linear, physical)
#define BX_INSTR_CACHE_CNTRL(cpu, what)
#define BX_INSTR_TLB_CNTRL(cpu, what, cr3)
#define BX_INSTR_BEFORE_EXECUTION(cpu, instruction)
#define BX_INSTR_AFTER_EXECUTION(cpu, instruction)
#define BX_INSTR_REPEAT_ITERATION(cpu, instruction)
#define BX_INSTR_PHY_ACCESS(cpu, physical, length, type, access)
#define BX_INSTR_INP(port, length)
#define BX_INSTR_INP2(port, length, value)
#define BX_INSTR_OUTP(port, length, value)
