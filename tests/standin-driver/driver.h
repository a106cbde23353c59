/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A driver without a GPU behind it, with the real one's device numbers, entry points and file
 * lifetimes. Function names that the tracer hooks, or shows in a stack, are those of the real driver.
 *
 * Locks, outermost first: g_RmApiLock, a GPU's ldata_lock, the memory table's mutex. The first two
 * are what a stuck teardown holds; the last is never held while a file waits, so the memory table
 * can always be read.
 */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <linux/atomic.h>
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/semaphore.h>
#include <linux/seq_file.h>
#include <linux/types.h>
#include <linux/version.h>

#include "standin.h"

#define STANDIN_VERSION "580.159.04"

#define NV_MAJOR 195
#define NV_GPUS 8
#define NV_REGULAR_MINORS 248
#define NV_MODESET_MINOR 254
#define NV_CTL_MINOR 255

/* The device files that have knobs of their own. GPUs come first, by minor. */
enum standin_target {
	TARGET_CTL = NV_GPUS,
	TARGET_MODESET,
	TARGET_UVM,
	TARGETS,
};

/* ---- points.c: places where a task can be made to wait ---- */

enum standin_point {
	POINT_OPEN,
	POINT_RELEASE,
	POINT_IOCTL,
	POINTS,
};

enum standin_mode {
	MODE_OFF,
	MODE_BLOCK,
	MODE_SPIN,
	MODE_BLOCK_LOCKED,
	MODE_SPIN_LOCKED,
	MODES,
};

/* One device's knobs and the true number of its files in each state. */
struct standin_device {
	u8 mode[POINTS];
	int fail_open;
	int defer_ms;
	atomic_t opening;
	atomic_t open;
	atomic_t releasing;
	atomic_t deferred;
	atomic_t maps;
};

extern struct standin_device standin_devices[TARGETS];

void standin_point(unsigned int target, enum standin_point point, bool locked);
long standin_hang(u32 mode);
void standin_set_mode(unsigned int target, enum standin_point point, enum standin_mode mode);
void standin_wake_hung(void);
void standin_clear_points(void);

/* ---- queue.c: closes that a kernel thread finishes ---- */

struct nv_kthread_q_item {
	struct list_head entry;
	void (*function)(void *argument);
	void *argument;
	unsigned long due;
};

struct nv_kthread_q {
	spinlock_t lock;
	struct list_head items;
	wait_queue_head_t wait;
	struct task_struct *task;
	bool hurry;
};

int nv_kthread_q_init(struct nv_kthread_q *queue, const char *name);
void nv_kthread_q_stop(struct nv_kthread_q *queue);
void nv_kthread_q_schedule(struct nv_kthread_q *queue, struct nv_kthread_q_item *item, int delay_ms);

/* ---- rm.c: GPUs, their memory and who owns it ---- */

struct standin_gpu {
	const char *bus_id;
	const char *uuid;
	struct semaphore ldata_lock;
	int usage_count; /* under ldata_lock */
	u32 total_mib;
	/* The rest is under the memory table's mutex. */
	u32 used_mib;
	u32 baseline_mib;
	u32 leaked_mib;
	u32 leak_budget_mib;
};

/* Someone whose end gives memory back: an RM client, an export, a UVM VA space. */
struct rm_owner {
	struct list_head shares;
	struct list_head in_clients;
	pid_t tgid; /* 0: NVML attributes nothing to it */
};

extern struct standin_gpu standin_gpus[NV_GPUS];
extern struct rw_semaphore g_RmApiLock;
extern bool standin_memory_waits;

void rm_init(void);
unsigned int standin_gpu_minor(unsigned int index);
void rm_owner_init(struct rm_owner *owner);
int rm_allocate(struct rm_owner *owner, pid_t tgid, u32 minor, u32 mib);
void rm_free(struct rm_owner *owner, u32 minor);
int rm_duplicate(struct rm_owner *from, struct rm_owner *to, pid_t tgid);
bool rm_owner_is_empty(struct rm_owner *owner);
void rm_release(struct rm_owner *owner);
int rm_set_leak(u32 minor, u32 mib);
int rm_set_baseline(u32 minor, u32 mib);
int rm_reset(u32 minor);
void rm_show_table(struct seq_file *out);
int nvidia_dev_get(u32 minor);
void nvidia_dev_put(u32 minor);

/* ---- core.c: nvidiactl and nvidiaN ---- */

/* Offsets as in driver series 545 to 595, which a tracer may read. core.c asserts them. */
struct nv_file_private {
	u32 *handles; /* not NULL: memory was exported into this file */
	u16 max_handles;
	u32 device_instance;
	u32 gpu_instance_id;
	u8 metadata[64];
	struct nv_file_private *ctl_nvfp;
	void *ctl_nvfp_priv; /* the pinned nvidiactl `struct file` */
	u32 register_or_refcount;
	bool cleanup_rmapi;
};

struct nv_linux_file_private {
	struct nv_file_private nvfp;
	u64 unused[2];
	struct standin_gpu *nvptr;
	struct address_space mapping;
	unsigned int target;
	unsigned long page;
	u32 attached_gpus;
	struct rm_owner client;
	struct rm_owner exported;
	struct nv_kthread_q_item deferred;
};

struct nv_linux_file_private *nv_ctl_file_private(struct file *file);
int standin_map_file(struct vm_area_struct *vma, unsigned long *page, const struct vm_operations_struct *ops,
		     unsigned long flags);
void standin_private_mapping(struct file *file, struct address_space *mapping);
long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long argument); /* ioctl.c */

/* ---- the smaller devices and the proc files ---- */

int nv_register_chrdev(unsigned int minor, unsigned int count, struct cdev *cdev, const char *name,
		       const struct file_operations *fops);
void nv_unregister_chrdev(unsigned int minor, unsigned int count, struct cdev *cdev);
int nvkms_register_chrdev(void);
void nvkms_unregister_chrdev(void);
int nv_cap_drv_init(void);
void nv_cap_drv_exit(void);
int nv_procfs_init(void);
void nv_procfs_exit(void);
int standin_control_init(void);
void standin_control_exit(void);

static inline void standin_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

#endif
