package resolver

import (
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/wire"
)

// AAAA keeps IPv6 addresses from pods that have none (`aaaa auto`): their AAAA queries get NODATA, and HTTPS and SVCB records come
// without ipv6hint. It is immutable and safe for concurrent use.
type AAAA struct {
	except []wire.Name
	pods   *podrange.Ranges
}

// NewAAAA makes the AAAA of cfg. pods knows which addresses belong to pods without an IPv6 address.
func NewAAAA(cfg *config.AAAA, pods *podrange.Ranges) *AAAA {
	return &AAAA{except: cfg.Except, pods: pods}
}

// covers reports whether r may ask for addresses that its client can't use. A client that validates (DO), or leaves that to its own clients
// (CD), gets the signed answer: one that is made here would be bogus (RFC 4035, 4.3). A probe asks whether there is a name. A nil AAAA covers nothing.
func (a *AAAA) covers(r *Request) bool {
	return a != nil && hasIPv6(r.Query.Type) && !r.Query.DO && !r.Query.CD() && !r.probe && !a.excepts(r.Query.Name())
}

// hasIPv6 reports whether records of type t have IPv6 addresses.
func hasIPv6(t uint16) bool { return t == wire.TypeAAAA || t == wire.TypeHTTPS || t == wire.TypeSVCB }

func (a *AAAA) excepts(name []byte) bool {
	return slices.ContainsFunc(a.except, func(zone wire.Name) bool { return wire.Under(name, zone) })
}

// withholds reports whether r's client is a pod without an IPv6 address, and records that the reply depends on that.
func (a *AAAA) withholds(r *Request) bool {
	r.verdicts |= byFamily
	return a.pods.IPv4Only(r.Client.Addr())
}

// deniesAAAA is the step before the cache and the upstreams: it answers AAAA queries that would be forwarded.
func (z *Zone) deniesAAAA(r *Request) bool {
	if r.Query.Type != wire.TypeAAAA || !z.AAAA.covers(r) || !z.AAAA.withholds(r) || z.upstreams(&r.Query) == nil {
		return false
	}
	r.source = fromAAAA
	r.note(stepOf[fromAAAA], Answered, noIPv6)
	z.noAAAA(r)
	return true
}

// noIPv6 is why the step answers.
const noIPv6 = "the client is a pod without an IPv6 address"

const (
	// noAAAATTL is for how long a client may keep the denial, in seconds (RFC 2308, 5): as long as CoreDNS's answers about the
	// cluster.
	noAAAATTL = 30
	// noAAAASOA is the RDATA of the SOA record in a denial. The server's name says where the denial comes from.
	noAAAASOA = "\x04aaaa\x04auto\x07invalid\x00" + "\x06nobody\x07invalid\x00" + "\x00\x00\x00\x01" +
		"\x00\x00\x0e\x10" + "\x00\x00\x04\xb0" + "\x00\x09\x3a\x80" + "\x00\x00\x00\x1e"
)

// noAAAA makes r's reply NODATA, with the SOA record without which a client must not keep it (RFC 2308, 2.2).
func (z *Zone) noAAAA(r *Request) {
	r.reply.Fail(wire.NoError)
	r.reply.Add(wire.Authority, r.reply.Suffix(len(z.Name)), wire.TypeSOA, noAAAATTL, []byte(noAAAASOA))
}

// withholdIPv6 removes from r's reply, which a source has made, what a pod without an IPv6 address can't use. A reply without
// such records is the same for all clients. It does nothing if deniesAAAA has looked at the client.
func (z *Zone) withholdIPv6(r *Request) {
	if r.verdicts&byFamily != 0 || !z.AAAA.covers(r) {
		return
	}
	hints := r.Query.Type != wire.TypeAAAA
	if hints && !r.reply.HasIPv6Hint() {
		return
	}
	if _, has := r.reply.FirstTTL(wire.Answer, wire.TypeAAAA); !hints && !has || !z.AAAA.withholds(r) {
		return
	}
	r.note(stepOf[fromAAAA], Answered, noIPv6)
	if hints {
		r.reply.RemoveIPv6Hints()
		return
	}
	z.noAAAA(r)
	if r.source == fromCluster {
		z.Cluster.NoData(&r.Query, &r.reply) // with the SOA record of the cluster's zone
	}
}

// ClientFamily says whether clients are pods without an IPv6 address. The zero ClientFamily is all clients.
type ClientFamily struct {
	IPv4Only bool
	// Mark moves before a client gets another family, and makes groups of different times different groups.
	Mark epoch.Mark
}

// podsOf returns what says which clients of zones are pods without an IPv6 address; nil if no zone depends on that.
func podsOf(zones []*Zone) *podrange.Ranges {
	for _, z := range zones {
		if z.AAAA != nil {
			return z.AAAA.pods
		}
	}
	return nil
}

// familyOf returns the family of r's client; the zero one if no zone of the routes depends on it.
func (rt *Routes) familyOf(r *Request) (f ClientFamily) {
	if rt.pods != nil {
		f.Mark = rt.pods.Mark() // before the address is looked up
		f.IPv4Only = rt.pods.IPv4Only(r.Client.Addr())
	}
	return f
}
