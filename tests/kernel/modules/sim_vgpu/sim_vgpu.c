// SPDX-License-Identifier: GPL-2.0
/*
 * sim_vgpu: SR-IOV virtual functions that behave like vGPU functions of a card with one shared frame buffer.
 *
 * Registers a VFIO driver under the name "nvidia" for the virtual functions of QEMU's igb network card. A bound function gets
 * /dev/vfio/<group> from this driver and two attributes:
 *
 *   nvidia/creatable_vgpu_types   the types that this function could take right now, one per line, below a header line
 *   nvidia/current_vgpu_type      the number of its type, 0 for none; writing sets or clears it
 *
 * All functions of one physical function are one card. A write fails with EINVAL (no number), EBUSY (somebody uses the
 * function), EIO (not in this function's list); writing the type that the function has already changes nothing. Types live as
 * long as the function stays bound.
 *
 * Debugfs, per card, in sim_vgpu/<address of the physical function>/:
 *
 *   mixed_sizes   0: all types of a card have one frame-buffer size; 1: sizes may differ. Back to 0 when the last function goes.
 *   used_gib      frame buffer given away
 *
 * Only a function's user that reached the driver is seen: an open device, or a group attached to a container. VFIO tells no
 * driver about a group node that is merely open.
 */

#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/iommu.h>
#include <linux/list.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>

static unsigned int framebuffer_gib = 48;
module_param(framebuffer_gib, uint, 0444);
MODULE_PARM_DESC(framebuffer_gib, "Frame buffer of a card, GiB");

static unsigned int write_delay_us;
module_param(write_delay_us, uint, 0644);
MODULE_PARM_DESC(write_delay_us, "How much longer setting a type takes, between the check and the deed");

struct sim_type {
	unsigned int id;
	unsigned int gib;
	const char *name;
};

static const struct sim_type sim_types[] = {
	{ 1150, 4, "NVIDIA L40S-4Q" },
	{ 1151, 6, "NVIDIA L40S-6Q" },
	{ 1152, 8, "NVIDIA L40S-8Q" },
	{ 1153, 12, "NVIDIA L40S-12Q" },
	{ 1154, 16, "NVIDIA L40S-16Q" },
	{ 1155, 24, "NVIDIA L40S-24Q" },
	{ 1156, 48, "NVIDIA L40S-48Q" },
};

struct sim_card {
	struct list_head node;
	struct pci_dev *pf;		/* an identity: each function in the list below keeps it alive */
	struct list_head functions;
	struct dentry *debugfs;
	bool mixed_sizes;
};

struct sim_function {
	struct vfio_pci_core_device core;
	struct list_head node;
	struct sim_card *card;
	const struct sim_type *type;	/* NULL: none */
	unsigned int start_gib;		/* place of the type in the frame buffer */
	bool opened;
};

/*
 * Two locks. cards_lock guards the list of cards and serialises their debugfs directories coming and going; it is never taken
 * by an attribute, because removing a directory waits for the readers inside. state_lock guards all that attributes see.
 */
static LIST_HEAD(cards);
static DEFINE_MUTEX(cards_lock);
static DEFINE_MUTEX(state_lock);
static struct dentry *debugfs_root;

static struct sim_function *to_function(struct device *dev)
{
	struct vfio_pci_core_device *core = dev_get_drvdata(dev);

	return container_of(core, struct sim_function, core);
}

static bool is_free(const struct sim_card *card, unsigned int start, unsigned int gib)
{
	const struct sim_function *other;

	list_for_each_entry(other, &card->functions, node)
		if (other->type && start < other->start_gib + other->type->gib && other->start_gib < start + gib)
			return false;
	return true;
}

/*
 * Where a type of this size would go, or -1. With mixed sizes a type may begin at fixed places only, as many as the largest
 * power of two of its kind that fits: small types in the wrong order can therefore lock out a large one.
 */
static int find_place(const struct sim_card *card, unsigned int gib)
{
	unsigned int places = framebuffer_gib / gib, stride = gib, i;
	const struct sim_function *other;

	if (!places)
		return -1;
	if (card->mixed_sizes) {
		places = rounddown_pow_of_two(places);
		stride = framebuffer_gib / places;
	} else {
		list_for_each_entry(other, &card->functions, node)
			if (other->type && other->type->gib != gib)
				return -1;
	}
	for (i = 0; i < places; i++)
		if (is_free(card, i * stride, gib))
			return i * stride;
	return -1;
}

static bool is_creatable(const struct sim_function *function, const struct sim_type *type)
{
	return !function->type && find_place(function->card, type->gib) >= 0;
}

static bool is_held(const struct sim_function *function)
{
	struct iommu_group *group;
	bool claimed;

	if (function->opened)
		return true;
	group = iommu_group_get(&function->core.pdev->dev);
	if (!group)
		return false;
	claimed = iommu_group_dma_owner_claimed(group);
	iommu_group_put(group);
	return claimed;
}

static int set_type(struct sim_function *function, unsigned int id)
{
	const struct sim_type *type = NULL;
	unsigned int i;

	lockdep_assert_held(&state_lock);
	if (is_held(function))
		return -EBUSY;
	if (id == (function->type ? function->type->id : 0))
		return 0;
	if (id) {
		for (i = 0; i < ARRAY_SIZE(sim_types); i++)
			if (sim_types[i].id == id)
				type = &sim_types[i];
		if (!type || !is_creatable(function, type))
			return -EIO;
		function->start_gib = find_place(function->card, type->gib);
		fsleep(write_delay_us);
	}
	function->type = type;
	return 0;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct sim_function *function = to_function(dev);
	int length = sysfs_emit(buf, "%-5s : %s\n", "ID", "vGPU Name");
	unsigned int i;

	mutex_lock(&state_lock);
	for (i = 0; i < ARRAY_SIZE(sim_types); i++)
		if (is_creatable(function, &sim_types[i]))
			length += sysfs_emit_at(buf, length, "%-5u : %s\n", sim_types[i].id, sim_types[i].name);
	mutex_unlock(&state_lock);
	return length;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct sim_function *function = to_function(dev);
	unsigned int id;

	mutex_lock(&state_lock);
	id = function->type ? function->type->id : 0;
	mutex_unlock(&state_lock);
	return sysfs_emit(buf, "%u\n", id);
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	unsigned int id;
	int ret;

	if (kstrtouint(buf, 10, &id))
		return -EINVAL;
	mutex_lock(&state_lock);
	ret = set_type(to_function(dev), id);
	mutex_unlock(&state_lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static struct attribute *sim_vgpu_attrs[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	NULL,
};

static const struct attribute_group sim_vgpu_group = { .name = "nvidia", .attrs = sim_vgpu_attrs };
static const struct attribute_group *sim_vgpu_groups[] = { &sim_vgpu_group, NULL };

static unsigned int used_gib(const struct sim_card *card)
{
	const struct sim_function *function;
	unsigned int used = 0;

	list_for_each_entry(function, &card->functions, node)
		used += function->type ? function->type->gib : 0;
	return used;
}

static int used_gib_get(void *data, u64 *value)
{
	mutex_lock(&state_lock);
	*value = used_gib(data);
	mutex_unlock(&state_lock);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(used_gib_fops, used_gib_get, NULL, "%llu\n");

static int mixed_sizes_get(void *data, u64 *value)
{
	struct sim_card *card = data;

	mutex_lock(&state_lock);
	*value = card->mixed_sizes;
	mutex_unlock(&state_lock);
	return 0;
}

static int mixed_sizes_set(void *data, u64 value)
{
	struct sim_card *card = data;
	int ret = 0;

	if (value > 1)
		return -EINVAL;
	mutex_lock(&state_lock);
	if (value != card->mixed_sizes && used_gib(card))
		ret = -EBUSY;
	else
		card->mixed_sizes = value;
	mutex_unlock(&state_lock);
	return ret;
}
DEFINE_DEBUGFS_ATTRIBUTE(mixed_sizes_fops, mixed_sizes_get, mixed_sizes_set, "%llu\n");

static struct sim_card *card_of(struct pci_dev *pf)
{
	struct sim_card *card;

	lockdep_assert_held(&cards_lock);
	list_for_each_entry(card, &cards, node)
		if (card->pf == pf)
			return card;
	card = kzalloc(sizeof(*card), GFP_KERNEL);
	if (!card)
		return NULL;
	card->pf = pf;
	INIT_LIST_HEAD(&card->functions);
	list_add_tail(&card->node, &cards);
	card->debugfs = debugfs_create_dir(pci_name(pf), debugfs_root);
	debugfs_create_file("used_gib", 0444, card->debugfs, card, &used_gib_fops);
	debugfs_create_file("mixed_sizes", 0644, card->debugfs, card, &mixed_sizes_fops);
	return card;
}

static int join_card(struct sim_function *function, struct pci_dev *pf)
{
	int ret = 0;

	mutex_lock(&cards_lock);
	function->card = card_of(pf);
	if (function->card) {
		mutex_lock(&state_lock);
		list_add_tail(&function->node, &function->card->functions);
		mutex_unlock(&state_lock);
	} else {
		ret = -ENOMEM;
	}
	mutex_unlock(&cards_lock);
	return ret;
}

static void leave_card(struct sim_function *function)
{
	struct sim_card *card = function->card;

	mutex_lock(&cards_lock);
	mutex_lock(&state_lock);
	list_del(&function->node);
	mutex_unlock(&state_lock);
	if (list_empty(&card->functions)) {
		debugfs_remove_recursive(card->debugfs);
		list_del(&card->node);
		kfree(card);
	}
	mutex_unlock(&cards_lock);
}

static void set_opened(struct vfio_device *vdev, bool opened)
{
	struct sim_function *function = container_of(vdev, struct sim_function, core.vdev);

	mutex_lock(&state_lock);
	function->opened = opened;
	mutex_unlock(&state_lock);
}

static int sim_vgpu_open(struct vfio_device *vdev)
{
	int ret;

	/* First of all: a type written while the device is on its way open would change under its user. */
	set_opened(vdev, true);
	ret = vfio_pci_core_enable(container_of(vdev, struct vfio_pci_core_device, vdev));
	if (ret)
		set_opened(vdev, false);
	else
		vfio_pci_core_finish_enable(container_of(vdev, struct vfio_pci_core_device, vdev));
	return ret;
}

static void sim_vgpu_close(struct vfio_device *vdev)
{
	vfio_pci_core_close_device(vdev);
	set_opened(vdev, false);
}

static const struct vfio_device_ops sim_vgpu_ops = {
	.name = "sim-vgpu",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = sim_vgpu_open,
	.close_device = sim_vgpu_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
};

static int sim_vgpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct sim_function *function;
	int ret;

	if (!pdev->is_virtfn)
		return -ENODEV;
	function = vfio_alloc_device(sim_function, core.vdev, &pdev->dev, &sim_vgpu_ops);
	if (IS_ERR(function))
		return PTR_ERR(function);
	dev_set_drvdata(&pdev->dev, &function->core);
	ret = join_card(function, pci_physfn(pdev));
	if (ret)
		goto put;
	ret = vfio_pci_core_register_device(&function->core);
	if (ret)
		goto leave;
	return 0;
leave:
	leave_card(function);
put:
	vfio_put_device(&function->core.vdev);
	return ret;
}

/* The attributes are gone when this runs: the driver core takes them away first, and waits for their writers. */
static void sim_vgpu_remove(struct pci_dev *pdev)
{
	struct sim_function *function = to_function(&pdev->dev);

	/* Waits for the user; the frame buffer stays taken as long. */
	vfio_pci_core_unregister_device(&function->core);
	leave_card(function);
	vfio_put_device(&function->core.vdev);
}

/*
 * Matches by id like the driver that it stands for. The ids are not published as a module alias: whoever loads igbvf by the
 * device's modalias would get this module too.
 */
static const struct pci_device_id sim_vgpu_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_INTEL, 0x10ca) },
	{ }
};

static struct pci_driver sim_vgpu_driver = {
	.name = "nvidia",
	.id_table = sim_vgpu_ids,
	.probe = sim_vgpu_probe,
	.remove = sim_vgpu_remove,
	.dev_groups = sim_vgpu_groups,
	.err_handler = &vfio_pci_core_err_handlers,
	.driver_managed_dma = true,
};

static int __init sim_vgpu_init(void)
{
	int ret;

	debugfs_root = debugfs_create_dir("sim_vgpu", NULL);
	ret = pci_register_driver(&sim_vgpu_driver);
	if (ret)
		debugfs_remove_recursive(debugfs_root);
	return ret;
}
module_init(sim_vgpu_init);

static void __exit sim_vgpu_exit(void)
{
	pci_unregister_driver(&sim_vgpu_driver);
	debugfs_remove_recursive(debugfs_root);
}
module_exit(sim_vgpu_exit);

MODULE_ALIAS("nvidia");
MODULE_DESCRIPTION("Test driver: vGPU types on SR-IOV virtual functions");
MODULE_LICENSE("GPL");
