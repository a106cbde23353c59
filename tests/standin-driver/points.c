// SPDX-License-Identifier: GPL-2.0
/*
 * Places where a task can be made to wait, and the true count of files in each state.
 *
 * The two waiting functions bear the names that top the stacks of the real driver when it is stuck:
 * a task that sleeps for the lock of another, and a task that polls for an answer of the firmware.
 */
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/wait.h>

#include "driver.h"

struct standin_device standin_devices[TARGETS];
EXPORT_SYMBOL_GPL(standin_devices);

static DECLARE_WAIT_QUEUE_HEAD(knobs_changed);
static atomic_t wakes = ATOMIC_INIT(0);

static bool mode_is_locked(u8 mode)
{
	return mode == MODE_BLOCK_LOCKED || mode == MODE_SPIN_LOCKED;
}

static bool mode_is_spin(u8 mode)
{
	return mode == MODE_SPIN || mode == MODE_SPIN_LOCKED;
}

void os_acquire_semaphore(const u8 *mode, u8 while_mode);
noinline void os_acquire_semaphore(const u8 *mode, u8 while_mode)
{
	wait_event(knobs_changed, READ_ONCE(*mode) != while_mode);
}

void _kgspRpcRecvPoll(const u8 *mode, u8 while_mode);
noinline void _kgspRpcRecvPoll(const u8 *mode, u8 while_mode)
{
	while (READ_ONCE(*mode) == while_mode) {
		cpu_relax();
		cond_resched();
	}
}

/*
 * Waits while the knob of `target` at `point` says so. `locked` tells whether the caller holds the lock
 * that other tasks will want: each knob stops tasks at one of the two places only.
 */
void standin_point(unsigned int target, enum standin_point point, bool locked)
{
	const u8 *mode = &standin_devices[target].mode[point];

	for (;;) {
		u8 now = READ_ONCE(*mode);

		if (now == MODE_OFF || mode_is_locked(now) != locked)
			return;
		if (mode_is_spin(now))
			_kgspRpcRecvPoll(mode, now);
		else
			os_acquire_semaphore(mode, now);
	}
}
EXPORT_SYMBOL_GPL(standin_point);

long standin_hang(u32 mode)
{
	int before = atomic_read(&wakes);

	switch (mode) {
	case STANDIN_HANG_INTERRUPTIBLE:
		return wait_event_interruptible(knobs_changed, atomic_read(&wakes) != before);
	case STANDIN_HANG_KILLABLE:
		return wait_event_killable(knobs_changed, atomic_read(&wakes) != before);
	case STANDIN_HANG_UNINTERRUPTIBLE:
		wait_event(knobs_changed, atomic_read(&wakes) != before);
		return 0;
	case STANDIN_HANG_SPIN:
		while (atomic_read(&wakes) == before) {
			cpu_relax();
			cond_resched();
		}
		return 0;
	default:
		return -EINVAL;
	}
}

void standin_set_mode(unsigned int target, enum standin_point point, enum standin_mode mode)
{
	WRITE_ONCE(standin_devices[target].mode[point], mode);
	wake_up_all(&knobs_changed);
}

void standin_wake_hung(void)
{
	atomic_inc(&wakes);
	wake_up_all(&knobs_changed);
}

void standin_clear_points(void)
{
	unsigned int target, point;

	for (target = 0; target < TARGETS; target++) {
		for (point = 0; point < POINTS; point++)
			standin_set_mode(target, point, MODE_OFF);
		WRITE_ONCE(standin_devices[target].fail_open, 0);
		WRITE_ONCE(standin_devices[target].defer_ms, -1);
	}
	standin_wake_hung();
}
