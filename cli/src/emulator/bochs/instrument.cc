// What the emulated PC counts for `stile bench`: between two marks of a guest's, the exits of all CPUs by reason, and VMREAD, VMWRITE and
// WRMSR outside of guests. A line of JSON for each section goes to the file that STILE_COUNTS names.
//
// A mark is a PREFETCHh of an address that is nothing's: a hint, which does nothing anywhere and never exits.

#include "bochs.h"
#include "cpu/cpu.h"

#if BX_INSTRUMENTATION

static const bx_address BEGIN = 0x53540001, END = 0x53540002;
// Basic exit reasons are below this.
static const unsigned REASONS = 128;

struct Counts {
  Bit64u exits[REASONS], vmcs_reads, vmcs_writes, msr_writes;
};
static Counts counts;
static FILE *output;
static bool opened;

void count_exit(unsigned cpu, unsigned reason) { counts.exits[reason % REASONS]++; }
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

static void write_section(FILE *to) {
  const char *separator = "";
  fprintf(to, "{\"exits\":{");
  for (unsigned reason = 0; reason < REASONS; reason++) {
    if (!counts.exits[reason]) continue;
    fprintf(to, "%s\"%u\":" FMT_LL "u", separator, reason, counts.exits[reason]);
    separator = ",";
  }
  fprintf(to, "},\"vmcs_reads\":" FMT_LL "u,\"vmcs_writes\":" FMT_LL "u,\"msr_writes\":" FMT_LL "u}\n", counts.vmcs_reads,
          counts.vmcs_writes, counts.msr_writes);
  fflush(to);
}

void mark(bx_address at) {
  if (at == BEGIN) memset(&counts, 0, sizeof counts);
  if (at == END && open_counts()) write_section(output);
}

void close_counts() {
  if (output) fclose(output);
  output = NULL;
}

#endif
