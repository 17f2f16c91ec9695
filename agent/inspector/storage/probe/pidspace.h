/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * The numbers of processes as the agent sees them: inside a PID namespace
 * they are not the kernel's own.
 */
#ifndef TELLTALE_STORAGE_PIDSPACE_H
#define TELLTALE_STORAGE_PIDSPACE_H

#include "kernel.h"

#define PID_LEVELS 32 /* MAX_PID_NS_LEVEL */

/* Inode of the namespace; 0: the kernel's own numbers. */
const volatile __u32 own_pidns;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pid_namespace___io {
	struct ns_common ns;
};

struct upid___io {
	int nr;
	struct pid_namespace___io *ns;
};

struct pid___io {
	unsigned int level;
	struct upid___io numbers[1];
};

struct task_struct___pid {
	int pid;
	struct pid___io *thread_pid; /* since 4.19 */
};

#pragma clang attribute pop

/* A task's number, 0 when the agent's namespace has none for it. */
static __always_inline __u32 number_of(void *task)
{
	struct task_struct___pid *t = task;
	struct pid___io *p;
	unsigned int level;

	if (!own_pidns)
		return BPF_CORE_READ(t, pid);
	p = BPF_CORE_READ(t, thread_pid);
	if (!p)
		return 0;
	level = BPF_CORE_READ(p, level);
	for (unsigned int i = 0; i < PID_LEVELS && i <= level; i++) {
		struct upid___io *u = (void *)p + bpf_core_field_offset(struct pid___io, numbers) + i * bpf_core_type_size(struct upid___io);

		if (BPF_CORE_READ(u, ns, ns.inum) == own_pidns)
			return BPF_CORE_READ(u, nr);
	}
	return 0;
}

#endif
