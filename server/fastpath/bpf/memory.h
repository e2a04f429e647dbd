/* The memory that the agent and the program share, and its bounds: this is the one place
 * where they are. The Go side is made from these types (go generate). */
#pragma once
#include "kernel.h"

/* NAME_WORDS is what a name may have, in words of eight bytes: 128 bytes with the root. The
 * longest names that pods' search paths make of usual ones have 100; half would leave those
 * of databases in the cloud to the agent, twice as much would double the look at each key. */
#define NAME_WORDS 16
#define NAME_BYTES (8 * NAME_WORDS)

/* TAIL_WORDS is what may stand behind the question of a reply, in words of eight bytes: 22
 * addresses and an OPT record. More would come near to MAX_MESSAGE with the longest name. */
#define TAIL_WORDS 46
#define TAIL_BYTES (8 * TAIL_WORDS)

/* MAX_TTLS is how many records a reply may have whose TTLs count down: as many as fit. */
#define MAX_TTLS 24

/* bound is what both sides reckon with. */
enum bound {
	/* The longest query and the longest reply: what every client takes (RFC 1035, 4.2.1). */
	MAX_MESSAGE = 512,
	/* The sets of the table, as a power of two: 4,096 names of the cluster and as many of the
	 * cache, some 5 MB. A node of a hundred pods asks for some hundred names. */
	SETS_BITS = 10,
	/* The groups of each table of counters, as a power of two: with four thousand, a change to
	 * one Service takes the answers of another along once in as many times. */
	EPOCH_BITS = 12,
	/* A stamp is a time and a number in one word, which is read and written at once: the
	 * time in units of 2^27 nanoseconds (134 ms), and behind it 31 bits of the number. */
	STAMP_TIME = 27,
	STAMP_BITS = 31,
};

#define SETS (1 << SETS_BITS)

/* WAYS is the places of a set, whose tags fill one line of the CPU's caches. */
#define WAYS 8

/* EPOCHS is the words of two tables of counters, of the cluster and of the cache: the groups,
 * all together, and values (internal/epoch). */
#define EPOCHS (2 * ((1 << EPOCH_BITS) + 1 + 16))

/* DOORS bounds the addresses at which queries are answered, each of which is there once with
 * its port and once for any. CLIENTS bounds the addresses that are known to ask: twenty times
 * as many as a node may have pods. */
#define DOORS 512
#define CLIENTS 4096

/* ADMITTED is how long a client is answered for after the agent's own reply has left to it,
 * in nanoseconds: the time in which a rule that keeps its packets from the agent comes to
 * hold here. After RENEW one query goes on to the agent, so that a client that asks often
 * never loses its place. */
#define ADMITTED 2000000000ULL
#define RENEW 1000000000ULL

/* ASKED is for how long after an address has asked over an interface a reply over it admits
 * the address there. A client waits for its reply no longer (resolv.conf(5)). */
#define ASKED 5000000000ULL

/* QUARANTINE is for how long an address is admitted nowhere after it has asked over a second
 * interface, and for how long the first one is remembered: one of the two senders may have
 * forged the address. It is longer than ASKED and ADMITTED together, so that no admission
 * outlasts the memory of the query it comes from. */
#define QUARANTINE 10000000000ULL

/* PASSES is at how many doors a client can be admitted at the same time: link-local address
 * and ClusterIP, of the new configuration and of the old one. */
#define PASSES 4

/* SAMPLED is which part of the answers is timed: one in so many, a power of two. */
#define SAMPLED 64

/* variant is the bits of a query that a reply hangs on. */
enum variant {
	RD = 1,
	AD = 2,
	CD = 4,
	EDNS = 8,
	DO = 16,
};

/* What becomes of a packet to a door. */
enum result {
	ANSWERED,
	MISS,     /* the table has no answer */
	SHAPE,    /* not of the kind that is answered here */
	EXPIRED,  /* the answer's time is over */
	CHANGED,  /* the answer is no longer the agent's */
	LAPSED,   /* the agent does not say that it is well */
	STRANGER, /* the agent has not answered this client of late */
	MOVED,    /* the client's address has asked over another interface, too */
	RENEWAL,  /* one query for the agent, so that the client stays known */
	BUSY,     /* the agent is writing there */
	FAILED,   /* the packet could not be changed */
	RESULTS,
	/* Behind the results: nanoseconds of the answers that were timed, and their number. */
	TOOK = RESULTS,
	TIMED,
	COUNTERS,
};

/* key is what an answer is found by. */
struct key {
	u32 door;
	u16 type; /* as on the wire */
	u8 variant;
	u8 name_len;
	u64 name[NAME_WORDS]; /* lower case, zeros behind it */
};

/* slot is one place of the table. The agent writes it while seq is odd. */
struct slot {
	u32 seq;
	u32 hits;     /* the program adds; never set back */
	u64 used;     /* when it was last given; times are nanoseconds of CLOCK_MONOTONIC */
	u64 expires;  /* from when on it is not given */
	u64 ends;     /* what TTLs count down to */
	u64 epoch;    /* where the counter epoch_at has to stand */
	u32 epoch_at;
	u32 life;     /* the highest TTL, in seconds */
	u32 sum;      /* checksum of head and tail without what is put in, folded */
	u32 serial;   /* which of the epochs' words stands at serial_at */
	u16 tail_len;
	u16 max_size; /* the highest size that OPT may claim */
	u8 head[10];  /* the header behind the ID */
	u8 ttls;      /* how many TTLs count down; 0: none, they stand in tail */
	u8 odd;       /* how many of them stand at odd places of the message */
	u8 turns;     /* records that change places, from 0 */
	u8 turn_size; /* bytes of each */
	u16 turn_at;  /* where the first is in tail */
	u16 serial_at; /* where the serial of a SOA is in tail, 0: nowhere */
	u16 zero;
	u16 ttl_at[MAX_TTLS];
	struct key key;
	u64 tail[TAIL_WORDS]; /* what stands behind the question, OPT included */
};

struct set {
	u64 tag[WAYS]; /* 0: empty */
};

/* state is what else the agent writes. */
struct state {
	u64 deadline; /* from when on nothing is answered */
	u64 seed;     /* of tags; odd */
	u64 ports;    /* a bit for each port of a door, modulo 64 */
	u64 watched;  /* until when all interfaces of pods are known to be watched */
	/* The program writes: when a query came from an address for which there was no room. */
	u64 unnoted;
};

/* door is an address at which the agent listens; IPv4 in mapped form. */
struct door {
	u32 addr[4];
	u16 port;
	u16 any; /* 1: the address at any port, which is 0 then */
};

/* client is an address that asks; IPv4 in mapped form. */
struct client {
	u32 addr[4];
};

/* STAMP_MASK is the number in a stamp. */
#define STAMP_MASK ((1ULL << STAMP_BITS) - 1)

/* pass admits a client at a door. */
struct pass {
	u64 until; /* stamp of the door; 0: nowhere */
	u64 renew; /* from when on one query goes on to the agent */
};

/* client_state is what is known of a client. Its number, by which counters of the client can
 * be kept elsewhere, is the client's until the agent frees it. Each field is written apart. */
struct client_state {
	struct client client;
	u64 place;  /* stamp of the interface it asked over last; 0: the number is nobody's */
	u64 barred; /* until when it is admitted nowhere */
	struct pass passes[PASSES];
};
