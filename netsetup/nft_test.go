package netsetup

import (
	"strings"
	"testing"
)

// labWant is what the lab's rules are to do.
func labWant() want {
	return want{locals: labLocals, dns: 53, health: 8080, socket: true, diversion: labDiversion}
}

// wantChanged ensures w and wants so many changes.
func wantChanged(t *testing.T, n *nftables, w want, changed int) {
	t.Helper()
	got, err := n.ensure(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if got != changed {
		t.Errorf("ensure changed %d things, want %d", got, changed)
	}
}

// TestNftFailsOpen holds the way of queries against who listens.
func TestNftFailsOpen(t *testing.T) {
	inNftLab(t, func(t *testing.T) {
		l := newNftLab(t)
		// Where conntrack finds a packet invalid it is dropped, as kube-proxy does.
		sh(t, "nft 'table inet others { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }'")
		n := newNftables()
		wantChanged(t, n, labWant(), 1)
		l.wantAnswers(t, l.pod, "cluster")
		l.wantAnswers(t, nil, "cluster")
		for range 3 {
			stop := l.listen(t)
			sh(t, "conntrack -F")
			l.wantAnswers(t, l.pod, "local")
			if got := tracked(t); len(got) > 0 {
				t.Errorf("tracked while the agent listens:\n%s", strings.Join(got, ""))
			}
			stop()
			l.wantAnswers(t, l.pod, "cluster")
			l.wantAnswers(t, nil, "cluster")
		}
		if len(tracked(t)) == 0 {
			t.Error("diverted queries are not tracked: this test sees nothing")
		}
		wantChanged(t, n, labWant(), 0)
	})
}
