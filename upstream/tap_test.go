// Inside the package: it uses the fakes of the other tests.

package upstream

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// sent is a tap that keeps what it gets.
type sent struct{ list []Sent }

func (l *sent) Exchanged(s *Sent) {
	kept := *s
	kept.Query, kept.Reply = bytes.Clone(s.Query), bytes.Clone(s.Reply)
	l.list = append(l.list, kept)
}

// tapped is what is compared of a Sent.
type tapped struct {
	Server    netip.AddrPort
	Local     bool
	Datagrams bool
	Name      string
	Replied   bool
}

// TestTap: the tap gets each query to a server with its reply, or without one, and the addresses of
// its socket.
func TestTap(t *testing.T) {
	late, other := startFake(t, ignore), startFake(t, answerOK)
	hedging := longTimeout(late, other)
	hedging.Policy, hedging.MaxFails = policies["sequential"], 0
	truncating := startFake(t, func(r request) {
		m := r.answer(1)
		m.Truncated = r.over == "udp"
		r.reply(m)
	})
	again := longTimeout(truncating)
	again.MaxFails = 0
	for name, tt := range map[string]struct {
		pool *Pool
		want []tapped
	}{
		"another server is asked": {newHedgingPool(t, hedging), []tapped{
			{Server: other.addr, Local: true, Datagrams: true, Name: "a.test.", Replied: true},
			{Server: late.addr, Local: true, Datagrams: true, Name: "a.test."},
		}},
		"truncated": {newPool(t, again), []tapped{
			{Server: truncating.addr, Local: true, Datagrams: true, Name: "a.test.", Replied: true},
			{Server: truncating.addr, Local: true, Name: "a.test.", Replied: true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var to sent
			before := time.Now()
			if _, err := tt.pool.ExchangeFrom(t.Context(), question(t, "a.test."), From{Tap: &to}); err != nil {
				t.Fatal(err)
			}
			var got []tapped
			for _, s := range to.list {
				var query, reply dns.Msg
				noError(t, query.Unpack(s.Query))
				is := tapped{s.Server, s.Local.Addr() == loopbackAddr && s.Local.Port() != 0, s.Datagrams, query.Question[0].Name, s.Reply != nil}
				if s.Sent.Before(before) || s.Received.IsZero() == is.Replied || is.Replied && s.Received.Before(s.Sent) {
					t.Errorf("sent at %v and received at %v, after %v", s.Sent, s.Received, before)
				}
				if is.Replied {
					if err := reply.Unpack(s.Reply); err != nil || reply.Id != query.Id {
						t.Errorf("reply %v: %v", &reply, err)
					}
				}
				got = append(got, is)
			}
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

var loopbackAddr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
