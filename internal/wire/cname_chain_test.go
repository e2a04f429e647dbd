// These tests use maxChain, which is not exported.

package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestAliases: the CNAMEs of a reply lead to an answer or not, or contradict one another.
func TestAliases(t *testing.T) {
	chain := func(n int) string { // of n aliases, and an address at the end
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "n%d.test. 60 IN CNAME n%d.test.; ", i, i+1)
		}
		return fmt.Sprintf("%sn%d.test. 60 IN A 192.0.2.1", b.String(), n)
	}
	for _, tt := range []struct {
		name, reply           string
		answered, contradicts bool
	}{
		{"address", "NOERROR n0.test. 60 IN A 192.0.2.1", true, false},
		{"alias", "NOERROR " + chain(1), true, false},
		{"alias to nothing", "NOERROR n0.test. 60 IN CNAME n1.test.", false, false},
		{"any order", "NOERROR n1.test. 60 IN A 192.0.2.1; n0.test. 60 IN CNAME n1.test.", true, false},
		{"a missing target", "NXDOMAIN n0.test. 60 IN CNAME n1.test.", false, false},
		{"an address of a missing name", "NXDOMAIN n0.test. 60 IN A 192.0.2.1", false, true},
		{"an address of a missing target", "NXDOMAIN " + chain(1), false, true},
		{"an address of another owner", "NXDOMAIN other.test. 60 IN A 192.0.2.1", false, false},
		{"beside an alias to an address", "NOERROR n0.test. 60 IN A 192.0.2.2; " + chain(1), true, false},
		{"beside an alias to nothing", "NOERROR n0.test. 60 IN A 192.0.2.2; n0.test. 60 IN CNAME n1.test.", false, true},
		{"beside an alias to a missing target", "NXDOMAIN n0.test. 60 IN A 192.0.2.2; n0.test. 60 IN CNAME n1.test.", false, true},
		{"two targets", "NOERROR n0.test. 60 IN CNAME other.test.; " + chain(1), false, true},
		{"one target twice", "NOERROR n0.test. 60 IN CNAME N1.test.; " + chain(1), true, false},
		{"loop", "NOERROR n0.test. 60 IN CNAME n1.test.; n1.test. 60 IN CNAME n0.test.", false, true},
		{"the longest chain", "NOERROR " + chain(maxChain-1), true, false},
		{"a longer chain", "NOERROR " + chain(maxChain), false, false},
		{"a longer chain beside an address", "NOERROR n0.test. 60 IN A 192.0.2.2; " + chain(maxChain), false, true},
		{"another rcode", "SERVFAIL n0.test. 60 IN A 192.0.2.1", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := stubQuery(t, "N0.test.", dns.TypeA)
			resp, err := ParseResponse(replyFromText(t, q, tt.reply).Finish(MaxMessage), q)
			noError(t, err)
			if resp.Answered != tt.answered || resp.Contradictory != tt.contradicts {
				t.Errorf("answered %t, contradictory %t; want %t, %t", resp.Answered, resp.Contradictory, tt.answered, tt.contradicts)
			}
		})
	}
}
