//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Crashes and out-of-memory kills, told as they happen, and which processes
 * run a program that was started lately. Crashes come in storms: a few
 * records a second pass, the rest is counted as lost.
 */
#include "kernel.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#ifndef BPF_MAP_TYPE_RINGBUF
#define BPF_MAP_TYPE_RINGBUF 27
#endif
#ifndef BPF_RB_NO_WAKEUP
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#endif

#define SECOND 1000000000ULL
#define AT_ONCE 8 /* records of a second that wake the reader; others wait for its next look */
#define SIGNAL_GROUP_EXIT 4
#define EXE_PARTS 12
#define EXE_PART 48
#define CGROUP_PARTS 8
#define CGROUP_PART 96

enum kind { CRASH = 1, OOM = 2 };

/* SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS */
#define CRASH_SIGNALS (1U << 4 | 1U << 5 | 1U << 6 | 1U << 7 | 1U << 8 | 1U << 11 | 1U << 31)

/* How many records may pass in a second. */
const volatile __u64 records_a_second = 100;
/* For tests: when not 0, only the children of this process. */
const volatile __s32 only_parent = 0;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

union __sifields {
	struct {
		void *_addr;
	} _sigfault;
};

struct kernel_siginfo {
	int si_signo, si_code;
	union __sifields _sifields;
};

struct sigaction {
	void *sa_handler;
};

struct k_sigaction {
	struct sigaction sa;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct path f_path;
};

struct mm_struct {
	struct file *exe_file;
};

typedef struct {
	long counter;
} atomic_long_t;

struct page_counter {
	atomic_long_t usage;
	unsigned long max;
	struct page_counter *parent;
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct page_counter memory;
};

enum cgroup_subsys_id {
	memory_cgrp_id = 4,
};

#pragma clang attribute pop

/* Names from the file up to the root, or to where there is no more room. */
struct exe_path {
	__u32 parts, cut;
	__u8 part[EXE_PARTS][EXE_PART];
};

struct event {
	__u64 at;    /* boot time in ns, as start */
	__u64 start;
	__u64 address;
	__u64 limit, usage; /* pages; limit ~0: none */
	__s32 pid, ppid;
	__u32 kind;
	__u32 code; /* exit code as the parent is told */
	__s32 si_code;
	__u32 has_info; /* si_code and address are known */
	__u32 cgroup_parts, cgroup_cut;
	__u8 comm[16];
	struct exe_path exe;
	__u8 cgroup[CGROUP_PARTS][CGROUP_PART];
};

const struct event *unused_event __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
} events SEC(".maps");

struct gate {
	__u64 window; /* when the present second began */
	__u64 passed; /* in it */
	__u64 crashes; /* all that were seen */
	__u64 ooms;
	__u64 lost; /* of both: no record, for the rate or for room */
	__u64 fresh_lost; /* programs started for which fresh had no room */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gate);
} gates SEC(".maps");

/* What the kernel said with the signal that a process is about to die of. */
struct fatal {
	__u64 start, address;
	__s32 signal, si_code;
	struct exe_path exe; /* before 6.16 the file is gone when it exits */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct fatal);
} fatal SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fatal);
} blank_fatal SEC(".maps");

/* Processes whose program was started lately, and their children. The other
 * side takes out what has lived long enough, exits take out the rest. */
struct fresh_process {
	__u64 since; /* boot time in ns */
	__u64 start;
	__s32 pid;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct fresh_process);
} fresh SEC(".maps");

static __always_inline struct gate *the_gate(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gates, &zero);
}

static __always_inline bool counted(struct task *p)
{
	return !only_parent || BPF_CORE_READ(p, real_parent, tgid) == only_parent;
}

static __always_inline void name_exe(struct exe_path *to, struct task *p)
{
	struct file *f = BPF_CORE_READ(p, mm, exe_file);
	struct vfsmount *mnt = BPF_CORE_READ(f, f_path.mnt);
	struct dentry *d = BPF_CORE_READ(f, f_path.dentry);
	struct mount *m = (void *)mnt - bpf_core_field_offset(struct mount, mnt);
	__u32 n = 0, i;

	to->parts = 0;
	to->cut = 0;
	if (!f)
		return;
	/* A file system mounted below another takes a step without a name. */
	for (i = 0; i < EXE_PARTS + 6; i++) {
		struct dentry *parent = BPF_CORE_READ(d, d_parent);
		long len;

		if (d == BPF_CORE_READ(m, mnt.mnt_root) || d == parent || !parent) {
			struct mount *below = BPF_CORE_READ(m, mnt_parent);

			if (!below || below == m) {
				to->parts = n;
				return;
			}
			d = BPF_CORE_READ(m, mnt_mountpoint);
			m = below;
			continue;
		}
		if (n >= EXE_PARTS)
			break;
		len = bpf_probe_read_kernel_str(to->part[n], EXE_PART, BPF_CORE_READ(d, d_name.name));
		if (len < 0)
			to->part[n][0] = 0;
		if (len >= EXE_PART)
			to->cut = 1;
		n++;
		d = parent;
	}
	to->parts = n;
	to->cut = 1;
}

static __always_inline void name_cgroup(struct event *e, struct cgroup *cg)
{
	struct kernfs_node *kn = BPF_CORE_READ(cg, kn), *parent;
	__u32 n;

	e->cgroup_cut = 0;
	for (n = 0; n < CGROUP_PARTS && kn; n++) {
		if (bpf_core_field_exists(struct kernfs_node, __parent))
			parent = BPF_CORE_READ(kn, __parent);
		else
			parent = BPF_CORE_READ((struct kernfs_node___before_6_15 *)kn, parent);
		if (!parent) {
			e->cgroup_parts = n;
			return; /* the root has no name */
		}
		if (bpf_probe_read_kernel_str(e->cgroup[n], CGROUP_PART, BPF_CORE_READ(kn, name)) >= CGROUP_PART)
			e->cgroup_cut = 1;
		kn = parent;
	}
	e->cgroup_parts = n;
	if (kn)
		e->cgroup_cut = 1;
}

/* The group that limits a process's memory; on version 1 that is another one
 * than version 2's, which names it where memory has none. */
static __always_inline void in_cgroup(struct event *e, struct task *p)
{
	struct css_set *set = BPF_CORE_READ(p, cgroups);
	struct cgroup *cg = BPF_CORE_READ(set, dfl_cgrp), *memory;
	struct cgroup_subsys_state *css = 0;
	struct page_counter *counter;
	__u32 i;

	e->limit = ~0ULL;
	e->usage = 0;
	if (bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id)) {
		__u32 at = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);

		bpf_probe_read_kernel(&css, sizeof(css), (void *)set + bpf_core_field_offset(struct css_set, subsys) + at * sizeof(css));
	}
	if (css) {
		memory = BPF_CORE_READ(css, cgroup);
		if (BPF_CORE_READ(memory, root) != BPF_CORE_READ(cg, root) && BPF_CORE_READ(memory, self.parent))
			cg = memory;
		/* The nearest limit upwards that is reached, else the nearest. */
		counter = (void *)css - bpf_core_field_offset(struct mem_cgroup, css) + bpf_core_field_offset(struct mem_cgroup, memory);
		for (i = 0; i < CGROUP_PARTS && counter; i++) {
			__u64 max = BPF_CORE_READ(counter, max), usage = BPF_CORE_READ(counter, usage.counter);

			if (max < ~0ULL >> 13 && (e->limit == ~0ULL || usage + 64 >= max)) {
				e->limit = max;
				e->usage = usage;
				if (usage + 64 >= max)
					break;
			}
			counter = BPF_CORE_READ(counter, parent);
		}
	}
	name_cgroup(e, cg);
}

/* Lets a record through, or counts it as lost. The second is the machine's:
 * two CPUs that begin it at once let a few more pass. */
static __always_inline struct event *let_through(struct gate *g, __u32 kind, __u64 now, __u64 *flags)
{
	__u64 nth;
	struct event *e;

	if (now - g->window >= SECOND) {
		g->window = now;
		g->passed = 0;
	}
	nth = __sync_fetch_and_add(&g->passed, 1);
	if (nth >= records_a_second && kind == CRASH) /* a storm of crashes does not hide a kill */
		goto lost;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		goto lost;
	*flags = nth < AT_ONCE ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	return e;
lost:
	__sync_fetch_and_add(&g->lost, 1);
	return 0;
}

static __always_inline void fill(struct event *e, struct task *p, __u32 kind, __u64 now, __u32 code)
{
	struct task *leader = BPF_CORE_READ(p, group_leader);
	__u32 tgid = BPF_CORE_READ(p, tgid);
	struct fatal *f;

	e->at = now;
	e->start = BPF_CORE_READ(leader, start_boottime);
	e->kind = kind;
	e->code = code;
	e->pid = visible_tgid(p);
	e->ppid = visible_tgid(BPF_CORE_READ(p, real_parent));
	BPF_CORE_READ_STR_INTO(&e->comm, leader, comm);
	e->si_code = 0;
	e->address = 0;
	e->has_info = 0;
	f = kind == CRASH ? bpf_map_lookup_elem(&fatal, &tgid) : 0;
	if (f && f->start == e->start) {
		if (f->signal == (code & 0x7f)) {
			e->has_info = 1;
			e->si_code = f->si_code;
			e->address = f->address;
		}
		bpf_probe_read_kernel(&e->exe, sizeof(e->exe), &f->exe);
	} else {
		name_exe(&e->exe, p);
	}
	in_cgroup(e, p);
}

/* A signal is about to do its default, which is the end for these. Handlers
 * (of a virtual machine's null checks, say) and what a debugger takes away
 * do not come here. */
SEC("tp_btf/signal_deliver")
int BPF_PROG(on_signal, int sig, struct kernel_siginfo *info, struct k_sigaction *action)
{
	struct task *p;
	__u32 tgid;
	struct fatal *f;

	if (sig < 1 || sig > 31 || !(CRASH_SIGNALS & 1U << sig) || BPF_CORE_READ(action, sa.sa_handler))
		return 0;
	p = (void *)bpf_get_current_task();
	tgid = BPF_CORE_READ(p, tgid);
	/* The value is too large for the stack: make room first, fill it then. */
	f = bpf_map_lookup_elem(&fatal, &tgid);
	if (!f) {
		__u32 nought = 0;
		void *blank = bpf_map_lookup_elem(&blank_fatal, &nought);

		if (!blank || bpf_map_update_elem(&fatal, &tgid, blank, BPF_ANY))
			return 0;
		f = bpf_map_lookup_elem(&fatal, &tgid);
		if (!f)
			return 0;
	}
	f->start = BPF_CORE_READ(p, group_leader, start_boottime);
	f->signal = sig;
	f->si_code = 0;
	f->address = 0;
	if (info) {
		f->si_code = BPF_CORE_READ(info, si_code);
		if (f->si_code > 0)
			f->address = (__u64)BPF_CORE_READ(info, _sifields._sigfault._addr);
	}
	name_exe(&f->exe, p);
	return 0;
}

static __always_inline void ended(struct task *p)
{
	__u32 tgid = BPF_CORE_READ(p, tgid), code;
	struct gate *g;
	struct event *e;
	__u64 flags, now;

	bpf_map_delete_elem(&fresh, &tgid);
	if (BPF_CORE_READ(p, signal, flags) & SIGNAL_GROUP_EXIT)
		code = BPF_CORE_READ(p, signal, group_exit_code);
	else
		code = BPF_CORE_READ(p, group_leader, exit_code);
	if (!(CRASH_SIGNALS & 1U << (code & 0x1f)) || (code & 0x60) || !(code & 0x7f) || !counted(p))
		return;
	g = the_gate();
	if (!g)
		return;
	__sync_fetch_and_add(&g->crashes, 1);
	now = bpf_ktime_get_boot_ns();
	e = let_through(g, CRASH, now, &flags);
	if (!e)
		return;
	fill(e, p, CRASH, now, code);
	bpf_ringbuf_submit(e, flags);
}

/* The kernel says whether this was the last thread (since 6.16). */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_end, struct task *p, bool group_dead)
{
	if (group_dead)
		ended(p);
	return 0;
}

/* For kernels whose tracepoint has the task alone; see process.bpf.c. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_end_live, struct task *p)
{
	if (BPF_CORE_READ(p, signal, live.counter) == 0)
		ended(p);
	return 0;
}

/* The argument was a bare pid before 6.8: there this does not load. */
SEC("tp_btf/mark_victim")
int BPF_PROG(on_victim, struct task *victim)
{
	struct gate *g = the_gate();
	struct event *e;
	__u64 flags, now;

	if (!g || !counted(victim))
		return 0;
	__sync_fetch_and_add(&g->ooms, 1);
	now = bpf_ktime_get_boot_ns();
	e = let_through(g, OOM, now, &flags);
	if (!e)
		return 0;
	fill(e, victim, OOM, now, 0);
	bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline void is_fresh(struct task *p)
{
	__u32 tgid = BPF_CORE_READ(p, tgid);
	struct fresh_process f = {};
	struct gate *g;

	f.since = bpf_ktime_get_boot_ns();
	f.start = BPF_CORE_READ(p, group_leader, start_boottime);
	f.pid = visible_tgid(p);
	if (!f.pid || !bpf_map_update_elem(&fresh, &tgid, &f, BPF_ANY))
		return;
	g = the_gate();
	if (g)
		__sync_fetch_and_add(&g->fresh_lost, 1);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_program, struct task *p)
{
	if (counted(p))
		is_fresh(p);
	return 0;
}

/* A daemon starts its program and lives on as a child. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_child, struct task *parent, struct task *child)
{
	__u32 tgid = BPF_CORE_READ(parent, tgid);

	if (BPF_CORE_READ(child, pid) == BPF_CORE_READ(child, tgid) && bpf_map_lookup_elem(&fresh, &tgid))
		is_fresh(child);
	return 0;
}

/* For tests alone, which run it themselves: the caller's crash without its
 * end. */
SEC("syscall")
int flood(void *ctx)
{
	struct gate *g = the_gate();
	__u64 flags, now = bpf_ktime_get_boot_ns();
	struct event *e;

	if (!g)
		return 0;
	__sync_fetch_and_add(&g->crashes, 1);
	e = let_through(g, CRASH, now, &flags);
	if (!e)
		return 0;
	fill(e, (void *)bpf_get_current_task(), CRASH, now, 11);
	bpf_ringbuf_submit(e, flags);
	return 0;
}
