package main

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// TestMain runs `podload dial` if the first argument is dial.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "dial" {
		if run(context.Background(), os.Args[1:]) != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestJob: a job goes to the pod and its report comes back, when the caller stops it and
// when its time is over; and a connection without a job does no harm.
func TestJob(t *testing.T) {
	from := netip.MustParseAddr("192.0.2.1")
	server := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, from.String()) }))

	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- serve(ctx, l) }()
	idle, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	idle.Close()

	job := load.Job{
		Servers: []netip.AddrPort{server.Addr()}, Local: from, TTL: 60,
		Names: 3, Zone: "load.test.", Duration: 200 * time.Millisecond, Rate: 100, Sockets: 2, QueriesPerSocket: 10,
	}
	for _, length := range []time.Duration{job.Duration, time.Hour} {
		job.Duration = length
		c, err := load.Start(job, os.Args[0], "dial", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		end := c.Wait
		if length == time.Hour {
			end = c.Stop
		}
		r, err := end()
		if err != nil {
			t.Fatal(err)
		}
		if r.UDP.Local == 0 && length < time.Hour || r.UDP.Local != r.UDP.Asked {
			t.Errorf("for %v: %s", length, r)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp4", l.Addr().String()); err == nil {
		t.Error("it still listens")
	}
	if run(t.Context(), []string{"serve"}) == nil {
		t.Error("serve without an address is taken")
	}
}
