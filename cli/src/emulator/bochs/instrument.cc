// What the emulated PC counts for `stile bench`: between two marks of a guest's, the exits of all CPUs by reason, those among them of the
// VMCS that runs the guest with the marks, all instructions, and instructions, VMREAD, VMWRITE and WRMSR outside of guests; and under "sharing", outside of
// guests, on the CPUs that entered the guest with the marks last: instructions, atomic writes, those to cache lines that other CPUs also wrote
// atomically, compare-exchanges that failed, and PAUSEs. A line of JSON for each section goes to the file that STILE_COUNTS names.
//
// A mark is a PREFETCHh of an address that is nothing's: a hint, which does nothing anywhere and never exits.

#include <unordered_map>

#include "bochs.h"
#include "cpu/cpu.h"
#include "memory/memory-bochs.h"

#if BX_INSTRUMENTATION

static const bx_address BEGIN = 0x53540001, END = 0x53540002;
// Basic exit reasons are below this.
static const unsigned REASONS = 128;

struct Counts {
  Bit64u exits[REASONS], marker_exits[REASONS], instructions, vmcs_reads, vmcs_writes, msr_writes;
};
static Counts counts;
// The VMCS of the guest with the marks.
static bx_phy_address marker;
// Of a CPU outside of guests: the number of instructions that it had executed when it left one, or when the section began.
static const unsigned CPUS = 256;
static Bit64u since[CPUS];
// The number of instructions that a CPU had executed when the section began.
static Bit64u began[CPUS];
static bool is_inside[CPUS];
static FILE *output;
static bool opened;

struct Sharing {
  Bit64u instructions, failed, spins;
};
static Sharing sharing;
// Atomic writes by cache line of 64 bytes: on the CPUs of the guest with the marks, and on others.
typedef std::unordered_map<Bit64u, Bit64u> Lines;
static Lines own_lines, other_lines;
static const unsigned LINE_SHIFT = 6;
// The second stage of the guest with the marks, which identifies its CPUs.
static Bit64u marker_ept;

static bool is_marker(unsigned cpu) { return BX_CPU(cpu)->vmcs.eptptr == marker_ept; }

static void end_outside(unsigned cpu) {
  if (is_inside[cpu % CPUS]) return;
  const Bit64u more = BX_CPU(cpu)->get_icount() - since[cpu % CPUS];
  counts.instructions += more;
  if (is_marker(cpu)) sharing.instructions += more;
}

// The instruction that is being executed; empty if it begins in another page.
static const Bit8u *instruction(const BX_CPU_C *cpu) {
  const bx_address offset = cpu->prev_rip + cpu->eipPageBias;
  return offset < 4096 - 4 ? cpu->eipFetchPtr + offset : NULL;
}

// A read that the instruction's write follows.
void count_change(unsigned number, bx_phy_address at, unsigned length) {
  BX_CPU_C *cpu = BX_CPU(number);
  const Bit8u *code = cpu->in_vmx_guest || !marker_ept ? NULL : instruction(cpu);
  if (!code) return;
  const bool is_locked = *code == 0xf0;
  if (is_locked) code++;
  if ((*code & 0xf0) == 0x40) code++;
  // XCHG of memory locks without the prefix.
  if (!is_locked && (*code & 0xfe) != 0x86) return;
  if (!is_marker(number)) {
    other_lines[at >> LINE_SHIFT]++;
    return;
  }
  own_lines[at >> LINE_SHIFT]++;
  const bool compares = code[0] == 0x0f && (code[1] & 0xfe) == 0xb0;
  const Bit8u *memory = compares ? BX_MEM(0)->getHostMemAddr(cpu, at, BX_READ) : NULL;
  if (memory) sharing.failed += memcmp(memory, &cpu->gen_reg[BX_64BIT_REG_RAX], length) != 0;
}

void count_pause(unsigned cpu) { sharing.spins += is_marker(cpu); }

void count_entry(unsigned cpu) {
  end_outside(cpu);
  is_inside[cpu % CPUS] = true;
}

void count_exit(unsigned cpu, unsigned reason) {
  counts.exits[reason % REASONS]++;
  counts.marker_exits[reason % REASONS] += BX_CPU(cpu)->vmcsptr == marker;
  // An entry that failed did not end the time outside.
  if (is_inside[cpu % CPUS]) since[cpu % CPUS] = BX_CPU(cpu)->get_icount();
  is_inside[cpu % CPUS] = false;
}

void count_vmcs_read() { counts.vmcs_reads++; }
void count_vmcs_write() { counts.vmcs_writes++; }
void count_msr_write(unsigned cpu) { counts.msr_writes += !BX_CPU(cpu)->in_vmx_guest; }

static FILE *open_counts() {
  if (!opened) {
    const char *path = getenv("STILE_COUNTS");
    if (path) output = fopen(path, "w");
    opened = true;
  }
  return output;
}

static void write_exits(FILE *to, const char *name, const Bit64u *exits) {
  const char *separator = "";
  fprintf(to, "\"%s\":{", name);
  for (unsigned reason = 0; reason < REASONS; reason++) {
    if (!exits[reason]) continue;
    fprintf(to, "%s\"%u\":" FMT_LL "u", separator, reason, exits[reason]);
    separator = ",";
  }
  fprintf(to, "},");
}

static void write_section(FILE *to) {
  fprintf(to, "{");
  write_exits(to, "exits", counts.exits);
  write_exits(to, "marker_exits", counts.marker_exits);
  Bit64u all = 0;
  for (unsigned cpu = 0; cpu < BX_SMP_PROCESSORS; cpu++) all += BX_CPU(cpu)->get_icount() - began[cpu % CPUS];
  fprintf(to, "\"all_instructions\":" FMT_LL "u,", all);
  fprintf(to, "\"instructions\":" FMT_LL "u,\"vmcs_reads\":" FMT_LL "u,\"vmcs_writes\":" FMT_LL "u,\"msr_writes\":" FMT_LL "u,",
          counts.instructions, counts.vmcs_reads, counts.vmcs_writes, counts.msr_writes);
  Bit64u atomics = 0, shared = 0;
  for (Lines::const_iterator line = own_lines.begin(); line != own_lines.end(); ++line) {
    atomics += line->second;
    if (other_lines.count(line->first)) shared += line->second;
  }
  fprintf(to, "\"sharing\":{\"instructions\":" FMT_LL "u,\"atomics\":" FMT_LL "u,\"shared\":" FMT_LL "u,\"failed\":" FMT_LL "u,\"spins\":" FMT_LL "u}}\n",
          sharing.instructions, atomics, shared, sharing.failed, sharing.spins);
  fflush(to);
}

static void begin_section(unsigned cpu) {
  memset(&counts, 0, sizeof counts);
  memset(&sharing, 0, sizeof sharing);
  own_lines.clear();
  other_lines.clear();
  marker = BX_CPU(cpu)->vmcsptr;
  marker_ept = BX_CPU(cpu)->vmcs.eptptr;
  for (unsigned other = 0; other < BX_SMP_PROCESSORS; other++) since[other % CPUS] = began[other % CPUS] = BX_CPU(other)->get_icount();
}

static void end_section() {
  for (unsigned cpu = 0; cpu < BX_SMP_PROCESSORS; cpu++) end_outside(cpu);
  if (open_counts()) write_section(output);
  marker_ept = 0;
}

void mark(unsigned cpu, bx_address at) {
  if (at == BEGIN) begin_section(cpu);
  if (at == END) end_section();
}

void close_counts() {
  if (output) fclose(output);
  output = NULL;
}

#endif
