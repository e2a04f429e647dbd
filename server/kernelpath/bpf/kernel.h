/* The parts of the kernel's interface that the programs use, taken from its documentation
 * (linux/bpf.h, bpf-helpers(7)), so that building the object needs no headers of the build
 * machine. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define unlikely(x) __builtin_expect(!!(x), 0)
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* same hides a value from the compiler, which knows more about it than the verifier. */
#define same(x) asm volatile("" : "+r"(x))

/* Types describe maps to the loader. */
#define UINT(name, value) int (*name)[value]
#define TYPE(name, value) typeof(value) *name

enum {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_LPM_TRIE = 11,
	MAP_QUEUE = 22,
	MAP_RINGBUF = 27,
};

#define MAP_NO_PREALLOC (1 << 0)
#define MAP_MMAPABLE (1 << 10)

/* NOEXIST makes map_update fail if the key exists. */
#define NOEXIST 1

/* RB_NO_WAKEUP makes ringbuf_output wake nobody. */
#define RB_NO_WAKEUP 1

/* What a tcx program returns: run the next program, or drop the packet. */
#define TCX_NEXT (-1)
#define TC_SHOT 2

/* The context of a tcx program, up to the last field that is needed. */
struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol; /* big endian */
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex; /* 0: sent by a process of this machine */
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	u64 flow_keys;
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	u64 sk;
	u32 gso_size;
};

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_push)(void *map, const void *value, u64 flags) = (void *)87;
static long (*map_pop)(void *map, void *value) = (void *)88;
static u64 (*ktime_ns)(void) = (void *)5;
static u32 (*random_u32)(void) = (void *)7;
static u32 (*processor_id)(void) = (void *)8;
static long (*skb_store_bytes)(struct __sk_buff *skb, u32 at, const void *from, u32 len, u64 flags) = (void *)9;
static long (*l4_csum_replace)(struct __sk_buff *skb, u32 at, u64 from, u64 to, u64 flags) = (void *)11;
static long (*skb_load_bytes)(const void *skb, u32 at, void *to, u32 len) = (void *)26;
static s64 (*csum_diff)(u32 *from, u32 from_size, u32 *to, u32 to_size, u32 seed) = (void *)28;
static long (*skb_change_type)(struct __sk_buff *skb, u32 type) = (void *)32;
static long (*skb_pull_data)(struct __sk_buff *skb, u32 len) = (void *)39;
static long (*skb_change_tail)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)38;
static long (*ringbuf_output)(void *ringbuf, void *data, u64 size, u64 flags) = (void *)130;
static long (*redirect_peer)(u32 ifindex, u64 flags) = (void *)155;

/* PACKET_HOST is the type of a packet addressed to the receiving machine. */
#define PACKET_HOST 0

#define CSUM_PSEUDO_HDR (1 << 4)
#define CSUM_MARK_MANGLED_0 (1 << 5)

#define htons(x) ((u16)__builtin_bswap16(x))
#define ntohs(x) ((u16)__builtin_bswap16(x))
#define htonl(x) ((u32)__builtin_bswap32(x))

struct ethhdr {
	u8 dst[6], src[6];
	u16 proto;
} __attribute__((packed));

struct iphdr {
	u8 version_ihl, tos;
	u16 tot_len, id, frag_off;
	u8 ttl, protocol;
	u16 check;
	u32 saddr, daddr;
};

struct ip6hdr {
	u32 version_flow;
	u16 payload_len;
	u8 nexthdr, hop_limit;
	u32 saddr[4], daddr[4];
};

struct udphdr {
	u16 source, dest, len, check;
};

/* linear returns the packet, whose first len bytes can be read in place; 0 if it is shorter.
 * Nearly every packet has its headers in one piece. Otherwise the kernel puts them there. */
ALWAYS_INLINE u8 *linear(struct __sk_buff *skb, u32 len)
{
	u8 *data = (u8 *)(long)skb->data;

	if (!unlikely(data + len > (u8 *)(long)skb->data_end))
		return data;
	if (skb_pull_data(skb, len))
		return 0;
	data = (u8 *)(long)skb->data;
	return data + len <= (u8 *)(long)skb->data_end ? data : 0;
}
