//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Requests of block devices: how many, how large, how long, how many failed.
 * Requests are counted as the kernel counts them for /sys/block/DEV/stat
 * (block/blk-mq.c), so that the two can be compared.
 */
#include "request.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAX_DEVICES 60
#define BUCKETS 40 /* the last one holds everything from 2^39 ns, 9 minutes, on */

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
	if (!ends(rq, nr_bytes))
		return 0;
	t->ios++;
	start = made_at(rq);
	if (!start) {
		t->untimed++;
		return 0;
	}
	latency = since(start);
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
