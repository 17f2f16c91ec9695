//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Requests that failed or took very long, told as they happen. A device that
 * fails or crawls does so in storms: a gate for each device and kind of
 * trouble counts all of it and lets a few records a second through.
 */
#include "request.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#ifndef BPF_MAP_TYPE_RINGBUF
#define BPF_MAP_TYPE_RINGBUF 27
#endif
#ifndef BPF_RB_NO_WAKEUP
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#endif

#define SECOND 1000000000ULL
#define RECORDS_A_SECOND 8 /* of one gate */
#define AT_ONCE 2	   /* of them wake the reader; the others wait for its next look */

/* blk_status_t, include/linux/blk_types.h: both tell that a device was asked
 * what it cannot do, which is how the kernel finds out. */
#define BLK_STS_NOTSUPP 1
#define BLK_STS_AGAIN 12

enum kind { SLOW, FAILED };

const volatile __u64 slow_ns = 500000000;

struct gate_key {
	__u32 dev; /* major << 20 | minor of the disk */
	__u8 op;
	__u8 kind;
	__u8 status; /* blk_status_t; 0 of slow ones */
	__u8 pad;
};

struct gate {
	__u64 held;   /* counted only; each of the others has a record, or is lost */
	__u64 lost;   /* let through, but the ring had no room */
	__u64 window; /* when the present second began */
	__u64 passed; /* let through in it */
	__u8 disk[DISK_NAME_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct gate_key);
	__type(value, struct gate);
} gates SEC(".maps");

/* What found no gate: known to be lost. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ungated SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

struct event {
	struct gate_key gate;
	__u32 bytes;
	__u32 timed; /* latency is known */
	__u64 at;    /* ktime */
	__u64 latency;
	__u64 sector;
	__u64 cgroup; /* whose I/O it is; 0 when unknown */
	__u8 disk[DISK_NAME_LEN];
};

const struct event *unused_event __attribute__((unused));

static __always_inline __u64 cgroup_of(struct request *rq)
{
	if (!rq->bio || !rq->bio->bi_blkg)
		return 0;
	return rq->bio->bi_blkg->blkcg->css.cgroup->kn->id;
}

static __always_inline void tell(struct request *rq, struct gendisk *disk, __u32 kind, __u32 status, __u32 nr_bytes, __u64 start)
{
	struct gate_key key = {
		.dev = (__u32)disk->major << 20 | (__u32)disk->first_minor,
		.op = op_of(rq->cmd_flags & REQ_OP_MASK),
		.kind = kind,
		.status = status,
	};
	__u64 now = bpf_ktime_get_ns(), nth;
	struct gate *g = bpf_map_lookup_elem(&gates, &key);
	struct event *e;
	__u32 zero = 0;

	if (!g) {
		struct gate fresh = {.window = now};

		bpf_probe_read_kernel_str(fresh.disk, sizeof(fresh.disk), disk->disk_name);
		bpf_map_update_elem(&gates, &key, &fresh, BPF_NOEXIST);
		g = bpf_map_lookup_elem(&gates, &key);
	}
	if (!g) {
		__u64 *n = bpf_map_lookup_elem(&ungated, &zero);

		if (n)
			__sync_fetch_and_add(n, 1);
		return;
	}
	if (now - g->window >= SECOND && now > g->window) {
		g->window = now;
		g->passed = 0;
	}
	nth = __sync_fetch_and_add(&g->passed, 1);
	if (nth >= RECORDS_A_SECOND) {
		__sync_fetch_and_add(&g->held, 1);
		return;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		__sync_fetch_and_add(&g->lost, 1);
		return;
	}
	e->gate = key;
	e->bytes = nr_bytes;
	e->timed = start != 0;
	e->at = now;
	e->latency = start ? since(start) : 0;
	e->sector = rq->__sector;
	e->cgroup = cgroup_of(rq);
	__builtin_memcpy(e->disk, g->disk, sizeof(e->disk));
	bpf_ringbuf_submit(e, nth < AT_ONCE ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_slow, struct request *rq, int error, unsigned int nr_bytes)
{
	__u32 req_op = rq->cmd_flags & REQ_OP_MASK;
	struct gendisk *disk;
	__u64 start;

	/* The discard of a large area takes long by nature. */
	if (req_op >= REQ_OP_PASSTHROUGH || req_op == REQ_OP_DISCARD || !ends(rq, nr_bytes))
		return 0;
	start = made_at(rq);
	if (!start || since(start) < slow_ns)
		return 0;
	disk = disk_of(rq);
	if (disk)
		tell(rq, disk, SLOW, 0, nr_bytes, start);
	return 0;
}

SEC("tp_btf/block_rq_error")
int BPF_PROG(rq_failed, struct request *rq, int error, unsigned int nr_bytes)
{
	struct gendisk *disk;
	__u32 status = error & 0xff;

	if ((rq->cmd_flags & REQ_OP_MASK) >= REQ_OP_PASSTHROUGH || status == BLK_STS_NOTSUPP || status == BLK_STS_AGAIN)
		return 0;
	disk = disk_of(rq);
	if (disk)
		tell(rq, disk, FAILED, status, nr_bytes, made_at(rq));
	return 0;
}
