// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * trace_tcp_retransmits: segments sent again, by connection and state.
 */
#include "owners.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* tcp_retransmit_skb tells the outcome, and passes failures too, since 6.16. */
const volatile bool has_retransmit_err = false;

/* The task's own counters, mirrored in retransmittask.go. */
enum { SEGMENTS = TASK_COUNTS, EVENTS };

struct group {
	struct tuple t;
	u32 state, netns;
};

struct tally {
	u64 segments, events;
	u64 cgroup2, cookie;
	u32 srtt_us, rttvar_us; /* in eighths and quarters */
	u32 unacked, cwnd;
	struct owner owner;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct group);
	__type(value, struct tally);
} groups SEC(".maps");

struct sample {
	u64 at;
	u32 segments, pad;
	struct group g;
	struct tally v;
};

const struct sample *unused_sample __attribute__((unused));

static __always_inline int add_up(struct group *g, struct tally *now)
{
	struct tally *v = bpf_map_lookup_elem(&groups, g);
	u32 segments = now->segments;

	count(SEGMENTS, segments);
	count(EVENTS, 1);
	if (!v) {
		now->segments = now->events = 0;
		bpf_map_update_elem(&groups, g, now, BPF_NOEXIST);
		v = bpf_map_lookup_elem(&groups, g);
	}
	if (v) {
		__sync_fetch_and_add(&v->segments, segments);
		__sync_fetch_and_add(&v->events, 1);
		v->srtt_us = now->srtt_us;
		v->rttvar_us = now->rttvar_us;
		v->unacked = now->unacked;
		v->cwnd = now->cwnd;
		if (!v->owner.pid)
			v->owner = now->owner;
	} else
		count(OVERFLOW, segments);
	if (!sampled())
		return 0;
	struct sample *s = bpf_ringbuf_reserve(&ring, sizeof(*s), 0);
	if (!s) {
		count(RING_LOST, 1);
		return 0;
	}
	s->at = bpf_ktime_get_ns();
	s->segments = segments;
	s->pad = 0;
	s->g = *g;
	s->v = *now;
	bpf_ringbuf_submit(s, 0);
	return 0;
}

static __always_inline bool admit(const struct sock *sk, struct group *g)
{
	if (!tuple_wanted(&g->t))
		return false;
	switch (sock_wanted(sk)) {
	case YES:
		return true;
	case UNSURE:
		count(UNKNOWN, 1);
	default:
		return false;
	}
}

SEC("tp_btf/tcp_retransmit_skb")
int trace_retransmit(u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	const struct sk_buff *skb = (void *)ctx[1];
	struct group g = {};
	struct tally now = {};
	u16 segs = 0;

	if (has_retransmit_err) {
		/* Where attempts that never reached the wire pass here too, the
		 * kernel has not counted them either. */
		switch ((int)ctx[2]) {
		case -11:  /* EAGAIN */
		case -12:  /* ENOMEM */
		case -16:  /* EBUSY */
		case -22:  /* EINVAL */
		case -113: /* EHOSTUNREACH */
			return 0;
		}
	}
	if (!running())
		return 0;
	g.netns = netns_of_sock(sk);
	if (only_netns && g.netns != only_netns)
		return 0;
	tuple_of_sock(sk, &g.t);
	if (!admit(sk, &g))
		return 0;
	g.state = BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_state);
	struct tcp_skb_cb *cb = (void *)&skb->cb;
	bpf_probe_read_kernel(&segs, sizeof(segs), &cb->tcp_gso_segs);
	now.segments = segs ? segs : 1;
	now.events = 1;
	struct tcp_sock___task *tp = (void *)sk;
	now.srtt_us = BPF_CORE_READ(tp, srtt_us);
	now.rttvar_us = BPF_CORE_READ(tp, mdev_us);
	now.unacked = BPF_CORE_READ(tp, packets_out);
	now.cwnd = BPF_CORE_READ(tp, snd_cwnd);
	now.cgroup2 = cgroup2_of(sk);
	now.cookie = cookie_of(sk);
	struct owner *o = owner_of(sk);
	if (o)
		now.owner = *o;
	return add_up(&g, &now);
}

SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(trace_synack, const struct sock *sk, const struct request_sock *req)
{
	struct group g = { .state = TCP_SYN_RECV };
	struct tally now = { .segments = 1, .events = 1 };

	if (!running())
		return 0;
	g.netns = netns_of_sock(sk);
	if (only_netns && g.netns != only_netns)
		return 0;
	tuple_of_common(&req->__req_common, &g.t);
	g.t.proto = IPPROTO_TCP;
	g.t.ether = g.t.family == 4 ? ETH_P_IP : ETH_P_IPV6;
	/* There is no connection yet: what is known is its listener's. */
	if (!admit(sk, &g))
		return 0;
	now.cgroup2 = cgroup2_of(sk);
	struct owner *o = owner_of(sk);
	if (o)
		now.owner = *o;
	return add_up(&g, &now);
}
