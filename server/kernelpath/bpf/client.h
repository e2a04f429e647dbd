/* Which clients may be answered: those that the agent itself has answered recently, on the
 * interface on which they ask, if no other interface uses their address. */
#pragma once
#include "memory.h"

#define NXDOMAIN 3 /* RFC 1035, 4.1.1; the other answers are NOERROR */

/* clients maps each address that asks to its number. The agent frees the numbers of addresses
 * that no longer ask. */
struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, CLIENTS);
	TYPE(key, struct client);
	TYPE(value, u32);
} clients SEC(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, CLIENTS);
	TYPE(key, u32);
	TYPE(value, struct client_state);
} client_states SEC(".maps");

/* recent_clients has the numbers of clients that were looked up last, by a hash of their address:
 * the number and, in the upper half, the releases of the state at that time. */
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, 1 << RECENT_BITS);
	TYPE(key, u32);
	TYPE(value, u64);
} recent_clients SEC(".maps");

/* client_counts has a set of counters for each stripe. The agent makes it smaller where there are
 * fewer processors than stripes. */
struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, CLIENT_STRIPES * CLIENTS);
	TYPE(key, u32);
	TYPE(value, struct client_count);
} client_counts SEC(".maps");

/* free_clients has the free numbers. Their state is zero. */
struct {
	UINT(type, MAP_QUEUE);
	UINT(max_entries, CLIENTS);
	TYPE(value, u32);
} free_clients SEC(".maps");

ALWAYS_INLINE u64 stamp(u64 time, u32 number)
{
	return time >> STAMP_TIME << STAMP_BITS | (number & STAMP_MASK);
}

/* stamped reports whether a stamp has this number. */
ALWAYS_INLINE int stamped(u64 stamp, u32 number) { return (stamp & STAMP_MASK) == (number & STAMP_MASK); }

/* since is the age of a stamp, in units of stamps. */
ALWAYS_INLINE u64 since(u64 stamp, u64 now) { return (now >> STAMP_TIME) - (stamp >> STAMP_BITS); }

#define UNITS(time) ((time) >> STAMP_TIME)

/* state_of returns the state with this number if it is the client's, otherwise 0. */
ALWAYS_INLINE struct client_state *state_of(struct client *client, u32 number)
{
	struct client_state *c = map_lookup(&client_states, &number);
	if (!c)
		return 0;
	u32 *a = c->client.addr, *b = client->addr;
	return (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) ? 0 : c;
}

/* recent_of returns where the number of a client is remembered. */
ALWAYS_INLINE u64 *recent_of(struct client *client)
{
	u32 *a = client->addr, at = (a[0] ^ a[1] ^ a[2] ^ a[3]) * 0x9e3779b1 >> (32 - RECENT_BITS);

	return map_lookup(&recent_clients, &at);
}

/* client_of returns the state of a client, 0 if it has none. The address is compared because
 * the number may have been reassigned between the two look-ups. That takes a sweep of the agent
 * and a second one, ten seconds later. A number from before the first of them is not used. */
ALWAYS_INLINE struct client_state *client_of(struct state *st, struct client *client)
{
	u64 releases = *(volatile u64 *)&st->releases << 32, *recent = recent_of(client);
	if (!recent)
		return 0;
	u64 last = *(volatile u64 *)recent;
	struct client_state *c = 0;
	if ((last ^ releases) >> 32 == 0)
		c = state_of(client, last);
	if (c)
		return c;
	last = __sync_fetch_and_add(recent, 0); /* orders the look-up after the reading of releases */
	same(last);
	u32 *n = map_lookup(&clients, client);
	if (!n)
		return 0;
	u32 number = *(volatile u32 *)n;
	c = state_of(client, number);
	if (c)
		*(volatile u64 *)recent = releases | number;
	return c;
}

/* add_client gives a client a number; 0 if none is free or another CPU has just done it. A new
 * client may be one of those that had no room before, and is barred as they were. */
ALWAYS_INLINE int add_client(struct state *st, struct client *client, u64 place)
{
	u32 n = 0;

	if (map_pop(&free_clients, &n))
		return 0;
	struct client_state *c = map_lookup(&client_states, &n);
	if (!c)
		return 0;
	c->client = *client;
	c->number = n;
	u64 unnoted = *(volatile u64 *)&st->unnoted;
	c->barred = unnoted ? unnoted + QUARANTINE + (1 << STAMP_TIME) : 0;
	*(volatile u64 *)&c->place = place;
	if (!map_update(&clients, client, &n, NOEXIST))
		return 1;
	*(volatile u64 *)&c->place = 0;
	map_push(&free_clients, &n, 0);
	return 0;
}

/* note records that a client asks on an interface and returns its state; 0 if it has none or
 * is new. */
ALWAYS_INLINE struct client_state *note(struct state *st, struct client *client, u32 ifindex, u64 now)
{
	u64 place = stamp(now, ifindex);
	struct client_state *c = client_of(st, client);

	if (!c) {
		if (add_client(st, client, place))
			return 0;
		c = client_of(st, client);
	}
	if (!c) {
		if (now - st->unnoted > 1 << STAMP_TIME) /* or all processors would write all the time */
			*(volatile u64 *)&st->unnoted = now;
		return 0;
	}
	if (*(volatile u64 *)&c->place == place)
		return c;
	/* If two CPUs get here at the same time, one of them sees what the other has written. Its
	 * clock may be one unit ahead. */
	u64 before = __sync_lock_test_and_set(&c->place, place);
	if (!stamped(before, ifindex) && since(before, now) + 1 <= UNITS(QUARANTINE) + 2)
		*(volatile u64 *)&c->barred = now + QUARANTINE;
	return c;
}

/* admitted returns RESULTS if a recorded client may be answered, otherwise why not. */
ALWAYS_INLINE u32 admitted(struct client_state *c, u32 door, u64 now)
{
	if (!c)
		return STRANGER;
	if (now < *(volatile u64 *)&c->barred)
		return MOVED;
	for (int i = 0; i < PASSES; i++) {
		struct pass *pass = &c->passes[i];
		u64 until = *(volatile u64 *)&pass->until;
		if (!stamped(until, door))
			continue;
		if (now >> STAMP_TIME >= until >> STAMP_BITS)
			return STRANGER;
		if (now < pass->renew)
			return RESULTS;
		pass->renew = now + RENEW; /* others need not */
		return RENEWAL;
	}
	return STRANGER;
}

/* admit admits a client at a door when the agent's reply leaves on an interface, if the client
 * has asked on that interface and no forged query can have gone unseen. */
ALWAYS_INLINE void admit(struct state *st, struct client *client, u32 ifindex, u32 door, u64 now)
{
	if (now >= *(volatile u64 *)&st->watched)
		return;
	struct client_state *c = client_of(st, client);
	if (!c || now < *(volatile u64 *)&c->barred)
		return;
	u64 place = *(volatile u64 *)&c->place;
	if (!stamped(place, ifindex) || since(place, now) > UNITS(ASKED))
		return;
	u32 at = 0;
	u64 oldest = ~0ULL;
	for (u32 i = 0; i < PASSES; i++) {
		u64 until = c->passes[i].until;
		if (stamped(until, door))
			until = 0; /* there are no others of this door */
		if (until < oldest) {
			oldest = until;
			at = i;
		}
	}
	struct pass *pass = &c->passes[at & (PASSES - 1)];
	pass->renew = now + RENEW;
	*(volatile u64 *)&pass->until = stamp(now + ADMITTED, door);
}

/* count_client counts an answer with this rcode to a client. waste is that of the slot. */
ALWAYS_INLINE void count_client(struct state *st, struct client_state *c, u32 rcode, u32 waste)
{
	u32 at = (processor_id() & st->stripes) * CLIENTS + (c->number & (CLIENTS - 1));
	struct client_count *n = map_lookup(&client_counts, &at);

	if (n)
		__sync_fetch_and_add(rcode != NXDOMAIN ? &n->no_error : waste ? &n->waste : &n->nx_domain, 1);
}
