/* The memory that the agent and the programs share, and all limits. go generate derives the
 * Go types from this file. In Go, a door is called a listener. */
#pragma once
#include "kernel.h"

/* NAME_WORDS is the longest name, in words of eight bytes: 128 bytes with the root label. The
 * longest names that search paths commonly produce have 100 bytes; names of cloud databases
 * need more than 64. Comparing keys takes time in proportion to this limit. */
#define NAME_WORDS 16
#define NAME_BYTES (8 * NAME_WORDS)

/* TAIL_WORDS is how much may follow the question of a reply, in words of eight bytes: 22
 * addresses and an OPT record. With the longest name that is almost MAX_MESSAGE. */
#define TAIL_WORDS 46
#define TAIL_BYTES (8 * TAIL_WORDS)

/* MAX_TTLS is how many records with decreasing TTLs a reply may have: as many as fit. */
#define MAX_TTLS 24

/* bound is the limits that both sides use. */
enum bound {
	/* The longest query and reply; every client accepts it (RFC 1035, 4.2.1). */
	MAX_MESSAGE = 512,
	/* How many further counters an answer may depend on. A name that was found on a client's
	 * search path depends on each name in front of it: three domains of the cluster, and the
	 * search domains of the node, of which most nodes have one or two. */
	MORE_EPOCHS = 5,
	/* The number of sets, as a power of two: 4,096 cluster names and as many cached names,
	 * about 6 MB. A node with a hundred pods asks for some hundred names. */
	SETS_BITS = 10,
	/* The number of epoch groups of each table, as a power of two: with four thousand, a
	 * change of one Service rarely invalidates the answers of another. */
	EPOCH_BITS = 12,
	/* The most sets of counters of clients. Each processor has one, and more share. */
	CLIENT_STRIPES = 16,
	/* Of so many answers one is timed, and one is passed to the agent as a sample. A power of two. */
	SAMPLED = 64,
	/* The buffer of samples, in bytes: a power of two, and a multiple of every page size. It is
	 * enough for 3,500 samples of names of 40 bytes, or 230,000 answers between two readings. */
	SAMPLE_BYTES = 1 << 18,
	/* The most prefixes of addresses that are never limited. */
	MAX_EXEMPT = 1024,
	/* The most addresses of servers of DNS over HTTPS. */
	MAX_DOH = 256,
	/* A stamp is a time and a number in one word, which is read and written atomically: the
	 * time in units of 2^27 nanoseconds (134 ms), followed by 31 bits of the number. */
	STAMP_TIME = 27,
	STAMP_BITS = 31,
};

#define SETS (1 << SETS_BITS)

/* WAYS is the number of slots in a set. The tags of a set fill one cache line. */
#define WAYS 8

/* EPOCHS is the number of words of the two epoch tables, for the cluster and the cache: the
 * groups, the counter of all groups, and values (internal/epoch). */
#define EPOCHS (2 * ((1 << EPOCH_BITS) + 1 + 16))

/* DOORS limits the addresses at which queries are answered. Each has one entry with its port
 * and one for any port. CLIENTS limits the addresses that are known to ask: twenty times as
 * many as a node may have pods. */
#define DOORS 512
#define CLIENTS 4096

/* RECENT_BITS is the number of places for clients that were looked up last, as a power of two. With
 * as many places as CLIENTS, those of a node rarely share one. */
#define RECENT_BITS 12

/* SENDERS is how many addresses without a number, or on a second interface, have a bucket. One
 * more replaces the one that has asked least recently. */
#define SENDERS 1024

/* EXEMPTIONS limits the entries for addresses that are never limited: one for each prefix, and one
 * for the IPv4 addresses that are no part of IPv6 prefixes. */
#define EXEMPTIONS (MAX_EXEMPT + 1)

/* BYPASSES is how many clients' counts of packets to other DNS servers are kept, by server and port. One
 * more replaces the one that has sent least recently. */
#define BYPASSES 1024

/* ADMITTED is how long a client is answered after a reply of the agent itself was sent to it,
 * in nanoseconds. A rule that keeps its packets from the agent takes effect here within that
 * time. After RENEW one query goes on to the agent, so that a client that asks often stays
 * admitted. */
#define ADMITTED 2000000000ULL
#define RENEW 1000000000ULL

/* ASKED is how long after a query on an interface a reply on it still admits the address
 * there. Clients do not wait longer for a reply (resolv.conf(5)). */
#define ASKED 5000000000ULL

/* QUARANTINE is how long an address is not admitted anywhere after it has asked on a second
 * interface, and how long the first interface is remembered: one of the two senders may have
 * forged the address. It is longer than ASKED and ADMITTED together, so that no admission
 * outlasts the memory of the query that led to it. */
#define QUARANTINE 10000000000ULL

/* PASSES is at how many doors a client can be admitted at once: the link-local address and
 * the ClusterIP, of the new and of the old configuration. */
#define PASSES 4

/* variant is the bits of a query that distinguish replies. */
enum variant {
	RD = 1,
	AD = 2,
	CD = 4,
	EDNS = 8,
	DO = 16,
};

/* result is what happens to a packet to a door. */
enum result {
	ANSWERED,
	MISS,     /* the table has no answer */
	SHAPE,    /* a form that is not answered here */
	EXPIRED,  /* the answer has expired */
	CHANGED,  /* the answer's epoch has passed */
	LAPSED,   /* the agent's heartbeat is missing */
	STRANGER, /* the client is not admitted */
	MOVED,    /* the client's address has also asked on another interface */
	RENEWAL,  /* a query for the agent, which renews the admission */
	BUSY,     /* the agent is writing the slot */
	FAILED,   /* the packet could not be changed */
	LIMITED,  /* dropped: the client has exceeded its limit */
	EXCEEDED, /* a query above the limit, for the agent to refuse or truncate */
	RESULTS,
	/* After the results: nanoseconds of the timed answers, their number, and the number of samples
	 * that found the buffer full. */
	TOOK = RESULTS,
	TIMED,
	DROPPED,
	COUNTERS,
};

/* key identifies an answer. */
struct key {
	u32 door;
	u16 type; /* as on the wire */
	u8 variant;
	u8 name_len;
	u64 name[NAME_WORDS]; /* lower case, padded with zeros */
};

/* slot is one slot of the table. The agent writes it while seq is odd. */
struct slot {
	u32 seq;
	u32 hits;     /* incremented by the program; never reset */
	u64 used;     /* when it was last given; times are in ns of CLOCK_MONOTONIC */
	u64 expires;  /* when it is no longer given */
	u64 ends;     /* what TTLs count down to */
	u64 epoch;    /* the value that the counter epoch_at must have */
	u32 epoch_at;
	u32 life;     /* the highest TTL, in seconds */
	u32 sum;      /* folded checksum of head and tail without the filled-in parts */
	u32 serial;   /* which word of the epochs goes to serial_at */
	u32 group;    /* the only clients that get the answer; 0: all get it */
	u32 group_at; /* which word of the epochs changes when clients change groups */
	u16 tail_len;
	u16 max_size; /* the largest size that OPT may advertise */
	u8 head[10];  /* the header after the ID */
	u8 ttls;      /* how many TTLs count down; 0: the TTLs in tail are final */
	u8 odd;       /* how many of them are at odd offsets of the message */
	u8 turns;     /* number of records that rotate */
	u8 turn_size; /* bytes of each */
	u16 turn_at;  /* offset of the first in tail */
	u16 serial_at; /* offset of a SOA serial in tail, 0: none */
	u8 waste;     /* 1: NXDOMAIN for a name that only a search path makes */
	u8 more;      /* how many of more_epoch the answer depends on */
	u16 ttl_at[MAX_TTLS];
	struct key key;
	u64 tail[TAIL_WORDS]; /* what follows the question, including OPT */
	u64 more_epoch[MORE_EPOCHS]; /* the values that the counters more_at must have */
	u32 more_at[MORE_EPOCHS];
	u32 zero;
};

struct set {
	u64 tag[WAYS]; /* 0: empty */
};

/* state is what else the agent writes, except for unnoted. What an answer needs is in front, in
 * one cache line. */
struct state {
	u64 deadline; /* when answers stop */
	u64 seed;     /* of tags; odd */
	u64 ports;    /* a bit for each port of a door, modulo 64 */
	u64 stripes;  /* the number of sets of counters of clients, less one; all bits are ones */
	u64 counting; /* 1: answers are counted by client, and the agent reads samples */
	u64 limit;    /* nanoseconds between two queries of a client at its limit; 0: no limit */
	/* Incremented after doors have changed, and after clients have lost their numbers. The
	 * programs then look up again what they remember. Never 0. */
	u64 door_changes;
	u64 releases;
	u64 watched; /* until when all interfaces of pods count as watched */
	u64 burst;   /* how far ahead of its limit a client may be, in nanoseconds */
	u64 drop;    /* 1: all that exceeds the limit is dropped */
	/* Written by the program: when a query came from an address that had no room. */
	u64 unnoted;
};

/* door is an address at which the agent listens; IPv4 in mapped form. */
struct door {
	u32 addr[4];
	u16 port;
	u16 any; /* 1: any port; port is 0 then */
};

/* client is an address that asks; IPv4 in mapped form. */
struct client {
	u32 addr[4];
};

/* sample is an answer in the buffer of samples. Its name ends with the record. */
struct sample {
	struct client client;
	u32 waste; /* that of the slot */
	u32 zero;
	struct key key;
};

/* STAMP_MASK selects the number in a stamp. */
#define STAMP_MASK ((1ULL << STAMP_BITS) - 1)

/* pass admits a client at a door. */
struct pass {
	u64 until; /* time and door; 0: unused */
	u64 renew; /* when one query goes on to the agent */
};

/* client_state is what is known about a client. Its number, under which other tables can keep
 * counters, belongs to it until the agent frees it. Each field is written on its own. */
struct client_state {
	struct client client;
	u64 number;
	u64 place;  /* time and interface of its last query; 0: the number is free */
	u64 barred; /* until when it must not be admitted */
	u64 group;  /* written by the agent: the group, and above it the word group_at of its slots at that time */
	struct pass passes[PASSES];
};

/* client_count is how many queries of a client were answered, modulo 2^32: with NOERROR, with
 * NXDOMAIN, and with NXDOMAIN for a name that only a search path makes. Each answer is in one of
 * them. The agent sets it to zero while the number is free. */
struct client_count {
	u32 no_error;
	u32 nx_domain;
	u32 waste;
	u32 zero;
};

/* bucket is what a client has used of its limit. It fills a cache line, because each query
 * writes to it. */
struct bucket {
	u64 due;       /* when all its queries would have been sent at the rate of the limit */
	u64 excess;    /* the same for the queries above the limit that were passed on */
	u64 limited;   /* number of queries that were dropped; never reset while the bucket is used */
	u64 interface; /* the interface of the first query; 0: none yet */
	u64 zero[4];
};

/* sender is a client that asks on an interface. */
struct sender {
	struct client client;
	u32 interface;
	u32 zero;
};

/* prefix is a range of addresses; IPv4 in mapped form. */
struct prefix {
	u32 bits;
	struct client client;
};

/* bypass is a client and the other DNS server that it sends packets to; addresses are IPv4 in mapped form. */
struct bypass {
	struct client client, server;
	u16 port; /* as on the wire */
	u16 tcp;  /* 1: connections over TCP */
};
