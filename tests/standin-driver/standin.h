/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a test program says to the stand-in driver.
 *
 * Two requests carry the numbers of the real driver (REGISTER_FD and ATTACH_GPUS);
 * the others exist only here. A "minor" is the device file's number, N of /dev/nvidiaN;
 * it is not the GPU's index in bus order.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <linux/ioctl.h>
#include <linux/types.h>

struct standin_fd {
	__s32 fd;
};

struct standin_memory {
	__u32 minor;
	__u32 mib;
};

/* A GPU file, or a second nvidiactl, pins the nvidiactl file `fd` until it is released itself. */
#define STANDIN_REGISTER_FD _IOWR('F', 201, struct standin_fd)
/* nvidiactl: each GPU whose minor's bit is set counts as used until the nvidiactl file is released. */
#define STANDIN_ATTACH_GPUS _IOW('F', 212, __u32)
/*
 * Allocate `mib` MiB on GPU `minor` for the RM client of this nvidiactl file (or of the one this file
 * is registered with). 0 MiB makes a client that only has a context there.
 */
#define STANDIN_ALLOCATE _IOW('F', 224, struct standin_memory)
/* Free all that this client has on GPU `minor`; `mib` is ignored. */
#define STANDIN_FREE _IOW('F', 225, struct standin_memory)
/* The nvidiactl file `fd` also holds everything that this client has; it belongs to no process. */
#define STANDIN_EXPORT _IOW('F', 226, struct standin_fd)
/* This client also holds what was exported into the nvidiactl file `fd`. */
#define STANDIN_IMPORT _IOW('F', 227, struct standin_fd)
/* Does not return until "wake" is written to the control file. */
#define STANDIN_HANG _IOW('F', 228, __u32)

/* How STANDIN_HANG waits. */
enum standin_hang {
	STANDIN_HANG_INTERRUPTIBLE = 0,
	STANDIN_HANG_KILLABLE = 1,
	STANDIN_HANG_UNINTERRUPTIBLE = 2,
	STANDIN_HANG_SPIN = 3,
};

/* nvidia-uvm: the file becomes a VA space. mmap does it too. */
#define STANDIN_UVM_INITIALIZE _IO('U', 1)
/* Managed memory: `mib` MiB on GPU `minor`, of no RM client. */
#define STANDIN_UVM_ALLOCATE _IOW('U', 2, struct standin_memory)
/* The VA space also holds everything that the client of the nvidiactl file `fd` has. */
#define STANDIN_UVM_MAP_EXTERNAL _IOW('U', 3, struct standin_fd)
/* This second nvidia-uvm file pins the VA space file `fd` and the caller's address space. */
#define STANDIN_UVM_MM_INITIALIZE _IOW('U', 4, struct standin_fd)
/* The VA space uses GPU `minor`; `mib` is ignored. */
#define STANDIN_UVM_REGISTER_GPU _IOW('U', 5, struct standin_memory)

#endif
