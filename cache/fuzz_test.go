package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// FuzzHistory reads its input as a history of fetches, answers and passing time, and
// compares the cache with the simplest one there is: a map from name to the reply
// kept and the moment it ends. No history is long enough to push anything out.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{0, 1, 8, 9, 16, 1, 24, 0x81})
	f.Add([]byte{3, 4, 0x90, 3, 0xA0, 4, 5, 5})
	f.Fuzz(func(t *testing.T, history []byte) {
		type kept struct {
			rcode int
			ends  time.Duration
		}
		clock := newHand()
		c := newCache(nil, Options{Clock: clock.now})
		model := make(map[string]kept)
		for _, b := range history[:min(len(history), 200)] {
			if b&0x80 != 0 { // time passes, 0 to 127 s
				clock.advance(time.Duration(b&0x7F) * time.Second)
				continue
			}
			name := fmt.Sprintf("n%d.test.", b&7)
			q := question(t, name, dns.TypeA)
			have, alive := model[name]
			alive = alive && clock.now() < have.ends
			got := answer(t, c, q)
			if (got != nil) != alive {
				t.Fatalf("%s: a hit is %v, want %v", name, got != nil, alive)
			}
			if alive {
				left := uint32((have.ends - clock.now()) / time.Second)
				for _, ttl := range ttls(got) {
					if got.Rcode != have.rcode || ttl != left {
						t.Fatalf("%s: %s for %d s, want %s for %d", name, dns.RcodeToString[got.Rcode], ttl, dns.RcodeToString[have.rcode], left)
					}
				}
				continue
			}
			life := time.Duration(5+b>>3) * time.Second // 5 to 20 s: never below the floor
			m := message{rcode: dns.RcodeSuccess, answer: []string{fmt.Sprintf("%s %d IN A 192.0.2.1", name, int(life/time.Second))}}
			if b&8 != 0 {
				m = message{rcode: dns.RcodeNameError, authority: soaOf(int(life/time.Second), 3600)}
			}
			fetch(t, c, q, m)
			model[name] = kept{rcode: m.rcode, ends: clock.now() + life}
		}
	})
}
