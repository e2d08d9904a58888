// SPDX-License-Identifier: GPL-2.0
/*
 * Devices that this virtual machine of Stile serves others. docs/served-devices.md describes their registers.
 *
 * Device N, in the order of the configuration, is the file /dev/stile-servedN, which one program at a time can open:
 *
 *	mmap at offset 0		a page of registers, as device memory
 *	mmap at offset 4096	the page of events, as normal cached memory
 *	mmap at offset 8192	the window on the client's RAM, as normal cached memory
 *	read, 4 bytes		the number of interrupts so far; waits for one since the last read, or since open
 *	poll			readable if read would not wait
 *	ioctl SERVED_WINDOW	a new file with the window only, at offset 0, for a program that gets no more. The device is
 *				open while that file is, or is mapped
 *
 * The window keeps its mapping while the client resets: Stile unmaps and maps blocks behind it, once RESET_DONE was
 * written. When the file is closed, which mappings delay, nothing accesses the client's RAM any more. The device then
 * goes offline, which also acknowledges a pending reset: a program that is killed leaves no client waiting for it.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/of.h>
#include <linux/of_address.h>
#include <linux/platform_device.h>
#include <linux/poll.h>
#include <linux/property.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#define MAGIC_VALUE	0x00
#define MAGIC		0x76537453
#define VERSION		0x04
#define WINDOW_BASE	0x10
#define WINDOW_SIZE	0x18
#define CONTROL		0x28

#define SERVED_WINDOW	_IO('S', 0x76)

#define COMPATIBLE	"stile,served-device"
#define OPEN		0

struct served {
	struct miscdevice misc;
	void __iomem *registers;
	phys_addr_t registers_at;
	phys_addr_t events_at;
	phys_addr_t window;
	u64 window_size;
	unsigned long flags;
	atomic_t interrupts;
	/* Value of interrupts that was read last. */
	int seen;
	wait_queue_head_t wait;
};

static struct served *of_file(struct file *file)
{
	return container_of(file->private_data, struct served, misc);
}

static bool has_news(struct served *served)
{
	return atomic_read(&served->interrupts) != READ_ONCE(served->seen);
}

static irqreturn_t served_interrupt(int irq, void *data)
{
	struct served *served = data;

	atomic_inc(&served->interrupts);
	wake_up_interruptible(&served->wait);
	return IRQ_HANDLED;
}

static int served_open(struct inode *inode, struct file *file)
{
	struct served *served = of_file(file);

	if (test_and_set_bit_lock(OPEN, &served->flags))
		return -EBUSY;
	WRITE_ONCE(served->seen, atomic_read(&served->interrupts));
	return 0;
}

/* Mappings hold the file: there are none left. */
static int served_release(struct inode *inode, struct file *file)
{
	struct served *served = of_file(file);

	writel(0, served->registers + CONTROL);
	clear_bit_unlock(OPEN, &served->flags);
	return 0;
}

static ssize_t served_read(struct file *file, char __user *to, size_t count, loff_t *at)
{
	struct served *served = of_file(file);
	int interrupts, error;

	if (count != sizeof(u32))
		return -EINVAL;
	if (!has_news(served)) {
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		error = wait_event_interruptible(served->wait, has_news(served));
		if (error)
			return error;
	}
	interrupts = atomic_read(&served->interrupts);
	WRITE_ONCE(served->seen, interrupts);
	return put_user((u32)interrupts, (u32 __user *)to) ? -EFAULT : sizeof(u32);
}

static __poll_t served_poll(struct file *file, poll_table *table)
{
	struct served *served = of_file(file);

	poll_wait(file, &served->wait, table);
	return has_news(served) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* Cached, as Stile and the client map it: the attributes of vm_page_prot are those of RAM. */
static int map_window(struct served *served, struct vm_area_struct *vma, u64 offset)
{
	unsigned long size = vma->vm_end - vma->vm_start;

	if (offset > served->window_size || size > served->window_size - offset)
		return -EINVAL;
	return remap_pfn_range(vma, vma->vm_start, (served->window + offset) >> PAGE_SHIFT, size, vma->vm_page_prot);
}

/* The window's file, which holds the device's. */
static struct file *device_of(struct file *window)
{
	return window->private_data;
}

static int window_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	return map_window(of_file(device_of(file)), vma, (u64)vma->vm_pgoff << PAGE_SHIFT);
}

/* Programs find a file's size so. */
static loff_t window_llseek(struct file *file, loff_t offset, int whence)
{
	return fixed_size_llseek(file, offset, whence, of_file(device_of(file))->window_size);
}

static int window_release(struct inode *inode, struct file *file)
{
	fput(device_of(file));
	return 0;
}

static const struct file_operations window_operations = {
	.owner = THIS_MODULE,
	.release = window_release,
	.mmap = window_mmap,
	.llseek = window_llseek,
};

static long served_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	int window;

	if (request != SERVED_WINDOW)
		return -ENOTTY;
	window = anon_inode_getfd("[stile-served-window]", &window_operations, get_file(file), O_RDWR | O_CLOEXEC);
	if (window < 0)
		fput(file);
	return window;
}

static int served_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct served *served = of_file(file);
	unsigned long size = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_pgoff == 0) {
		if (size != PAGE_SIZE)
			return -EINVAL;
		vma->vm_page_prot = pgprot_device(vma->vm_page_prot);
		return io_remap_pfn_range(vma, vma->vm_start, served->registers_at >> PAGE_SHIFT, size, vma->vm_page_prot);
	}
	/* Cached, as Stile and the client map them: the attributes of vm_page_prot are those of RAM. */
	if (vma->vm_pgoff == 1) {
		if (size != PAGE_SIZE)
			return -EINVAL;
		return remap_pfn_range(vma, vma->vm_start, served->events_at >> PAGE_SHIFT, size, vma->vm_page_prot);
	}
	return vma->vm_pgoff == 2 ? map_window(served, vma, 0) : -EINVAL;
}

static const struct file_operations served_operations = {
	.owner = THIS_MODULE,
	.open = served_open,
	.release = served_release,
	.read = served_read,
	.poll = served_poll,
	.mmap = served_mmap,
	.unlocked_ioctl = served_ioctl,
	.llseek = noop_llseek,
};

static u64 read_pair(struct served *served, unsigned int offset)
{
	return readl(served->registers + offset) | (u64)readl(served->registers + offset + 4) << 32;
}

/* The device's number: a property in ACPI's tables; in a device tree the number of devices at lower addresses. */
static int number_of(struct device *device, phys_addr_t at)
{
	struct device_node *node;
	struct resource other;
	u32 number = 0;

	if (!device_property_read_u32(device, "stile,number", &number))
		return number;
	for_each_compatible_node(node, NULL, COMPATIBLE)
		if (!of_address_to_resource(node, 0, &other) && other.start < at)
			number++;
	return number;
}

static void deregister(void *misc)
{
	misc_deregister(misc);
}

static int served_probe(struct platform_device *platform)
{
	struct device *device = &platform->dev;
	struct resource *resource, *events;
	struct served *served;
	int irq, error;

	served = devm_kzalloc(device, sizeof(*served), GFP_KERNEL);
	if (!served)
		return -ENOMEM;
	init_waitqueue_head(&served->wait);
	served->registers = devm_platform_get_and_ioremap_resource(platform, 0, &resource);
	if (IS_ERR(served->registers))
		return PTR_ERR(served->registers);
	if (readl(served->registers + MAGIC_VALUE) != MAGIC || readl(served->registers + VERSION) != 3)
		return dev_err_probe(device, -ENODEV, "no served device of version 3\n");
	events = platform_get_resource(platform, IORESOURCE_MEM, 1);
	if (!events)
		return dev_err_probe(device, -ENODEV, "no page of events\n");
	/* With larger pages a mapping would hold the next device's registers or events, too. */
	if (!PAGE_ALIGNED(resource->start | events->start) || !PAGE_ALIGNED(resource_size(resource) | resource_size(events)))
		return dev_err_probe(device, -ENODEV, "the kernel's pages are too large\n");
	served->registers_at = resource->start;
	served->events_at = events->start;
	served->window = read_pair(served, WINDOW_BASE);
	served->window_size = read_pair(served, WINDOW_SIZE);

	irq = platform_get_irq(platform, 0);
	if (irq < 0)
		return irq;
	error = devm_request_irq(device, irq, served_interrupt, 0, dev_name(device), served);
	if (error)
		return error;
	served->misc.minor = MISC_DYNAMIC_MINOR;
	served->misc.fops = &served_operations;
	served->misc.parent = device;
	served->misc.mode = 0600;
	served->misc.name = devm_kasprintf(device, GFP_KERNEL, "stile-served%d",
					   number_of(device, resource->start));
	if (!served->misc.name)
		return -ENOMEM;
	error = misc_register(&served->misc);
	if (error)
		return error;
	return devm_add_action_or_reset(device, deregister, &served->misc);
}

static const struct of_device_id served_match[] = {
	{ .compatible = COMPATIBLE },
	{ }
};
MODULE_DEVICE_TABLE(of, served_match);

static struct platform_driver served_driver = {
	.probe = served_probe,
	.driver = {
		.name = "stile-served",
		.of_match_table = served_match,
		/* An open file refers to the device's state, and holds only the module. */
		.suppress_bind_attrs = true,
	},
};
module_platform_driver(served_driver);

MODULE_DESCRIPTION("Devices that a virtual machine of Stile serves others");
MODULE_LICENSE("GPL");
