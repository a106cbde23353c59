// SPDX-License-Identifier: GPL-2.0
/* A queue whose one kernel thread finishes closes in order: an item that waits delays all behind it. */
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/sched.h>
#include <linux/wait.h>

#include "driver.h"

static struct nv_kthread_q_item *first_item(struct nv_kthread_q *queue)
{
	struct nv_kthread_q_item *item;

	spin_lock(&queue->lock);
	item = list_first_entry_or_null(&queue->items, struct nv_kthread_q_item, entry);
	spin_unlock(&queue->lock);
	return item;
}

static int _main_loop(void *argument)
{
	struct nv_kthread_q *queue = argument;

	for (;;) {
		struct nv_kthread_q_item *item;
		long left;

		wait_event_interruptible(queue->wait, (item = first_item(queue)) || kthread_should_stop());
		if (!item)
			return 0;
		left = item->due - jiffies;
		if (left > 0)
			wait_event_interruptible_timeout(queue->wait, READ_ONCE(queue->hurry), left);
		spin_lock(&queue->lock);
		list_del(&item->entry);
		spin_unlock(&queue->lock);
		/* The function may free what the item is a part of. */
		item->function(item->argument);
	}
}

int nv_kthread_q_init(struct nv_kthread_q *queue, const char *name)
{
	spin_lock_init(&queue->lock);
	INIT_LIST_HEAD(&queue->items);
	init_waitqueue_head(&queue->wait);
	queue->hurry = false;
	queue->task = kthread_run(_main_loop, queue, "%s", name);
	return PTR_ERR_OR_ZERO(queue->task);
}
EXPORT_SYMBOL_GPL(nv_kthread_q_init);

/* Runs what is queued, without its delays, then ends the thread. */
void nv_kthread_q_stop(struct nv_kthread_q *queue)
{
	WRITE_ONCE(queue->hurry, true);
	wake_up_all(&queue->wait);
	kthread_stop(queue->task);
}
EXPORT_SYMBOL_GPL(nv_kthread_q_stop);

void nv_kthread_q_schedule(struct nv_kthread_q *queue, struct nv_kthread_q_item *item, int delay_ms)
{
	item->due = jiffies + msecs_to_jiffies(delay_ms);
	spin_lock(&queue->lock);
	list_add_tail(&item->entry, &queue->items);
	spin_unlock(&queue->lock);
	wake_up_all(&queue->wait);
}
EXPORT_SYMBOL_GPL(nv_kthread_q_schedule);
