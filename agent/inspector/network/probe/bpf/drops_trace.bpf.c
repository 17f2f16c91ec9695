// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * trace_network_drops: groups of dropped packets by reason, place, interface
 * and tuple, and single drops with the kernel's stack.
 */
#include "owners.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile u32 reason_not_specified = ~0u;
const volatile u32 reason_no_socket = ~0u;
const volatile u32 reason_queue_purge = ~0u;
const volatile bool has_rx_sk = false;
const volatile bool by_reason = false;
const volatile u32 want_reason = 0;
const volatile char want_name[16] = {};
/* The wanted interface in the agent's own namespace, for packets whose device
 * is no longer known; 0: not there. */
const volatile u32 want_ifindex = 0;
const volatile u32 own_netns = 0;

/* The task's own counters, mirrored in droptask.go. */
enum { NO_NAME = TASK_COUNTS, CLAIMED, HIDDEN };

struct group {
	u64 location; /* who called to drop it */
	u32 reason, benign;
	u32 netns, ifindex;
	char ifname[16];
	struct tuple t;
};

struct tally {
	u64 packets, bytes;
	u64 cgroup2;
	struct owner owner;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct group);
	__type(value, struct tally);
} groups SEC(".maps");

/* What found no room there, without the tuple. */
struct rest_key {
	u64 location;
	u32 reason, benign;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct rest_key);
	__type(value, u64);
} rest SEC(".maps");

/* Where the drops were that all filters but the interface let pass. */
struct place {
	u32 netns, ifindex;
	char ifname[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct place);
	__type(value, u64);
} elsewhere SEC(".maps");

/* A socket that was never used before has no known owner while its first
 * packet is dropped, but has one when the very same system call ends. */
struct claim_key {
	u64 sk, task;
};

struct claim {
	struct group g;
	u64 cgroup2, packets, bytes;
	u32 counted, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct claim_key);
	__type(value, struct claim);
} claims SEC(".maps");

#define DEPTH 32

struct sample {
	u64 at; /* ns since boot, suspended time not counted */
	u64 cgroup2;
	u32 len;
	s32 frames; /* bytes of stack that are filled; negative: none */
	struct group g;
	struct owner owner;
	u64 stack[DEPTH];
};

const struct sample *unused_sample __attribute__((unused));

/* Refused connections, purged queues and stray IPv6 multicast are daily
 * life, not loss. */
static __always_inline bool harmless(const struct tuple *t, u32 reason)
{
	if (reason == reason_queue_purge)
		return true;
	if (reason == reason_no_socket)
		return t->proto == IPPROTO_TCP;
	return reason == reason_not_specified && t->family == 6 && (t->b[0] & 0xff) == 0xff;
}

/* The device shares its place with other things that are written to it while
 * a packet waits in a queue; what is no device of a namespace is not believed. */
static __always_inline struct net_device *device(const struct sk_buff *skb, u32 netns)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);
	u32 in;

	if (!dev || BPF_CORE_READ(dev, ifindex) <= 0)
		return 0;
	in = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	if (in < FIRST_NS_INODE || (netns && in != netns))
		return 0;
	return dev;
}

static __always_inline bool name_wanted(const char *name)
{
	for (int i = 0; i < 16; i++) {
		if (name[i] != want_name[i])
			return false;
		if (!name[i])
			return true;
	}
	return true;
}

static __always_inline void tally_up(const struct group *g, u64 packets, u64 len, u64 cgroup2, const struct owner *o)
{
	struct tally *v = bpf_map_lookup_elem(&groups, g);

	if (!v) {
		struct tally fresh = { .cgroup2 = cgroup2 };
		if (o)
			fresh.owner = *o;
		bpf_map_update_elem(&groups, g, &fresh, BPF_NOEXIST);
		v = bpf_map_lookup_elem(&groups, g);
	}
	if (v) {
		__sync_fetch_and_add(&v->packets, packets);
		__sync_fetch_and_add(&v->bytes, len);
		if (o && !v->owner.pid)
			v->owner = *o;
		return;
	}
	struct rest_key k = { g->location, g->reason, g->benign };
	u64 none = 0, *n = bpf_map_lookup_elem(&rest, &k);
	if (!n) {
		bpf_map_update_elem(&rest, &k, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&rest, &k);
	}
	if (n)
		__sync_fetch_and_add(n, packets);
	count(OVERFLOW, packets);
}

static __always_inline void hide(const struct group *g)
{
	struct place p = { .netns = g->netns, .ifindex = g->ifindex };
	u64 none = 0, *n;

	__builtin_memcpy(p.ifname, g->ifname, sizeof(p.ifname));
	n = bpf_map_lookup_elem(&elsewhere, &p);
	if (!n) {
		bpf_map_update_elem(&elsewhere, &p, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&elsewhere, &p);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	count(HIDDEN, 1);
}

static __always_inline void emit(u64 *ctx, const struct group *g, u32 len, u64 cgroup2, const struct owner *o, bool stack)
{
	if (!sampled())
		return;
	struct sample *s = bpf_ringbuf_reserve(&ring, sizeof(*s), 0);
	if (!s) {
		count(RING_LOST, 1);
		return;
	}
	__builtin_memset(s, 0, sizeof(*s) - sizeof(s->stack));
	s->at = bpf_ktime_get_ns();
	s->cgroup2 = cgroup2;
	s->len = len;
	s->g = *g;
	if (o)
		s->owner = *o;
	s->frames = stack ? bpf_get_stack(ctx, s->stack, sizeof(s->stack), 0) : 0;
	bpf_ringbuf_submit(s, 0);
}

static __always_inline void ask(const struct sock *sk, const struct group *g, u32 len, u64 cgroup2, bool counted)
{
	struct claim_key k = { (u64)sk, bpf_get_current_pid_tgid() };
	struct claim c = { .g = *g, .cgroup2 = cgroup2, .packets = 1, .bytes = len, .counted = counted };
	struct claim *known = bpf_map_lookup_elem(&claims, &k);

	if (known && known->g.reason == g->reason && known->g.location == g->location && known->counted == counted) {
		known->packets += 1;
		known->bytes += len;
	} else if (!known)
		bpf_map_update_elem(&claims, &k, &c, BPF_ANY);
}

/* Runs after own_send, which has learnt whose socket it is. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(trace_claim, struct sock *sk)
{
	struct claim_key k = { (u64)sk, bpf_get_current_pid_tgid() };
	struct claim *c = bpf_map_lookup_elem(&claims, &k);

	if (!c)
		return 0;
	struct claim mine = *c;
	bpf_map_delete_elem(&claims, &k);
	struct owner *o = owner_of(sk);
	if (mine.counted) {
		struct tally *v = bpf_map_lookup_elem(&groups, &mine.g);
		if (v && o && !v->owner.pid)
			v->owner = *o;
		return 0;
	}
	enum verdict v = sock_wanted(sk);
	if (v == UNSURE)
		return 0;
	count(CLAIMED, mine.packets); /* no longer unknown */
	if (v == NO)
		return 0;
	tally_up(&mine.g, mine.packets, mine.bytes, mine.cgroup2, o);
	emit(0, &mine.g, mine.bytes, mine.cgroup2, o, false);
	return 0;
}

SEC("tp_btf/kfree_skb")
int trace_drop(u64 *ctx)
{
	const struct sk_buff *skb = (void *)ctx[0];
	struct group g = { .reason = (u32)ctx[2] };
	const struct sock *sk = has_rx_sk ? (void *)ctx[3] : 0;
	struct net_device *dev;

	if (by_reason && g.reason != want_reason)
		return 0;
	if (!running())
		return 0;
	if (!sk)
		sk = BPF_CORE_READ(skb, sk);
	if (sk) {
		u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
		if (family != AF_INET && family != AF_INET6) {
			g.netns = netns_of_sock(sk);
			sk = 0; /* not one of the internet's */
		} else
			g.netns = netns_of_sock(sk);
	}
	dev = device(skb, g.netns);
	if (dev) {
		g.netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
		g.ifindex = BPF_CORE_READ(dev, ifindex);
		bpf_core_read(g.ifname, sizeof(g.ifname), &dev->name);
	} else
		g.ifindex = BPF_CORE_READ((struct sk_buff___task *)skb, skb_iif);
	if (only_netns && g.netns != only_netns)
		return 0;
	bool hidden = false;
	if (want_name[0])
		hidden = dev ? !name_wanted(g.ifname) : !(want_ifindex && g.ifindex == want_ifindex && g.netns == own_netns);
	parse(skb, &g.t);
	bool parsed = g.t.family;
	if (!parsed && sk)
		tuple_of_sock(sk, &g.t);
	if (!tuple_wanted(&g.t))
		return 0;
	if (hidden && !dev && g.ifindex && g.netns != own_netns) {
		count(NO_NAME, 1);
		return 0;
	}
	g.location = ctx[1];
	g.benign = harmless(&g.t, g.reason);
	u32 len = BPF_CORE_READ(skb, len);
	if (parsed) /* from the network header on, whatever was pulled already */
		len += (u32)(BPF_CORE_READ(skb, data) - BPF_CORE_READ(skb, head)) - BPF_CORE_READ(skb, network_header);
	struct owner *o = 0;
	u64 cgroup2 = 0;
	bool whole = sk && full(sk);
	if (whole) {
		o = owner_of(sk);
		cgroup2 = cgroup2_of(sk);
	}
	switch (sock_wanted(sk)) {
	case NO:
		return 0;
	case UNSURE:
		if (hidden)
			return 0;
		count(UNKNOWN, 1);
		if (whole)
			ask(sk, &g, len, cgroup2, false);
		return 0;
	case YES:
		break;
	}
	if (hidden) {
		hide(&g);
		return 0;
	}
	tally_up(&g, 1, len, cgroup2, o);
	if (whole && !o)
		ask(sk, &g, len, cgroup2, true);
	emit(ctx, &g, len, cgroup2, o, true);
	return 0;
}
