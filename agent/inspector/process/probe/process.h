/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * What the programs of this folder read of a task, cut down as kernel.h says.
 */
#ifndef TELLTALE_PROCESS_H
#define TELLTALE_PROCESS_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
	struct pid *pids[4]; /* since 4.19 */
};

struct kernfs_node {
	u64 id; /* since 5.5 */
	const char *name;
	struct kernfs_node *__parent; /* since 6.15 */
};

struct kernfs_node___before_6_15 {
	struct kernfs_node *parent;
};

struct cgroup;
struct cgroup_root;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct mm_struct;

struct task_struct___process {
	unsigned int __state; /* since 5.14 */
	int pid, tgid, exit_code;
	u64 start_boottime; /* since 5.5 */
	char comm[16];
	struct task_struct___process *real_parent, *group_leader;
	struct signal_struct *signal;
	struct css_set *cgroups;
	struct mm_struct *mm;
};

struct task_struct___before_5_14 {
	long state;
};

#pragma clang attribute pop

#define task task_struct___process

#define PIDTYPE_TGID 1
#define PID_LEVELS 33 /* MAX_PID_NS_LEVEL and the first */

/* The inode of the PID namespace whose numbers the agent uses; 0: the first
 * one, whose numbers the kernel has at hand. */
const volatile __u32 pid_namespace = 0;

/* The number of a task's process where the agent looks from, or 0 when it
 * has none there. */
static __always_inline __s32 visible_tgid(struct task *p)
{
	struct pid *pid;
	__u32 level, i;

	if (!pid_namespace)
		return BPF_CORE_READ(p, tgid);
	pid = BPF_CORE_READ(p, signal, pids[PIDTYPE_TGID]);
	if (!pid)
		return 0;
	level = BPF_CORE_READ(pid, level);
	for (i = 0; i < PID_LEVELS && i <= level; i++) {
		const void *number = (void *)pid + bpf_core_field_offset(struct pid, numbers) + i * bpf_core_type_size(struct upid);
		const void *ns;

		if (bpf_probe_read_kernel(&ns, sizeof(ns), number + bpf_core_field_offset(struct upid, ns)) || !ns)
			return 0;
		if (BPF_CORE_READ((struct pid_namespace *)ns, ns.inum) == pid_namespace) {
			__s32 nr;

			bpf_probe_read_kernel(&nr, sizeof(nr), number + bpf_core_field_offset(struct upid, nr));
			return nr;
		}
	}
	return 0;
}

#endif
