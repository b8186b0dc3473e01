// SPDX-License-Identifier: GPL-2.0
/*
 * sim_accel: the smallest accelerator that a program can work with, and exact truth about who called what.
 *
 * Makes /dev/accel/accel<n> (driver name "sim_accel") below
 *
 *   - platform devices sim_accel.0, .1, ... : as many as the parameter "devices" says;
 *   - with pci=1 each of QEMU's "edu" devices; without it only PCI devices whose driver_override says sim_accel.
 *
 * The calls are described in sim_accel.h. No memory is set aside for buffer objects and no hardware is touched.
 *
 * Debugfs, per device, in accel/<device name>/:
 *
 *   calls    "<pid> <kind> <succeeded> <failed> <nanoseconds>" per process and kind of call, in the order of the calling
 *            processes' numbers. EVERY ioctl on the device is in here once, when it has returned, whoever opened the file:
 *            kind is a call of sim_accel.h, "other" (any other DRM call), or "foreign" (wrong type byte). Process 0 stands for
 *            all those beyond the 4096th.
 *   state    "jobs <n>", "bytes <n>" (of live objects), "point <n>" (of the timeline), "waiting <n>" (calls asleep now)
 */

#include <drm/drm_accel.h>
#include <drm/drm_debugfs.h>
#include <drm/drm_device.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_ioctl.h>
#include <drm/drm_managed.h>
#include <drm/drm_utils.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "sim_accel.h"

static_assert(SIM_ACCEL_TYPE == DRM_IOCTL_BASE && SIM_ACCEL_FIRST == DRM_COMMAND_BASE);

#define MAX_DEVICES	8
#define MAX_CALLERS	4096

static unsigned int devices = 1;
module_param(devices, uint, 0444);
MODULE_PARM_DESC(devices, "Platform devices to make, 0 to 8");

static bool pci;
module_param(pci, bool, 0444);
MODULE_PARM_DESC(pci, "Take every edu device (1234:11e8)");

static unsigned int memory_mib = 1024;
module_param(memory_mib, uint, 0444);
MODULE_PARM_DESC(memory_mib, "Buffer objects a device has room for, MiB");

/* The driver's own calls by their number, then the rest. */
static const char *const kinds[] = { "submit", "alloc", "free", "wait", "release", "fail", "other", "foreign" };
#define KIND_OTHER	(ARRAY_SIZE(kinds) - 2)
#define KIND_FOREIGN	(ARRAY_SIZE(kinds) - 1)

struct sim_caller {
	struct {
		atomic64_t succeeded, failed, nanoseconds;
	} calls[ARRAY_SIZE(kinds)];
};

struct sim_device {
	struct drm_device drm;
	struct xarray callers;		/* by process id */
	atomic_t caller_count;
	struct sim_caller rest;		/* callers that found no room above */
	atomic64_t jobs, bytes, point;
	atomic_t waiting;
	wait_queue_head_t moved;	/* the timeline, or the device away */
};

static struct sim_device *to_sim(struct drm_device *drm)
{
	return container_of(drm, struct sim_device, drm);
}

static struct sim_caller *caller_of(struct sim_device *sim, pid_t pid)
{
	struct sim_caller *caller = xa_load(&sim->callers, pid), *other;

	if (caller)
		return caller;
	if (atomic_inc_return(&sim->caller_count) > MAX_CALLERS)
		goto full;
	caller = kzalloc(sizeof(*caller), GFP_KERNEL);
	if (!caller)
		goto full;
	/* Another thread of the process may have been faster. */
	other = xa_cmpxchg(&sim->callers, pid, NULL, caller, GFP_KERNEL);
	if (!other)
		return caller;
	kfree(caller);
	if (!xa_is_err(other)) {
		atomic_dec(&sim->caller_count);
		return other;
	}
full:
	atomic_dec(&sim->caller_count);
	return &sim->rest;
}

static unsigned int kind_of(unsigned int cmd)
{
	unsigned int number = _IOC_NR(cmd) - DRM_COMMAND_BASE;

	if (_IOC_TYPE(cmd) != DRM_IOCTL_BASE)
		return KIND_FOREIGN;
	return number < KIND_OTHER ? number : KIND_OTHER;
}

static long counted(struct file *filp, unsigned int cmd, unsigned long arg, typeof(drm_ioctl) *call)
{
	struct drm_file *file = filp->private_data;
	struct sim_device *sim = to_sim(file->minor->dev);
	struct sim_caller *caller = caller_of(sim, current->tgid);
	unsigned int kind = kind_of(cmd);
	u64 start = ktime_get_ns();
	long ret = call(filp, cmd, arg);

	atomic64_add(ktime_get_ns() - start, &caller->calls[kind].nanoseconds);
	atomic64_inc(ret < 0 ? &caller->calls[kind].failed : &caller->calls[kind].succeeded);
	return ret;
}

static long sim_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	return counted(filp, cmd, arg, drm_ioctl);
}

#ifdef CONFIG_COMPAT
static long sim_compat_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	return counted(filp, cmd, arg, drm_compat_ioctl);
}
#else
#define sim_compat_ioctl NULL
#endif

static int sim_submit(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct sim_accel_submit *args = data;

	if (!args->jobs || args->busy_us > SIM_ACCEL_MAX_BUSY_US)
		return -EINVAL;
	if (args->busy_us)
		fsleep(args->busy_us);
	atomic64_add(args->jobs, &to_sim(drm)->jobs);
	return 0;
}

static void sim_object_free(struct drm_gem_object *object)
{
	atomic64_sub(object->size, &to_sim(object->dev)->bytes);
	drm_gem_object_release(object);
	kfree(object);
}

static const struct drm_gem_object_funcs sim_object_funcs = { .free = sim_object_free };

static int sim_alloc(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct sim_device *sim = to_sim(drm);
	u64 limit = (u64)memory_mib << 20;
	struct sim_accel_alloc *args = data;
	struct drm_gem_object *object;
	int ret;

	if (!args->size)
		return -EINVAL;
	if (args->size > limit)
		return -ENOMEM;
	object = kzalloc(sizeof(*object), GFP_KERNEL);
	if (!object)
		return -ENOMEM;
	object->funcs = &sim_object_funcs;
	drm_gem_private_object_init(drm, object, PAGE_ALIGN(args->size));
	/* From here on freeing the object gives its bytes back. */
	if (atomic64_add_return(object->size, &sim->bytes) > limit)
		ret = -ENOMEM;
	else
		ret = drm_gem_handle_create(file, object, &args->handle);
	drm_gem_object_put(object);
	return ret;
}

static int sim_free(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct sim_accel_free *args = data;

	return drm_gem_handle_delete(file, args->handle);
}

static int sim_wait(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct sim_device *sim = to_sim(drm);
	struct sim_accel_wait *args = data;
	long left;

	atomic_inc(&sim->waiting);
	left = wait_event_interruptible_timeout(sim->moved,
						(u64)atomic64_read(&sim->point) >= args->point || drm_dev_is_unplugged(drm),
						drm_timeout_abs_to_jiffies(args->deadline_ns));
	atomic_dec(&sim->waiting);
	if (left < 0)
		return left;
	if (drm_dev_is_unplugged(drm))
		return -ENODEV;
	return left ? 0 : -ETIME;
}

static int sim_release(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct sim_device *sim = to_sim(drm);
	struct sim_accel_release *args = data;

	args->point = atomic64_add_return(args->steps, &sim->point);
	wake_up_all(&sim->moved);
	return 0;
}

static int sim_fail(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct sim_accel_fail *args = data;

	if (!args->error || args->error > SIM_ACCEL_MAX_ERROR)
		return -EINVAL;
	return -(int)args->error;
}

static const struct drm_ioctl_desc sim_ioctls[] = {
	DRM_IOCTL_DEF_DRV(SIM_ACCEL_SUBMIT, sim_submit, 0),
	DRM_IOCTL_DEF_DRV(SIM_ACCEL_ALLOC, sim_alloc, 0),
	DRM_IOCTL_DEF_DRV(SIM_ACCEL_FREE, sim_free, 0),
	DRM_IOCTL_DEF_DRV(SIM_ACCEL_WAIT, sim_wait, 0),
	DRM_IOCTL_DEF_DRV(SIM_ACCEL_RELEASE, sim_release, 0),
	DRM_IOCTL_DEF_DRV(SIM_ACCEL_FAIL, sim_fail, 0),
};

static const struct file_operations sim_fops = {
	.owner = THIS_MODULE,
	.open = accel_open,
	.release = drm_release,
	.unlocked_ioctl = sim_ioctl,
	.compat_ioctl = sim_compat_ioctl,
	.poll = drm_poll,
	.read = drm_read,
	.llseek = noop_llseek,
	.mmap = drm_gem_mmap,
	.fop_flags = FOP_UNSIGNED_OFFSET,
};

static const struct drm_driver sim_driver = {
	.driver_features = DRIVER_COMPUTE_ACCEL | DRIVER_GEM,
	.fops = &sim_fops,
	.ioctls = sim_ioctls,
	.num_ioctls = ARRAY_SIZE(sim_ioctls),
	.name = "sim_accel",
	.desc = "Test accelerator",
	.date = "0",
	.major = 1,
};

static struct sim_device *shown(struct seq_file *m)
{
	struct drm_debugfs_entry *entry = m->private;

	return to_sim(entry->dev);
}

static void show_caller(struct seq_file *m, unsigned long pid, struct sim_caller *caller)
{
	unsigned int kind;

	for (kind = 0; kind < ARRAY_SIZE(kinds); kind++) {
		s64 succeeded = atomic64_read(&caller->calls[kind].succeeded);
		s64 failed = atomic64_read(&caller->calls[kind].failed);

		if (succeeded || failed)
			seq_printf(m, "%lu %s %lld %lld %lld\n", pid, kinds[kind], succeeded, failed,
				   atomic64_read(&caller->calls[kind].nanoseconds));
	}
}

static int show_calls(struct seq_file *m, void *unused)
{
	struct sim_device *sim = shown(m);
	struct sim_caller *caller;
	unsigned long pid;

	show_caller(m, 0, &sim->rest);
	xa_for_each(&sim->callers, pid, caller)
		show_caller(m, pid, caller);
	return 0;
}

static int show_state(struct seq_file *m, void *unused)
{
	struct sim_device *sim = shown(m);

	seq_printf(m, "jobs %lld\nbytes %lld\npoint %llu\nwaiting %d\n", atomic64_read(&sim->jobs), atomic64_read(&sim->bytes),
		   (u64)atomic64_read(&sim->point), atomic_read(&sim->waiting));
	return 0;
}

static void forget_callers(struct drm_device *drm, void *unused)
{
	struct sim_device *sim = to_sim(drm);
	struct sim_caller *caller;
	unsigned long pid;

	xa_for_each(&sim->callers, pid, caller)
		kfree(caller);
	xa_destroy(&sim->callers);
}

static int sim_attach(struct device *parent)
{
	struct sim_device *sim = devm_drm_dev_alloc(parent, &sim_driver, struct sim_device, drm);
	int ret;

	if (IS_ERR(sim))
		return PTR_ERR(sim);
	xa_init(&sim->callers);
	init_waitqueue_head(&sim->moved);
	ret = drmm_add_action_or_reset(&sim->drm, forget_callers, NULL);
	if (ret)
		return ret;
	drm_debugfs_add_file(&sim->drm, "calls", show_calls, NULL);
	drm_debugfs_add_file(&sim->drm, "state", show_state, NULL);
	dev_set_drvdata(parent, sim);
	return drm_dev_register(&sim->drm, 0);
}

/* Open files outlive the device: their calls fail with ENODEV from now on, those asleep at once. */
static void sim_detach(struct device *parent)
{
	struct sim_device *sim = dev_get_drvdata(parent);

	drm_dev_unplug(&sim->drm);
	wake_up_all(&sim->moved);
}

static int sim_platform_probe(struct platform_device *pdev)
{
	return sim_attach(&pdev->dev);
}

static void sim_platform_remove(struct platform_device *pdev)
{
	sim_detach(&pdev->dev);
}

static struct platform_driver sim_platform_driver = {
	.driver = { .name = "sim_accel" },
	.probe = sim_platform_probe,
	.remove = sim_platform_remove,
};

static int sim_pci_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int ret = pcim_enable_device(pdev);

	return ret ?: sim_attach(&pdev->dev);
}

static void sim_pci_remove(struct pci_dev *pdev)
{
	sim_detach(&pdev->dev);
}

static const struct pci_device_id sim_pci_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};

static struct pci_driver sim_pci_driver = {
	.name = "sim_accel",
	.probe = sim_pci_probe,
	.remove = sim_pci_remove,
};

static struct platform_device *sim_devices[MAX_DEVICES];

static void remove_devices(void)
{
	while (devices)
		platform_device_unregister(sim_devices[--devices]);
}

static int __init sim_accel_init(void)
{
	unsigned int wanted = devices;
	int ret;

	if (wanted > MAX_DEVICES)
		return -EINVAL;
	ret = platform_driver_register(&sim_platform_driver);
	if (ret)
		return ret;
	for (devices = 0; devices < wanted; devices++) {
		sim_devices[devices] = platform_device_register_simple("sim_accel", devices, NULL, 0);
		if (IS_ERR(sim_devices[devices])) {
			ret = PTR_ERR(sim_devices[devices]);
			goto remove;
		}
	}
	sim_pci_driver.id_table = pci ? sim_pci_ids : NULL;
	ret = pci_register_driver(&sim_pci_driver);
	if (!ret)
		return 0;
remove:
	remove_devices();
	platform_driver_unregister(&sim_platform_driver);
	return ret;
}
module_init(sim_accel_init);

static void __exit sim_accel_exit(void)
{
	pci_unregister_driver(&sim_pci_driver);
	remove_devices();
	platform_driver_unregister(&sim_platform_driver);
}
module_exit(sim_accel_exit);

MODULE_DESCRIPTION("Test driver: an accelerator that counts its calls");
MODULE_LICENSE("GPL");
