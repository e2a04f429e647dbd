/* Packets of clients to other DNS servers than the agent. They are counted and passed on. */
#pragma once
#include "memory.h"

struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, BYPASSES);
	TYPE(key, struct bypass);
	TYPE(value, u64);
} bypasses SEC(".maps");

/* doh_servers has the addresses whose port 443 counts as that of a DNS server. */
struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, MAX_DOH);
	TYPE(key, struct client);
	TYPE(value, u32);
} doh_servers SEC(".maps");

#define TCP 6
#define UDP 17

/* TCP_SYN and TCP_ACK are flags of TCP (RFC 9293, 3.1). A connection begins with SYN alone. */
#define TCP_SYN 2
#define TCP_ACK 0x10

/* ports are the beginning of a TCP header; that of a UDP header has the same ports. UDP packets that are
 * shorter have no DNS message. */
struct ports {
	u16 source, dest;
	u8 numbers[9], flags;
};

/* headers4 and headers6 are those of a packet without IP options and extension headers. */
struct headers4 {
	struct iphdr ip;
	struct ports l4;
};

struct headers6 {
	struct ip6hdr ip;
	struct ports l4;
};

/* begins_dns reports whether a packet to a DNS server's port is one to count: any packet over UDP, the
 * first of a connection over TCP. */
ALWAYS_INLINE int begins_dns(struct ports *l4, u8 protocol)
{
	if (l4->dest != htons(53) && l4->dest != htons(853) && l4->dest != htons(443))
		return 0;
	return protocol == UDP || (protocol == TCP && (l4->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN);
}

/* dns_packet reports whether a packet is for a DNS server, and sets b, which is zero, to its client and
 * server. Fragments, and packets with IP options or extension headers, are not. */
ALWAYS_INLINE int dns_packet(struct __sk_buff *skb, struct bypass *b)
{
	if (skb->protocol == htons(0x0800)) {
		u8 *data = linear(skb, sizeof(struct ethhdr) + sizeof(struct headers4));
		struct headers4 *p = (struct headers4 *)(data + sizeof(struct ethhdr));
		if (!data || p->ip.version_ihl != 0x45 || p->ip.frag_off & htons(0xbfff) || !begins_dns(&p->l4, p->ip.protocol))
			return 0;
		b->client.addr[2] = b->server.addr[2] = htonl(0xffff);
		b->client.addr[3] = p->ip.saddr;
		b->server.addr[3] = p->ip.daddr;
		b->port = p->l4.dest;
		b->tcp = p->ip.protocol == TCP;
		return 1;
	}
	if (skb->protocol == htons(0x86dd)) {
		u8 *data = linear(skb, sizeof(struct ethhdr) + sizeof(struct headers6));
		struct headers6 *p = (struct headers6 *)(data + sizeof(struct ethhdr));
		if (!data || !begins_dns(&p->l4, p->ip.nexthdr))
			return 0;
		__builtin_memcpy(b->client.addr, p->ip.saddr, 16);
		__builtin_memcpy(b->server.addr, p->ip.daddr, 16);
		b->port = p->l4.dest;
		b->tcp = p->ip.nexthdr == TCP;
		return 1;
	}
	return 0;
}

/* add_bypass counts a packet. */
ALWAYS_INLINE void add_bypass(struct bypass *b)
{
	u64 one = 1;

	if (b->port == htons(443) && !map_lookup(&doh_servers, &b->server))
		return;
	u64 *n = map_lookup(&bypasses, b);
	if (!n && map_update(&bypasses, b, &one, NOEXIST))
		n = map_lookup(&bypasses, b); /* another CPU has just added it */
	if (n)
		__sync_fetch_and_add(n, 1);
}
