/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * Whose a request is: the task that makes it and the cgroup that is charged.
 * It can be told where the request is made, and nowhere else.
 */
#ifndef TELLTALE_STORAGE_OWNER_H
#define TELLTALE_STORAGE_OWNER_H

#include "request.h"

#define COMM_LEN 16
#define DEPTH 16 /* levels of cgroups that a filter climbs */
#define PF_KTHREAD 0x00200000

/* The cgroups that a task asks for; 0 asks for all. */
const volatile __u64 want_io;	 /* cgroup ids: of the blkio controller, */
const volatile __u64 want_v2;	 /* of version 2, */
const volatile __u64 want_mem;	 /* of the memory controller; any one is enough */

enum origin { UNKNOWN, PROCESS, KERNEL_THREAD };
enum hierarchy { BLKIO, VERSION_2, MEMORY };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct css_set___io {
	struct cgroup_subsys_state___io *subsys[1];
	struct cgroup___io *dfl_cgrp;
};

struct task_struct___io {
	unsigned int flags;
	struct task_struct___io *group_leader;
	u64 start_boottime; /* since 5.5 */
	struct css_set___io *cgroups;
	char comm[COMM_LEN];
};

#pragma clang attribute pop

enum cgroup_subsys_id { memory_cgrp_id = 1, io_cgrp_id = 2 };

struct owner {
	__u64 at;     /* ktime of the making */
	__u64 born;   /* start of the process, ns since boot */
	__u64 cgroup; /* in hierarchy */
	__u32 tgid, tid;
	__u32 len;  /* bytes at the making; merges add more */
	__u32 done; /* bytes that completed before the end */
	__u8 origin;
	__u8 hierarchy;
	__u8 pad[6];
	__u8 comm[COMM_LEN];
};

static __always_inline __u64 id_of(struct cgroup___io *c)
{
	return c ? BPF_CORE_READ(c, kn, id) : 0;
}

/* Whether the group or one above it is wanted. */
static __always_inline bool below(struct cgroup_subsys_state___io *css, __u64 wanted)
{
	for (int i = 0; i < DEPTH && css; i++) {
		struct cgroup___io *c = BPF_CORE_READ(css, cgroup);

		if (id_of(c) == wanted)
			return true;
		css = BPF_CORE_READ(css, parent);
	}
	return false;
}

static __always_inline struct cgroup_subsys_state___io *css_of(struct css_set___io *set, __u32 id)
{
	struct cgroup_subsys_state___io *css = 0;

	bpf_probe_read_kernel(&css, sizeof(css), (void *)set + bpf_core_field_offset(struct css_set___io, subsys) + 8 * id);
	return css;
}

static __always_inline struct cgroup_subsys_state___io *css_of_bio(struct request *rq)
{
	struct bio *bio = rq->bio;
	struct blkcg *blkcg;

	if (!bio)
		return 0;
	blkcg = BPF_CORE_READ(bio, bi_blkg, blkcg);
	return blkcg ? (void *)blkcg + bpf_core_field_offset(struct blkcg, css) : 0;
}

/* The group that is charged, or where that is the root the one that the
 * task is in. */
static __always_inline void put_cgroup(struct owner *o, struct request *rq, struct css_set___io *set)
{
	struct cgroup_subsys_state___io *css = css_of_bio(rq);
	struct cgroup___io *c = css ? BPF_CORE_READ(css, cgroup) : 0;

	o->cgroup = id_of(c);
	o->hierarchy = BLKIO;
	if (!set || (c && BPF_CORE_READ(c, level) > 0))
		return;
	c = BPF_CORE_READ(set, dfl_cgrp);
	if (c && BPF_CORE_READ(c, level) > 0) {
		o->cgroup = id_of(c);
		o->hierarchy = VERSION_2;
		return;
	}
	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return;
	css = css_of(set, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id));
	c = css ? BPF_CORE_READ(css, cgroup) : 0;
	if (c && BPF_CORE_READ(c, level) > 0) {
		o->cgroup = id_of(c);
		o->hierarchy = MEMORY;
	}
}

static __always_inline bool in_wanted_cgroup(struct request *rq, struct css_set___io *set)
{
	if (!want_io && !want_v2 && !want_mem)
		return true;
	/* On version 2 the charged group is one of version 2. */
	if (want_io && below(css_of_bio(rq), want_io))
		return true;
	if (want_v2 && below(css_of_bio(rq), want_v2))
		return true;
	if (!set)
		return false;
	if (want_io && bpf_core_enum_value_exists(enum cgroup_subsys_id, io_cgrp_id) &&
	    below(css_of(set, bpf_core_enum_value(enum cgroup_subsys_id, io_cgrp_id)), want_io))
		return true;
	if (want_v2) {
		struct cgroup___io *c = BPF_CORE_READ(set, dfl_cgrp);

		if (c && below((void *)c + bpf_core_field_offset(struct cgroup___io, self), want_v2))
			return true;
	}
	return want_mem && bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id) &&
	       below(css_of(set, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id)), want_mem);
}

#endif
