/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Who owns a socket. The current task says so in system calls alone, so that
 * it is asked there and remembered: when it connects, listens, sends or
 * receives. Sockets that were there before are found in the processes' open
 * files. In softirq the owner is looked up, never guessed from the current
 * task; a connection that nobody has touched yet is its listener's.
 */
#ifndef TELLTALE_OWNERS_H
#define TELLTALE_OWNERS_H

#include "task.h"

struct owner {
	u64 start;   /* clock ticks since boot; with pid it names the process */
	u64 cgroup1; /* group by the controller name_index */
	u32 pid;
	u8 inside; /* the wanted group of version 1 */
	u8 heir;   /* of the listener */
	u8 pad[2];
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64); /* socket cookie, never used twice */
	__type(value, struct owner);
} owners SEC(".maps");

struct port_key {
	u32 netns;
	u32 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct port_key);
	__type(value, struct owner);
} listeners SEC(".maps");

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct socket {
	struct sock *sk;
};

struct file;

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	u64 seq_num;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

#pragma clang attribute pop

/* What lies deeper than this below the wanted group is not found in it. */
#define MAX_DEPTH 16

static __noinline bool below(struct cgroup *c, u64 want)
{
	for (int i = 0; i < MAX_DEPTH; i++) {
		if (!c)
			return false;
		if (BPF_CORE_READ(c, kn, id) == want)
			return true;
		struct cgroup_subsys_state *up = BPF_CORE_READ(c, self.parent);
		if (!up)
			return false;
		c = BPF_CORE_READ(up, cgroup);
	}
	return false;
}

static __always_inline struct cgroup *cgroup1_of(struct task_struct___task *task, u32 index)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *css = 0;

	if (index >= 64)
		return 0;
	bpf_probe_read_kernel(&css, sizeof(css), (void *)set + bpf_core_field_offset(struct css_set, subsys) + index * 8);
	return css ? BPF_CORE_READ(css, cgroup) : 0;
}

/* pid_of is the process id as the agent sees it; 0: not at all. */
static __always_inline u32 pid_of(struct task_struct___task *leader)
{
	struct pid *p = BPF_CORE_READ(leader, thread_pid);
	u32 level = BPF_CORE_READ(p, level);

	for (u32 i = 0; i < 8; i++) {
		struct upid *u = (void *)p + bpf_core_field_offset(struct pid, numbers) + i * bpf_core_type_size(struct upid);
		if (i > level)
			break;
		if (BPF_CORE_READ(u, ns, ns.inum) == own_pidns)
			return BPF_CORE_READ(u, nr);
	}
	return 0;
}

static __noinline int describe(struct task_struct *t, struct owner *o)
{
	struct task_struct___task *task = (void *)t;
	struct task_struct___task *leader;

	if (!task || !o || BPF_CORE_READ(task, flags) & PF_KTHREAD)
		return -1;
	leader = BPF_CORE_READ(task, group_leader);
	o->pid = pid_of(leader);
	if (!o->pid)
		return -1;
	o->start = BPF_CORE_READ(leader, start_boottime) / 10000000;
	bpf_core_read(o->comm, sizeof(o->comm), &leader->comm);
	struct cgroup *c = cgroup1_of(task, name_index);
	if (c)
		o->cgroup1 = BPF_CORE_READ(c, kn, id);
	if (want_cgroup1) {
		c = cgroup1_of(task, cgroup1_index);
		o->inside = c && below(c, want_cgroup1);
	}
	return 0;
}

/* The maps forget the least used entry when they are full, and the kernel does
 * not count it: what was taken in is counted here. An update takes the room of
 * an entry even when it then finds that it is not to add one, so that it is
 * asked first. */
static __always_inline void own(u64 cookie, const struct owner *o, bool replace)
{
	if (!bpf_map_lookup_elem(&owners, &cookie) && !bpf_map_update_elem(&owners, &cookie, o, BPF_NOEXIST))
		count(OWNERS_MADE, 1);
	else if (replace)
		bpf_map_update_elem(&owners, &cookie, o, BPF_ANY);
}

static __always_inline void hears(const struct port_key *k, const struct owner *o)
{
	if (!bpf_map_lookup_elem(&listeners, k) && !bpf_map_update_elem(&listeners, k, o, BPF_NOEXIST))
		count(LISTENERS_MADE, 1);
	else
		bpf_map_update_elem(&listeners, k, o, BPF_ANY);
}

static __always_inline void remember(struct sock *sk, u64 cookie, struct task_struct *task, bool replace)
{
	struct owner o = {}, *known;
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

	if (!cookie || (family != AF_INET && family != AF_INET6))
		return;
	known = bpf_map_lookup_elem(&owners, &cookie);
	if (known && !known->heir && !replace)
		return;
	if (describe(task, &o))
		return;
	own(cookie, &o, true);
	if (BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_state) == TCP_LISTEN) {
		struct port_key k = { netns_of_sock(sk), BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_num) };
		hears(&k, &o);
	}
}

SEC("iter/task_file")
int own_files(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct task_struct *task = ctx->task;
	struct socket *s;
	struct sock *sk;

	if (!file || !task)
		return 0;
	s = bpf_sock_from_file(file);
	if (!s)
		return 0;
	sk = s->sk;
	if (!sk)
		return 0;
	u16 family = sk->__sk_common.skc_family;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	remember(sk, bpf_get_socket_cookie(sk), task, false);
	return 0;
}

static __always_inline void used(struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	if (family == AF_INET || family == AF_INET6)
		remember(sk, bpf_get_socket_cookie(sk), bpf_get_current_task_btf(), false);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(own_send, struct sock *sk)
{
	used(sk);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(own_recv, struct sock *sk)
{
	used(sk);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(own_state, struct sock *sk, int from, int to)
{
	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (from == TCP_CLOSE && to == TCP_SYN_SENT) {
		/* connect(): a system call, or a kernel thread that is passed over. */
		remember(sk, bpf_get_socket_cookie(sk), bpf_get_current_task_btf(), true);
	} else if (to == TCP_LISTEN) {
		struct owner o = {};
		struct port_key k = { netns_of_sock(sk), BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_num) };
		u64 cookie = bpf_get_socket_cookie(sk);
		if (describe(bpf_get_current_task_btf(), &o))
			return 0;
		own(cookie, &o, true);
		hears(&k, &o);
	} else if (from == TCP_SYN_RECV) {
		struct port_key k = { netns_of_sock(sk), BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_num) };
		struct owner *l = bpf_map_lookup_elem(&listeners, &k);
		u64 cookie = bpf_get_socket_cookie(sk);
		if (l) {
			struct owner o = *l;
			o.heir = 1;
			own(cookie, &o, false);
		}
	}
	return 0;
}

static __always_inline struct owner *owner_of(const struct sock *sk)
{
	u64 cookie = cookie_of(sk);

	return cookie ? bpf_map_lookup_elem(&owners, &cookie) : 0;
}

enum verdict { NO, YES, UNSURE };

/* sock_wanted applies the filters that only a socket can answer. sk may be
 * null: a packet without one. */
static __always_inline enum verdict sock_wanted(const struct sock *sk)
{
	struct owner *o = 0;

	if (!want_pid && !by_cgroup)
		return YES;
	if (!sk || !full(sk))
		return UNSURE;
	if (want_pid) {
		o = owner_of(sk);
		if (!o)
			return UNSURE;
		if (o->pid != want_pid || o->start != want_start)
			return NO;
	}
	if (!by_cgroup)
		return YES;
	if (want_cgroup2 && below(BPF_CORE_READ((struct sock___task *)sk, sk_cgrp_data.cgroup), want_cgroup2))
		return YES;
	if (!want_cgroup1)
		return NO;
	if (!o)
		o = owner_of(sk);
	if (!o)
		return UNSURE;
	return o->inside ? YES : NO;
}

#endif
