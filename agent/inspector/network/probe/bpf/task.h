/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * What the tasks' programs share: further members of the kernel's types, the
 * filters of a task, its counters and its ring.
 *
 * Counts are kept in the kernel and are complete; the ring carries single
 * events to look at, 1 in sample_rate and at most max_events.
 */
#ifndef TELLTALE_TASK_H
#define TELLTALE_TASK_H

#include "kernel.h"

#define BPF_MAP_TYPE_RINGBUF 27

#define AF_INET 2
#define AF_INET6 10
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define PF_KTHREAD 0x00200000
#define FIRST_NS_INODE 0xF0000000u

#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP_TIME_WAIT 6
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8
#define TCP_LISTEN 10
#define TCP_NEW_SYN_RECV 12

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	s64 counter;
} atomic64_t;

struct in6_addr {
	u32 w[4];
};

struct kernfs_node {
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1]; /* one for each controller */
	struct cgroup *dfl_cgrp;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1]; /* one for each level */
};

/* A suffix after three underscores is no part of the kernel's name. */
struct task_struct___task {
	struct task_struct___task *group_leader;
	struct css_set *cgroups;
	struct pid *thread_pid;
	unsigned int flags;
	u64 start_boottime;
	char comm[16];
};

struct sock_common___task {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	u32 skc_daddr, skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock___task {
	struct sock_common___task __sk_common;
	u16 sk_protocol;
	struct sock_cgroup_data sk_cgrp_data;
};

struct inet_sock {
	__be16 inet_sport;
};

struct tcp_sock___task {
	u64 bytes_received, bytes_acked;
	u32 srtt_us;   /* eighths of a microsecond */
	u32 mdev_us;   /* quarters of a microsecond; rttvar_us has a floor */
	u32 packets_out, snd_cwnd;
};

struct request_sock {
	struct sock_common___task __req_common;
};

struct sk_buff___task {
	int skb_iif;
	unsigned int len;
	__u16 transport_header;
};

#pragma clang attribute pop

/* The filters of the task. Zero values let everything pass. */
const volatile u32 only_netns = 0;
const volatile u32 want_family = 0; /* 4, 6 */
const volatile u32 want_addr[4] = {};
const volatile u32 want_port = 0;
const volatile u32 want_pid = 0;   /* as the agent's pid namespace counts */
const volatile u64 want_start = 0; /* of that process, in clock ticks since boot */
const volatile bool by_cgroup = false;
const volatile u64 want_cgroup2 = 0;
const volatile u64 want_cgroup1 = 0;
const volatile u32 cgroup1_index = 0; /* which controller want_cgroup1 is of */
const volatile u32 name_index = ~0u;  /* which controller names a process's group on version 1 */
const volatile u32 own_pidns = 0;     /* the agent's */

/* The bounds of the task. */
const volatile u32 sample_rate = 1;
const volatile u32 max_events = 200;
const volatile u64 event_budget = ~0ull; /* events of one CPU; beyond it the task ends */

/* Mirrored in taskcount.go. */
enum count {
	SEEN,      /* events that passed the hook while the task ran */
	MATCHED,   /* of them, those that the filters let pass */
	UNKNOWN,   /* whose socket has no known owner, and could be the target's */
	OVERFLOW,  /* whose group found no room */
	RING_LOST, /* samples that found no room */
	TRUNCATED, /* samples beyond max_events */
	SPENT,     /* CPUs that reached event_budget */
	OWNERS_MADE,	/* entries that the maps of owners, listeners and connections */
	LISTENERS_MADE, /* took in, less those that were taken out: what is no more */
	CONNS_MADE,	/* there of them was forgotten for want of room */
	TASK_COUNTS, /* the task's own counters begin here */
	COUNTS = TASK_COUNTS + 16,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

/* Slot 0 is 1 while the task runs; 1 and 2 count samples. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, u32);
	__type(value, u64);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 10);
} ring SEC(".maps");

static __always_inline void count(u32 which, u64 n)
{
	u64 *v = bpf_map_lookup_elem(&counts, &which);
	if (v)
		__sync_fetch_and_add(v, n); /* programs share slots */
}

/* running says whether the task counts now, and spends one event of it. */
static __always_inline bool running(void)
{
	u32 armed = 0, seen = SEEN;
	u64 *on = bpf_map_lookup_elem(&control, &armed);
	u64 *n = bpf_map_lookup_elem(&counts, &seen);

	if (!on || !*on || !n)
		return false;
	if (*n >= event_budget) {
		if (*n == event_budget)
			count(SPENT, 1);
		return false;
	}
	__sync_fetch_and_add(n, 1);
	return true;
}

/* sampled says whether this event is one of those to look at. */
static __always_inline bool sampled(void)
{
	u32 nth = 1, taken = 2;
	u64 *n = bpf_map_lookup_elem(&control, &nth);
	u64 *t = bpf_map_lookup_elem(&control, &taken);

	count(MATCHED, 1);
	if (!n || !t || __sync_fetch_and_add(n, 1) % sample_rate)
		return false;
	if (__sync_fetch_and_add(t, 1) < max_events)
		return true;
	count(TRUNCATED, 1);
	return false;
}

/* A packet's or connection's ends. For a packet a is the source, for a
 * connection the local end. */
struct tuple {
	u32 a[4], b[4]; /* network order; IPv4 in the first word */
	u16 aport, bport;
	u8 family; /* 4, 6, or 0 where there is none */
	u8 proto;
	u16 ether;
};

static __always_inline bool same_addr(const u32 *a)
{
	return a[0] == want_addr[0] && a[1] == want_addr[1] && a[2] == want_addr[2] && a[3] == want_addr[3];
}

static __always_inline bool tuple_wanted(const struct tuple *t)
{
	if (want_family && (t->family != want_family || (!same_addr(t->a) && !same_addr(t->b))))
		return false;
	return !want_port || t->aport == want_port || t->bport == want_port;
}

static __always_inline void unmap(struct tuple *t)
{
	u32 mapped = __builtin_bswap32(0xffff);

	if (t->a[0] | t->a[1] | t->b[0] | t->b[1] || t->a[2] != mapped || t->b[2] != mapped)
		return;
	t->family = 4;
	t->a[0] = t->a[3];
	t->b[0] = t->b[3];
	t->a[2] = t->a[3] = t->b[2] = t->b[3] = 0;
}

static __always_inline void tuple_of_common(const struct sock_common___task *c, struct tuple *t)
{
	u16 family = BPF_CORE_READ(c, skc_family);

	t->aport = BPF_CORE_READ(c, skc_num);
	t->bport = __builtin_bswap16(BPF_CORE_READ(c, skc_dport));
	if (family == AF_INET) {
		t->family = 4;
		t->a[0] = BPF_CORE_READ(c, skc_rcv_saddr);
		t->b[0] = BPF_CORE_READ(c, skc_daddr);
	} else if (family == AF_INET6) {
		t->family = 6;
		bpf_core_read(t->a, 16, &c->skc_v6_rcv_saddr);
		bpf_core_read(t->b, 16, &c->skc_v6_daddr);
		unmap(t);
	}
}

static __always_inline bool full(const struct sock *sk)
{
	u8 state = BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_state);
	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
}

static __always_inline void tuple_of_sock(const struct sock *sk, struct tuple *t)
{
	tuple_of_common(&((struct sock___task *)sk)->__sk_common, t);
	t->ether = t->family == 4 ? ETH_P_IP : ETH_P_IPV6;
	if (!full(sk)) {
		t->proto = IPPROTO_TCP;
		return;
	}
	t->proto = BPF_CORE_READ(sk, sk_protocol);
	/* What is closed has given its port back, but remembers it here. */
	u16 port = __builtin_bswap16(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
	if (port)
		t->aport = port;
}

static __always_inline u32 netns_of_sock(const struct sock *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
}

static __always_inline u64 cookie_of(const struct sock *sk)
{
	return BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_cookie.counter);
}

static __always_inline u64 cgroup2_of(const struct sock *sk)
{
	struct sock___task *s = (void *)sk;

	if (!bpf_core_field_exists(s->sk_cgrp_data.cgroup))
		return 0;
	return BPF_CORE_READ(s, sk_cgrp_data.cgroup, kn, id);
}

/* parse_at reads a packet's headers as far as they are there; the network
 * header begins at an offset from head. */
static __always_inline void parse_at(const struct sk_buff *skb, u32 at, struct tuple *t)
{
	unsigned char *head = BPF_CORE_READ(skb, head);
	u32 end = BPF_CORE_READ(skb, end); /* an offset where pointers have 64 bits */
	u8 h[40] = {};
	u32 l4;

	t->ether = __builtin_bswap16(BPF_CORE_READ(skb, protocol));
	if (at >= end)
		return;
	if (t->ether == ETH_P_IP) {
		if (bpf_probe_read_kernel(h, 20, head + at) || h[0] >> 4 != 4)
			return;
		t->family = 4;
		t->proto = h[9];
		__builtin_memcpy(t->a, h + 12, 4);
		__builtin_memcpy(t->b, h + 16, 4);
		if (((h[6] & 0x1f) << 8) | h[7])
			return; /* a later fragment */
		l4 = at + (h[0] & 15) * 4;
	} else if (t->ether == ETH_P_IPV6) {
		if (bpf_probe_read_kernel(h, 40, head + at) || h[0] >> 4 != 6)
			return;
		t->family = 6;
		t->proto = h[6];
		__builtin_memcpy(t->a, h + 8, 16);
		__builtin_memcpy(t->b, h + 24, 16);
		l4 = at + 40;
		for (int i = 0; i < 4; i++) { /* extension headers */
			u8 x[4] = {};
			if (t->proto != 0 && t->proto != 43 && t->proto != 44 && t->proto != 60)
				break;
			if (l4 >= end || bpf_probe_read_kernel(x, 4, head + l4))
				return;
			u32 size = t->proto == 44 ? 8 : (x[1] + 1) * 8;
			if (t->proto == 44 && (((u16)x[2] << 8 | x[3]) & 0xfff8)) {
				t->proto = x[0];
				return;
			}
			t->proto = x[0];
			l4 += size;
		}
	} else
		return;
	if ((t->proto != IPPROTO_TCP && t->proto != IPPROTO_UDP && t->proto != 132) || l4 + 4 > end)
		return;
	u16 ports[2] = {};
	if (bpf_probe_read_kernel(ports, 4, head + l4))
		return;
	t->aport = __builtin_bswap16(ports[0]);
	t->bport = __builtin_bswap16(ports[1]);
}

static __always_inline void parse(const struct sk_buff *skb, struct tuple *t)
{
	parse_at(skb, BPF_CORE_READ(skb, network_header), t);
}

#endif
