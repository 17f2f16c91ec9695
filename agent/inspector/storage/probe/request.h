/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * What the storage module's programs know of a request, in one place.
 */
#ifndef TELLTALE_STORAGE_REQUEST_H
#define TELLTALE_STORAGE_REQUEST_H

#include "kernel.h"

#define DISK_NAME_LEN 32
#define OPS 4

enum op { OP_READ, OP_WRITE, OP_DISCARD, OP_FLUSH };

/* include/linux/blk_types.h: these values are part of the drivers' interface
 * and do not move. */
#define REQ_OP_MASK 0xff
#define REQ_OP_FLUSH 2
#define REQ_OP_DISCARD 3
#define REQ_OP_PASSTHROUGH 32 /* this and above is the driver's own traffic */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node___io {
	u64 id;
};

struct cgroup___io;

struct cgroup_subsys_state___io {
	struct cgroup___io *cgroup;
	struct cgroup_subsys_state___io *parent;
};

struct cgroup___io {
	struct cgroup_subsys_state___io self;
	int level;
	struct kernfs_node___io *kn;
};

struct blkcg {
	struct cgroup_subsys_state___io css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

struct gendisk {
	int major, first_minor;
	char disk_name[DISK_NAME_LEN];
};

struct block_device {
	u32 bd_dev;
};

struct bio {
	struct block_device *bi_bdev; /* since 5.12 */
	struct blkcg_gq *bi_blkg;
};

struct request_queue {
	struct gendisk *disk; /* since 5.15 */
};

struct request {
	struct request_queue *q;
	u32 cmd_flags;
	u32 rq_flags;
	u32 __data_len;
	u64 __sector;
	struct bio *bio;
	u64 start_time_ns;
};

struct request___before_5_15 {
	struct gendisk *rq_disk;
};

#pragma clang attribute pop

/* A named enum since 6.12; before it macros: bits 4 and 11. */
enum rqf_flags { __RQF_FLUSH_SEQ = 1, __RQF_QUIET = 7, __RQF_IO_STAT = 8 };
#define RQF_FLUSH_SEQ_OLD (1 << 4)
#define RQF_QUIET_OLD (1 << 11)

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

static __always_inline bool is_quiet(struct request *rq)
{
	__u32 mask = RQF_QUIET_OLD;

	if (bpf_core_enum_value_exists(enum rqf_flags, __RQF_QUIET))
		mask = 1U << bpf_core_enum_value(enum rqf_flags, __RQF_QUIET);
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

/*
 * When the request was made, or 0 when the kernel noted nothing. Memory of
 * requests is used again and again: since the kernel notes the start only of
 * what it accounts for (iostats), that of any other request is left over from
 * an earlier one. Flush commands are always noted.
 */
static __always_inline __u64 made_at(struct request *rq)
{
	if (bpf_core_enum_value_exists(enum rqf_flags, __RQF_IO_STAT) &&
	    (rq->cmd_flags & REQ_OP_MASK) != REQ_OP_FLUSH &&
	    !(rq->rq_flags & (1U << bpf_core_enum_value(enum rqf_flags, __RQF_IO_STAT))))
		return 0;
	return rq->start_time_ns;
}

/* A request may complete in parts: it ends with the last. A write in a flush
 * sequence completes once for its data and once as a whole; only the whole
 * ends it. */
static __always_inline bool ends(struct request *rq, __u32 nr_bytes)
{
	if (nr_bytes < rq->__data_len)
		return false;
	return (rq->cmd_flags & REQ_OP_MASK) == REQ_OP_FLUSH || !in_flush_sequence(rq);
}

/* Nanoseconds since it was made; start must be noted. */
static __always_inline __u64 since(__u64 start)
{
	__s64 took = bpf_ktime_get_ns() - start;

	return took < 0 ? 0 : took;
}

#endif
