//go:build ignore

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * The I/O account of one process, as /proc/PID/io adds it up: its threads,
 * and what its threads that ended and its children that it waited for left.
 */
#include "pidspace.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define COMM_LEN 16

const volatile __u32 want_tgid;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_io_accounting {
	u64 rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled_write_bytes;
};

struct signal_struct {
	struct task_io_accounting ioac;
};

struct task_struct___io {
	u64 start_boottime;
	struct task_struct___io *group_leader;
	struct signal_struct *signal;
	struct task_io_accounting ioac;
	char comm[COMM_LEN];
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

struct sums {
	__u64 rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled;
};

struct thread {
	__u64 process_born; /* ns since boot */
	__u64 born;
	__u32 tgid, tid;
	__u8 comm[COMM_LEN];
	struct sums own;
	struct sums left; /* by what ended; the same in each thread */
};

const struct thread *unused_thread __attribute__((unused));

static __always_inline void put(struct sums *s, struct task_io_accounting *a)
{
	s->rchar = BPF_CORE_READ(a, rchar);
	s->wchar = BPF_CORE_READ(a, wchar);
	s->syscr = BPF_CORE_READ(a, syscr);
	s->syscw = BPF_CORE_READ(a, syscw);
	s->read_bytes = BPF_CORE_READ(a, read_bytes);
	s->write_bytes = BPF_CORE_READ(a, write_bytes);
	s->cancelled = BPF_CORE_READ(a, cancelled_write_bytes);
}

SEC("iter/task")
int each_thread(struct bpf_iter__task *ctx)
{
	struct task_struct___io *task = (void *)ctx->task;
	struct signal_struct *signal;
	struct thread t = {};

	if (!task)
		return 0;
	t.tgid = number_of(BPF_CORE_READ(task, group_leader));
	if (t.tgid != want_tgid)
		return 0;
	t.tid = number_of(task);
	t.born = task->start_boottime;
	t.process_born = BPF_CORE_READ(task, group_leader, start_boottime);
	BPF_CORE_READ_INTO(&t.comm, task, comm);
	put(&t.own, (void *)task + bpf_core_field_offset(struct task_struct___io, ioac));
	signal = BPF_CORE_READ(task, signal);
	if (signal)
		put(&t.left, (void *)signal + bpf_core_field_offset(struct signal_struct, ioac));
	bpf_seq_write(ctx->meta->seq, &t, sizeof(t));
	return 0;
}
