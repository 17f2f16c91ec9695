//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * On-CPU profile of one process or of groups: a perf event on every CPU runs
 * take_sample; samples of the target are counted by process and stack, and
 * each stack is kept once. Loaded for the length of one task.
 */
#include "kernel.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define DEPTH 127 /* kernel.perf_event_max_stack as it is by default */
#define GROUPS 4
#define PARENTS 32 /* a group deeper than this is not found from below */
#define NO_STACK 0
#define LOST_STACK 1 /* there was no room for it */
#define USER_STACK (1ULL << 8) /* BPF_F_USER_STACK */

/* The target: one process, or the groups, of which one is enough. */
const volatile __s32 only_tgid = 0;
const volatile __u64 only_start = 0; /* its start in clock ticks, 0: unknown */
const volatile __u32 groups = 0;
const volatile __u64 group_id[GROUPS] = {};
const volatile __s32 group_subsys[GROUPS] = {}; /* index into css_set.subsys; -1: version 2 */

/* A process that starts another program gets another stack: where it begins
 * tells the programs of one process apart, here and in /proc. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct mm_struct {
	unsigned long start_stack;
};

#pragma clang attribute pop

struct sample_key {
	__u64 start; /* of the process, boot time in ns */
	__u64 program;
	__u64 kernel, user; /* keys of stacks */
	__s32 tgid;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct sample_key);
	__type(value, __u64);
} counts SEC(".maps");

struct stack {
	__u32 depth;
	__u32 pad;
	__u64 ip[DEPTH]; /* innermost first */
};

/* A stack map proper would lose a stack whenever two of them hash alike;
 * here the whole 64-bit hash is the key. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct stack);
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack);
} scratch SEC(".maps");

/* The processes seen, so that the other side can look at them while they
 * live. */
struct process_key {
	__u64 start;
	__u64 program;
	__s32 tgid;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct process_key);
	__type(value, __u64);
} seen SEC(".maps");

struct profile_totals {
	__u64 runs;    /* samples of whatever ran, idle CPUs among it */
	__u64 samples; /* of the target */
	__u64 kernel;  /* of them in the kernel */
	__u64 left_out; /* of them not in counts: no room */
	__u64 stacks_lost; /* samples of which a stack had no room */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct profile_totals);
} profile_totals SEC(".maps");

static __always_inline bool in_group(struct task *p, __u64 id, __s32 subsys)
{
	struct css_set *set = BPF_CORE_READ(p, cgroups);
	struct cgroup_subsys_state *css;
	struct cgroup *cg;
	int i;

	if (subsys < 0) {
		cg = BPF_CORE_READ(set, dfl_cgrp);
	} else {
		if (bpf_probe_read_kernel(&css, sizeof(css), (void *)set + bpf_core_field_offset(struct css_set, subsys) + subsys * sizeof(css)))
			return false;
		cg = BPF_CORE_READ(css, cgroup);
	}
	for (i = 0; i < PARENTS && cg; i++) {
		if (BPF_CORE_READ(cg, kn, id) == id)
			return true;
		css = BPF_CORE_READ(cg, self.parent);
		cg = css ? BPF_CORE_READ(css, cgroup) : 0;
	}
	return false;
}

static __always_inline bool is_target(struct task *p, __s32 tgid, __u64 start)
{
	__u32 i;

	if (only_tgid)
		return tgid == only_tgid && (!only_start || start / 10000000 == only_start);
	for (i = 0; i < GROUPS; i++) {
		if (i < groups && in_group(p, group_id[i], group_subsys[i]))
			return true;
	}
	return false;
}

/* Keeps a stack and returns its key. */
static __always_inline __u64 keep_stack(void *ctx, __u64 flags)
{
	__u32 zero = 0;
	struct stack *s = bpf_map_lookup_elem(&scratch, &zero);
	__u64 hash = 0xcbf29ce484222325ULL;
	long size;
	__u32 i;

	if (!s)
		return LOST_STACK;
	size = bpf_get_stack(ctx, s->ip, sizeof(s->ip), flags);
	if (size <= 0)
		return NO_STACK;
	s->depth = (__u32)size / sizeof(__u64);
	for (i = 0; i < DEPTH; i++) {
		if (i >= s->depth)
			break;
		hash = (hash ^ s->ip[i]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	if (hash <= LOST_STACK)
		hash += 2;
	/* What lies behind the depth is the last stack's and means nothing. */
	if (!bpf_map_lookup_elem(&stacks, &hash) && bpf_map_update_elem(&stacks, &hash, s, BPF_ANY))
		return LOST_STACK;
	return hash;
}

SEC("perf_event")
int take_sample(void *ctx)
{
	struct task *p = (void *)bpf_get_current_task();
	struct profile_totals *t;
	struct sample_key key = {};
	struct process_key who = {};
	__u64 one = 1, *n;
	__u32 zero = 0;

	t = bpf_map_lookup_elem(&profile_totals, &zero);
	if (!t)
		return 0;
	t->runs++;
	if (!(__u32)bpf_get_current_pid_tgid())
		return 0; /* idle */
	key.tgid = visible_tgid(p);
	key.start = BPF_CORE_READ(p, group_leader, start_boottime);
	key.program = BPF_CORE_READ(p, mm, start_stack);
	if (!is_target(p, key.tgid, key.start))
		return 0;
	t->samples++;
	key.kernel = keep_stack(ctx, 0);
	key.user = keep_stack(ctx, USER_STACK);
	if (key.kernel != NO_STACK)
		t->kernel++;
	if (key.kernel == LOST_STACK || key.user == LOST_STACK)
		t->stacks_lost++;
	n = bpf_map_lookup_elem(&counts, &key);
	if (n) {
		__sync_fetch_and_add(n, 1);
		return 0;
	}
	/* Another CPU may have been first. */
	if (bpf_map_update_elem(&counts, &key, &one, BPF_NOEXIST)) {
		n = bpf_map_lookup_elem(&counts, &key);
		if (n)
			__sync_fetch_and_add(n, 1);
		else
			t->left_out++;
	}
	who.start = key.start;
	who.program = key.program;
	who.tgid = key.tgid;
	bpf_map_update_elem(&seen, &who, &one, BPF_NOEXIST);
	return 0;
}
