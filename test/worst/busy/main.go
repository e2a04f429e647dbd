// Busy is an attacker over TCP: it sends the queries of one case of package worst over many connections, as fast as the
// replies are read. It is a process of its own, so that its work is not in the scheduler of the load generator that measures a
// victim. It ends when its standard input does.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/worst"
)

func main() {
	name := flag.String("case", "", "send the queries of the case `NAME`")
	to := flag.String("to", "", "the `ADDRESS` with the port of the agent")
	n := flag.Int("connections", 1, "the number of connections")
	flag.Parse()
	at := slices.IndexFunc(worst.Cases(), func(c worst.Case) bool { return c.Name == *name })
	addr, err := netip.ParseAddrPort(*to)
	if err != nil || at < 0 {
		fmt.Fprintf(os.Stderr, "busy: no case %q, or no address: %v\n", *name, err)
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	send(ctx, *n, worst.Cases()[at], addr)
}

// inFlight is how many queries are in flight on a connection.
const inFlight = 16

// send sends c's queries over n connections to the address, from c's sources in turn, until ctx ends. A connection that is
// closed is opened again.
func send(ctx context.Context, n int, c worst.Case, to netip.AddrPort) {
	from := c.From()
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
	running.Wait()
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
