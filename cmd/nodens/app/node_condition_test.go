package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/kubernetes"
)

// fakeNode notes what is written, each with the second after its start.
type fakeNode struct {
	start time.Time
	lines []string
	err   error
	taint bool
}

func (n *fakeNode) note(format string, args ...any) {
	n.lines = append(n.lines, fmt.Sprintf("%.0f ", time.Since(n.start).Seconds())+fmt.Sprintf(format, args...))
}

func (n *fakeNode) SetCondition(_ context.Context, c kubernetes.NodeCondition) error {
	n.note("condition %v %s since %.0f", c.Ready, c.Reason, c.Since.Sub(n.start).Seconds())
	return n.err
}

func (n *fakeNode) RemoveTaint(context.Context) (bool, error) {
	had := n.taint
	if n.taint = n.taint && n.err != nil; had && !n.taint {
		n.note("taint removed")
	}
	return had && !n.taint, n.err
}

func (n *fakeNode) Event(_ context.Context, warning bool, reason, _ string) error {
	n.note("event %v %s", warning, reason)
	return n.err
}

// TestNodeReporter: what the Node tells of problems that begin and end.
func TestNodeReporter(t *testing.T) {
	notReady := report.Problem{Code: "not-ready", Severity: warning, Text: "not ready"}
	down := report.Problem{Code: "upstreams-down", Severity: critical, Text: strings.Repeat("x", 2000)}
	stale := report.Problem{Code: "view-stale", Severity: warning, Text: "stale"}
	type step struct {
		problems []report.Problem
		restored uint64
		err      error
		seconds  int
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"a start", []step{{problems: []report.Problem{notReady}, seconds: 5}, {seconds: 60}}, []string{"6 condition true DNSReady since 6", "6 taint removed"}},
		{"a start that lasts", []step{{problems: []report.Problem{notReady}, seconds: 29}, {seconds: 10}}, []string{
			"16 condition false NotReady since 16", "16 event true NotReady", "30 condition true DNSReady since 30", "30 taint removed", "30 event false DNSReady",
		}},
		{"a short problem", []step{{seconds: 9}, {problems: []report.Problem{down}, seconds: 9}, {seconds: 60}}, []string{"0 condition true DNSReady since 0", "0 taint removed"}},
		{"upstreams down and up again twice", []step{{seconds: 9}, {problems: []report.Problem{stale, down}, seconds: 30}, {seconds: 30}, {problems: []report.Problem{down}, seconds: 30}, {seconds: 20}}, []string{
			"0 condition true DNSReady since 0", "0 taint removed",
			"26 condition false UpstreamsDown since 26", "26 event true UpstreamsDown", "26 event true ViewStale",
			"40 condition true DNSReady since 40", "40 event false DNSReady",
			"86 condition false UpstreamsDown since 86", "100 condition true DNSReady since 100",
		}},
		{"a stale view", []step{{problems: []report.Problem{stale}, seconds: 700}}, []string{
			"0 condition true DNSReady since 0", "0 taint removed", "16 event true ViewStale",
			"300 condition true DNSReady since 0", "600 condition true DNSReady since 0", "616 event true ViewStale",
		}},
		{"rules of another program", []step{{restored: 2, seconds: 9}, {restored: 3, seconds: 9}}, []string{"0 condition true DNSReady since 0", "0 taint removed", "10 event true RulesRestored"}},
		{"no rights for a while", []step{{err: errors.New("forbidden"), seconds: 19}, {seconds: 30}}, []string{
			"0 condition true DNSReady since 0", "2 condition true DNSReady since 2", "8 condition true DNSReady since 8", "22 condition true DNSReady since 22", "22 taint removed",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &fakeNode{start: time.Now(), taint: true}
				now := func() step {
					at := time.Since(node.start)
					for _, s := range c.steps {
						if at -= time.Duration(s.seconds) * time.Second; at < 0 {
							return s
						}
					}
					return c.steps[len(c.steps)-1]
				}
				r := &nodeReporter{writer: node, log: slog.New(slog.DiscardHandler), look: func() ([]report.Problem, uint64) {
					s := now()
					node.err = s.err
					return s.problems, s.restored
				}}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.run(ctx)
				}()
				for _, s := range c.steps {
					time.Sleep(time.Duration(s.seconds) * time.Second)
				}
				stop()
				<-done
				if d := cmp.Diff(c.want, node.lines); d != "" {
					t.Errorf("written (-want +got):\n%s", d)
				}
				if n := len(shortMessage(down.Text)); n != maxNodeMessage {
					t.Errorf("a message of %d bytes", n)
				}
			})
		})
	}
}
