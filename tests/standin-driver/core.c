// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/nvidiactl and /dev/nvidiaN.
 *
 * An RM client, and so its memory, belongs to one open file of nvidiactl. A file that registered with it
 * holds a reference to that file that no fd table shows, so the memory lives until the last of them is
 * released.
 */
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/init.h>
#include <linux/slab.h>

#include "driver.h"

/* A mapping longer than this is a mistake in a test. */
#define MAX_MAP_BYTES (1UL << 30)

static struct cdev nv_linux_devices_cdev;
static struct cdev nv_linux_control_device_cdev;
static struct nv_kthread_q nv_deferred_close_kthread_q;

int nvidia_open(struct inode *inode, struct file *file);
int nvidia_close(struct inode *inode, struct file *file);
int nvidia_mmap(struct file *file, struct vm_area_struct *vma);
void rm_cleanup_file_private(struct nv_file_private *nvfp);

static const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.open = nvidia_open,
	.release = nvidia_close,
	.mmap = nvidia_mmap,
	.unlocked_ioctl = nvidia_unlocked_ioctl,
	.compat_ioctl = nvidia_unlocked_ioctl,
	.llseek = noop_llseek,
};

/* The driver's data of an nvidiactl file, or NULL if `file` is something else. */
struct nv_linux_file_private *nv_ctl_file_private(struct file *file)
{
	if (file->f_op != &nvidia_fops || iminor(file_inode(file)) != NV_CTL_MINOR)
		return NULL;
	return file->private_data;
}
EXPORT_SYMBOL_GPL(nv_ctl_file_private);

/*
 * The file's pages are found through a mapping of its own, as the real driver needs to revoke them: who
 * wants the device number has to ask the file's inode.
 */
void standin_private_mapping(struct file *file, struct address_space *mapping)
{
	address_space_init_once(mapping);
	mapping->host = file_inode(file);
	mapping->a_ops = file_inode(file)->i_mapping->a_ops;
	file->f_mapping = mapping;
}
EXPORT_SYMBOL_GPL(standin_private_mapping);

/* ---- open ---- */

static int nv_open_device(struct standin_gpu *gpu, unsigned int target)
{
	down(&gpu->ldata_lock);
	standin_point(target, POINT_OPEN, true);
	gpu->usage_count++;
	up(&gpu->ldata_lock);
	return 0;
}

static int nvidia_ctl_open(void)
{
	down_write(&g_RmApiLock);
	standin_point(TARGET_CTL, POINT_OPEN, true);
	up_write(&g_RmApiLock);
	return 0;
}

static struct nv_linux_file_private *nv_alloc_file_private(unsigned int target)
{
	struct nv_linux_file_private *nvlfp = kzalloc(sizeof(*nvlfp), GFP_KERNEL);

	if (!nvlfp)
		return NULL;
	nvlfp->target = target;
	nvlfp->nvfp.device_instance = target;
	nvlfp->nvptr = target < NV_GPUS ? &standin_gpus[target] : NULL;
	rm_owner_init(&nvlfp->client);
	rm_owner_init(&nvlfp->exported);
	return nvlfp;
}

noinline int nvidia_open(struct inode *inode, struct file *file)
{
	unsigned int target = iminor(inode) == NV_CTL_MINOR ? TARGET_CTL : iminor(inode);
	struct standin_device *device;
	struct nv_linux_file_private *nvlfp;
	int error;

	if (target > TARGET_CTL || (target == TARGET_CTL && iminor(inode) != NV_CTL_MINOR))
		return -ENODEV;
	device = &standin_devices[target];
	nvlfp = nv_alloc_file_private(target);
	if (!nvlfp)
		return -ENOMEM;

	atomic_inc(&device->opening);
	standin_point(target, POINT_OPEN, false);
	error = READ_ONCE(device->fail_open);
	if (!error)
		error = nvlfp->nvptr ? nv_open_device(nvlfp->nvptr, target) : nvidia_ctl_open();
	if (error) {
		kfree(nvlfp);
	} else {
		standin_private_mapping(file, &nvlfp->mapping);
		file->private_data = nvlfp;
		atomic_inc(&device->open);
	}
	atomic_dec(&device->opening);
	return error;
}

/* ---- release ---- */

/* Gives back what the file owned, and last the file that it pinned. */
noinline void rm_cleanup_file_private(struct nv_file_private *nvfp)
{
	struct nv_linux_file_private *nvlfp = container_of(nvfp, struct nv_linux_file_private, nvfp);

	if (nvlfp->target == TARGET_CTL || nvfp->cleanup_rmapi || nvfp->handles) {
		down_write(&g_RmApiLock);
		if (nvlfp->target == TARGET_CTL)
			standin_point(TARGET_CTL, POINT_RELEASE, true);
		rm_release(&nvlfp->exported);
		rm_release(&nvlfp->client);
		up_write(&g_RmApiLock);
	}
	kfree(nvfp->handles);
	nvfp->handles = NULL;
	if (nvfp->ctl_nvfp_priv)
		fput(nvfp->ctl_nvfp_priv);
	nvfp->ctl_nvfp_priv = NULL;
	nvfp->ctl_nvfp = NULL;
}

static void nv_close_device(struct standin_gpu *gpu, unsigned int target)
{
	down(&gpu->ldata_lock);
	standin_point(target, POINT_RELEASE, true);
	gpu->usage_count--;
	up(&gpu->ldata_lock);
}

static noinline void nvidia_close_callback(struct nv_linux_file_private *nvlfp)
{
	unsigned int minor;

	standin_point(nvlfp->target, POINT_RELEASE, false);
	rm_cleanup_file_private(&nvlfp->nvfp);
	if (nvlfp->nvptr)
		nv_close_device(nvlfp->nvptr, nvlfp->target);
	for (minor = 0; minor < NV_GPUS; minor++)
		if (nvlfp->attached_gpus & BIT(minor))
			nvidia_dev_put(minor);
	if (nvlfp->page)
		free_page(nvlfp->page);
	kfree(nvlfp);
}

/* The rest of a close, in the kernel thread `nv_queue`. */
static noinline void nvidia_close_deferred(void *argument)
{
	struct nv_linux_file_private *nvlfp = argument;
	struct standin_device *device = &standin_devices[nvlfp->target];

	nvidia_close_callback(nvlfp);
	atomic_dec(&device->deferred);
}

noinline int nvidia_close(struct inode *inode, struct file *file)
{
	struct nv_linux_file_private *nvlfp = file->private_data;
	struct standin_device *device = &standin_devices[nvlfp->target];
	int defer_ms = READ_ONCE(device->defer_ms);

	file->private_data = NULL;
	atomic_dec(&device->open);
	if (defer_ms >= 0) {
		atomic_inc(&device->deferred);
		nvlfp->deferred.function = nvidia_close_deferred;
		nvlfp->deferred.argument = nvlfp;
		nv_kthread_q_schedule(&nv_deferred_close_kthread_q, &nvlfp->deferred, defer_ms);
		return 0;
	}
	atomic_inc(&device->releasing);
	nvidia_close_callback(nvlfp);
	atomic_dec(&device->releasing);
	return 0;
}

/* ---- mmap ---- */

static struct standin_device *vma_device(struct vm_area_struct *vma)
{
	struct nv_linux_file_private *nvlfp = vma->vm_private_data;

	return &standin_devices[nvlfp->target];
}

static void nvidia_vma_open(struct vm_area_struct *vma)
{
	atomic_inc(&vma_device(vma)->maps);
}

static void nvidia_vma_release(struct vm_area_struct *vma)
{
	atomic_dec(&vma_device(vma)->maps);
}

/* The file's one page, at every offset. */
static vm_fault_t nvidia_fault(struct vm_fault *vmf)
{
	struct nv_linux_file_private *nvlfp = vmf->vma->vm_private_data;
	struct page *page = virt_to_page((void *)nvlfp->page);

	if (vmf->vma->vm_flags & VM_PFNMAP)
		return vmf_insert_pfn(vmf->vma, vmf->address, page_to_pfn(page));
	get_page(page);
	vmf->page = page;
	return 0;
}

static const struct vm_operations_struct nv_vm_ops = {
	.open = nvidia_vma_open,
	.close = nvidia_vma_release,
	.fault = nvidia_fault,
};

/* Gives a mapping its operations, flags, and the file its page. */
int standin_map_file(struct vm_area_struct *vma, unsigned long *page, const struct vm_operations_struct *ops,
		     unsigned long flags)
{
	bool copies_on_write = (vma->vm_flags & (VM_SHARED | VM_MAYWRITE)) == VM_MAYWRITE;

	if (vma->vm_end - vma->vm_start > MAX_MAP_BYTES)
		return -EINVAL;
	if (!READ_ONCE(*page)) {
		unsigned long fresh = get_zeroed_page(GFP_KERNEL);

		if (!fresh)
			return -ENOMEM;
		if (cmpxchg(page, 0, fresh))
			free_page(fresh);
	}
	/* A page that a process may copy must be one that the kernel counts. */
	if (copies_on_write)
		flags &= ~(unsigned long)(VM_PFNMAP | VM_IO);
	standin_vm_flags_set(vma, flags);
	vma->vm_ops = ops;
	return 0;
}
EXPORT_SYMBOL_GPL(standin_map_file);

noinline int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct nv_linux_file_private *nvlfp = file->private_data;
	unsigned long flags = nvlfp->nvptr ? VM_IO | VM_PFNMAP | VM_DONTEXPAND : VM_DONTEXPAND | VM_DONTDUMP;
	int error;

	if (nvlfp->nvfp.handles || vma->vm_pgoff)
		return -EINVAL;
	error = standin_map_file(vma, &nvlfp->page, &nv_vm_ops, flags);
	if (error)
		return error;
	vma->vm_private_data = nvlfp;
	nvidia_vma_open(vma);
	return 0;
}

/* ---- module ---- */

int nv_register_chrdev(unsigned int minor, unsigned int count, struct cdev *cdev, const char *name,
		       const struct file_operations *fops)
{
	int error = register_chrdev_region(MKDEV(NV_MAJOR, minor), count, name);

	if (error)
		return error;
	cdev_init(cdev, fops);
	error = cdev_add(cdev, MKDEV(NV_MAJOR, minor), count);
	if (error)
		unregister_chrdev_region(MKDEV(NV_MAJOR, minor), count);
	return error;
}

void nv_unregister_chrdev(unsigned int minor, unsigned int count, struct cdev *cdev)
{
	cdev_del(cdev);
	unregister_chrdev_region(MKDEV(NV_MAJOR, minor), count);
}

static void assert_layout(void)
{
	BUILD_BUG_ON(offsetof(struct nv_file_private, handles) != 0);
	BUILD_BUG_ON(offsetof(struct nv_file_private, device_instance) != 12);
	BUILD_BUG_ON(offsetof(struct nv_file_private, gpu_instance_id) != 16);
	BUILD_BUG_ON(offsetof(struct nv_file_private, ctl_nvfp) != 88);
	BUILD_BUG_ON(offsetof(struct nv_file_private, ctl_nvfp_priv) != 96);
	BUILD_BUG_ON(offsetof(struct nv_file_private, register_or_refcount) != 104);
	BUILD_BUG_ON(offsetof(struct nv_file_private, cleanup_rmapi) != 108);
	BUILD_BUG_ON(offsetof(struct nv_linux_file_private, nvfp) != 0);
	BUILD_BUG_ON(offsetof(struct nv_linux_file_private, nvptr) != 128);
}

static int __init nvidia_init_module(void)
{
	int error;

	assert_layout();
	rm_init();
	standin_clear_points();
	error = nv_kthread_q_init(&nv_deferred_close_kthread_q, "nv_queue");
	if (error)
		return error;
	error = nv_procfs_init();
	if (error)
		goto no_procfs;
	error = standin_control_init();
	if (error)
		goto no_control;
	error = nv_cap_drv_init();
	if (error)
		goto no_caps;
	error = nvkms_register_chrdev();
	if (error)
		goto no_modeset;
	error = nv_register_chrdev(0, NV_REGULAR_MINORS, &nv_linux_devices_cdev, "nvidia", &nvidia_fops);
	if (error)
		goto no_devices;
	error = nv_register_chrdev(NV_CTL_MINOR, 1, &nv_linux_control_device_cdev, "nvidiactl", &nvidia_fops);
	if (!error)
		return 0;

	nv_unregister_chrdev(0, NV_REGULAR_MINORS, &nv_linux_devices_cdev);
no_devices:
	nvkms_unregister_chrdev();
no_modeset:
	nv_cap_drv_exit();
no_caps:
	standin_control_exit();
no_control:
	nv_procfs_exit();
no_procfs:
	nv_kthread_q_stop(&nv_deferred_close_kthread_q);
	return error;
}

static void __exit nvidia_exit_module(void)
{
	nv_unregister_chrdev(NV_CTL_MINOR, 1, &nv_linux_control_device_cdev);
	nv_unregister_chrdev(0, NV_REGULAR_MINORS, &nv_linux_devices_cdev);
	nvkms_unregister_chrdev();
	nv_cap_drv_exit();
	/* With the knobs out of reach and off, the deferred closes come to their end. */
	standin_control_exit();
	standin_clear_points();
	nv_kthread_q_stop(&nv_deferred_close_kthread_q);
	nv_procfs_exit();
}

module_init(nvidia_init_module);
module_exit(nvidia_exit_module);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stand-in for the NVIDIA driver, for the tests of gpu-tracer; drives no hardware");
MODULE_VERSION(STANDIN_VERSION);
