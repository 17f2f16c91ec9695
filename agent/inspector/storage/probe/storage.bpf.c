//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Requests of block devices: how many, how large, how long, how many failed.
 * Requests are counted as the kernel counts them for /sys/block/DEV/stat
 * (block/blk-mq.c), so that the two can be compared.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define DISK_NAME_LEN 32
#define MAX_DEVICES 60
#define OPS 4
#define BUCKETS 40 /* the last one holds everything from 2^39 ns, 9 minutes, on */

enum op { OP_READ, OP_WRITE, OP_DISCARD, OP_FLUSH };

/* include/linux/blk_types.h: these values are part of the drivers' interface
 * and do not move. */
#define REQ_OP_MASK 0xff
#define REQ_OP_FLUSH 2
#define REQ_OP_DISCARD 3
#define REQ_OP_PASSTHROUGH 32 /* this and above is the driver's own traffic */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct gendisk {
	char disk_name[DISK_NAME_LEN];
};

struct request_queue {
	struct gendisk *disk; /* since 5.15 */
};

struct request {
	struct request_queue *q;
	u32 cmd_flags;
	u32 rq_flags;
	u32 __data_len;
	u64 start_time_ns;
};

struct request___before_5_15 {
	struct gendisk *rq_disk;
};

#pragma clang attribute pop

/* A named enum since 6.12; before it a macro, bit 4. */
enum rqf_flags { __RQF_FLUSH_SEQ = 1 };
#define RQF_FLUSH_SEQ_OLD (1 << 4)

struct device {
	__u8 name[DISK_NAME_LEN];
};

struct op_totals {
	__u64 ios;
	__u64 bytes;
	__u64 errors;
	__u64 untimed; /* ios without a start time: iostats is off */
	__u64 latency_sum;
	__u64 latency[BUCKETS];
};

struct device_totals {
	struct op_totals op[OPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, MAX_DEVICES);
	__type(key, struct device);
	__type(value, struct device_totals);
} devices SEC(".maps");

/* What found no place in devices. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device_totals);
} other SEC(".maps");

/* Too large for the stack; nothing writes here. */
static const volatile struct device_totals nothing;

static __always_inline __u32 log2(__u64 v)
{
	__u32 r = 0;

	if (v >> 32) { v >>= 32; r += 32; }
	if (v >> 16) { v >>= 16; r += 16; }
	if (v >> 8) { v >>= 8; r += 8; }
	if (v >> 4) { v >>= 4; r += 4; }
	if (v >> 2) { v >>= 2; r += 2; }
	return r + (v >> 1);
}

static __always_inline bool in_flush_sequence(struct request *rq)
{
	__u32 mask = RQF_FLUSH_SEQ_OLD;

	if (bpf_core_enum_value_exists(enum rqf_flags, __RQF_FLUSH_SEQ))
		mask = 1U << bpf_core_enum_value(enum rqf_flags, __RQF_FLUSH_SEQ);
	return rq->rq_flags & mask;
}

static __always_inline struct gendisk *disk_of(struct request *rq)
{
	if (bpf_core_field_exists(struct request_queue, disk))
		return rq->q->disk;
	return ((struct request___before_5_15 *)rq)->rq_disk;
}

/* The grouping of op_stat_group(): everything that changes data is a write. */
static __always_inline __u32 op_of(__u32 req_op)
{
	if (req_op == REQ_OP_FLUSH)
		return OP_FLUSH;
	if (req_op == REQ_OP_DISCARD)
		return OP_DISCARD;
	return req_op & 1 ? OP_WRITE : OP_READ;
}

/* Returns the counters of the request's device and operation, or NULL for
 * what is no device traffic. */
static __always_inline struct op_totals *totals_of(struct request *rq)
{
	struct device key = {};
	struct device_totals *t;
	struct gendisk *disk;
	__u32 req_op = rq->cmd_flags & REQ_OP_MASK, zero = 0;

	if (req_op >= REQ_OP_PASSTHROUGH)
		return 0;
	disk = disk_of(rq);
	if (!disk)
		return 0;
	bpf_probe_read_kernel_str(key.name, sizeof(key.name), disk->disk_name);
	t = bpf_map_lookup_elem(&devices, &key);
	if (!t) {
		bpf_map_update_elem(&devices, &key, (const void *)&nothing, BPF_NOEXIST);
		t = bpf_map_lookup_elem(&devices, &key);
	}
	if (!t) {
		t = bpf_map_lookup_elem(&other, &zero);
		if (!t)
			return 0;
	}
	return &t->op[op_of(req_op) & (OPS - 1)];
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	struct op_totals *t = totals_of(rq);
	__u64 start, latency;
	__u32 bucket;

	if (!t)
		return 0;
	t->bytes += nr_bytes;
	/* A request may complete in parts: it counts with the last. A write in a
	 * flush sequence completes once for its data and once as a whole; only
	 * the whole counts. */
	if (nr_bytes < rq->__data_len)
		return 0;
	if ((rq->cmd_flags & REQ_OP_MASK) != REQ_OP_FLUSH && in_flush_sequence(rq))
		return 0;
	t->ios++;
	start = rq->start_time_ns;
	if (!start) {
		t->untimed++;
		return 0;
	}
	latency = bpf_ktime_get_ns() - start;
	if ((__s64)latency < 0)
		latency = 0;
	bucket = log2(latency);
	if (bucket >= BUCKETS)
		bucket = BUCKETS - 1;
	t->latency_sum += latency;
	t->latency[bucket]++;
	return 0;
}

SEC("tp_btf/block_rq_error")
int BPF_PROG(rq_error, struct request *rq, int error, unsigned int nr_bytes)
{
	struct op_totals *t = totals_of(rq);

	if (t)
		t->errors++;
	return 0;
}
