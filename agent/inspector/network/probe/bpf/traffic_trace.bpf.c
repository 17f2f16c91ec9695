// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * monitor_interface_traffic: packets and bytes of one interface, by protocol,
 * remote address and service port.
 */
#include "task.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define IFF_LOOPBACK 8
#define ETH_HLEN 14

const volatile char want_name[16] = {};
const volatile u32 want_netns = 0;

/* The task's own counters, mirrored in traffictask.go. */
enum {
	RX_PACKETS = TASK_COUNTS,
	RX_BYTES,
	TX_PACKETS,
	TX_BYTES,
	UNREAD, /* packets sent whose headers could not be read in time */
};

struct group {
	u32 remote[4];
	u16 port, ether;
	u8 family, proto;
	u16 pad;
};

struct tally {
	u64 rx_packets, rx_bytes, tx_packets, tx_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct group);
	__type(value, struct tally);
} groups SEC(".maps");

/* A packet between the start and the end of its transmission. */
struct pending {
	u64 skb;
	struct tuple t;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pending);
} pending SEC(".maps");

struct sample {
	u64 at;
	u32 len, sent;
	struct tuple t;
};

const struct sample *unused_sample __attribute__((unused));

static __always_inline bool ours(struct net_device *dev)
{
	char name[16];

	if (dev->nd_net.net->ns.inum != want_netns)
		return false;
	bpf_core_read(name, sizeof(name), &dev->name);
	for (int i = 0; i < 16; i++) {
		if (name[i] != want_name[i])
			return false;
		if (!name[i])
			break;
	}
	return true;
}

static __always_inline void add_up(struct tuple *t, bool sent, u64 len)
{
	struct group g = { .ether = t->ether, .family = t->family, .proto = t->proto };
	struct tally *v;

	__builtin_memcpy(g.remote, sent ? t->b : t->a, 16);
	/* The lower number is the service's, as a rule. */
	g.port = t->aport < t->bport ? t->aport : t->bport;
	v = bpf_map_lookup_elem(&groups, &g);
	if (!v) {
		struct tally fresh = {};
		bpf_map_update_elem(&groups, &g, &fresh, BPF_NOEXIST);
		v = bpf_map_lookup_elem(&groups, &g);
	}
	if (!v)
		count(OVERFLOW, 1);
	else if (sent) {
		__sync_fetch_and_add(&v->tx_packets, 1);
		__sync_fetch_and_add(&v->tx_bytes, len);
	} else {
		__sync_fetch_and_add(&v->rx_packets, 1);
		__sync_fetch_and_add(&v->rx_bytes, len);
	}
	if (!sampled())
		return;
	struct sample *s = bpf_ringbuf_reserve(&ring, sizeof(*s), 0);
	if (!s) {
		count(RING_LOST, 1);
		return;
	}
	__builtin_memset(s, 0, sizeof(*s));
	s->at = bpf_ktime_get_ns();
	s->len = len;
	s->sent = sent;
	s->t = *t;
	bpf_ringbuf_submit(s, 0);
}

/* A packet may be gone when its transmission has ended, and only then it is
 * known whether it was taken: it is read before and counted after. */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(trace_begin, struct sk_buff *skb, struct net_device *dev)
{
	struct pending *p;
	u32 slot = 0;

	if (!ours(dev))
		return 0;
	p = bpf_map_lookup_elem(&pending, &slot);
	if (!p)
		return 0;
	struct tuple t = {};
	parse(skb, &t);
	p->t = t;
	p->skb = (u64)skb;
	return 0;
}

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(trace_transmit, struct sk_buff *skb, int rc, struct net_device *dev, unsigned int len)
{
	struct tuple t = {};
	struct pending *p;
	u32 slot = 0;
	u64 bytes = len;

	if (rc || !ours(dev) || !running())
		return 0;
	/* Loopback alone counts without the link header. */
	if (dev->flags & IFF_LOOPBACK)
		bytes -= ETH_HLEN;
	count(TX_PACKETS, 1);
	count(TX_BYTES, bytes);
	p = bpf_map_lookup_elem(&pending, &slot);
	if (p && p->skb == (u64)skb) {
		t = p->t;
		p->skb = 0;
	} else
		count(UNREAD, 1);
	add_up(&t, true, bytes);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(trace_receive, struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	struct tuple t = {};

	if (!ours(dev) || !running())
		return 0;
	/* The link header is pulled already but was received too. */
	u16 mac = skb->mac_header;
	u32 link = (u32)(skb->data - skb->head) - mac;
	if (mac == 0xffff || link > 64 || dev->flags & IFF_LOOPBACK)
		link = 0;
	u64 bytes = skb->len + link;
	count(RX_PACKETS, 1);
	count(RX_BYTES, bytes);
	/* The network header is not set yet, but begins where data does. */
	parse_at(skb, (u32)(skb->data - skb->head), &t);
	add_up(&t, false, bytes);
	return 0;
}
