/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/* What user space may ask of sim_accel. Layouts are the same for 32-bit and 64-bit callers. */
#ifndef SIM_ACCEL_H
#define SIM_ACCEL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* DRM's type byte and the first number that it leaves to drivers; here, so that no DRM header is needed. */
#define SIM_ACCEL_TYPE		'd'
#define SIM_ACCEL_FIRST		0x40

/* Numbers from there on. */
#define SIM_ACCEL_SUBMIT	0
#define SIM_ACCEL_ALLOC		1
#define SIM_ACCEL_FREE		2
#define SIM_ACCEL_WAIT		3
#define SIM_ACCEL_RELEASE	4
#define SIM_ACCEL_FAIL		5

#define SIM_ACCEL_MAX_BUSY_US	1000000
#define SIM_ACCEL_MAX_ERROR	133

/* Count jobs. EINVAL: no job, or busy for longer than SIM_ACCEL_MAX_BUSY_US. */
struct sim_accel_submit {
	__u32 jobs;
	__u32 busy_us;		/* the call takes at least so long */
};

/* Make a buffer object. EINVAL: size 0; ENOMEM: more than the device has left. */
struct sim_accel_alloc {
	__u64 size;		/* bytes, rounded up to pages */
	__u32 handle;		/* out */
	__u32 pad;
};

/* Drop a handle. EINVAL: not a handle of this file. */
struct sim_accel_free {
	__u32 handle;
	__u32 pad;
};

/* Sleep until the device's timeline reaches the point. ETIME: the deadline came first; EINTR: a signal; ENODEV: device gone. */
struct sim_accel_wait {
	__u64 point;
	__s64 deadline_ns;	/* CLOCK_MONOTONIC; in the past: do not sleep */
};

/* Move the timeline on, which wakes those who waited for it. */
struct sim_accel_release {
	__u64 steps;		/* 0 only reads */
	__u64 point;		/* out: where the timeline stands now */
};

/* Fail as asked. EINVAL: not an error number between 1 and SIM_ACCEL_MAX_ERROR. */
struct sim_accel_fail {
	__u32 error;
	__u32 pad;
};

#define DRM_IOCTL_SIM_ACCEL_SUBMIT	_IOW(SIM_ACCEL_TYPE, SIM_ACCEL_FIRST + SIM_ACCEL_SUBMIT, struct sim_accel_submit)
#define DRM_IOCTL_SIM_ACCEL_ALLOC	_IOWR(SIM_ACCEL_TYPE, SIM_ACCEL_FIRST + SIM_ACCEL_ALLOC, struct sim_accel_alloc)
#define DRM_IOCTL_SIM_ACCEL_FREE	_IOW(SIM_ACCEL_TYPE, SIM_ACCEL_FIRST + SIM_ACCEL_FREE, struct sim_accel_free)
#define DRM_IOCTL_SIM_ACCEL_WAIT	_IOW(SIM_ACCEL_TYPE, SIM_ACCEL_FIRST + SIM_ACCEL_WAIT, struct sim_accel_wait)
#define DRM_IOCTL_SIM_ACCEL_RELEASE	_IOWR(SIM_ACCEL_TYPE, SIM_ACCEL_FIRST + SIM_ACCEL_RELEASE, struct sim_accel_release)
#define DRM_IOCTL_SIM_ACCEL_FAIL	_IOW(SIM_ACCEL_TYPE, SIM_ACCEL_FIRST + SIM_ACCEL_FAIL, struct sim_accel_fail)

#endif
