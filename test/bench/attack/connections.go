package attack

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/worst"
)

// openBusy sends c's queries over n connections to the address, from c's sources in turn. A connection that is closed is opened
// again. It returns what ends that.
func openBusy(n int, c worst.Case, to netip.AddrPort) (closeAll func()) {
	from := []netip.Addr{attackerAddr}
	if c.Sources > 0 {
		from = sources(c.Sources)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from[i%len(from)].AsSlice()}, Timeout: time.Second}
			for next := i; ctx.Err() == nil; {
				conn, err := dialer.DialContext(ctx, "tcp", to.String())
				if err == nil {
					stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
					next = keepBusy(conn, c.Queries, next)
					stop()
					_ = conn.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(reopenPause):
				}
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// reopenPause is how long an attacker waits before it opens a connection that was closed again.
const reopenPause = 50 * time.Millisecond

// keepBusy sends queries, the one at index next first, over conn until it ends. It returns the index of the one that follows.
func keepBusy(conn net.Conn, queries [][]byte, next int) int {
	send := func() error {
		q := queries[next%len(queries)]
		next++
		_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)) //nolint:gosec // a query is short
		return err
	}
	for range inFlight {
		if send() != nil {
			return next
		}
	}
	reader := bufio.NewReader(conn)
	for {
		var head [2]byte
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return next
		}
		if _, err := reader.Discard(int(binary.BigEndian.Uint16(head[:]))); err != nil || send() != nil {
			return next
		}
	}
}

// openIdle opens n connections to each address, sends the start of a request on each,
// and returns what closes them. Connections that are refused are left out: that is what
// is tried.
func openIdle(n int, to ...netip.AddrPort) (closeAll func()) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: attackerAddr.AsSlice()}, Timeout: time.Second}
	var open []net.Conn
	for _, at := range to {
		for range n {
			conn, err := dialer.Dial("tcp", at.String())
			if err != nil {
				continue
			}
			_, _ = conn.Write([]byte{0})
			open = append(open, conn)
		}
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}
}
