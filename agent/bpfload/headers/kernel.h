/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * The kernel's types as far as the probe reads them, cut down by hand. Every
 * struct is relocated against the running kernel's BTF, so the order of the
 * members means nothing and only names and types have to agree. A member
 * that a kernel lacks makes the one program that reads it fail to load.
 */
#ifndef TELLTALE_KERNEL_H
#define TELLTALE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0

/* uapi/linux/bpf.h: the map types and flags in use. */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_LRU_PERCPU_HASH 10
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next, *prev;
};

struct ns_common {
	const void *ops;
	unsigned int inum;
};

struct tcp_mib;
struct linux_mib;

struct netns_mib {
	struct tcp_mib *tcp_statistics;   /* per-CPU */
	struct linux_mib *net_statistics; /* per-CPU */
};

struct net {
	struct list_head list;
	struct ns_common ns;
	struct netns_mib mib;
	u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	u16 sk_protocol;
};

struct net_device {
	char name[16];
	int ifindex;
	unsigned int flags;
	possible_net_t nd_net;
};

struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
	char cb[48];
	unsigned int len;
	__be16 protocol;
	__u16 network_header;
	__u16 mac_header;
	unsigned char *head, *data;
	unsigned int end;
};

struct tcp_skb_cb {
	union {
		struct {
			u16 tcp_gso_segs;
		};
	};
};

struct tcp_sock {
	u64 bytes_received, bytes_acked;
	u32 srtt_us; /* eighths of a microsecond */
};

struct bpf_array {
	void *pptrs[1]; /* per-CPU */
};

struct nsproxy {
	struct net *net_ns;
};

struct task_struct {
	struct nsproxy *nsproxy;
	int pid, tgid;
};

#pragma clang attribute pop

#endif
