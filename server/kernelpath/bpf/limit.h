/* The limit of queries by client. All queries in ordinary packets to a door count, whoever
 * answers them. A client is an address on one interface, so a pod that forges an address uses
 * up none of its owner's limit. */
#pragma once
#include "client.h"

/* buckets has the buckets of the clients with numbers. */
struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, CLIENTS);
	TYPE(key, u32);
	TYPE(value, struct bucket);
} buckets SEC(".maps");

/* senders has the buckets of the others. */
struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, SENDERS);
	TYPE(key, struct sender);
	TYPE(value, struct bucket);
} senders SEC(".maps");

/* exempt has the addresses that are never limited: 1, or 0 for the IPv4 addresses in a range of
 * IPv6 addresses. */
struct {
	UINT(type, MAP_LPM_TRIE);
	UINT(map_flags, MAP_NO_PREALLOC);
	UINT(max_entries, EXEMPTIONS);
	TYPE(key, struct prefix);
	TYPE(value, u32);
} exempt SEC(".maps");

/* CHARGES is how often charge tries to change a bucket that other CPUs change, too. */
#define CHARGES 4

/* charge adds queries to a bucket, each of which takes the time limit, and returns 0; or, if it
 * would then be ahead by more than burst, returns 1 and adds nothing (GCRA, ITU-T I.371). */
ALWAYS_INLINE int charge(u64 *due, u64 now, u64 limit, u64 burst, u64 queries)
{
	u64 cost = limit * queries, most = now + burst;

	for (int i = 0; i < CHARGES; i++) {
		u64 was = *(volatile u64 *)due;
		u64 then = (was > now ? was : now) + cost;
		int over = then > most;
		if (over && was <= most)
			return 1;
		if (over)
			then = most; /* the limit was changed */
		if (__sync_val_compare_and_swap(due, was, then) == was)
			return over;
	}
	__sync_fetch_and_add(due, cost);
	return 0;
}

/* bucket_of returns the bucket of a client on an interface, 0 if there is no memory for it. c is the
 * client's state; 0 if it has none, or is new. */
ALWAYS_INLINE struct bucket *bucket_of(struct state *st, struct client_state *c, struct client *client, u32 ifindex)
{
	if (!c)
		c = client_of(st, client);
	if (c) {
		u32 at = c->number;
		struct bucket *b = map_lookup(&buckets, &at);
		if (b && !*(volatile u64 *)&b->interface)
			__sync_val_compare_and_swap(&b->interface, 0, ifindex);
		if (b && *(volatile u64 *)&b->interface == ifindex)
			return b;
	}
	struct sender s = {.client = *client, .interface = ifindex};
	struct bucket *b = map_lookup(&senders, &s);
	if (b)
		return b;
	struct bucket empty = {.interface = ifindex};
	map_update(&senders, &s, &empty, NOEXIST);
	return map_lookup(&senders, &s);
}

/* is_exempt reports whether a client is never limited. */
ALWAYS_INLINE int is_exempt(struct client *client)
{
	struct prefix p = {.bits = 128, .client = *client};
	u32 *is = map_lookup(&exempt, &p);

	return is && *is;
}

/* limited charges queries to a client, and returns LIMITED to drop them, EXCEEDED to pass them on to
 * the agent, or RESULTS if the client is within its limit. */
ALWAYS_INLINE u32 limited(struct state *st, struct bucket *b, struct client *client, u64 queries, u64 now)
{
	u64 limit = *(volatile u64 *)&st->limit, burst = *(volatile u64 *)&st->burst;

	if (!limit || !charge(&b->due, now, limit, burst, queries) || is_exempt(client))
		return RESULTS;
	if (!st->drop && !charge(&b->excess, now, limit, burst, queries))
		return EXCEEDED;
	__sync_fetch_and_add(&b->limited, queries);
	return LIMITED;
}
