// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/nvidia-uvm and /dev/nvidia-uvm-tools, a module of its own.
 *
 * A file becomes a VA space, which holds managed memory and duplicates of RM memory, or an "MM" file, which
 * pins a VA space file and the address space of the process. What it is stands in the low bits of
 * `private_data`.
 */
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/init.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "driver.h"

#define UVM_FD_TYPE_MASK 7UL

enum uvm_fd_type {
	UVM_FD_UNINITIALIZED = 0,
	UVM_FD_INITIALIZING = 1,
	UVM_FD_VA_SPACE = 2,
	UVM_FD_MM = 3,
};

struct uvm_va_space {
	struct address_space mapping;
	struct rm_owner owner;
	unsigned long page;
	u32 registered_gpus;
	struct nv_kthread_q_item deferred;
};

struct uvm_mm {
	struct address_space mapping;
	struct mm_struct *mm;
	struct file *va_space_file;
};

static dev_t first_device;
static struct cdev uvm_cdev;
static struct cdev uvm_tools_cdev;
static struct nv_kthread_q deferred_release_q;
static DEFINE_MUTEX(initialize_lock);

void uvm_va_space_destroy(struct uvm_va_space *va_space);

static enum uvm_fd_type uvm_fd_type(struct file *file, void **data)
{
	unsigned long tagged = (unsigned long)READ_ONCE(file->private_data);

	*data = (void *)(tagged & ~UVM_FD_TYPE_MASK);
	return tagged & UVM_FD_TYPE_MASK;
}

static void uvm_fd_type_set(struct file *file, enum uvm_fd_type type, void *data)
{
	WRITE_ONCE(file->private_data, (void *)((unsigned long)data | type));
}

/* ---- open and release ---- */

/* The VA space is there from the start; whether the file is one is in the tag. */
static noinline int uvm_open_entry(struct inode *inode, struct file *file)
{
	struct standin_device *device = &standin_devices[TARGET_UVM];
	struct uvm_va_space *va_space = kzalloc(sizeof(*va_space), GFP_KERNEL);
	int error;

	if (!va_space)
		return -ENOMEM;
	atomic_inc(&device->opening);
	standin_point(TARGET_UVM, POINT_OPEN, false);
	error = READ_ONCE(device->fail_open);
	if (error) {
		kfree(va_space);
	} else {
		rm_owner_init(&va_space->owner);
		standin_private_mapping(file, &va_space->mapping);
		uvm_fd_type_set(file, UVM_FD_UNINITIALIZED, va_space);
		atomic_inc(&device->open);
	}
	atomic_dec(&device->opening);
	return error;
}

noinline void uvm_va_space_destroy(struct uvm_va_space *va_space)
{
	unsigned int minor;

	standin_point(TARGET_UVM, POINT_RELEASE, false);
	down_write(&g_RmApiLock);
	standin_point(TARGET_UVM, POINT_RELEASE, true);
	rm_release(&va_space->owner);
	up_write(&g_RmApiLock);
	for (minor = 0; minor < NV_GPUS; minor++)
		if (va_space->registered_gpus & BIT(minor))
			nvidia_dev_put(minor);
	if (va_space->page)
		free_page(va_space->page);
	kfree(va_space);
}

/* The rest of a release, in the kernel thread. */
static noinline void uvm_release_deferred(void *data)
{
	uvm_va_space_destroy(data);
	atomic_dec(&standin_devices[TARGET_UVM].deferred);
}

static void uvm_release_mm(struct uvm_mm *uvm_mm)
{
	mmput(uvm_mm->mm);
	fput(uvm_mm->va_space_file);
	kfree(uvm_mm);
}

static noinline int uvm_release_entry(struct inode *inode, struct file *file)
{
	struct standin_device *device = &standin_devices[TARGET_UVM];
	int defer_ms = READ_ONCE(device->defer_ms);
	struct uvm_va_space *va_space;
	void *data;
	enum uvm_fd_type type = uvm_fd_type(file, &data);

	file->private_data = NULL;
	file->f_mapping = NULL;
	atomic_dec(&device->open);
	if (type != UVM_FD_MM && defer_ms >= 0) {
		va_space = data;
		atomic_inc(&device->deferred);
		va_space->deferred.function = uvm_release_deferred;
		va_space->deferred.argument = va_space;
		nv_kthread_q_schedule(&deferred_release_q, &va_space->deferred, defer_ms);
		return 0;
	}
	atomic_inc(&device->releasing);
	if (type == UVM_FD_MM)
		uvm_release_mm(data);
	else
		uvm_va_space_destroy(data);
	atomic_dec(&device->releasing);
	return 0;
}

/* ---- mmap ---- */

static void uvm_vm_open_managed_entry(struct vm_area_struct *vma)
{
	atomic_inc(&standin_devices[TARGET_UVM].maps);
}

static void uvm_vm_close_managed_entry(struct vm_area_struct *vma)
{
	atomic_dec(&standin_devices[TARGET_UVM].maps);
}

static vm_fault_t uvm_vm_fault_managed_entry(struct vm_fault *vmf)
{
	struct uvm_va_space *va_space = vmf->vma->vm_private_data;

	vmf->page = virt_to_page((void *)va_space->page);
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct uvm_vm_ops_managed = {
	.open = uvm_vm_open_managed_entry,
	.close = uvm_vm_close_managed_entry,
	.fault = uvm_vm_fault_managed_entry,
};

static int uvm_initialize(struct file *file)
{
	enum uvm_fd_type type;
	void *va_space;

	mutex_lock(&initialize_lock);
	type = uvm_fd_type(file, &va_space);
	if (type == UVM_FD_UNINITIALIZED)
		uvm_fd_type_set(file, UVM_FD_VA_SPACE, va_space);
	mutex_unlock(&initialize_lock);
	return type == UVM_FD_MM ? -EINVAL : 0;
}

/* Managed memory. A fork does not copy the mapping. */
static noinline int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma)
{
	struct uvm_va_space *va_space;
	int error = uvm_initialize(file);
	void *data;

	if (error)
		return error;
	uvm_fd_type(file, &data);
	va_space = data;
	error = standin_map_file(vma, &va_space->page, &uvm_vm_ops_managed, VM_DONTEXPAND | VM_DONTCOPY);
	if (error)
		return error;
	vma->vm_private_data = va_space;
	uvm_vm_open_managed_entry(vma);
	return 0;
}

/* ---- ioctl ---- */

static const struct file_operations uvm_fops;

static int uvm_map_external(struct uvm_va_space *va_space, int ctl_fd)
{
	struct file *file = fget(ctl_fd);
	struct nv_linux_file_private *ctl;
	int error = -EINVAL;

	if (!file)
		return -EBADF;
	ctl = nv_ctl_file_private(file);
	if (ctl) {
		down_write(&g_RmApiLock);
		error = rm_duplicate(&ctl->client, &va_space->owner, 0);
		up_write(&g_RmApiLock);
	}
	fput(file);
	return error;
}

/* Turns `file`, fresh from open, into one that pins the VA space file `va_space_fd` and the caller's mm. */
static int uvm_mm_initialize(struct file *file, int va_space_fd)
{
	struct file *va_space_file = fget(va_space_fd);
	struct uvm_mm *uvm_mm = kzalloc(sizeof(*uvm_mm), GFP_KERNEL);
	int error = -EINVAL;
	void *data, *other;

	if (!va_space_file || !uvm_mm) {
		error = va_space_file ? -ENOMEM : -EBADF;
		goto failed;
	}
	mutex_lock(&initialize_lock);
	if (va_space_file->f_op != &uvm_fops || uvm_fd_type(va_space_file, &other) != UVM_FD_VA_SPACE ||
	    uvm_fd_type(file, &data) != UVM_FD_UNINITIALIZED) {
		mutex_unlock(&initialize_lock);
		goto failed;
	}
	mmget(current->mm);
	uvm_mm->mm = current->mm;
	uvm_mm->va_space_file = va_space_file;
	standin_private_mapping(file, &uvm_mm->mapping);
	uvm_fd_type_set(file, UVM_FD_MM, uvm_mm);
	mutex_unlock(&initialize_lock);
	kfree(data);
	return 0;
failed:
	if (va_space_file)
		fput(va_space_file);
	kfree(uvm_mm);
	return error;
}

static int uvm_register_gpu(struct uvm_va_space *va_space, u32 minor)
{
	int error = 0;

	if (minor >= NV_GPUS)
		return -ENODEV;
	down_write(&g_RmApiLock);
	if (!(va_space->registered_gpus & BIT(minor)))
		error = nvidia_dev_get(minor);
	if (!error)
		va_space->registered_gpus |= BIT(minor);
	up_write(&g_RmApiLock);
	return error;
}

static int uvm_allocate(struct uvm_va_space *va_space, const struct standin_memory *what)
{
	int error;

	down_write(&g_RmApiLock);
	error = rm_allocate(&va_space->owner, 0, what->minor, what->mib);
	up_write(&g_RmApiLock);
	return error;
}

static noinline long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long argument)
{
	union {
		struct standin_fd file;
		struct standin_memory memory;
	} in;
	void *data;

	if (_IOC_SIZE(cmd) > sizeof(in))
		return -ENOTTY;
	if (copy_from_user(&in, (void __user *)argument, _IOC_SIZE(cmd)))
		return -EFAULT;
	standin_point(TARGET_UVM, POINT_IOCTL, false);
	if (cmd == STANDIN_UVM_INITIALIZE)
		return uvm_initialize(file);
	if (cmd == STANDIN_UVM_MM_INITIALIZE)
		return uvm_mm_initialize(file, in.file.fd);
	if (uvm_fd_type(file, &data) != UVM_FD_VA_SPACE)
		return -EBADFD;
	switch (cmd) {
	case STANDIN_UVM_ALLOCATE:
		return uvm_allocate(data, &in.memory);
	case STANDIN_UVM_MAP_EXTERNAL:
		return uvm_map_external(data, in.file.fd);
	case STANDIN_UVM_REGISTER_GPU:
		return uvm_register_gpu(data, in.memory.minor);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open_entry,
	.release = uvm_release_entry,
	.mmap = uvm_mmap_entry,
	.unlocked_ioctl = uvm_unlocked_ioctl_entry,
	.compat_ioctl = uvm_unlocked_ioctl_entry,
	.llseek = noop_llseek,
};

/* ---- nvidia-uvm-tools ---- */

static noinline int uvm_tools_open_entry(struct inode *inode, struct file *file)
{
	return 0;
}

static noinline int uvm_tools_release_entry(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations uvm_tools_fops = {
	.owner = THIS_MODULE,
	.open = uvm_tools_open_entry,
	.release = uvm_tools_release_entry,
	.llseek = noop_llseek,
};

/* ---- module ---- */

/* The cdev has an owner of its own, as in the real driver: each open file is two module references. */
static int add_cdev(struct cdev *cdev, const struct file_operations *fops, unsigned int minor)
{
	cdev_init(cdev, fops);
	cdev->owner = THIS_MODULE;
	return cdev_add(cdev, MKDEV(MAJOR(first_device), minor), 1);
}

static int __init uvm_init(void)
{
	int error = nv_kthread_q_init(&deferred_release_q, "UVM deferred release queue");

	if (error)
		return error;
	error = alloc_chrdev_region(&first_device, 0, 2, "nvidia-uvm");
	if (error)
		goto no_region;
	error = add_cdev(&uvm_cdev, &uvm_fops, 0);
	if (error)
		goto no_cdev;
	error = add_cdev(&uvm_tools_cdev, &uvm_tools_fops, 1);
	if (!error)
		return 0;
	cdev_del(&uvm_cdev);
no_cdev:
	unregister_chrdev_region(first_device, 2);
no_region:
	nv_kthread_q_stop(&deferred_release_q);
	return error;
}

static void __exit uvm_exit(void)
{
	cdev_del(&uvm_tools_cdev);
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(first_device, 2);
	nv_kthread_q_stop(&deferred_release_q);
}

module_init(uvm_init);
module_exit(uvm_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stand-in for nvidia-uvm, for the tests of gpu-tracer; drives no hardware");
MODULE_VERSION(STANDIN_VERSION);
