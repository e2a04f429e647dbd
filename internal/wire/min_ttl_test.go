package wire

import (
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// TestMinTTL: the lowest TTL of all sections counts, and the MINIMUM of a denial's SOA; the OPT record has none.
func TestMinTTL(t *testing.T) {
	rr := func(text string) dns.RR {
		r, err := dns.NewRR(text)
		noError(t, err)
		return r
	}
	a, b, soa := rr("x.test. 60 IN A 192.0.2.1"), rr("x.test. 7 IN A 192.0.2.2"), rr("test. 30 IN SOA a. b. 1 2 3 4 50")
	minimum := rr("test. 30 IN SOA a. b. 1 2 3 4 5")
	for _, tt := range []struct {
		name              string
		answer, ns, extra []dns.RR
		want              uint32
		ok                bool
	}{
		{"none", nil, nil, nil, 0, false},
		{"one", []dns.RR{a}, nil, nil, 60, true},
		{"the second", []dns.RR{a, b}, nil, nil, 7, true},
		{"authority", []dns.RR{a}, []dns.RR{soa}, nil, 30, true},
		{"authority with MINIMUM", nil, []dns.RR{minimum}, nil, 5, true},
		{"answer with MINIMUM", []dns.RR{minimum}, nil, nil, 30, true},
		{"additional with MINIMUM", []dns.RR{a}, nil, []dns.RR{minimum}, 30, true},
		{"additional", []dns.RR{a}, nil, []dns.RR{b}, 7, true},
		{"nothing", []dns.RR{rr("x.test. 0 IN A 192.0.2.1")}, nil, nil, 0, true},
	} {
		for _, opt := range []string{"none", "last", "first"} {
			t.Run(tt.name+", OPT "+opt, func(t *testing.T) {
				m := new(dns.Msg).SetQuestion("x.test.", dns.TypeA)
				m.Answer, m.Ns, m.Extra = tt.answer, tt.ns, slices.Clone(tt.extra)
				m.Compress = opt != "none"
				if m.Compress {
					m.SetEdns0(1232, false) // whose TTL is 0
				}
				if opt == "first" {
					slices.Reverse(m.Extra)
				}
				msg, err := m.Pack()
				noError(t, err)
				if got, ok := MinTTL(msg); got != tt.want || ok != tt.ok {
					t.Errorf("%d, %t; want %d, %t", got, ok, tt.want, tt.ok)
				}
				for n := range msg { // cut anywhere, it is no message
					if len(m.Answer) > 0 || n < HeaderLen {
						if _, ok := MinTTL(msg[:n]); ok {
							t.Errorf("cut at %d of %d it has a TTL", n, len(msg))
						}
					}
				}
			})
		}
	}
}

// TestAge: what is left of each TTL is at least 0, and for a denial at most what is left of MINIMUM; the OPT record keeps its flags.
func TestAge(t *testing.T) {
	for _, tt := range []struct {
		name, answer, authority string
		age                     uint32
		want, wantSOA           uint32
	}{
		{"an answer", "x.test. 60 IN A 192.0.2.1", "test. 90 IN SOA a. b. 1 2 3 4 80", 45, 15, 35},
		{"as old as it may be", "x.test. 60 IN A 192.0.2.1", "test. 60 IN SOA a. b. 1 2 3 4 60", 60, 0, 0},
		{"older", "x.test. 60 IN A 192.0.2.1", "test. 60 IN SOA a. b. 1 2 3 4 5", 1<<32 - 1, 0, 0},
		{"MINIMUM below the TTL", "x.test. 60 IN SOA a. b. 1 2 3 4 5", "test. 3600 IN SOA a. b. 1 2 3 4 60", 45, 15, 15},
		{"too large a TTL is 0", "x.test. 2147483648 IN A 192.0.2.1", "test. 60 IN SOA a. b. 1 2 3 4 60", 1, 0, 59},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion("x.test.", dns.TypeA)
			for section, text := range map[*[]dns.RR]string{&m.Answer: tt.answer, &m.Ns: tt.authority} {
				r, err := dns.NewRR(text)
				noError(t, err)
				*section = []dns.RR{r}
			}
			m.Compress = true
			m.SetEdns0(1232, true)
			msg, err := m.Pack()
			noError(t, err)
			Age(msg, tt.age)
			got := new(dns.Msg)
			noError(t, got.Unpack(msg))
			if got.Answer[0].Header().Ttl != tt.want || got.Ns[0].Header().Ttl != tt.wantSOA {
				t.Errorf("TTLs %d and %d, want %d and %d", got.Answer[0].Header().Ttl, got.Ns[0].Header().Ttl, tt.want, tt.wantSOA)
			}
			if opt := got.IsEdns0(); !opt.Do() || opt.UDPSize() != 1232 {
				t.Errorf("OPT became %v", opt)
			}
			for n := range msg {
				Age(msg[:n], 1) // cut anywhere, it does not panic
			}
		})
	}
}
