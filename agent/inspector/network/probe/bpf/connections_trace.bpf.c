// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * monitor_tcp_connections: opens, accepts, failures, ends and resets, by
 * direction, remote address, service port and process.
 */
#include "owners.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The task's own counters, mirrored in connectiontask.go. */
enum {
	ACTIVE_OPENS = TASK_COUNTS,
	PASSIVE_OPENS,
	FAILED_OPENS,
	ESTABLISHED_RESETS,
	CLOSES,
	RESETS_IN,
	RESETS_OUT,
	BYTES_SENT,
	BYTES_RECEIVED,
	ENDS,
};

enum direction { UNDECIDED, OUT, IN };

struct group {
	u32 remote[4];
	u32 netns, pid;
	u64 start;
	u16 port; /* of the service: the remote one when going out, else ours */
	u8 family, direction;
	u32 pad;
};

struct tally {
	u64 opened, failed, aborted, closed, resets_in, resets_out;
	u64 ended, sent, received;
	u64 srtt_sum, srtt_count, srtt_max; /* eighths of a microsecond */
	u64 lived_sum, lived_count, lived_max; /* ns */
	u64 cgroup2;
	struct owner owner;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct group);
	__type(value, struct tally);
} groups SEC(".maps");

/* What is known of a connection that began while the task ran. */
struct conn {
	u64 began;
	struct group g;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct conn);
} conns SEC(".maps");

enum what { OPENED = 1, ACCEPTED, FAILED, ABORTED, CLOSED, RESET_IN, RESET_OUT, ENDED };

struct sample {
	u64 at;
	u64 sent, received, lived;
	u64 cgroup2;
	u32 srtt_us, netns;
	u32 what;
	struct tuple t;
	u8 direction;
	struct owner owner;
};

const struct sample *unused_sample __attribute__((unused));

/* An event on its way to its group. */
struct event {
	struct group g;
	struct tuple t;
	u64 cookie, cgroup2, began;
	struct owner *owner;
	u32 which, what;
	u64 sent, received;
	u32 srtt;
};

static __always_inline struct tally *group_of(struct event *e)
{
	struct tally *v = bpf_map_lookup_elem(&groups, &e->g);

	if (v)
		return v;
	struct tally fresh = { .cgroup2 = e->cgroup2 };
	if (e->owner)
		fresh.owner = *e->owner;
	bpf_map_update_elem(&groups, &e->g, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&groups, &e->g);
}

static __always_inline void greater(u64 *old, u64 now)
{
	if (now > *old)
		*old = now;
}

static __noinline int note(struct event *e)
{
	u64 now = bpf_ktime_get_ns(), lived = 0;

	if (!e)
		return 0;
	if (e->began)
		lived = now - e->began;
	count(e->which, 1);
	struct tally *v = group_of(e);
	if (!v)
		count(OVERFLOW, 1);
	else switch (e->what) {
	case OPENED:
	case ACCEPTED:
		__sync_fetch_and_add(&v->opened, 1);
		break;
	case FAILED:
		__sync_fetch_and_add(&v->failed, 1);
		break;
	case ABORTED:
		__sync_fetch_and_add(&v->aborted, 1);
		break;
	case CLOSED:
		__sync_fetch_and_add(&v->closed, 1);
		break;
	case RESET_IN:
		__sync_fetch_and_add(&v->resets_in, 1);
		break;
	case RESET_OUT:
		__sync_fetch_and_add(&v->resets_out, 1);
		break;
	case ENDED:
		__sync_fetch_and_add(&v->ended, 1);
		__sync_fetch_and_add(&v->sent, e->sent);
		__sync_fetch_and_add(&v->received, e->received);
		if (e->srtt) {
			__sync_fetch_and_add(&v->srtt_sum, e->srtt);
			__sync_fetch_and_add(&v->srtt_count, 1);
			greater(&v->srtt_max, e->srtt);
		}
		if (lived) {
			__sync_fetch_and_add(&v->lived_sum, lived);
			__sync_fetch_and_add(&v->lived_count, 1);
			greater(&v->lived_max, lived);
		}
	}
	if (!sampled())
		return 0;
	struct sample *s = bpf_ringbuf_reserve(&ring, sizeof(*s), 0);
	if (!s) {
		count(RING_LOST, 1);
		return 0;
	}
	__builtin_memset(s, 0, sizeof(*s));
	s->at = now;
	s->sent = e->sent;
	s->received = e->received;
	s->lived = lived;
	s->cgroup2 = e->cgroup2;
	s->srtt_us = e->srtt;
	s->netns = e->g.netns;
	s->what = e->what;
	s->t = e->t;
	s->direction = e->g.direction;
	if (e->owner)
		s->owner = *e->owner;
	bpf_ringbuf_submit(s, 0);
	return 0;
}

/* admit fills in what the event's socket tells; false: not wanted. */
static __always_inline bool admit(struct event *e, const struct sock *sk, u8 direction)
{
	struct conn *c;

	e->g.netns = netns_of_sock(sk);
	if (only_netns && e->g.netns != only_netns)
		return false;
	e->cookie = cookie_of(sk);
	tuple_of_sock(sk, &e->t);
	c = e->cookie ? bpf_map_lookup_elem(&conns, &e->cookie) : 0;
	if (c && !e->t.bport) { /* disconnected: the socket has forgotten */
		__builtin_memcpy(e->t.b, c->g.remote, 16);
		e->t.family = c->g.family;
		if (c->g.direction == OUT)
			e->t.bport = c->g.port;
	}
	if (!tuple_wanted(&e->t))
		return false;
	switch (sock_wanted(sk)) {
	case NO:
		return false;
	case UNSURE:
		count(UNKNOWN, 1);
		return false;
	case YES:
		break;
	}
	e->owner = owner_of(sk);
	e->cgroup2 = cgroup2_of(sk);
	if (c) {
		e->g = c->g;
		e->began = c->began;
		return true;
	}
	if (!direction) {
		struct port_key k = { e->g.netns, e->t.aport };
		direction = bpf_map_lookup_elem(&listeners, &k) ? IN : OUT;
	}
	__builtin_memcpy(e->g.remote, e->t.b, 16);
	e->g.family = e->t.family;
	e->g.direction = direction;
	e->g.port = direction == IN ? e->t.aport : e->t.bport;
	if (e->owner) {
		e->g.pid = e->owner->pid;
		e->g.start = e->owner->start;
	}
	return true;
}

/* A connection that is there, whether anything happens to it or not. */
struct standing {
	u64 cookie, cgroup2;
	u64 sent, received;
	u32 srtt_us, netns;
	struct tuple t;
	u8 direction;
	struct owner owner;
};

const struct standing *unused_standing __attribute__((unused));

/* Writes the wanted ones among the open files; one that several processes
 * have open comes several times. */
SEC("iter/task_file")
int list_standing(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct standing out;
	struct event e = {};
	struct socket *s;
	struct sock *sk;

	if (!file || !ctx->task)
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
	u8 state = BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_state);
	if (BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP || (state != TCP_ESTABLISHED && state != TCP_CLOSE_WAIT))
		return 0;
	if (sock_wanted(sk) != YES || !admit(&e, sk, UNDECIDED))
		return 0;
	struct tcp_sock___task *tp = (void *)sk;
	__builtin_memset(&out, 0, sizeof(out));
	out.cookie = e.cookie;
	out.cgroup2 = e.cgroup2;
	out.sent = BPF_CORE_READ(tp, bytes_acked);
	out.received = BPF_CORE_READ(tp, bytes_received);
	out.srtt_us = BPF_CORE_READ(tp, srtt_us);
	out.netns = e.g.netns;
	out.t = e.t;
	out.direction = e.g.direction;
	if (e.owner)
		out.owner = *e.owner;
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(trace_state, const struct sock *sk, int from, int to)
{
	struct event e = {};
	bool was = from == TCP_ESTABLISHED || from == TCP_CLOSE_WAIT;
	bool is = to == TCP_ESTABLISHED || to == TCP_CLOSE_WAIT;
	u8 direction = UNDECIDED;

	if (sk->sk_protocol != IPPROTO_TCP || !running())
		return 0;
	if (from == TCP_CLOSE && to == TCP_SYN_SENT)
		direction = OUT;
	else if (from == TCP_SYN_RECV)
		direction = IN;
	else if (!(was && !is) && !(to == TCP_CLOSE && from == TCP_SYN_SENT))
		return 0;
	if (!admit(&e, sk, direction))
		return 0;
	if (direction) {
		struct conn c = { .began = bpf_ktime_get_ns(), .g = e.g };
		if (e.cookie && !bpf_map_update_elem(&conns, &e.cookie, &c, BPF_NOEXIST))
			count(CONNS_MADE, 1);
		e.which = direction == OUT ? ACTIVE_OPENS : PASSIVE_OPENS;
		e.what = direction == OUT ? OPENED : ACCEPTED;
		note(&e);
	}
	if (was && !is) {
		e.which = CLOSES;
		e.what = CLOSED;
		note(&e);
	}
	if (to == TCP_CLOSE && (from == TCP_SYN_SENT || from == TCP_SYN_RECV)) {
		e.which = FAILED_OPENS;
		e.what = FAILED;
		note(&e);
	}
	if (to == TCP_CLOSE && was) {
		e.which = ESTABLISHED_RESETS;
		e.what = ABORTED;
		note(&e);
	}
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(trace_end, struct sock *sk)
{
	struct event e = { .which = ENDS, .what = ENDED };
	struct tcp_sock___task *tp = (void *)sk;

	if (!running())
		return 0;
	e.sent = BPF_CORE_READ(tp, bytes_acked);
	e.received = BPF_CORE_READ(tp, bytes_received);
	e.srtt = BPF_CORE_READ(tp, srtt_us);
	if (!admit(&e, sk, UNDECIDED))
		return 0;
	if (!e.g.family || (!e.t.bport && !e.began))
		return 0; /* never connected: a listener or an idle socket */
	count(BYTES_SENT, e.sent);
	count(BYTES_RECEIVED, e.received);
	note(&e);
	if (e.cookie && !bpf_map_delete_elem(&conns, &e.cookie))
		count(CONNS_MADE, -1);
	return 0;
}

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(trace_reset_in, const struct sock *sk)
{
	struct event e = { .which = RESETS_IN, .what = RESET_IN };

	if (running() && admit(&e, sk, UNDECIDED))
		note(&e);
	return 0;
}

SEC("tp_btf/tcp_send_reset")
int BPF_PROG(trace_reset_out, const struct sock *sk, const struct sk_buff *skb)
{
	struct event e = { .which = RESETS_OUT, .what = RESET_OUT };
	u8 state = sk ? BPF_CORE_READ((struct sock___task *)sk, __sk_common.skc_state) : TCP_LISTEN;

	if (!running())
		return 0;
	if (sk && full(sk) && state != TCP_LISTEN) {
		if (admit(&e, sk, UNDECIDED))
			note(&e);
		return 0;
	}
	/* No connection of its own: the segment that is answered tells. */
	if (!skb)
		return 0;
	if (sk)
		e.g.netns = netns_of_sock(sk);
	else {
		struct net_device *dev = BPF_CORE_READ(skb, dev);
		if (dev)
			e.g.netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	}
	if (only_netns && e.g.netns != only_netns)
		return 0;
	struct tuple p = {};
	parse(skb, &p);
	e.t = p;
	__builtin_memcpy(e.t.a, p.b, 16);
	__builtin_memcpy(e.t.b, p.a, 16);
	e.t.aport = p.bport;
	e.t.bport = p.aport;
	if (!tuple_wanted(&e.t))
		return 0;
	switch (sock_wanted(sk)) {
	case NO:
		return 0;
	case UNSURE:
		count(UNKNOWN, 1);
		return 0;
	case YES:
		break;
	}
	__builtin_memcpy(e.g.remote, e.t.b, 16);
	e.g.family = e.t.family;
	e.g.direction = IN;
	e.g.port = e.t.aport;
	if (sk && full(sk)) {
		e.owner = owner_of(sk);
		e.cgroup2 = cgroup2_of(sk);
		if (e.owner) {
			e.g.pid = e.owner->pid;
			e.g.start = e.owner->start;
		}
	}
	note(&e);
	return 0;
}
