// SPDX-License-Identifier: GPL-2.0
/*
 * sim_variant_vfio_pci: a VFIO variant driver, which names its device by an override-only id as the kernel's own do.
 *
 * It takes QEMU's pci-testdev (1b36:0005) when that device's driver_override names this driver, and never by itself. With
 * the parameter probe_error (written at run time) its probe fails with that number instead: 5 for EIO, 517 for
 * EPROBE_DEFER.
 */

#include <linux/module.h>
#include <linux/pci.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>

static unsigned int probe_error;
module_param(probe_error, uint, 0644);
MODULE_PARM_DESC(probe_error, "Number that a probe fails with, 0 for none");

static int sim_variant_open(struct vfio_device *vdev)
{
	struct vfio_pci_core_device *core = container_of(vdev, struct vfio_pci_core_device, vdev);
	int ret = vfio_pci_core_enable(core);

	if (!ret)
		vfio_pci_core_finish_enable(core);
	return ret;
}

static const struct vfio_device_ops sim_variant_ops = {
	.name = "sim-variant-vfio-pci",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = sim_variant_open,
	.close_device = vfio_pci_core_close_device,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
};

static int sim_variant_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vfio_pci_core_device *core;
	int ret;

	if (probe_error)
		return -(int)probe_error;
	core = vfio_alloc_device(vfio_pci_core_device, vdev, &pdev->dev, &sim_variant_ops);
	if (IS_ERR(core))
		return PTR_ERR(core);
	dev_set_drvdata(&pdev->dev, core);
	ret = vfio_pci_core_register_device(core);
	if (ret)
		vfio_put_device(&core->vdev);
	return ret;
}

static void sim_variant_remove(struct pci_dev *pdev)
{
	struct vfio_pci_core_device *core = dev_get_drvdata(&pdev->dev);

	vfio_pci_core_unregister_device(core);
	vfio_put_device(&core->vdev);
}

static const struct pci_device_id sim_variant_ids[] = {
	{ PCI_DRIVER_OVERRIDE_DEVICE_VFIO(0x1b36, 0x0005) },
	{ }
};
MODULE_DEVICE_TABLE(pci, sim_variant_ids);

static struct pci_driver sim_variant_driver = {
	.name = KBUILD_MODNAME,
	.id_table = sim_variant_ids,
	.probe = sim_variant_probe,
	.remove = sim_variant_remove,
	.err_handler = &vfio_pci_core_err_handlers,
	.driver_managed_dma = true,
};
module_pci_driver(sim_variant_driver);

MODULE_DESCRIPTION("Test driver: a VFIO variant with an override-only id");
MODULE_LICENSE("GPL");
