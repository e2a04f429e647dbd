package wire

// Inside the package: the helpers are.

import (
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// TestShuffleMixedCase: addresses of one owner that is written in two cases, so that the owners are
// encoded in two ways, are shuffled, too.
func TestShuffleMixedCase(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	records := []string{"www.example. 60 IN A 192.0.2.1", "WWW.example. 60 IN A 192.0.2.2", "wWw.example. 60 IN A 192.0.2.3"}
	addresses := func(r *Reply) (list []string) {
		for _, rr := range unpacked(t, r.Finish(MaxMessage)).Answer {
			list = append(list, rr.(*dns.A).A.String())
		}
		return list
	}
	before := addresses(answers(t, q, true, records...))
	moved := false
	for range 200 { // three addresses stay in place once in six times
		r := answers(t, q, true, records...)
		r.Shuffle()
		after := addresses(r)
		moved = moved || !slices.Equal(before, after)
		if slices.Sort(after); !slices.Equal(before, after) {
			t.Fatalf("other addresses: %v, want %v", after, before)
		}
	}
	if !moved {
		t.Error("the addresses stay in place")
	}
}
