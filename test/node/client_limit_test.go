package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// The limit of these tests.
const (
	limitRate  = 50
	limitBurst = 40
)

// limitFlag returns the flag for a limit with an action.
func limitFlag(action string) string {
	return fmt.Sprintf("-client-limit=%d %d %s", limitRate, limitBurst, action)
}

// flood is queries of one client that does not wait for replies.
type flood struct {
	conn              net.Conn
	sent              int
	answered, refused atomic.Int64
}

// newFlood returns a flood from a namespace, and counts its replies until the test ends.
func (l *network) newFlood(ns string) *flood {
	l.t.Helper()
	f := &flood{conn: l.client(ns, local4).Conn}
	go func() {
		buf := make([]byte, dns.MaxMsgSize)
		for {
			n, err := f.conn.Read(buf)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case n > 3 && buf[3]&0xF == dns.RcodeRefused:
				f.refused.Add(1)
			case n > 3:
				f.answered.Add(1)
			}
		}
	}()
	return f
}

// send sends n queries.
func (f *flood) send(t *testing.T, query []byte, n int) {
	t.Helper()
	for range n {
		f.sent++
		query[0], query[1] = byte(f.sent>>8), byte(f.sent)
		if _, err := f.conn.Write(query); err != nil {
			t.Fatal(err)
		}
	}
}

// limited returns how many queries of clients have been limited since the agent started.
func (l *network) limited() int {
	return l.metric("nodens_client_limited_total", `reason="client_limit"`)
}

// awaitCounted waits until each query of f is answered, or counted as limited: once, also if it is refused.
func (l *network) awaitCounted(p *peer.Process, f *flood, before int) {
	l.t.Helper()
	p.Must(l.t, "a reply to each query, or its count", func(context.Context) error {
		answered, limited := int(f.answered.Load()), l.limited()-before
		if answered+limited != f.sent {
			time.Sleep(scrapeInterval)
			return fmt.Errorf("%d answered, %d refused, %d limited of %d", answered, f.refused.Load(), limited, f.sent)
		}
		return nil
	})
}

// kernelClient makes the kernel answer query to the pod in the namespace.
func (l *network) kernelClient(p *peer.Process, ns string, query []byte) {
	l.t.Helper()
	(&comparer{l, p, l.client(ns, local4), nil}).askUntilKernelAnswers(query)
}

// TestKernelClientLimit: the kernel drops what exceeds the limit of a pod that floods, and it is counted exactly. With
// refuse, the agent refuses a part of it. Another pod is answered meanwhile, and so is an exempt one.
func TestKernelClientLimit(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"drop", "refuse"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			l := newKernelNetwork(t)
			var others []string
			for n := range 2 {
				ns, err := l.AddPod(n + 1)
				check.NoError(t, err)
				others = append(others, ns)
			}
			p := l.startInKernel(limitFlag(action), "-client-limit-except=10.244.102.0/24")
			query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
			l.kernelClient(p, l.pod, query)
			before, began := l.limited(), time.Now()
			f := l.newFlood(l.pod)
			p.Must(t, "refused queries", func(context.Context) error {
				f.send(t, query, 20*limitBurst)
				l.client(others[0], local4).ask(query, false)
				if action == "refuse" && f.refused.Load() == 0 {
					time.Sleep(scrapeInterval)
					return fmt.Errorf("%d answered, none refused", f.answered.Load())
				}
				return nil
			})
			l.awaitCounted(p, f, before)
			most := limitBurst + 1 + int(time.Since(began).Seconds()*limitRate)
			if n := int(f.answered.Load()); action == "drop" && (n > most || f.refused.Load() > 0) {
				t.Errorf("%d answered, want %d at most; %d refused", n, most, f.refused.Load())
			}
			if n := l.metric("nodens_kernel_path_queries_total", `result="client_limit"`); n == 0 {
				t.Error("the kernel has dropped nothing")
			}
			exempt := l.client(others[1], local4)
			for range 3 * limitBurst {
				exempt.ask(query, false)
			}
		})
	}
}

// TestClientLimitHandover: agents with and without a limit take over from one another; the limit is that of the agent
// that serves, in the kernel, too.
func TestClientLimitHandover(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	args := append(l.allAddrArgs(), testbed.KernelPathFlag)
	query := pack(question("who."+testbed.Zone+".", dns.TypeA))
	p := l.startAgentWith(args...)
	for n, limited := range []bool{false, true, false, true, true} {
		with := args
		if limited {
			with = append(args[:len(args):len(args)], limitFlag("drop"))
		}
		if n > 0 {
			p = l.upgrade(p, n, with)
		}
		l.kernelClient(p, l.pod, query)
		if !limited {
			c := l.client(l.pod, local4)
			for range 5 * limitBurst {
				c.ask(query, false)
			}
			if n := l.limited(); n > 0 {
				t.Fatalf("without a limit, %d queries are limited", n)
			}
			continue
		}
		before, began := l.limited(), time.Now()
		f := l.newFlood(l.pod)
		f.send(t, query, 20*limitBurst)
		l.awaitCounted(p, f, before)
		if n, most := int(f.answered.Load()), limitBurst+1+int(time.Since(began).Seconds()*limitRate); n > most {
			t.Errorf("agent %d: %d answered, want %d at most", n, n, most)
		}
	}
}
