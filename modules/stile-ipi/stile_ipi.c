// SPDX-License-Identifier: GPL-2.0
/*
 * Interprocessor interrupts without VM exits, in a virtual machine of Stile with ipi = "direct" or ipi = "gate".
 *
 * The sender posts the vector in the posted-interrupt descriptor of the target's vCPU, and if no notification is
 * outstanding sends one: by the physical x2APIC's ICR, with the vector and destination that Stile keeps in the
 * descriptor, or through the gate, code of Stile's behind VMFUNC. NMI, INIT and startup messages go by a register of
 * Stile's. docs/x86-ipi.md and docs/x86-gate.md describe the interface.
 *
 * A CPU whose register says that it does not send itself (while it comes up, or goes down) uses the kernel's own
 * functions: its ICR is the virtual one.
 *
 * With timer = "direct" the expiry of a CPU's timer is a notification, too, which takes no exit.
 */
#include <linux/clockchips.h>
#include <linux/cpuhotplug.h>
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/static_call.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <asm/apic.h>
#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif
#include <asm/irq_vectors.h>
#include <asm/nospec-branch.h>
#include <asm/processor.h>
#include <asm/smp.h>
#include <asm/tsc.h>

#define STILE_LEAF		0x40000000
#define STILE_FEATURES		0x40000001
#define STILE_FEATURE_IPI	BIT(0)
#define STILE_FEATURE_GATE	BIT(1)
#define STILE_FEATURE_TIMER	BIT(2)
#define MSR_STILE_IPI_CONTROL	0x400000f0
#define MSR_STILE_IPI_COMMAND	0x400000f1
#define MSR_X2APIC_ICR		(APIC_BASE_MSR + (APIC_ICR >> 4))

#define CONTROL_SENDS		BIT_ULL(0)
#define CONTROL_TIMER		BIT_ULL(1)
#define CONTROL_COUNT(control)	((control) >> 4 & 0xff)
#define CONTROL_ADDRESS		GENMASK_ULL(51, 12)

/* The posted-interrupt descriptor; each begins a page. */
struct descriptor {
	unsigned long requests[4];
	unsigned long control;
};

#define DESCRIPTOR_ON		0
#define DESCRIPTOR_VECTOR(c)	((c) >> 16 & 0xff)
#define DESCRIPTOR_TARGET	GENMASK_ULL(63, 32)

static void *descriptors;
static unsigned int descriptor_count;

static struct apic *kernels_apic;
static struct apic direct_apic;
static enum cpuhp_state hotplug_state;

/* Whether this CPU's ICR is the physical one. */
static DEFINE_PER_CPU(bool, sends);

static __always_inline void write_msr(u32 msr, u64 value)
{
	asm volatile("wrmsr" : : "c" (msr), "a" ((u32)value), "d" ((u32)(value >> 32)) : "memory");
}

static u64 __init read_msr(u32 msr)
{
	u32 low, high;

	asm volatile("rdmsr" : "=a" (low), "=d" (high) : "c" (msr));
	return low | (u64)high << 32;
}

/*
 * The page from which the gate is entered, and to which it returns: a slot for each APIC ID, with VMFUNC at offset 29,
 * behind which the gate's own code runs at these addresses, and RET at offset 16. All else is INT3.
 */
#define GATE_SLOT		64
#define GATE_SLOTS		64
#define GATE_ENTRY		29
extern const u8 stile_gate_page[];
asm(".pushsection .text.stile_gate, \"ax\"\n"
    ".balign 4096, 0xcc\n"
    "stile_gate_page:\n"
    ".rept 64\n"
    ".fill 16, 1, 0xcc\n"
    ".byte 0xc3\n"
    ".fill 12, 1, 0xcc\n"
    ".byte 0x0f, 0x01, 0xd4\n"
    ".fill 32, 1, 0xcc\n"
    ".endr\n"
    ".popsection\n");

static bool through_gate;

/* Interrupts are off: an exit in the gate makes this CPU enter it again. */
static __always_inline void enter_gate(unsigned int id)
{
	const void *entry = stile_gate_page + id * GATE_SLOT + GATE_ENTRY;
	u32 function = 0, view = 1;

	asm volatile(ANNOTATE_RETPOLINE_SAFE "\n\tcall *%[entry]"
		     : "+a" (function), "+c" (view), ASM_CALL_CONSTRAINT : [entry] "r" (entry) : "cc", "memory");
}

static __always_inline void post(int cpu, int vector)
{
	unsigned int id = per_cpu(x86_cpu_to_apicid, cpu);
	struct descriptor *descriptor = descriptors + id * PAGE_SIZE;
	unsigned long control;

	if (unlikely(id >= descriptor_count))
		return;
	/*
	 * A vector that is already requested is delivered with the earlier request. WRMSR to the ICR is not ordered after stores to
	 * memory. It is ordered after these locked instructions, since the branches depend on their results.
	 */
	if (test_and_set_bit(vector, descriptor->requests))
		return;
	if (test_and_set_bit(DESCRIPTOR_ON, &descriptor->control))
		return;
	if (through_gate) {
		enter_gate(id);
		return;
	}
	/* Read after ON is set: if Stile changes these fields, it then looks at ON, and notifies the new target itself. */
	control = READ_ONCE(descriptor->control);
	write_msr(MSR_X2APIC_ICR, (control & DESCRIPTOR_TARGET) | DESCRIPTOR_VECTOR(control));
}

static __always_inline bool is_direct(int vector)
{
	return likely(vector != NMI_VECTOR) && this_cpu_read(sends);
}

static void send_nmi(int cpu)
{
	u64 target = per_cpu(x86_cpu_to_apicid, cpu);

	write_msr(MSR_STILE_IPI_COMMAND, target << 32 | APIC_DM_NMI);
}

/* One that is no posted vector: an NMI on a CPU that sends itself; on others, what the kernel would do. */
static void send_otherwise(int cpu, int vector)
{
	if (this_cpu_read(sends))
		send_nmi(cpu);
	else
		kernels_apic->send_IPI(cpu, vector);
}

static void send_one(int cpu, int vector)
{
	unsigned long flags;

	local_irq_save(flags);
	if (is_direct(vector))
		post(cpu, vector);
	else
		send_otherwise(cpu, vector);
	local_irq_restore(flags);
}

static void send_mask_but(const struct cpumask *mask, int vector, int but)
{
	unsigned long flags;
	bool direct;
	int cpu;

	local_irq_save(flags);
	direct = is_direct(vector);
	for_each_cpu(cpu, mask) {
		if (cpu == but)
			continue;
		if (direct)
			post(cpu, vector);
		else
			send_otherwise(cpu, vector);
	}
	local_irq_restore(flags);
}

static void send_mask(const struct cpumask *mask, int vector)
{
	send_mask_but(mask, vector, -1);
}

static void send_mask_allbutself(const struct cpumask *mask, int vector)
{
	send_mask_but(mask, vector, smp_processor_id());
}

static void send_allbutself(int vector)
{
	send_mask_but(cpu_online_mask, vector, smp_processor_id());
}

static void send_all(int vector)
{
	send_mask_but(cpu_online_mask, vector, -1);
}

/* INIT and startup messages, and whatever else the kernel has for the ICR. */
static void write_icr(u32 low, u32 id)
{
	unsigned long flags;

	local_irq_save(flags);
	if (this_cpu_read(sends))
		write_msr(MSR_STILE_IPI_COMMAND, (u64)id << 32 | low);
	else
		kernels_apic->icr_write(low, id);
	local_irq_restore(flags);
}

/*
 * A notification delivers all that is requested in this CPU's descriptor. The timer's vector is requested whenever the timer is armed, so
 * that an expiry delivers it. Notifications of other interrupts do, too: the kernel's handler must not see these, and the vector must be
 * requested again.
 */
struct timer {
	/* The kernel's device of this CPU, while it has our functions. */
	struct clock_event_device *device;
	/* What it had. */
	void (*event_handler)(struct clock_event_device *device);
	int (*set_next_event)(unsigned long delta, struct clock_event_device *device);
	unsigned int features;
	/* This CPU's descriptor. */
	unsigned long *requests;
	/* 0: not armed, or by the kernel's own function. */
	u64 deadline;
};

static DEFINE_PER_CPU(struct timer, timers);

/* The kernel's devices; NULL if expiries exit. */
static struct clock_event_device __percpu *devices;

/* Units of the kernel's device for the APIC's timer in deadline mode (arch/x86/kernel/apic/apic.c). */
#define TSC_DIVISOR		8

static void timer_interrupt(struct clock_event_device *device)
{
	struct timer *timer = this_cpu_ptr(&timers);

	if (rdtsc_ordered() < timer->deadline) {
		set_bit(LOCAL_TIMER_VECTOR, timer->requests);
		/* An expiry before the request has delivered nothing. */
		if (rdtsc_ordered() < timer->deadline)
			return;
	}
	timer->deadline = 0;
	timer->event_handler(device);
}

/* The kernel changes the handler when it changes from a periodic tick to single events. */
static void take_handler(struct timer *timer)
{
	if (timer->device->event_handler == timer_interrupt)
		return;
	timer->event_handler = timer->device->event_handler;
	timer->device->event_handler = timer_interrupt;
}

static int set_next_event(unsigned long delta, struct clock_event_device *device)
{
	struct timer *timer = this_cpu_ptr(&timers);

	take_handler(timer);
	timer->deadline = rdtsc() + (u64)delta * TSC_DIVISOR;
	set_bit(LOCAL_TIMER_VECTOR, timer->requests);
	write_msr(MSR_IA32_TSC_DEADLINE, timer->deadline);
	return 0;
}

/* Returns what the register of control is to have. Interrupts are off. */
static u64 take_timer(void)
{
	struct timer *timer = this_cpu_ptr(&timers);
	struct clock_event_device *device;

	if (!devices)
		return 0;
	device = this_cpu_ptr(devices);
	if (strcmp(device->name, "lapic-deadline") || this_cpu_read(x86_cpu_to_apicid) >= descriptor_count)
		return 0;
	timer->device = device;
	timer->requests = descriptors + this_cpu_read(x86_cpu_to_apicid) * PAGE_SIZE;
	timer->deadline = 0;
	timer->set_next_event = device->set_next_event;
	timer->features = device->features;
	device->set_next_event = set_next_event;
#ifdef CLOCK_EVT_FEAT_CLOCKSOURCE_COUPLED
	/* The kernel would write the deadline itself. */
	device->features &= ~CLOCK_EVT_FEAT_CLOCKSOURCE_COUPLED;
#endif
	take_handler(timer);
	return CONTROL_TIMER;
}

static void return_timer(void)
{
	struct timer *timer = this_cpu_ptr(&timers);

	if (!timer->device)
		return;
	timer->device->set_next_event = timer->set_next_event;
	timer->device->features = timer->features;
	if (timer->device->event_handler == timer_interrupt)
		timer->device->event_handler = timer->event_handler;
	timer->device = NULL;
}

/* Both together: what sends in between would use the wrong ICR. A timer that is armed stays so. */
static void choose(bool on)
{
	unsigned long flags;

	local_irq_save(flags);
	if (!on)
		return_timer();
	write_msr(MSR_STILE_IPI_CONTROL, on ? CONTROL_SENDS | take_timer() : 0);
	this_cpu_write(sends, on);
	local_irq_restore(flags);
}

static int cpu_online_here(unsigned int cpu)
{
	choose(true);
	return 0;
}

static int cpu_offline_here(unsigned int cpu)
{
	choose(false);
	return 0;
}

/* The kernel's function that finds names, which is not exported. */
static unsigned long (*lookup)(const char *name);

static int __init find_lookup(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int error;

	/* The probe's address is behind the function's ENDBR. */
	if (boot_cpu_has(X86_FEATURE_IBT))
		return -EOPNOTSUPP;
	error = register_kprobe(&probe);
	if (error)
		return error;
	lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

static void __init find_devices(void)
{
	if (boot_cpu_has(X86_FEATURE_TSC_DEADLINE_TIMER) && (lookup || !find_lookup()))
		devices = (struct clock_event_device __percpu __force *)lookup("lapic_events");
	if (!devices)
		pr_info("stile_ipi: this kernel's timers are not supported: expiries exit\n");
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)

/* The pointer is read-only after boot: it is written through a mapping of its own. */
static int set_apic(struct apic *to)
{
	struct page *page = pfn_to_page(__pa_symbol(&apic) >> PAGE_SHIFT);
	void *alias = vmap(&page, 1, VM_MAP, PAGE_KERNEL);

	if (!alias)
		return -ENOMEM;
	WRITE_ONCE(*(struct apic **)(alias + offset_in_page(&apic)), to);
	vunmap(alias);
	return 0;
}

static int __init find_callbacks(void)
{
	return 0;
}

#else

/*
 * These kernels don't read the pointer: they call the functions by static calls, whose keys are not exported. They are looked up by
 * name, once: the key holds the function, and the trampoline is where modules call it.
 */
static struct callback {
	const char *key;
	const char *trampoline;
	size_t function;
	struct static_call_key *keys_at;
	void *trampolines_at;
} callbacks[] = {
#define CALLBACK(name) { \
	.key = STATIC_CALL_KEY_STR(apic_call_##name), \
	.trampoline = STATIC_CALL_TRAMP_STR(apic_call_##name), \
	.function = offsetof(struct apic, name) \
}
	CALLBACK(send_IPI),
	CALLBACK(send_IPI_mask),
	CALLBACK(send_IPI_mask_allbutself),
	CALLBACK(send_IPI_allbutself),
	CALLBACK(send_IPI_all),
	CALLBACK(icr_write),
};

static int set_apic(struct apic *to)
{
	struct callback *callback;

	for (callback = callbacks; callback < callbacks + ARRAY_SIZE(callbacks); callback++)
		__static_call_update(callback->keys_at, callback->trampolines_at, *(void **)((void *)to + callback->function));
	return 0;
}

static int __init find_callbacks(void)
{
	struct callback *callback;
	int error = find_lookup();

	if (error)
		return error;
	for (callback = callbacks; callback < callbacks + ARRAY_SIZE(callbacks); callback++) {
		callback->keys_at = (void *)lookup(callback->key);
		callback->trampolines_at = (void *)lookup(callback->trampoline);
		if (!callback->keys_at || !callback->trampolines_at)
			return -ENOENT;
	}
	return 0;
}

#endif

static u32 __init features(void)
{
	char signature[13] = { };
	u32 highest;

	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR))
		return 0;
	cpuid(STILE_LEAF, &highest, (u32 *)signature, (u32 *)(signature + 4), (u32 *)(signature + 8));
	if (strcmp(signature, "StileStile") || highest < STILE_FEATURES)
		return 0;
	return cpuid_eax(STILE_FEATURES) & (STILE_FEATURE_IPI | STILE_FEATURE_GATE | STILE_FEATURE_TIMER);
}

static int __init stile_ipi_init(void)
{
	u64 control;
	int error;

	if (!features() || !x2apic_enabled()) {
		pr_info("stile_ipi: no direct interrupts here: they need Stile, ipi = \"direct\" or \"gate\", and an x2APIC\n");
		return -ENODEV;
	}
	control = read_msr(MSR_STILE_IPI_CONTROL);
	descriptor_count = CONTROL_COUNT(control);
	through_gate = features() & STILE_FEATURE_GATE;
	if (through_gate && descriptor_count > GATE_SLOTS)
		return -ENODEV;
	error = find_callbacks();
	if (error) {
		pr_info("stile_ipi: this kernel's functions that send interrupts were not found\n");
		return error;
	}
	if (features() & STILE_FEATURE_TIMER)
		find_devices();
	descriptors = memremap(control & CONTROL_ADDRESS, descriptor_count * PAGE_SIZE, MEMREMAP_WB);
	if (!descriptors)
		return -ENOMEM;

	kernels_apic = apic;
	direct_apic = *apic;
	direct_apic.send_IPI = send_one;
	direct_apic.send_IPI_mask = send_mask;
	direct_apic.send_IPI_mask_allbutself = send_mask_allbutself;
	direct_apic.send_IPI_allbutself = send_allbutself;
	direct_apic.send_IPI_all = send_all;
	direct_apic.icr_write = write_icr;
	error = set_apic(&direct_apic);
	if (error)
		goto unmap;
	/* From here on our functions run, and do as the kernel's until a CPU sends itself. */
	error = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "x86/stile_ipi:online", cpu_online_here, cpu_offline_here);
	if (error < 0)
		goto restore;
	hotplug_state = error;
	pr_info("stile_ipi: interprocessor interrupts are sent without exits\n");
	if (devices)
		pr_info("stile_ipi: timers fire without exits\n");
	return 0;
restore:
	set_apic(kernels_apic);
	synchronize_rcu();
unmap:
	memunmap(descriptors);
	return error;
}

static void __exit stile_ipi_exit(void)
{
	cpuhp_remove_state(hotplug_state);
	/* Before Linux 6.6: without memory for the mapping the functions must stay, and so must the module: try again. */
	while (set_apic(kernels_apic))
		schedule_timeout_uninterruptible(HZ);
	/* Our functions run with interrupts off, or preemption. */
	synchronize_rcu();
	memunmap(descriptors);
}

module_init(stile_ipi_init);
module_exit(stile_ipi_exit);

MODULE_DESCRIPTION("Interprocessor interrupts without VM exits, under Stile");
MODULE_LICENSE("GPL");
