package harness

import (
	"fmt"
	"net"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// StartUpstream starts what the servers forward to, over UDP and over TCP on the
// same port; the caller closes both. Over TCP it answers while caches are filled
// only, so that it need not be fast.
func StartUpstream() (*load.Loop, *dns.Server, error) {
	// The port that is free for UDP may be taken for TCP. Load tests beside this one leave
	// thousands of TCP connections in TIME_WAIT, which take ports, too.
	const tries = 100
	var err error
	for range tries {
		var loop *load.Loop
		if loop, err = load.Open(); err != nil {
			return nil, nil, err
		}
		var l net.Listener
		if l, err = net.Listen("tcp", loop.Addr().String()); err == nil {
			return loop, serveStream(l, loop), nil
		}
		loop.Close()
	}
	return nil, nil, fmt.Errorf("starting the upstream: %w", err)
}

// serveStream answers over TCP what the loop answers over UDP.
func serveStream(l net.Listener, loop *load.Loop) *dns.Server {
	started := make(chan struct{})
	s := &dns.Server{
		Listener: l, NotifyStartedFunc: func() { close(started) },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			packed, err := q.Pack()
			if err != nil {
				return
			}
			// A client that is gone needs no answer.
			_, _ = w.Write(loop.Answer(packed))
		}),
	}
	go func() { _ = s.ActivateAndServe() }()
	<-started
	return s
}
