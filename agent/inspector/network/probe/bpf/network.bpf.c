// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * The network module. Every program only adds to per-CPU counters, and each
 * counter has one program that writes it: a softirq that interrupts one
 * program and runs another can then never lose an update.
 *
 * The current task is wrong in nearly all of these hooks and is never used
 * for attribution.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Counts TCP of this network namespace only; 0 counts all of them. */
const volatile u32 only_netns = 0;
/* Interfaces are counted in this network namespace only: names are not
 * unique across namespaces. */
const volatile u32 own_netns = 0;
/* Values of enum skb_drop_reason in the running kernel; they move. */
const volatile u32 reason_not_specified = ~0u;
const volatile u32 reason_no_socket = ~0u;
const volatile u32 reason_queue_purge = ~0u;
/* kfree_skb has a fourth argument since Linux 6.11. */
const volatile bool has_rx_sk = false;
/* tcp_retransmit_skb tells the outcome, and passes failures too, since 6.16. */
const volatile bool has_retransmit_err = false;
/* Indexes in the kernel's MIBs, from its own enums. */
const volatile u32 mib_listen_overflows = 0;
const volatile u32 mib_listen_drops = 0;
const volatile u32 mib_established = 0;
const volatile u32 possible_cpus = 1;

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_TCP 6
#define IFF_LOOPBACK 8
#define ETH_HLEN 14

/* include/net/tcp_states.h, fixed since they are user visible. */
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8

/* Mirrored in counters.go. */
enum counter {
	ACTIVE_OPENS,
	PASSIVE_OPENS,
	FAILED_OPENS,
	ESTABLISHED_RESETS,
	OPENED,
	CLOSED,
	RESETS_IN,
	RESETS_OUT,
	RETRANSMITS,
	RETRANSMITS_SYNACK,
	DROPS_OVERFLOW,
	NETNS_OVERFLOW,
	ENDS_SENT,
	ENDS_RECEIVED,
	SRTT_SUM,
	SRTT_BUCKETS,
	COUNTERS = SRTT_BUCKETS + 64,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline void add(u32 which, u64 n)
{
	u64 *v = bpf_map_lookup_elem(&counters, &which);
	if (v)
		*v += n;
}

static __always_inline bool wanted(const struct sock *sk)
{
	return !only_netns || sk->__sk_common.skc_net.net->ns.inum == only_netns;
}

/* Connections */

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(sock_state, const struct sock *sk, int from, int to)
{
	if (sk->sk_protocol != IPPROTO_TCP || !wanted(sk))
		return 0;
	if (from == TCP_CLOSE && to == TCP_SYN_SENT)
		add(ACTIVE_OPENS, 1);
	/* A child is made in SYN_RECV without an event of its own; it is
	 * counted when it leaves that state, whatever comes next. */
	if (from == TCP_SYN_RECV)
		add(PASSIVE_OPENS, 1);
	bool was = from == TCP_ESTABLISHED || from == TCP_CLOSE_WAIT;
	bool is = to == TCP_ESTABLISHED || to == TCP_CLOSE_WAIT;
	if (!was && is)
		add(OPENED, 1);
	if (was && !is)
		add(CLOSED, 1);
	if (to == TCP_CLOSE) {
		if (from == TCP_SYN_SENT || from == TCP_SYN_RECV)
			add(FAILED_OPENS, 1);
		if (was)
			add(ESTABLISHED_RESETS, 1);
	}
	return 0;
}

static __always_inline u32 log2_bucket(u64 v)
{
	u32 b = 0;
	if (v >> 32) { v >>= 32; b += 32; }
	if (v >> 16) { v >>= 16; b += 16; }
	if (v >> 8) { v >>= 8; b += 8; }
	if (v >> 4) { v >>= 4; b += 4; }
	if (v >> 2) { v >>= 2; b += 2; }
	if (v >> 1) b += 1;
	return b & 63;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(sock_end, struct sock *sk)
{
	struct tcp_sock *tp;

	if (!wanted(sk))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	add(ENDS_SENT, tp->bytes_acked);
	add(ENDS_RECEIVED, tp->bytes_received);
	u64 ns = (u64)tp->srtt_us * 125; /* eighths of 1000 ns */
	if (ns) {
		add(SRTT_SUM, ns);
		add(SRTT_BUCKETS + log2_bucket(ns), 1);
	}
	return 0;
}

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(reset_in, const struct sock *sk)
{
	if (wanted(sk))
		add(RESETS_IN, 1);
	return 0;
}

SEC("tp_btf/tcp_send_reset")
int BPF_PROG(reset_out, const struct sock *sk, const struct sk_buff *skb)
{
	if (only_netns) {
		/* Without a socket the segment's device tells the namespace. */
		u32 in = 0;
		if (sk)
			in = sk->__sk_common.skc_net.net->ns.inum;
		else if (skb) {
			struct net_device *dev = skb->dev;
			if (dev)
				in = dev->nd_net.net->ns.inum;
		}
		if (in != only_netns)
			return 0;
	}
	add(RESETS_OUT, 1);
	return 0;
}

/* Retransmission: one event may stand for many segments. */

SEC("tp_btf/tcp_retransmit_skb")
int retransmit(u64 *ctx)
{
	const struct sock *sk = (void *)ctx[0];
	const struct sk_buff *skb = (void *)ctx[1];
	u16 segs = 0;

	if (!wanted(sk))
		return 0;
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
	struct tcp_skb_cb *cb = (void *)&skb->cb;
	bpf_probe_read_kernel(&segs, sizeof(segs), &cb->tcp_gso_segs);
	add(RETRANSMITS, segs ? segs : 1);
	return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(retransmit_synack, const struct sock *sk)
{
	if (wanted(sk))
		add(RETRANSMITS_SYNACK, 1);
	return 0;
}

/* Drops */

struct drop_key {
	u64 location; /* only where the reason says nothing */
	u32 reason;
	u32 benign;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 512);
	__type(key, struct drop_key);
	__type(value, u64);
} drops SEC(".maps");

/* Refused connections, purged queues and stray IPv6 multicast are daily
 * life, not loss. */
static __always_inline bool harmless(const struct sk_buff *skb, u32 reason)
{
	u8 byte = 0;

	if (reason == reason_queue_purge)
		return true;
	if (reason != reason_no_socket && reason != reason_not_specified)
		return false;
	u16 proto = __builtin_bswap16(skb->protocol);
	u8 *h = skb->head + skb->network_header;
	if (reason == reason_no_socket) {
		if (proto == ETH_P_IP)
			bpf_probe_read_kernel(&byte, 1, h + 9);
		else if (proto == ETH_P_IPV6)
			bpf_probe_read_kernel(&byte, 1, h + 6);
		return byte == IPPROTO_TCP;
	}
	if (proto == ETH_P_IPV6)
		bpf_probe_read_kernel(&byte, 1, h + 24); /* destination */
	return byte == 0xff;
}

SEC("tp_btf/kfree_skb")
int drop(u64 *ctx)
{
	struct sk_buff *skb = (void *)ctx[0];
	struct drop_key key = { .reason = (u32)ctx[2] };
	u64 one = 1, *v;

	if (only_netns) {
		struct sock *rx = has_rx_sk ? (void *)ctx[3] : 0;
		struct sock *sk = skb->sk;
		struct net_device *dev = skb->dev;
		u32 in = 0;
		if (rx)
			in = rx->__sk_common.skc_net.net->ns.inum;
		else if (sk)
			in = sk->__sk_common.skc_net.net->ns.inum;
		else if (dev)
			in = dev->nd_net.net->ns.inum;
		if (in != only_netns)
			return 0;
	}
	if (key.reason == reason_not_specified)
		key.location = ctx[1];
	key.benign = harmless(skb, key.reason);
	v = bpf_map_lookup_elem(&drops, &key);
	if (v)
		*v += 1;
	else if (bpf_map_update_elem(&drops, &key, &one, BPF_NOEXIST)) {
		/* Another CPU may have made the entry, or the map is full. */
		v = bpf_map_lookup_elem(&drops, &key);
		if (v)
			*v += 1;
		else
			add(DROPS_OVERFLOW, 1);
	}
	return 0;
}

/* Interfaces */

struct traffic {
	u64 rx_packets, rx_bytes; /* written by the receive program */
	u64 tx_packets, tx_bytes; /* written by the transmit program */
	char name[16];
};

/* Low interface numbers take the quick way. Slot 0 belongs to no interface
 * and takes what the other map has no room for. */
#define QUICK 64

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, QUICK);
	__type(key, u32);
	__type(value, struct traffic);
} traffic_quick SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 512);
	__type(key, u32);
	__type(value, struct traffic);
} traffic_rest SEC(".maps");

static __noinline struct traffic *traffic_slow(u32 index)
{
	u32 none = 0;
	struct traffic *t = bpf_map_lookup_elem(&traffic_rest, &index);
	if (t)
		return t;
	struct traffic fresh = {};
	bpf_map_update_elem(&traffic_rest, &index, &fresh, BPF_NOEXIST);
	t = bpf_map_lookup_elem(&traffic_rest, &index);
	return t ? t : bpf_map_lookup_elem(&traffic_quick, &none);
}

static __always_inline struct traffic *traffic_of(struct net_device *dev)
{
	u32 index = dev->ifindex;
	struct traffic *t;

	if (index < QUICK)
		t = bpf_map_lookup_elem(&traffic_quick, &index);
	else
		t = traffic_slow(index);
	if (t && !t->name[0])
		bpf_probe_read_kernel(t->name, sizeof(t->name), &dev->name);
	return t;
}

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(transmit, struct sk_buff *skb, int rc, struct net_device *dev, unsigned int len)
{
	struct traffic *t;

	/* The buffer may be gone already; only rc, dev and len are looked at. */
	if (rc || dev->nd_net.net->ns.inum != own_netns)
		return 0;
	t = traffic_of(dev);
	if (t) {
		t->tx_packets += 1;
		t->tx_bytes += dev->flags & IFF_LOOPBACK ? len - ETH_HLEN : len;
	}
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(receive, struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	struct traffic *t;

	if (dev->nd_net.net->ns.inum != own_netns)
		return 0;
	t = traffic_of(dev);
	if (t) {
		/* The link header is pulled already but was received too.
		 * Loopback alone counts without it. */
		u16 mac = skb->mac_header;
		u32 link = (u32)(skb->data - skb->head) - mac;
		if (mac == 0xffff || link > 64 || dev->flags & IFF_LOOPBACK)
			link = 0;
		t->rx_packets += 1;
		t->rx_bytes += skb->len + link;
	}
	return 0;
}

/*
 * The kernel's own counters, which no hook reproduces: a SYN that meets a
 * full accept queue passes no tracepoint. The agent runs this program once a
 * window. It walks the list of network namespaces and adds up the per-CPU
 * MIBs, the numbers behind /proc/net/netstat and /proc/net/snmp, for each.
 */

struct mib {
	u64 listen_overflows, listen_drops, established;
	u32 netns, round;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64); /* net_cookie, never used twice */
	__type(value, struct mib);
} mibs SEC(".maps");

volatile u64 scratch = 0;

struct sums {
	void *tcp, *net;
	u64 base;
	struct mib mib;
};

static u64 slot(void *mib, u64 offset, u32 index)
{
	u64 v = 0;
	bpf_probe_read_kernel(&v, sizeof(v), mib + offset + (u64)index * 8);
	return v;
}

static long sum_cpu(u32 cpu, struct sums *s)
{
	u32 none = 0;

	/* The address of an own per-CPU variable on this CPU, less its base,
	 * is the CPU's offset; reading it back makes it a number. */
	scratch = (u64)bpf_map_lookup_percpu_elem(&counters, &none, cpu);
	u64 there = scratch;
	if (!there)
		return 1;
	u64 offset = there - s->base;
	s->mib.listen_overflows += slot(s->net, offset, mib_listen_overflows);
	s->mib.listen_drops += slot(s->net, offset, mib_listen_drops);
	s->mib.established += slot(s->tcp, offset, mib_established);
	return 0;
}

/* How a walk ended; mirrored in mibs.go. */
enum ending {
	TOO_MANY, /* the list is longer than the walk */
	COMPLETE,
	BROKEN,   /* a namespace went away under the walk */
	NO_ROOM,  /* the map could not take them all */
};

struct walk {
	struct net *at, *first;
	const void *ops;
	u64 base;
	u32 round, ending;
	bool no_room;
};

/* The walk holds no lock. What is still in the list after it was read was not
 * freed while it was: the kernel unlinks a namespace, waits, and frees. */
static __always_inline bool linked(struct net *net)
{
	struct list_head *prev = BPF_CORE_READ(net, list.prev);

	return prev && (void *)BPF_CORE_READ(prev, next) == (void *)net + bpf_core_field_offset(struct net, list);
}

static long sum_net(u32 i, struct walk *w)
{
	struct net *net = w->at;
	struct sums s = { .base = w->base };
	const void *ops = BPF_CORE_READ(net, ns.ops);
	u64 cookie = BPF_CORE_READ(net, net_cookie);
	/* The list's head lies in no namespace; it is passed over. */
	bool count = ops == w->ops;

	if (count) {
		s.mib.netns = BPF_CORE_READ(net, ns.inum);
		s.mib.round = w->round;
		count = !only_netns || s.mib.netns == only_netns;
	}
	if (count) {
		s.tcp = BPF_CORE_READ(net, mib.tcp_statistics);
		s.net = BPF_CORE_READ(net, mib.net_statistics);
		bpf_loop(possible_cpus, sum_cpu, &s, 0);
	}
	struct list_head *next = BPF_CORE_READ(net, list.next);
	if (!next || !linked(net) || cookie != BPF_CORE_READ(net, net_cookie)) {
		w->ending = BROKEN;
		return 1;
	}
	if (count && bpf_map_update_elem(&mibs, &cookie, &s.mib, BPF_ANY)) {
		add(NETNS_OVERFLOW, 1);
		w->no_room = true;
	}
	w->at = (void *)next - bpf_core_field_offset(struct net, list);
	if (w->at != w->first)
		return 0;
	w->ending = w->no_room ? NO_ROOM : COMPLETE;
	return 1;
}

struct run {
	u32 round; /* marks what this run has seen */
};

SEC("syscall")
int read_mibs(struct run *run)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct walk w = { .round = run->round };

	scratch = (u64)&counters;
	bpf_probe_read_kernel(&w.base, sizeof(w.base), (void *)scratch + bpf_core_field_offset(struct bpf_array, pptrs));
	struct net *first = BPF_CORE_READ(task, nsproxy, net_ns);
	w.first = w.at = first;
	w.ops = BPF_CORE_READ(first, ns.ops);
	bpf_loop(4096, sum_net, &w, 0);
	return w.ending;
}
