// SPDX-License-Identifier: GPL-2.0
/*
 * GPUs and their memory.
 *
 * Memory is shared by reference: an RM client, an export and a UVM VA space each hold shares of it, and it
 * is given back with the last share. What a client holds is attributed to the process that made the
 * client, alive or not; what anybody else holds is used and attributed to nobody.
 */
#include <linux/errno.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/slab.h>

#include "driver.h"

#define TOTAL_MIB 143771

struct rm_memory {
	refcount_t shares;
	u32 minor;
	u32 mib;
};

struct rm_share {
	struct list_head in_owner;
	struct rm_memory *memory;
};

/*
 * By minor. Bus order is neither the order of the minors nor its own inverse, so a program that takes
 * one number for another is wrong for every GPU.
 */
struct standin_gpu standin_gpus[NV_GPUS] = {
	{ .bus_id = "0000:c3:00.0", .uuid = "GPU-6d1f0a52-3c8e-4b7d-9a10-5e2b7f4c0d11" },
	{ .bus_id = "0000:d1:00.0", .uuid = "GPU-b27e94c0-51aa-4e3f-8d62-0f9c3a7e1b25" },
	{ .bus_id = "0001:0a:00.0", .uuid = "GPU-19c4d8e7-f60b-4c29-b5d3-7a80e6129f3c" },
	{ .bus_id = "0000:1a:00.0", .uuid = "GPU-e8035b6a-2d97-4f14-a6c8-914d0be57f42" },
	{ .bus_id = "0000:3d:00.0", .uuid = "GPU-470fa9d3-8e1c-4a65-9b72-c63e58d1045a" },
	{ .bus_id = "0000:52:00.0", .uuid = "GPU-cf5162be-09d4-4783-8e0f-2b7a94c6d361" },
	{ .bus_id = "0000:61:00.0", .uuid = "GPU-3a98e7f1-64c2-4d0e-b1a5-d84f0c29e677" },
	{ .bus_id = "0000:9d:00.0", .uuid = "GPU-85b2c40d-f7e3-4961-a3dc-61e9702b5f88" },
};

DECLARE_RWSEM(g_RmApiLock);
EXPORT_SYMBOL_GPL(g_RmApiLock);

/* Reading the table waits for the API lock, as NVML does behind a stuck teardown. */
bool standin_memory_waits;

static DEFINE_MUTEX(rm_table);
static LIST_HEAD(rm_clients);

void rm_init(void)
{
	unsigned int minor;

	for (minor = 0; minor < NV_GPUS; minor++) {
		sema_init(&standin_gpus[minor].ldata_lock, 1);
		standin_gpus[minor].total_mib = TOTAL_MIB;
	}
}

/* The minor of the GPU with this index in bus order. */
unsigned int standin_gpu_minor(unsigned int index)
{
	return (index + 3) % NV_GPUS;
}

void rm_owner_init(struct rm_owner *owner)
{
	INIT_LIST_HEAD(&owner->shares);
	INIT_LIST_HEAD(&owner->in_clients);
	owner->tgid = 0;
}
EXPORT_SYMBOL_GPL(rm_owner_init);

/* A client belongs to whoever makes its first object. */
static void become_client(struct rm_owner *owner, pid_t tgid)
{
	if (!tgid || owner->tgid)
		return;
	owner->tgid = tgid;
	list_add_tail(&owner->in_clients, &rm_clients);
}

static u32 gpu_in_use(const struct standin_gpu *gpu)
{
	return gpu->used_mib + gpu->baseline_mib + gpu->leaked_mib;
}

/* Allocates for a client made by `tgid`, or with 0 for nobody. */
int rm_allocate(struct rm_owner *owner, pid_t tgid, u32 minor, u32 mib)
{
	struct rm_memory *memory;
	struct rm_share *share;
	int error = 0;

	if (minor >= NV_GPUS)
		return -ENODEV;
	memory = kzalloc(sizeof(*memory), GFP_KERNEL);
	share = kzalloc(sizeof(*share), GFP_KERNEL);
	if (!memory || !share) {
		error = -ENOMEM;
		goto out;
	}
	refcount_set(&memory->shares, 1);
	memory->minor = minor;
	memory->mib = mib;
	share->memory = memory;

	mutex_lock(&rm_table);
	if (mib > standin_gpus[minor].total_mib - min(gpu_in_use(&standin_gpus[minor]), standin_gpus[minor].total_mib)) {
		error = -ENOSPC;
	} else {
		standin_gpus[minor].used_mib += mib;
		become_client(owner, tgid);
		list_add_tail(&share->in_owner, &owner->shares);
	}
	mutex_unlock(&rm_table);
out:
	if (error) {
		kfree(memory);
		kfree(share);
	}
	return error;
}
EXPORT_SYMBOL_GPL(rm_allocate);

static void drop_share(struct rm_share *share)
{
	struct rm_memory *memory = share->memory;
	struct standin_gpu *gpu = &standin_gpus[memory->minor];
	u32 leaked;

	list_del(&share->in_owner);
	kfree(share);
	if (!refcount_dec_and_test(&memory->shares))
		return;
	leaked = min(gpu->leak_budget_mib, memory->mib);
	gpu->leak_budget_mib -= leaked;
	gpu->leaked_mib += leaked;
	gpu->used_mib -= memory->mib;
	kfree(memory);
}

void rm_free(struct rm_owner *owner, u32 minor)
{
	struct rm_share *share, *next;

	mutex_lock(&rm_table);
	list_for_each_entry_safe(share, next, &owner->shares, in_owner)
		if (share->memory->minor == minor)
			drop_share(share);
	mutex_unlock(&rm_table);
}

/* `to` holds all that `from` holds, too: everything or, without memory for it, nothing. */
int rm_duplicate(struct rm_owner *from, struct rm_owner *to, pid_t tgid)
{
	struct rm_share *share, *copy, *next;
	LIST_HEAD(copies);
	int error = 0;

	mutex_lock(&rm_table);
	list_for_each_entry(share, &from->shares, in_owner) {
		copy = kzalloc(sizeof(*copy), GFP_KERNEL);
		if (!copy) {
			error = -ENOMEM;
			break;
		}
		copy->memory = share->memory;
		refcount_inc(&share->memory->shares);
		list_add_tail(&copy->in_owner, &copies);
	}
	if (!error && list_empty(&copies))
		error = -ENOENT;
	if (error) {
		list_for_each_entry_safe(copy, next, &copies, in_owner)
			drop_share(copy);
	} else {
		become_client(to, tgid);
		list_splice_tail(&copies, &to->shares);
	}
	mutex_unlock(&rm_table);
	return error;
}
EXPORT_SYMBOL_GPL(rm_duplicate);

bool rm_owner_is_empty(struct rm_owner *owner)
{
	bool empty;

	mutex_lock(&rm_table);
	empty = list_empty(&owner->shares);
	mutex_unlock(&rm_table);
	return empty;
}

void rm_release(struct rm_owner *owner)
{
	struct rm_share *share, *next;

	mutex_lock(&rm_table);
	list_for_each_entry_safe(share, next, &owner->shares, in_owner)
		drop_share(share);
	list_del_init(&owner->in_clients);
	owner->tgid = 0;
	mutex_unlock(&rm_table);
}
EXPORT_SYMBOL_GPL(rm_release);

/* The next releases on this GPU fail to give back `mib` MiB in all. */
int rm_set_leak(u32 minor, u32 mib)
{
	if (minor >= NV_GPUS)
		return -ENODEV;
	mutex_lock(&rm_table);
	standin_gpus[minor].leak_budget_mib = mib;
	mutex_unlock(&rm_table);
	return 0;
}

/* What the GPU uses when nobody uses it. */
int rm_set_baseline(u32 minor, u32 mib)
{
	if (minor >= NV_GPUS || mib > TOTAL_MIB)
		return -EINVAL;
	mutex_lock(&rm_table);
	standin_gpus[minor].baseline_mib = mib;
	mutex_unlock(&rm_table);
	return 0;
}

/* Gives leaked memory back, as a GPU reset does: only while nothing uses the GPU. */
int rm_reset(u32 minor)
{
	struct standin_gpu *gpu;
	int error = 0;

	if (minor >= NV_GPUS)
		return -ENODEV;
	gpu = &standin_gpus[minor];
	if (down_trylock(&gpu->ldata_lock))
		return -EBUSY;
	mutex_lock(&rm_table);
	if (gpu->usage_count || gpu->used_mib)
		error = -EBUSY;
	else
		gpu->leaked_mib = gpu->leak_budget_mib = 0;
	mutex_unlock(&rm_table);
	up(&gpu->ldata_lock);
	return error;
}

static void show_clients(struct seq_file *out, unsigned int index)
{
	u32 minor = standin_gpu_minor(index);
	struct rm_owner *client;

	list_for_each_entry(client, &rm_clients, in_clients) {
		struct rm_share *share;
		bool on_gpu = false;
		u32 mib = 0;

		list_for_each_entry(share, &client->shares, in_owner) {
			if (share->memory->minor != minor)
				continue;
			on_gpu = true;
			mib += share->memory->mib;
		}
		if (on_gpu)
			seq_printf(out, "client %u %d %u\n", index, client->tgid, mib);
	}
}

/* Per GPU, in bus order: what is used, then its clients by the pid of the process that made them. */
void rm_show_table(struct seq_file *out)
{
	bool waits = READ_ONCE(standin_memory_waits);
	unsigned int index;

	if (waits)
		down_read(&g_RmApiLock);
	mutex_lock(&rm_table);
	for (index = 0; index < NV_GPUS; index++) {
		const struct standin_gpu *gpu = &standin_gpus[standin_gpu_minor(index)];

		seq_printf(out, "gpu %u used %u total %u\n", index, gpu_in_use(gpu), gpu->total_mib);
		show_clients(out, index);
	}
	mutex_unlock(&rm_table);
	if (waits)
		up_read(&g_RmApiLock);
}

/* A user of the GPU that is not a file of it. */
int nvidia_dev_get(u32 minor)
{
	if (minor >= NV_GPUS)
		return -ENODEV;
	down(&standin_gpus[minor].ldata_lock);
	standin_gpus[minor].usage_count++;
	up(&standin_gpus[minor].ldata_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_dev_get);

void nvidia_dev_put(u32 minor)
{
	down(&standin_gpus[minor].ldata_lock);
	standin_gpus[minor].usage_count--;
	up(&standin_gpus[minor].ldata_lock);
}
EXPORT_SYMBOL_GPL(nvidia_dev_put);
