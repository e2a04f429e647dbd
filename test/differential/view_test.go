package differential

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// view is what a client can see of a reply.
type view struct {
	// Outcome is "answer", "silence", or what is wrong with the reply. The
	// other fields say something only for an answer.
	Outcome    string
	Rcode      string
	Opcode     string
	Flags      string
	Question   []string
	Answer     []record
	Authority  []record
	Additional []record
	EDNS       string
	// Header is the header of an HTTP reply that is not what the message calls for: see headerOf.
	Header string
}

// record is a resource record. The data is in presentation format; a SOA's
// serial is left out of it.
type record struct {
	Owner, Class, Type, Data string
	TTL                      uint32
}

func (r record) String() string {
	return fmt.Sprintf("%s %d %s %s %s", r.Owner, r.TTL, r.Class, r.Type, r.Data)
}

// String prints the view, a line for each record.
func (v view) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "  %s %s %s [%s] %v edns{%s} %s\n", v.Outcome, v.Opcode, v.Rcode, v.Flags, v.Question, v.EDNS, v.Header)
	for _, section := range []struct {
		name    string
		records []record
	}{{"answer", v.Answer}, {"authority", v.Authority}, {"additional", v.Additional}} {
		for _, r := range section.records {
			fmt.Fprintf(&s, "  %s: %s\n", section.name, r)
		}
	}
	return s.String()
}

// outline says in a few words what kind of answer it is.
func (v view) outline() string {
	return fmt.Sprintf("%s %s [%s] %d/%d/%d edns{%s}", v.Outcome, v.Rcode, v.Flags, len(v.Answer), len(v.Authority), len(v.Additional), v.EDNS) + v.Header
}

// parseView makes the view of a reply. Nil is silence.
func parseView(wire []byte, id uint16) view {
	if wire == nil {
		return view{Outcome: "silence"}
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		return view{Outcome: fmt.Sprintf("unreadable (%v): %s", err, hex.EncodeToString(wire))}
	}
	if m.Id != id {
		return view{Outcome: fmt.Sprintf("id %d for %d", m.Id, id)}
	}
	v := view{
		Outcome: "answer",
		Rcode:   rcodeName(m.Rcode),
		Opcode:  dns.OpcodeToString[m.Opcode],
		Flags:   flags(m),
	}
	for _, q := range m.Question {
		v.Question = append(v.Question, fmt.Sprintf("%s %s %s", q.Name, dns.Class(q.Qclass), dns.Type(q.Qtype)))
	}
	if opt := m.IsEdns0(); opt != nil {
		v.EDNS = edns(opt)
	}
	if !m.Truncated {
		v.Answer = records(m.Answer)
		v.Authority = records(m.Ns)
		v.Additional = records(m.Extra)
	}
	return v
}

// rcodeName tells the two meanings of 16 apart: no reply here is signed.
func rcodeName(rcode int) string {
	if rcode == dns.RcodeBadVers {
		return "BADVERS"
	}
	return dns.RcodeToString[rcode]
}

// sizeInOPT finds the size of an OPT record.
var sizeInOPT = regexp.MustCompile(`size [0-9]+`)

// adoptServer returns v with what got says about the server, not about the name. RA says that the agent's block forwards; CoreDNS
// has it in replies of upstreams only. The size in an OPT record is the most that the agent sends, over IPv4 and from the kernel;
// CoreDNS repeats what the client claims to take.
func (v view) adoptServer(got view) view {
	if strings.Contains(got.Flags, " ra") && !strings.Contains(v.Flags, " ra") {
		list := strings.Fields(v.Flags)
		at := slices.IndexFunc(list, func(f string) bool { return f == "z" || f == "ad" || f == "cd" })
		if at < 0 {
			at = len(list)
		}
		v.Flags = strings.Join(slices.Insert(list, at, "ra"), " ")
	}
	if most := sizeInOPT.FindString(got.EDNS); most == "size 65507" || most == "size 1232" {
		v.EDNS = sizeInOPT.ReplaceAllStringFunc(v.EDNS, func(size string) string {
			if n, err := strconv.Atoi(size[len("size "):]); err == nil && n > 1232 {
				return most
			}
			return size
		})
	}
	return v
}

func flags(m *dns.Msg) string {
	var set []string
	for _, f := range []struct {
		name string
		on   bool
	}{
		{"qr", m.Response},
		{"aa", m.Authoritative},
		{"tc", m.Truncated},
		{"rd", m.RecursionDesired},
		{"ra", m.RecursionAvailable},
		{"z", m.Zero},
		{"ad", m.AuthenticatedData},
		{"cd", m.CheckingDisabled},
	} {
		if f.on {
			set = append(set, f.name)
		}
	}
	return strings.Join(set, " ")
}

func edns(opt *dns.OPT) string {
	s := fmt.Sprintf("version %d, size %d", opt.Version(), opt.UDPSize())
	if opt.Do() {
		s += ", do"
	}
	for _, o := range opt.Option {
		if o.Option() != dns.EDNS0PADDING { // which says nothing
			s += fmt.Sprintf(", option %d %s", o.Option(), o)
		}
	}
	return s
}

// records makes sorted records, without the OPT.
func records(rrs []dns.RR) []record {
	var out []record
	for _, rr := range rrs {
		h := rr.Header()
		if h.Rrtype == dns.TypeOPT {
			continue
		}
		if soa, ok := rr.(*dns.SOA); ok {
			copied := *soa
			copied.Serial = 0
			rr = &copied
		}
		// Name, TTL, class and type stand before the data.
		text := strings.SplitN(rr.String(), "\t", 5)
		out = append(out, record{
			Owner: h.Name,
			Class: dns.Class(h.Class).String(),
			Type:  dns.Type(h.Rrtype).String(),
			Data:  text[len(text)-1],
			TTL:   h.Ttl,
		})
	}
	slices.SortFunc(out, compareRecords)
	return out
}

// compareRecords orders by everything but the TTL first, so that two views
// whose TTLs differ still have their records in the same places.
func compareRecords(a, b record) int {
	return cmp.Or(
		cmp.Compare(a.Type, b.Type),
		cmp.Compare(a.Data, b.Data),
		cmp.Compare(a.Owner, b.Owner),
		cmp.Compare(a.Class, b.Class),
		cmp.Compare(a.TTL, b.TTL),
	)
}

// clone copies the view, so that its records can be changed.
func (v view) clone() view {
	v.Question = slices.Clone(v.Question)
	v.Answer = slices.Clone(v.Answer)
	v.Authority = slices.Clone(v.Authority)
	v.Additional = slices.Clone(v.Additional)
	return v
}

// lowerCase writes names in lower case. CoreDNS's cache gives a name with the
// letters of whoever asked for it first, in any of the records; the agent is
// held to the letters of the query in the owner names that are the query's
// name, which is why these are left alone, or set right for CoreDNS.
func (v view) lowerCase(qname string, setRight bool) view {
	v = v.clone()
	for _, s := range [][]record{v.Answer, v.Authority, v.Additional} {
		for i, r := range s {
			switch {
			case !strings.EqualFold(r.Owner, qname):
				s[i].Owner = strings.ToLower(r.Owner)
			case setRight:
				s[i].Owner = qname
			}
			switch r.Type {
			case "SOA", "SRV", "PTR", "CNAME", "NS", "MX":
				s[i].Data = strings.ToLower(r.Data)
			}
		}
	}
	return v
}

// adoptTTLs takes the agent's TTLs into the view where the two differ by no more
// than the seconds for which either side may have held the record.
func (v view) adoptTTLs(agent view, seconds uint32) view {
	v = v.clone()
	for _, s := range []struct{ mine, theirs []record }{
		{v.Answer, agent.Answer},
		{v.Authority, agent.Authority},
		{v.Additional, agent.Additional},
	} {
		for i := range min(len(s.mine), len(s.theirs)) {
			a, b := s.mine[i].TTL, s.theirs[i].TTL
			if max(a, b)-min(a, b) <= seconds {
				s.mine[i].TTL = b
			}
		}
	}
	return v
}
