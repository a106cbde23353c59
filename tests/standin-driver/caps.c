// SPDX-License-Identifier: GPL-2.0
/* /dev/nvidia-caps/nvidia-capN: files that mean a permission and do nothing. */
#include <linux/init.h>

#include "driver.h"

#define NV_CAP_MINORS 8192

static dev_t first_device;
static struct cdev nv_cap_cdev;

static noinline int nv_cap_drv_open(struct inode *inode, struct file *file)
{
	return 0;
}

static noinline int nv_cap_drv_release(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations g_nv_cap_drv_fops = {
	.owner = THIS_MODULE,
	.open = nv_cap_drv_open,
	.release = nv_cap_drv_release,
	.llseek = noop_llseek,
};

int nv_cap_drv_init(void)
{
	int error = alloc_chrdev_region(&first_device, 0, NV_CAP_MINORS, "nvidia-caps");

	if (error)
		return error;
	cdev_init(&nv_cap_cdev, &g_nv_cap_drv_fops);
	error = cdev_add(&nv_cap_cdev, first_device, NV_CAP_MINORS);
	if (error)
		unregister_chrdev_region(first_device, NV_CAP_MINORS);
	return error;
}

void nv_cap_drv_exit(void)
{
	cdev_del(&nv_cap_cdev);
	unregister_chrdev_region(first_device, NV_CAP_MINORS);
}
