//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Life and waiting of processes: time from runnable to running, forks, execs,
 * exits by cause, OOM kills. Nothing here leaves the kernel as a record;
 * every program adds to one per-CPU struct.
 */
#include "kernel.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define BUCKETS 40 /* the last one holds everything from 2^39 ns, 9 minutes, on */
#define SIGNALS 128
#define SIGNAL_GROUP_EXIT 4 /* include/linux/sched/signal.h, unchanged since 2.6 */

/* For tests: when not 0, only the children of this process are counted. It is
 * a constant to the verifier, which drops the test for 0 from the programs. */
const volatile __s32 only_parent = 0;

struct totals {
	__u64 forks, threads, execs, exits, failed, oom_kills;
	__u64 lost; /* waits without a start because task storage gave no room */
	__u64 wait_sum;
	__u64 wait[BUCKETS];
	__u64 by_signal[SIGNALS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

/* When a task became runnable, or 0 while it runs or sleeps. It goes away
 * with the task, so nothing has to bound or clean it. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} runnable_since SEC(".maps");

static __always_inline struct totals *totals_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline bool counted(struct task *p)
{
	return !only_parent || p->real_parent->tgid == only_parent;
}

static __always_inline __u32 log2(__u64 v)
{
	__u32 r = 0;

	if (v >> 32) { v >>= 32; r += 32; }
	if (v >> 16) { v >>= 16; r += 16; }
	if (v >> 8) { v >>= 8; r += 8; }
	if (v >> 4) { v >>= 4; r += 4; }
	if (v >> 2) { v >>= 2; r += 2; }
	return r + (v >> 1);
}

static __always_inline void now_runnable(struct task *p, __u64 now)
{
	__u64 *since = bpf_task_storage_get(&runnable_since, (void *)p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct totals *t;

	if (since) {
		*since = now;
		return;
	}
	t = totals_here();
	if (t)
		t->lost++;
}

static __always_inline bool still_runnable(struct task *p)
{
	if (bpf_core_field_exists(struct task, __state))
		return p->__state == 0;
	return ((struct task_struct___before_5_14 *)p)->state == 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task *p)
{
	now_runnable(p, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task *p)
{
	now_runnable(p, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task *prev, struct task *next)
{
	/* A preempted task stays on the queue even if it was about to sleep. The
	 * idle task, pid 0, never waits; a switch to it from a task that sleeps is
	 * the most frequent one on a quiet machine and needs no clock. */
	bool prev_waits = (preempt || still_runnable(prev)) && prev->pid;
	__u64 now, waited, *since;
	struct totals *t;
	__u32 bucket;

	if (!prev_waits && !next->pid)
		return 0;
	now = bpf_ktime_get_ns();
	if (prev_waits)
		now_runnable(prev, now);
	if (!next->pid)
		return 0;
	since = bpf_task_storage_get(&runnable_since, (void *)next, 0, 0);
	if (!since || !*since)
		return 0;
	waited = now - *since;
	*since = 0;
	if (!counted(next))
		return 0;
	t = totals_here();
	if (!t)
		return 0;
	bucket = log2(waited);
	if (bucket >= BUCKETS)
		bucket = BUCKETS - 1;
	t->wait_sum += waited;
	t->wait[bucket]++;
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task *parent, struct task *child)
{
	struct totals *t = totals_here();

	if (!t || !counted(child))
		return 0;
	if (child->pid == child->tgid)
		t->forks++;
	else
		t->threads++;
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task *p)
{
	struct totals *t = totals_here();

	if (t && counted(p))
		t->execs++;
	return 0;
}

/* Called once for each process, when its last thread ends. What the parent
 * will be told (wait_task_zombie) is the group's code if there is one, else
 * that of the first thread. */
static __always_inline void process_ended(struct task *p)
{
	struct totals *t = totals_here();
	__u32 code;

	if (!t || !counted(p))
		return;
	if (p->signal->flags & SIGNAL_GROUP_EXIT)
		code = p->signal->group_exit_code;
	else
		code = p->group_leader->exit_code;
	t->exits++;
	if (code & 0x7f)
		t->by_signal[code & 0x7f]++;
	else if (code & 0xff00)
		t->failed++;
}

/* The kernel says whether this was the last thread (since 6.16). */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task *p, bool group_dead)
{
	if (group_dead)
		process_ended(p);
	return 0;
}

/* For kernels whose tracepoint has the task alone. Two last threads that end
 * at the same moment may both see no one left; the first thread's end is then
 * counted twice, which those kernels give no means to tell apart. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit_live, struct task *p)
{
	if (p->signal->live.counter == 0)
		process_ended(p);
	return 0;
}

/* The argument was a bare pid before 6.8: only a test looks at it. */
SEC("tp_btf/mark_victim")
int BPF_PROG(on_oom_kill, struct task *victim)
{
	struct totals *t = totals_here();

	if (t && counted(victim))
		t->oom_kills++;
	return 0;
}
