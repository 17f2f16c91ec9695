//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Requests looked at on demand: whose they are, how long they took. Loaded
 * while a task runs; what the task does not ask for is left out here, in the
 * kernel.
 *
 * Whose a request is, is known where it is made: there the current task is
 * the one that submitted it. Where it ends, the current task is anybody.
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
#define BPF_RB_AVAIL_DATA 0

#define MAX_OPEN 8192
#define MAX_GROUPS 1024
#define RING_BYTES (1 << 20)
#define SLOTS 272
#define ANY_OP 0xff
#define CLOCK_TICK 10000000ULL /* ns: /proc's unit of start times */

/* What the task asks for; 0 asks for everything. */
const volatile __u32 want_dev;	 /* major << 20 | minor of the disk */
const volatile __u32 want_part;	 /* of the partition */
const volatile __u32 want_tgid;
const volatile __u64 want_born;	 /* its start time in clock ticks since boot */
const volatile __u32 want_op = ANY_OP;
const volatile __u64 threshold_ns;
/* Flush commands serve many processes. Set: they are left out, and the empty
 * write that asked for one is the flush, with its process. Not set: as in
 * /sys/block/DEV/stat. */
const volatile __u32 by_process;
const volatile __u32 sample_every = 1;
const volatile __u32 max_samples = 200;

#include "owner.h"
#include "pidspace.h"

/* Requests under way, by the address of their struct. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_OPEN);
	__type(key, __u64);
	__type(value, struct owner);
} owners SEC(".maps");

struct totals {
	__u64 requests;
	__u64 bytes;
	__u64 errors;
	__u64 timed; /* requests with a latency */
	__u64 sum_ns;
	__u64 max_ns;
	__u32 latency[SLOTS]; /* eight slots to each doubling of 1024 ns */
};

/* Everything the filters let pass, slow or not, by operation. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OPS);
	__type(key, __u32);
	__type(value, struct totals);
} all SEC(".maps");

struct group_key {
	__u64 cgroup;
	__u64 born;
	__u32 dev;
	__u32 tgid;
	__u8 op;
	__u8 origin;
	__u8 hierarchy;
	__u8 pad[5];
};

struct group {
	struct totals t;
	__u8 disk[DISK_NAME_LEN];
	__u8 comm[COMM_LEN];
};

/* What reached the threshold, by whose it is. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__type(key, struct group_key);
	__type(value, struct group);
} groups SEC(".maps");

enum count {
	REACHED,   /* requests at or above the threshold */
	SAMPLED,   /* of them picked for a record */
	LOST,	   /* of these without room in the ring */
	BEYOND,	   /* picked, but beyond max_samples */
	UNGROUPED, /* without room in groups */
	UNNOTED,   /* made without room in owners */
	UNTIMED,   /* ended without a known start */
	NOBODYS,   /* reached the threshold, and nobody knows whose they are */
	UNDER_WAY,
	MOST_UNDER_WAY,
	COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct record {
	__u64 at; /* ktime of the end */
	__u64 latency;
	__u64 sector;
	__u64 cgroup;
	__u64 born;
	__u32 bytes, dev, tgid, tid;
	__u8 op, origin, hierarchy, status;
	__u8 pad[4];
	__u8 disk[DISK_NAME_LEN];
	__u8 comm[COMM_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} ring SEC(".maps");

const struct record *unused_record __attribute__((unused));

#ifndef barrier_var
#define barrier_var(v) asm volatile("" : "+r"(v))
#endif

/* Too large for the stack; nothing writes here. */
static const volatile struct group nothing;

static __always_inline __u64 count(__u32 which, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&counts, &which);

	return v ? __sync_fetch_and_add(v, n) : 0;
}

static __always_inline void greatest(__u64 *most, __u64 v)
{
	for (int i = 0; i < 4; i++) {
		__u64 old = *(volatile __u64 *)most;

		if (v <= old || __sync_val_compare_and_swap(most, old, v) == old)
			return;
	}
}

static __always_inline __u32 dev_of(struct gendisk *disk)
{
	return (__u32)disk->major << 20 | (__u32)disk->first_minor;
}

static __always_inline bool on_wanted_device(struct request *rq, struct gendisk *disk)
{
	if (want_dev && dev_of(disk) != want_dev)
		return false;
	if (!want_part)
		return true;
	if (!bpf_core_field_exists(struct bio, bi_bdev) || !rq->bio)
		return false;
	return rq->bio->bi_bdev->bd_dev == want_part;
}

SEC("tp_btf/block_io_start")
int BPF_PROG(rq_made, struct request *rq)
{
	struct task_struct___io *task = (void *)bpf_get_current_task_btf(), *leader;
	__u64 key = (__u64)rq, *n;
	struct owner o = {};
	struct gendisk *disk = disk_of(rq);
	struct css_set___io *set = 0;
	__u32 which = MOST_UNDER_WAY;

	if ((rq->cmd_flags & REQ_OP_MASK) >= REQ_OP_PASSTHROUGH || !disk || !on_wanted_device(rq, disk))
		return 0;
	/* A request that never ended was at the same address. */
	if (!bpf_map_delete_elem(&owners, &key))
		count(UNDER_WAY, -1);
	leader = BPF_CORE_READ(task, group_leader);
	o.born = BPF_CORE_READ(leader, start_boottime);
	o.tgid = number_of(leader);
	o.tid = number_of(task);
	o.origin = task->flags & PF_KTHREAD ? KERNEL_THREAD : PROCESS;
	if (want_tgid && (o.tgid != want_tgid || o.born / CLOCK_TICK != want_born))
		return 0;
	if (o.origin == PROCESS)
		set = BPF_CORE_READ(task, cgroups);
	if (!in_wanted_cgroup(rq, set))
		return 0;
	o.at = bpf_ktime_get_ns();
	o.len = rq->__data_len;
	bpf_probe_read_kernel(o.comm, sizeof(o.comm), leader->comm);
	put_cgroup(&o, rq, set);
	if (bpf_map_update_elem(&owners, &key, &o, BPF_ANY)) {
		count(UNNOTED, 1);
		return 0;
	}
	n = bpf_map_lookup_elem(&counts, &which);
	if (n)
		greatest(n, count(UNDER_WAY, 1) + 1);
	return 0;
}

/* The second of two requests becomes part of the first and never ends. */
SEC("tp_btf/block_rq_merge")
int BPF_PROG(rq_merged, struct request *rq)
{
	__u64 key = (__u64)rq;

	if (!bpf_map_delete_elem(&owners, &key))
		count(UNDER_WAY, -1);
	return 0;
}

static __always_inline void add(struct totals *t, __u64 latency, bool timed)
{
	__u64 v = latency >> 10, slot = v;
	__u32 e;

	__sync_fetch_and_add(&t->requests, 1);
	if (!timed)
		return;
	__sync_fetch_and_add(&t->timed, 1);
	__sync_fetch_and_add(&t->sum_ns, latency);
	greatest(&t->max_ns, latency);
	if (v >= 8) {
		e = log2(v) & 63;
		slot = (e - 2) * 8 + ((v >> ((e - 3) & 63)) & 7);
	}
	barrier_var(slot); /* the verifier wants the very register that is used */
	if (slot >= SLOTS)
		slot = SLOTS - 1;
	__sync_fetch_and_add(&t->latency[slot], 1);
}

static __always_inline void sample(struct request *rq, struct gendisk *disk, struct owner *o, __u32 op, __u32 bytes, __u32 status, __u64 latency, __u64 nth)
{
	struct record *r;
	__u64 flags;

	if (sample_every > 1 && nth % sample_every)
		return;
	if (count(SAMPLED, 1) >= max_samples) {
		count(BEYOND, 1);
		return;
	}
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count(LOST, 1);
		return;
	}
	r->at = bpf_ktime_get_ns();
	r->latency = latency;
	r->sector = rq->__sector;
	r->bytes = bytes;
	r->dev = dev_of(disk);
	r->op = op;
	r->status = status;
	r->cgroup = o->cgroup;
	r->hierarchy = o->hierarchy;
	r->born = o->born;
	r->tgid = o->tgid;
	r->tid = o->tid;
	r->origin = o->origin;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	__builtin_memcpy(r->comm, o->comm, sizeof(r->comm));
	bpf_probe_read_kernel_str(r->disk, sizeof(r->disk), disk->disk_name);
	/* The reader looks by itself now and then; wake it before the ring is
	 * full. */
	flags = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) > RING_BYTES / 2 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	bpf_ringbuf_submit(r, flags);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_done, struct request *rq, int error, unsigned int nr_bytes)
{
	__u32 req_op = rq->cmd_flags & REQ_OP_MASK, op, bytes = nr_bytes, status = error & 0xff;
	__u64 key = (__u64)rq, start, latency = 0, nth;
	bool whole = ends(rq, nr_bytes);
	struct gendisk *disk = disk_of(rq);
	struct group_key at = {};
	struct owner o = {}, *known;
	struct totals *t;
	struct group *g;

	if (req_op >= REQ_OP_PASSTHROUGH || !disk)
		return 0;
	known = bpf_map_lookup_elem(&owners, &key);
	if (known) {
		o = *known;
		if (whole && !bpf_map_delete_elem(&owners, &key))
			count(UNDER_WAY, -1);
	} else if (want_tgid || want_io || want_v2 || want_mem || !on_wanted_device(rq, disk)) {
		return 0;
	} else {
		put_cgroup(&o, rq, 0);
	}
	op = op_of(req_op);
	if (by_process) {
		if (op == OP_FLUSH)
			return 0;
		if (op == OP_WRITE && known && !o.len)
			op = OP_FLUSH;
	}
	if (want_op != ANY_OP && op != want_op)
		return 0;
	t = bpf_map_lookup_elem(&all, &op);
	if (!t)
		return 0;
	__sync_fetch_and_add(&t->bytes, nr_bytes);
	if (status && !is_quiet(rq))
		__sync_fetch_and_add(&t->errors, 1);
	if (!whole) {
		if (known)
			known->done += nr_bytes;
		return 0;
	}
	start = made_at(rq);
	if (!start && known)
		start = o.at;
	if (start)
		latency = since(start);
	else
		count(UNTIMED, 1);
	add(t, latency, start);
	if (latency < threshold_ns)
		return 0;
	nth = count(REACHED, 1);
	if (o.origin == UNKNOWN)
		count(NOBODYS, 1);
	bytes += o.done;

	at.cgroup = o.cgroup;
	at.hierarchy = o.hierarchy;
	at.origin = o.origin;
	at.dev = dev_of(disk);
	at.op = op;
	/* Kernel threads share one row by name: workers come and go. */
	at.tgid = o.tgid;
	at.born = o.born;
	g = bpf_map_lookup_elem(&groups, &at);
	if (!g) {
		bpf_map_update_elem(&groups, &at, (const void *)&nothing, BPF_NOEXIST);
		g = bpf_map_lookup_elem(&groups, &at);
		if (g) {
			bpf_probe_read_kernel_str(g->disk, sizeof(g->disk), disk->disk_name);
			__builtin_memcpy(g->comm, o.comm, sizeof(g->comm));
		}
	}
	if (g) {
		add(&g->t, latency, start);
		__sync_fetch_and_add(&g->t.bytes, bytes);
		if (status && !is_quiet(rq))
			__sync_fetch_and_add(&g->t.errors, 1);
	} else {
		count(UNGROUPED, 1);
	}
	sample(rq, disk, &o, op, bytes, status, latency, nth);
	return 0;
}
