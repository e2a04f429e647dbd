package upstream

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// costServer is set in the environment of the process that BenchmarkCost asks: to
// tcp, tls or https, and after a colon how long each answer takes.
const costServer = "NODENS_COST_SERVER"

// TestCostServer is that process. It ends with its standard input.
func TestCostServer(t *testing.T) {
	over, delay, ok := strings.Cut(os.Getenv(costServer), ":")
	if !ok {
		t.Skip("for BenchmarkCost")
	}
	wait, err := time.ParseDuration(delay)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthority(t)
	cfg := a.server("dns.test")
	fmt.Printf("at %s %s\n", l.Addr(), a.file)
	if over == "https" {
		cfg.NextProtos = []string{"h2"}
		s := &http.Server{TLSConfig: cfg, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(wait)
			serves(w, r)
		})}
		go s.ServeTLS(l, "", "")
	} else {
		if over == "tls" {
			l = tls.NewListener(l, cfg)
		}
		go costAccept(l, wait)
	}
	io.Copy(io.Discard, os.Stdin)
}

func costAccept(l net.Listener, wait time.Duration) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go costConn(c, wait)
	}
}

// costConn answers each query on its own, as resolvers do, after wait.
func costConn(c net.Conn, wait time.Duration) {
	var mu sync.Mutex
	in := bufio.NewReaderSize(c, 64<<10)
	for {
		var size [2]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(size[:]), 1024)
		if _, err := io.ReadFull(in, b); err != nil {
			return
		}
		answer := func() {
			out := address(b)
			mu.Lock()
			defer mu.Unlock()
			c.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 1024), uint16(len(out))), out...))
		}
		if wait > 0 {
			time.AfterFunc(wait, answer)
		} else {
			answer()
		}
	}
}

// costPeer starts the other process and gives the transport to it.
func costPeer(b *testing.B, over string, wait time.Duration) transport {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestCostServer$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%s", costServer, over, wait))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	var at, ca string
	if _, err := fmt.Fscanf(stdout, "at %s %s\n", &at, &ca); err != nil {
		b.Fatalf("reading where the server is: %v", err)
	}
	go io.Copy(io.Discard, stdout)
	opts := streamOptions{expire: time.Hour}
	if over != "tcp" {
		if opts.tls, err = newTLSConfig(&config.TLSClient{CA: ca}, "dns.test"); err != nil {
			b.Fatal(err)
		}
	}
	if over == "https" {
		return newDoHTransport(config.Target{Host: "dns.test"}, netip.MustParseAddrPort(at), dohOptions{streamOptions: opts})
	}
	return newStreamTransport(netip.MustParseAddrPort(at), opts)
}

// BenchmarkCost is what a query costs this process, of processor time, with so many in
// flight at any time; and where a rate is given, with so many begun in a second. The
// server is another process.
func BenchmarkCost(b *testing.B) {
	for _, over := range []string{"tcp", "tls", "https"} {
		for _, flying := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/flying=%d", over, flying), func(b *testing.B) {
				via := costPeer(b, over, 0)
				defer via.close()
				var left atomic.Int64
				left.Store(int64(b.N))
				costs(b, via, func() {
					var wg sync.WaitGroup
					for range flying {
						wg.Go(func() {
							q := fixedCall(b)
							for left.Add(-1) >= 0 {
								costOne(b, via, q)
							}
						})
					}
					wg.Wait()
				})
			})
		}
		b.Run(over+"/rate=5000", func(b *testing.B) {
			via := costPeer(b, over, 2*time.Millisecond)
			defer via.close()
			calls := sync.Pool{New: func() any { return fixedCall(b) }}
			costs(b, via, func() {
				var wg sync.WaitGroup
				places := make(chan struct{}, 512) // on a busy machine many are late at once
				start := time.Now()
				for i := range b.N {
					time.Sleep(time.Until(start.Add(time.Duration(i) * 200 * time.Microsecond)))
					places <- struct{}{}
					wg.Go(func() {
						defer func() { <-places }()
						q := calls.Get().(*query)
						costOne(b, via, q)
						calls.Put(q)
					})
				}
				wg.Wait()
			})
		})
	}
}

func costOne(b *testing.B, via transport, q *query) {
	q.deadline = time.Now().Add(10 * time.Second)
	via.start(q)
	if <-q.done; q.err != nil {
		b.Error(q.err)
	}
}

// costs runs f, which makes b.N exchanges over via, and reports what they cost.
func costs(b *testing.B, via transport, f func()) {
	costOne(b, via, fixedCall(b)) // to be connected
	b.ReportAllocs()
	before := cpu(b)
	b.ResetTimer()
	f()
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	_, misses := via.reuse()
	b.ReportMetric(float64(misses), "conns")
}

// cpu is the processor time of this process so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
