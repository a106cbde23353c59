// SPDX-License-Identifier: GPL-2.0
/* Requests to /dev/nvidiactl and /dev/nvidiaN: clients, their memory, and files that pin files. */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "driver.h"

int nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long argument);

/* Takes the nvidiactl file `fd` of the caller; the reference is in `*file`. */
static struct nv_linux_file_private *get_ctl(int fd, struct file **file)
{
	struct nv_linux_file_private *ctl;

	*file = fget(fd);
	if (!*file)
		return ERR_PTR(-EBADF);
	ctl = nv_ctl_file_private(*file);
	if (ctl)
		return ctl;
	fput(*file);
	return ERR_PTR(-EINVAL);
}

static int register_fd(struct nv_linux_file_private *nvlfp, int fd)
{
	struct nv_linux_file_private *ctl;
	struct file *file;
	int error = 0;

	ctl = get_ctl(fd, &file);
	if (IS_ERR(ctl))
		return PTR_ERR(ctl);
	down_write(&g_RmApiLock);
	/* Two files that pin each other would never be released. */
	if (ctl == nvlfp || ctl->nvfp.ctl_nvfp || nvlfp->nvfp.ctl_nvfp || nvlfp->nvfp.register_or_refcount) {
		error = -EINVAL;
	} else {
		nvlfp->nvfp.ctl_nvfp = &ctl->nvfp;
		nvlfp->nvfp.ctl_nvfp_priv = file;
		ctl->nvfp.register_or_refcount = 1;
	}
	up_write(&g_RmApiLock);
	if (error)
		fput(file);
	return error;
}

static int attach_gpus(struct nv_linux_file_private *nvlfp, u32 minors)
{
	unsigned int minor;

	if (nvlfp->target != TARGET_CTL || minors >= BIT(NV_GPUS))
		return -EINVAL;
	down_write(&g_RmApiLock);
	for (minor = 0; minor < NV_GPUS; minor++)
		if (minors & ~nvlfp->attached_gpus & BIT(minor))
			nvidia_dev_get(minor);
	nvlfp->attached_gpus |= minors;
	up_write(&g_RmApiLock);
	return 0;
}

/* The nvidiactl file whose client works for `nvlfp`. */
static struct nv_linux_file_private *client_file(struct nv_linux_file_private *nvlfp)
{
	if (nvlfp->nvfp.ctl_nvfp)
		return container_of(nvlfp->nvfp.ctl_nvfp, struct nv_linux_file_private, nvfp);
	return nvlfp->target == TARGET_CTL ? nvlfp : NULL;
}

static int export_or_import(struct nv_linux_file_private *client, unsigned int cmd, int fd)
{
	struct nv_linux_file_private *other;
	struct file *file;
	int error = -EINVAL;

	other = get_ctl(fd, &file);
	if (IS_ERR(other))
		return PTR_ERR(other);
	down_write(&g_RmApiLock);
	if (other == client)
		goto out;
	if (cmd == STANDIN_IMPORT) {
		error = rm_duplicate(&other->exported, &client->client, task_tgid_nr(current));
		goto out;
	}
	if (!other->nvfp.handles)
		other->nvfp.handles = kcalloc(1, sizeof(u32), GFP_KERNEL);
	if (!other->nvfp.handles) {
		error = -ENOMEM;
		goto out;
	}
	error = rm_duplicate(&client->client, &other->exported, 0);
	other->nvfp.max_handles = 1;
	if (rm_owner_is_empty(&other->exported)) {
		kfree(other->nvfp.handles);
		other->nvfp.handles = NULL;
	}
out:
	up_write(&g_RmApiLock);
	fput(file);
	return error;
}

static int allocate_or_free(struct nv_linux_file_private *client, unsigned int cmd, const struct standin_memory *what)
{
	int error = 0;

	down_write(&g_RmApiLock);
	if (cmd == STANDIN_FREE)
		rm_free(&client->client, what->minor);
	else
		error = rm_allocate(&client->client, task_tgid_nr(current), what->minor, what->mib);
	if (!error)
		client->nvfp.cleanup_rmapi = true;
	up_write(&g_RmApiLock);
	return error;
}

noinline int nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long argument)
{
	struct nv_linux_file_private *nvlfp = file->private_data;
	struct nv_linux_file_private *client = client_file(nvlfp);
	union {
		struct standin_fd file;
		struct standin_memory memory;
		u32 number;
	} in;

	if (_IOC_SIZE(cmd) > sizeof(in))
		return -ENOTTY;
	if (copy_from_user(&in, (void __user *)argument, _IOC_SIZE(cmd)))
		return -EFAULT;
	standin_point(nvlfp->target, POINT_IOCTL, false);

	switch (cmd) {
	case STANDIN_REGISTER_FD:
		return register_fd(nvlfp, in.file.fd);
	case STANDIN_ATTACH_GPUS:
		return attach_gpus(nvlfp, in.number);
	case STANDIN_ALLOCATE:
	case STANDIN_FREE:
		return client ? allocate_or_free(client, cmd, &in.memory) : -EINVAL;
	case STANDIN_EXPORT:
	case STANDIN_IMPORT:
		return client ? export_or_import(client, cmd, in.file.fd) : -EINVAL;
	case STANDIN_HANG:
		return standin_hang(in.number);
	default:
		return -ENOTTY;
	}
}

noinline long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long argument)
{
	return nvidia_ioctl(file_inode(file), file, cmd, argument);
}
