/* The programs for the host side of a pod's interface. nodens_answer (tcx ingress) answers the
 * pod's queries from the table and passes everything else on unchanged. nodens_admit (tcx
 * egress) sees which clients the agent itself replies to; only those are answered here, so a
 * policy that keeps a pod's packets from the agent also stops these answers. Where nothing may
 * be answered, nodens_watch replaces nodens_answer: it records who asks on which interface and
 * passes on what is within the client's limit; nodens_idle, which does nothing, replaces
 * nodens_admit. nodens_ahead, in front of other programs, only records who asks. nodens_count, if
 * attached, counts packets to other DNS servers. */
#include "bypass.h"
#include "limit.h"

struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, SETS);
	TYPE(key, u32);
	TYPE(value, struct set);
} sets SEC(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, SETS * WAYS);
	TYPE(key, u32);
	TYPE(value, struct slot);
} slots SEC(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, EPOCHS);
	TYPE(key, u32);
	TYPE(value, u64);
} epochs SEC(".maps");

struct {
	UINT(type, MAP_ARRAY);
	UINT(map_flags, MAP_MMAPABLE);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct state);
} states SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, DOORS);
	TYPE(key, struct door);
	TYPE(value, u32);
} doors SEC(".maps");

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, COUNTERS);
	TYPE(key, u32);
	TYPE(value, u64);
} counters SEC(".maps");

/* samples has answers that were chosen at random, until the agent reads them. */
struct {
	UINT(type, MAP_RINGBUF);
	UINT(max_entries, SAMPLE_BYTES);
} samples SEC(".maps");

/* OPT_BYTES is an OPT record without options (RFC 6891, 6.1.2). */
#define OPT_BYTES 11
#define TYPE_OPT 41
#define OPTION_PADDING 12

#define HEADER_BYTES 12
#define ETH_BYTES 14
#define UDP_BYTES 8
#define QUESTION_MAX (NAME_BYTES + 4)
#define HEAD4_BYTES (ETH_BYTES + sizeof(struct iphdr) + UDP_BYTES)
#define HEAD6_BYTES (ETH_BYTES + sizeof(struct ip6hdr) + UDP_BYTES)

/* ROOM limits offsets and lengths in a tail: the next power of two. */
#define ROOM 512

/* recent_door is the door that a processor has found last: nearly all queries are for the same. */
struct recent_door {
	struct door door;
	u32 number;
	u64 changes; /* those of the state when the door was looked up */
};

/* work is scratch space for a query. The packet is in one piece there, first the query and then
 * the reply: msg is the message, behind the headers, which end there. It is placed so that the
 * name is aligned to a word. Its size covers what the verifier considers possible: the end of
 * the longest question, an offset below ROOM and a length of ROOM. */
struct work {
	struct recent_door recent;
	u64 fence;
	struct sample sample;
	u32 skip; /* how many answers there are until the next sample, with it; 0: not chosen yet */
	u16 zero;
	u8 head[HEAD6_BYTES];
	u8 msg[HEADER_BYTES + QUESTION_MAX + 2 * ROOM];
};

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct work);
} works SEC(".maps");

/* packet is what the headers of a packet to or from a door say. They are read in place, and those of
 * a reply are made in work. No program writes to a packet in place: the kernel would copy every packet
 * that shares its memory, such as those of TCP, before it runs such a program. */
struct packet {
	u32 from[4], to[4]; /* IPv4 in mapped form */
	u32 l4;             /* offset of the UDP header */
	u16 source, dest, len;
	u16 options; /* 1: the IPv4 header has options */
};

/* work_of returns the processor's scratch space. It is never 0, but the verifier wants a check. */
ALWAYS_INLINE struct work *work_of(void)
{
	u32 zero = 0;

	return map_lookup(&works, &zero);
}

/* apart keeps the compiler from merging the ends of two branches, which would make an address
 * variable; n differs in each branch. */
#define apart(n) asm volatile("" ::"i"(n))

/* bounded returns x, which is 1 to ROOM, in a form that every verifier understands: before 6.8
 * they learn nothing from "x is not 0", nor from comparing a value that is also on the stack. */
ALWAYS_INLINE u32 bounded(u32 x)
{
	same(x);
	return ((x - 1) & (ROOM - 1)) + 1;
}

ALWAYS_INLINE void count(u32 what, u64 n)
{
	u64 *c = map_lookup(&counters, &what);
	if (c)
		*c += n;
}

ALWAYS_INLINE u32 fold(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* minus is what takes the sum of two bytes away from another sum. */
ALWAYS_INLINE u32 minus(u16 sum) { return 0xffff ^ sum; }

/* turned is the folded sum of data at an odd offset. */
ALWAYS_INLINE u32 turned(u32 sum, u32 odd) { return odd & 1 ? __builtin_bswap16(sum) : sum; }

/* is_mapped reports whether an IPv6 address is an IPv4-mapped address. */
ALWAYS_INLINE int is_mapped(u32 *addr)
{
	u32 differs = addr[0] | addr[1] | (addr[2] ^ htonl(0xffff));
	same(differs);
	return !differs;
}

/* ports stores the fields of the UDP header. */
ALWAYS_INLINE void ports(struct packet *p, struct udphdr *udp)
{
	p->source = udp->source;
	p->dest = udp->dest;
	p->len = ntohs(udp->len);
}

/* form classifies a packet. */
enum form {
	FOREIGN, /* not UDP, or this machine would drop it */
	BURIED,  /* possibly UDP, with the ports elsewhere */
	ODD,     /* UDP with unusual headers */
	WHOLE,   /* a complete and ordinary UDP packet */
};

/* gap_of is where the headers of a packet begin in work: those of IPv4 are shorter. The mask tells
 * the verifier so much of it that it looks at the rest once for both. */
ALWAYS_INLINE u32 gap_of(struct packet *p)
{
	u32 gap = HEAD6_BYTES - UDP_BYTES - p->l4;

	same(gap);
	return gap & 31;
}

/* headers parses the headers: addresses unless FOREIGN, ports if WHOLE or ODD. IPv6 comes first:
 * what the verifier has seen with any address it need not see again with the zeros of IPv4. */
ALWAYS_INLINE enum form headers(struct __sk_buff *skb, struct packet *p)
{
	int usual;

	p->options = 0;
	if (skb->protocol == htons(0x86dd)) {
		u8 *data = linear(skb, HEAD6_BYTES);
		struct ip6hdr *ip = (struct ip6hdr *)(data + ETH_BYTES);
		struct udphdr *udp = (struct udphdr *)(data + ETH_BYTES + sizeof(*ip));
		if (!data || ip->nexthdr == 6 || ip->nexthdr == 58)
			return FOREIGN;
		__builtin_memcpy(p->from, ip->saddr, 16);
		__builtin_memcpy(p->to, ip->daddr, 16);
		/* The kernel drops packets with IPv4-mapped addresses. */
		if (is_mapped(p->from) || is_mapped(p->to))
			return FOREIGN;
		if (ip->nexthdr != 17)
			return BURIED;
		/* It also drops UDP over IPv6 without a checksum (RFC 8200, 8.1). */
		usual = ntohs(ip->payload_len) == skb->len - ETH_BYTES - sizeof(*ip) && udp->check;
		p->l4 = ETH_BYTES + sizeof(*ip);
		ports(p, udp);
		apart(6);
	} else if (skb->protocol == htons(0x0800)) {
		u8 *data = linear(skb, HEAD4_BYTES);
		struct iphdr *ip = (struct iphdr *)(data + ETH_BYTES);
		if (!data || ip->protocol != 17)
			return FOREIGN;
		p->from[0] = p->from[1] = p->to[0] = p->to[1] = 0;
		p->from[2] = p->to[2] = htonl(0xffff);
		p->from[3] = ip->saddr;
		p->to[3] = ip->daddr;
		p->options = ip->version_ihl != 0x45;
		if (p->options || ip->frag_off & htons(0xbfff))
			return BURIED;
		usual = ntohs(ip->tot_len) == skb->len - ETH_BYTES;
		p->l4 = ETH_BYTES + sizeof(*ip);
		ports(p, (struct udphdr *)(data + ETH_BYTES + sizeof(*ip)));
		apart(4);
	} else {
		return FOREIGN;
	}
	return usual && p->len == skb->len - p->l4 ? WHOLE : ODD;
}

/* fence orders the reads before it and the reads after it. */
ALWAYS_INLINE void fence(struct work *w)
{
	u64 before = __sync_fetch_and_add(&w->fence, 0); /* one that gives what it finds, which orders */
	same(before);
}

/* door_of returns the number of the door at addr and port, 0 if there is none. */
ALWAYS_INLINE u32 door_of(struct state *st, u32 *addr, u16 port)
{
	if (!(st->ports >> (ntohs(port) & 63) & 1))
		return 0;
	struct work *w = work_of();
	if (!w)
		return 0;
	struct recent_door *last = &w->recent;
	u64 changes = *(volatile u64 *)&st->door_changes;
	u32 *a = last->door.addr;
	if (last->changes == changes && last->door.port == port &&
	    !((a[0] ^ addr[0]) | (a[1] ^ addr[1]) | (a[2] ^ addr[2]) | (a[3] ^ addr[3])))
		return last->number;
	fence(w); /* between the changes and the look-up */
	struct door d = {.port = port};
	__builtin_memcpy(d.addr, addr, 16);
	u32 *n = map_lookup(&doors, &d);
	if (!n)
		return 0;
	last->door = d;
	last->number = *n;
	last->changes = changes;
	return last->number;
}

/* may_reach reports whether a BURIED packet may reach a door. IPv4 options may contain a route
 * to it. */
ALWAYS_INLINE int may_reach(struct __sk_buff *skb, struct packet *p)
{
	struct door d = {.any = 1};

	if (p->options)
		return 1;
	__builtin_memcpy(d.addr, p->to, 16);
	return map_lookup(&doors, &d) != 0;
}

#define ONES 0x0101010101010101ULL
#define HIGH (0x80 * ONES)

/* lower returns w with capital letters in lower case. Label lengths are at most 63 and below
 * the letters. */
ALWAYS_INLINE u64 lower(u64 w)
{
	u64 low = w & ~HIGH;
	u64 capital = (low + (0x80 - 'A') * ONES) & ~(low + (0x80 - 'Z' - 1) * ONES) & ~w & HIGH;
	return w | capital >> 2;
}

ALWAYS_INLINE u64 mixed(u64 tag, u64 word, u64 seed)
{
	tag = (tag ^ word) * seed;
	return tag ^ tag >> 32;
}

/* read_name copies the question's name into the key, up to the word in which it ends, and adds it
 * to *tag. It ends at the first zero byte: for a name in the table that is the root label, and a
 * name for which it is not cannot be in the table. Bytes after the message may be left from an
 * earlier one. Returns the name's length, 0 if it is too long. */
ALWAYS_INLINE u32 read_name(struct work *w, u64 *tag, u64 seed)
{
	u64 *from = (u64 *)(w->msg + HEADER_BYTES);
	u32 len = 0;

	for (int i = 0; i < NAME_WORDS; i++) {
		u64 word = lower(from[i]);
		u64 zero = (word - ONES) & ~word & HIGH;
		if (zero) {
			u64 before = ((zero & -zero) >> 7) - 1; /* the bits of the bytes in front of it */
			word &= before;
			len = 8 * i + 1 + ((before & ONES) * ONES >> 56);
		}
		*tag = mixed(*tag, word, seed);
		w->sample.key.name[i] = word;
		if (len)
			break;
	}
	return len;
}

/* variant_of returns the bits of the query that distinguish replies, -1 for a query that is not
 * plain. behind is the end of the question; size is set to the size in its OPT record. */
ALWAYS_INLINE int variant_of(u8 *msg, u32 behind, u32 len, u16 *size)
{
	u16 flags = ntohs(*(u16 *)(msg + 2));
	int v = (flags & 0x0100 ? RD : 0) | (flags & 0x20 ? AD : 0) | (flags & 0x10 ? CD : 0);

	if (flags & ~0x0130 || *(u32 *)(msg + 4) != htonl(0x00010000) || *(u16 *)(msg + 8))
		return -1;
	if (*(u16 *)(msg + behind - 2) != htons(1)) /* class IN */
		return -1;
	if (!*(u16 *)(msg + 10))
		return len == behind ? v : -1;
	if (*(u16 *)(msg + 10) != htons(1) || len < behind + OPT_BYTES)
		return -1;
	u8 *opt = msg + behind;
	u32 rest = len - behind - OPT_BYTES;
	if (opt[0] || *(u16 *)(opt + 1) != htons(TYPE_OPT) || *(u16 *)(opt + 5) || opt[8] ||
	    ntohs(*(u16 *)(opt + 9)) != rest)
		return -1;
	if (rest && (rest < 4 || *(u16 *)(opt + 11) != htons(OPTION_PADDING) || ntohs(*(u16 *)(opt + 13)) != rest - 4))
		return -1;
	if (opt[7] & 0x7f)
		return -1;
	*size = ntohs(*(u16 *)(opt + 3));
	return v | EDNS | (opt[7] & 0x80 ? DO : 0);
}

/* matches compares a with the key of a slot, up to the word in which the name ends: behind it, a has the
 * rest of an earlier name. */
ALWAYS_INLINE int matches(struct key *a, struct key *b)
{
	u64 *x = (u64 *)a, *y = (u64 *)b, differ = x[0] ^ y[0];
	u32 len = *(volatile u8 *)&a->name_len;

	for (int i = 0; i < NAME_WORDS; i++) {
		if (8 * i >= len)
			break;
		differ |= x[i + 1] ^ y[i + 1];
	}
	return !differ;
}

/* is_for reports whether the answer in a slot is for a client, whose state may be 0. The agent
 * writes the client's group together with the value of the counter, so a group that the client
 * may have left is never taken for its group. */
ALWAYS_INLINE int is_for(struct slot *slot, struct client_state *c)
{
	u64 group = *(volatile u32 *)&slot->group;

	if (!group)
		return 1;
	u32 at = *(volatile u32 *)&slot->group_at;
	u64 *epoch = map_lookup(&epochs, &at);
	return epoch && c && *(volatile u64 *)&c->group == (*(volatile u64 *)epoch << 32 | group);
}

/* find returns the slot with the key's tag for a client, whose state may be 0; 0 if there is none. The slot
 * may have another key: copy compares it. */
ALWAYS_INLINE struct slot *find(u64 tag, struct client_state *c)
{
	u32 at = tag >> (64 - SETS_BITS);
	struct set *set = map_lookup(&sets, &at);

	if (!set)
		return 0;
	for (u32 way = 0; way < WAYS; way++) {
		if (set->tag[way] != tag)
			continue;
		u32 place = at * WAYS + way;
		struct slot *slot = map_lookup(&slots, &place);
		if (slot && is_for(slot, c))
			return slot;
	}
	return 0;
}

/* answer is a consistent copy of a slot. */
struct answer {
	u64 ends;
	u32 life, sum;
	u32 tail_len, max_size, ttls, odd, turns, turn_size, turn_at, waste;
	u16 flags;
	u64 counts;
};

/* copy copies the slot's answer for a client: the tail to w, from behind the question on, the rest to
 * a. Returns ANSWERED, or why it is not given. */
ALWAYS_INLINE u32 copy(struct slot *slot, struct client_state *c, struct work *w, struct answer *a, u32 behind, u64 now)
{
	u8 *tail = w->msg + behind;
	u32 seq = *(volatile u32 *)&slot->seq;

	fence(w);
	if (seq & 1)
		return BUSY;
	if (now >= slot->expires)
		return EXPIRED;
	u32 at = slot->epoch_at;
	u64 *epoch = map_lookup(&epochs, &at);
	if (!epoch || *(volatile u64 *)epoch != slot->epoch)
		return CHANGED;
	for (u32 i = 0; i < MORE_EPOCHS; i++) {
		if (i >= slot->more)
			break;
		at = slot->more_at[i];
		epoch = map_lookup(&epochs, &at);
		if (!epoch || *(volatile u64 *)epoch != slot->more_epoch[i])
			return CHANGED;
	}
	if (!is_for(slot, c)) /* it was another answer when it was found */
		return BUSY;
	a->ends = slot->ends;
	a->life = slot->life;
	a->sum = slot->sum;
	a->tail_len = slot->tail_len;
	a->max_size = slot->max_size;
	a->ttls = slot->ttls;
	a->odd = slot->odd;
	a->turns = slot->turns;
	a->turn_size = slot->turn_size;
	a->turn_at = slot->turn_at;
	a->waste = slot->waste;
	a->flags = *(u16 *)slot->head;
	a->counts = *(u64 *)(slot->head + 2);
	u32 ttl = 0;
	if (a->ttls && a->ends > now) {
		ttl = (a->ends - now + 999999999) / 1000000000;
		if (ttl > a->life)
			ttl = a->life;
	}
	/* Read once more, or the verifier would look at the rest once for each number of words. */
	u32 len = *(volatile u16 *)&slot->tail_len;
	for (u32 i = 0; i < TAIL_WORDS; i++) {
		if (8 * i >= len)
			break;
		*(u64 *)(tail + 8 * i) = slot->tail[i];
	}
	u32 be = htonl(ttl);
	for (u32 i = 0; i < MAX_TTLS; i++) {
		if (i >= a->ttls)
			break;
		u32 to = slot->ttl_at[i];
		if (to > TAIL_BYTES - 4)
			return BUSY;
		*(u32 *)(tail + to) = be;
	}
	if (a->ttls) {
		u32 half = fold(fold(be));
		a->sum += half * (a->ttls - a->odd) + turned(half, 1) * a->odd;
	}
	u32 at_serial = slot->serial_at;
	if (at_serial) {
		at = slot->serial;
		epoch = map_lookup(&epochs, &at);
		same(at_serial);
		if (!epoch || at_serial > TAIL_BYTES - 4)
			return BUSY;
		be = htonl(*(volatile u64 *)epoch);
		*(u32 *)(tail + at_serial) = be;
		a->sum += turned(fold(fold(be)), at_serial + w->sample.key.name_len);
	}
	int same_key = matches(&w->sample.key, &slot->key);
	fence(w);
	if (seq != *(volatile u32 *)&slot->seq)
		return BUSY;
	return same_key ? ANSWERED : MISS;
}

/* rotate rotates the records of the reply in skb, whose tail begins at the offset to. */
ALWAYS_INLINE int rotate(struct __sk_buff *skb, u32 to, u8 *tail, struct answer *a)
{
	u32 len = a->tail_len;

	if (a->turns < 2)
		return 0;
	u32 first = (random_u32() % a->turns) * a->turn_size, all = a->turns * a->turn_size, at = a->turn_at;
	u32 rest = all - first;
	if (!first || at > len || all > len - at)
		return 0;
	u32 from = bounded(at + first);
	first = bounded(first);
	rest = bounded(rest);
	at = bounded(at + 1) - 1;
	return skb_store_bytes(skb, to + at, tail + from, rest, 0) || skb_store_bytes(skb, to + at + rest, tail + at, first, 0) ? -1 : 0;
}

/* turn_eth and turn_udp turn their headers into those of the reply. check is the checksum. */
ALWAYS_INLINE void turn_eth(struct ethhdr *eth)
{
	u64 *first = (u64 *)eth, dst = *first; /* with the first two bytes of src */
	u32 *last = (u32 *)(first + 1), src = *last;

	*first = dst >> 48 | (u64)src << 16 | dst << 48;
	*last = dst >> 16;
}

ALWAYS_INLINE void turn_udp(struct packet *p, struct udphdr *udp, u32 len, u16 check)
{
	udp->source = p->dest;
	udp->dest = p->source;
	udp->len = htons(len + UDP_BYTES);
	udp->check = check;
}

/* halves is the sum of the halves of an address. */
ALWAYS_INLINE u32 halves(u32 addr) { return (addr & 0xffff) + (addr >> 16); }

/* turn_around turns the headers of the packet in w into those of the reply, which has len bytes
 * after the UDP header. */
ALWAYS_INLINE void turn_around(struct packet *p, struct work *w, u32 len, u16 check)
{
	if (p->l4 == ETH_BYTES + sizeof(struct iphdr)) {
		u8 *head = w->head + HEAD6_BYTES - HEAD4_BYTES;
		struct iphdr *ip = (struct iphdr *)(head + ETH_BYTES);
		turn_eth((struct ethhdr *)head);
		turn_udp(p, (struct udphdr *)(ip + 1), len, check);
		ip->saddr = p->to[3];
		ip->daddr = p->from[3];
		ip->tos = 0;
		ip->tot_len = htons(len + UDP_BYTES + sizeof(*ip));
		ip->id = 0;
		ip->frag_off = htons(0x4000);
		ip->ttl = 64;
		ip->check = ~fold(htons(0x4500) + ip->tot_len + htons(0x4000) + htons(64 << 8 | 17) + halves(ip->saddr) + halves(ip->daddr));
	} else {
		struct ip6hdr *ip = (struct ip6hdr *)(w->head + ETH_BYTES);
		turn_eth((struct ethhdr *)w->head);
		turn_udp(p, (struct udphdr *)(ip + 1), len, check);
		__builtin_memcpy(ip->saddr, p->to, 16);
		__builtin_memcpy(ip->daddr, p->from, 16);
		ip->version_flow = htonl(0x60000000);
		ip->payload_len = htons(len + UDP_BYTES);
		ip->hop_limit = 64;
	}
}

/* sum_after is the sum of what follows the question of a query. */
ALWAYS_INLINE s64 sum_after(struct work *w, u32 behind, u32 rest, u16 size)
{
	if (!rest)
		return 0;
	if (rest == OPT_BYTES) /* what variant_of has let pass */
		return turned(fold(TYPE_OPT + size + (w->sample.key.variant & DO ? 0x8000 : 0)), behind);
	same(behind);
	same(rest);
	if (behind > HEADER_BYTES + QUESTION_MAX || rest > MAX_MESSAGE)
		return -1;
	*(u32 *)(w->msg + behind + rest) = 0;
	s64 sum = csum_diff(0, 0, (u32 *)(w->msg + behind), (rest + 3) & ~3, 0);
	return sum < 0 ? sum : turned(fold(fold(sum)), behind);
}

/* reply turns the query in skb, whose question ends at behind, into the reply and returns the
 * verdict. after is the sum of what follows the query's question. Negative: the packet is
 * unchanged. Once the packet has its new length, no failure is known to be possible; if one
 * happens, the packet is dropped. */
ALWAYS_INLINE int reply(struct __sk_buff *skb, struct packet *p, struct work *w, struct answer *a, u32 behind, u16 size, u32 after)
{
	u32 gap = gap_of(p), head = HEAD6_BYTES - gap;
	u8 *msg = w->msg;

	same(head);
	same(behind);
	if (behind > HEADER_BYTES + QUESTION_MAX)
		return -1;
	/* What the message gains and loses; the question and ID stay. */
	u32 sum = a->sum + minus(*(u16 *)(msg + 2)) + minus(htons(1)) + minus(*(u16 *)(msg + 10)) + minus(after);
	*(u16 *)(msg + 2) = a->flags;
	*(u64 *)(msg + 4) = a->counts;
	u32 len = a->tail_len;
	if (len < 1 || len > TAIL_BYTES)
		return -1;
	if (w->sample.key.variant & EDNS) {
		u32 to = len - 8;
		if (to > TAIL_BYTES - 8)
			return -1;
		if (size > a->max_size)
			size = a->max_size;
		size = htons(size);
		*(u16 *)(msg + behind + to) = size;
		sum += turned(size, behind + to);
	}
	u32 now = behind + len;
	u16 old_len = htons(p->len), new_len = htons(now + UDP_BYTES);
	u16 check = *(u16 *)(w->head + HEAD6_BYTES - 2);
	u16 pseudo = check ? fold(check + new_len + minus(old_len)) : 0;
	sum += 2 * (new_len + minus(old_len)) + minus(check) + pseudo;
	turn_around(p, w, now, pseudo);
	if (skb_change_tail(skb, head + now, 0))
		return -1;
	if (skb_store_bytes(skb, 0, w->head + gap, bounded(now) + head, 0) || rotate(skb, head + behind, msg + behind, a)) {
		count(FAILED, 1);
		return TC_SHOT; /* the query is no more */
	}
	if (check)
		l4_csum_replace(skb, p->l4 + 6, 0, sum, CSUM_MARK_MANGLED_0);
	/* The reply enters at the pod's end instead of leaving at the node's: a policy program
	 * behind this one has not seen the query and would misjudge the reply. A bridge port
	 * marks its pod's packets as addressed to others, hence the type. */
	if (skb_change_type(skb, PACKET_HOST)) {
		count(FAILED, 1);
		return TC_SHOT;
	}
	return redirect_peer(skb->ifindex, 0);
}

/* ODD_DOOR is the number of a door that a packet reaches with unusual headers, UNKNOWN_DOOR that
 * of a door that a packet possibly reaches. No answer has them. */
#define ODD_DOOR (~0U)
#define UNKNOWN_DOOR (~0U - 1)

/* arrives returns the number of the door that a packet reaches; 0 if none. */
ALWAYS_INLINE u32 arrives(struct __sk_buff *skb, struct state *st, struct packet *p)
{
	if (!st)
		return 0;
	enum form form = headers(skb, p);
	if (form == FOREIGN)
		return 0;
	if (form == BURIED)
		return may_reach(skb, p) ? UNKNOWN_DOOR : 0;
	u32 door = door_of(st, p->to, p->dest);
	return door && form == ODD ? ODD_DOOR : door;
}

/* queries_in returns how many queries are in a packet: several if the sender leaves it to the
 * receiver to segment them (UDP_SEGMENT, udp(7)). */
ALWAYS_INLINE u64 queries_in(struct __sk_buff *skb, struct packet *p)
{
	u32 size = skb->gso_size, len = skb->len - p->l4 - UDP_BYTES;

	return size && len ? (len + size - 1) / size : 1;
}

/* over_limit charges a packet to a client, whose state is c, and returns LIMITED, EXCEEDED or RESULTS. */
ALWAYS_INLINE u32 over_limit(struct state *st, struct __sk_buff *skb, struct packet *p, struct client_state *c, u64 now)
{
	if (!*(volatile u64 *)&st->limit)
		return RESULTS;
	struct client *client = (struct client *)p->from;
	struct bucket *b = bucket_of(st, c, client, skb->ifindex);
	u64 queries = queries_in(skb, p);
	u32 result = b ? limited(st, b, client, queries, now) : EXCEEDED;
	if (result != RESULTS)
		count(result, queries);
	return result;
}

/* sample passes the answer to the client to the agent if it is the next sample. Each processor
 * chooses a random distance to the next one: a fixed distance could meet the same name of a
 * periodic pattern each time. */
ALWAYS_INLINE void sample(struct work *w, u32 *client, u32 waste)
{
	if (!w->skip)
		w->skip = 1 + random_u32() % (2 * SAMPLED - 1);
	if (--w->skip)
		return;
	struct sample *s = &w->sample;
	__builtin_memcpy(s->client.addr, client, 16);
	s->waste = waste;
	if (ringbuf_output(&samples, s, __builtin_offsetof(struct sample, key.name) + s->key.name_len, RB_NO_WAKEUP))
		count(DROPPED, 1);
}

/* answer answers the query in skb, to a door, and returns ANSWERED and the verdict, or why it is passed
 * on. client is the state of the client that asks. */
ALWAYS_INLINE u32 answer(struct __sk_buff *skb, struct state *st, struct packet *p, struct client_state *client, u32 door, u64 now, int *verdict)
{
	struct answer a;
	u16 size = 0;

	if (unlikely(now >= *(volatile u64 *)&st->deadline))
		return LAPSED;
	struct work *w = work_of();
	u32 len = p->len - UDP_BYTES;
	same(len);
	if (unlikely(!w || len < HEADER_BYTES + 5 || len > MAX_MESSAGE || skb->vlan_present || skb->gso_segs > 1 || !p->source))
		return SHAPE;
	u32 gap = gap_of(p), head = HEAD6_BYTES - gap;
	same(head); /* or the compiler would take the gap from len, which the verifier cannot follow as well */
	if (unlikely(skb_load_bytes(skb, 0, w->head + gap, head + len)))
		return SHAPE;
	w->sample.key.door = door;
	u64 tag = door, seed = st->seed;
	w->sample.key.name_len = read_name(w, &tag, seed);
	/* Read again, because the verifier would look at the rest once for each number of words. */
	u32 name_len = *(volatile u8 *)&w->sample.key.name_len;
	u32 behind = HEADER_BYTES + name_len + 4;
	if (unlikely(!name_len || behind > len))
		return SHAPE;
	same(behind);
	if (unlikely(behind > HEADER_BYTES + QUESTION_MAX))
		return SHAPE;
	int variant = variant_of(w->msg, behind, len, &size);
	if (unlikely(variant < 0))
		return SHAPE;
	w->sample.key.variant = variant;
	w->sample.key.type = *(u16 *)(w->msg + behind - 4);
	tag = mixed(tag, (u64)w->sample.key.type << 8 | (u32)variant, seed);
	tag |= !tag;

	struct slot *slot = find(tag, client);
	if (!slot)
		return MISS;
	s64 after = sum_after(w, behind, len - behind, size);
	if (unlikely(after < 0))
		return FAILED;
	u32 result = copy(slot, client, w, &a, behind, now);
	if (unlikely(result != ANSWERED))
		return result;
	result = admitted(client, door, now);
	if (unlikely(result != RESULTS))
		return result;
	*verdict = reply(skb, p, w, &a, behind, size, after);
	if (unlikely(*verdict < 0))
		return FAILED;
	*(volatile u64 *)&slot->used = now;
	__sync_fetch_and_add(&slot->hits, 1);
	if (st->counting) {
		count_client(st, client, a.flags >> 8 & 15, a.waste);
		sample(w, p->from, a.waste);
	}
	if (unlikely(!(slot->hits & (SAMPLED - 1)))) {
		count(TOOK, ktime_ns() - now);
		count(TIMED, 1);
	}
	return ANSWERED;
}

SEC("tcx/ingress")
int nodens_answer(struct __sk_buff *skb)
{
	u32 zero = 0;
	struct packet p;
	int verdict = TCX_NEXT;

	struct state *st = map_lookup(&states, &zero);
	u32 door = arrives(skb, st, &p);
	if (!door)
		return TCX_NEXT;
	u64 now = ktime_ns();
	struct client_state *client = note(st, (struct client *)p.from, skb->ifindex, now);
	if (unlikely(door == UNKNOWN_DOOR))
		return TCX_NEXT;
	u32 over = over_limit(st, skb, &p, client, now);
	if (unlikely(over != RESULTS))
		return over == LIMITED ? TC_SHOT : TCX_NEXT;
	if (unlikely(door == ODD_DOOR))
		return TCX_NEXT;
	count(answer(skb, st, &p, client, door, now, &verdict), 1);
	return verdict;
}

/* The kernel attaches a program once per side of an interface, and two may be needed. */
SEC("tcx/ingress")
int nodens_watch(struct __sk_buff *skb)
{
	u32 zero = 0;
	struct packet p;

	struct state *st = map_lookup(&states, &zero);
	u32 door = arrives(skb, st, &p);
	if (!door)
		return TCX_NEXT;
	u64 now = ktime_ns();
	struct client_state *client = note(st, (struct client *)p.from, skb->ifindex, now);
	return door != UNKNOWN_DOOR && over_limit(st, skb, &p, client, now) == LIMITED ? TC_SHOT : TCX_NEXT;
}

SEC("tcx/ingress")
int nodens_ahead(struct __sk_buff *skb)
{
	u32 zero = 0;
	struct packet p;

	struct state *st = map_lookup(&states, &zero);
	if (arrives(skb, st, &p))
		note(st, (struct client *)p.from, skb->ifindex, ktime_ns());
	return TCX_NEXT;
}

/* It is a program of its own, behind the others: an answer costs the same with and without it. */
SEC("tcx/ingress")
int nodens_count(struct __sk_buff *skb)
{
	struct bypass b = {};
	struct door d = {.any = 1};

	if (!dns_packet(skb, &b))
		return TCX_NEXT;
	__builtin_memcpy(d.addr, b.server.addr, 16);
	if (!map_lookup(&doors, &d))
		add_bypass(&b);
	return TCX_NEXT;
}

SEC("tcx/egress")
int nodens_admit(struct __sk_buff *skb)
{
	u32 zero = 0;
	struct packet p;

	/* Forwarded packets are not the agent's, nor are the answers made above. */
	struct state *st = map_lookup(&states, &zero);
	if (!st || skb->ingress_ifindex || headers(skb, &p) != WHOLE)
		return TCX_NEXT;
	u32 door = door_of(st, p.from, p.source);
	if (door)
		admit(st, (struct client *)p.to, skb->ifindex, door, ktime_ns());
	return TCX_NEXT;
}

SEC("tcx/egress")
int nodens_idle(struct __sk_buff *skb) { return TCX_NEXT; }

/* Without a use the types would be missing from the Go side. */
const enum bound *bound_type __attribute__((unused));
const enum variant *variant_type __attribute__((unused));
const enum result *result_type __attribute__((unused));

char _license[] SEC("license") = "Apache-2.0";
