// Inside the package: the benchmarks use transports without a Pool.

package upstream

import (
	"bufio"
	"context"
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

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
)

// benchServerEnv is set for the process that BenchmarkTransport queries: to tcp, tls,
// https or quic, followed by a colon and the time that each answer takes.
const benchServerEnv = "NODENS_BENCH_SERVER"

// TestBenchServer is that process. It ends with its standard input.
func TestBenchServer(t *testing.T) {
	over, delay, ok := strings.Cut(os.Getenv(benchServerEnv), ":")
	if !ok {
		t.Skip("for BenchmarkCost")
	}
	wait, err := time.ParseDuration(delay)
	noError(t, err)
	a := newAuthority(t)
	cfg := a.server("dns.test")
	if over == "quic" {
		l, err := listenQUIC(cfg, wait)
		noError(t, err)
		fmt.Printf("at %s %s\n", l.Addr(), a.file)
		io.Copy(io.Discard, os.Stdin)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	fmt.Printf("at %s %s\n", l.Addr(), a.file)
	if over == "https" {
		cfg.NextProtos = []string{"h2"}
		s := &http.Server{TLSConfig: cfg, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(wait)
			answerDoH(w, r)
		})}
		go s.ServeTLS(l, "", "")
	} else {
		if over == "tls" {
			l = tls.NewListener(l, cfg)
		}
		go acceptBenchConns(l, wait)
	}
	io.Copy(io.Discard, os.Stdin)
}

// listenQUIC serves DNS over QUIC, with as many streams as other servers allow.
func listenQUIC(cfg *tls.Config, wait time.Duration) (*quic.Listener, error) {
	cfg.NextProtos = []string{doqALPN}
	l, err := quic.ListenAddr("127.0.0.1:0", cfg, &quic.Config{MaxIncomingStreams: 256})
	if err != nil {
		return nil, err
	}
	answer := func(s *quic.Stream) {
		b, err := io.ReadAll(s)
		if err != nil { // canceled
			return
		}
		time.Sleep(wait)
		s.Write(prefixed(answerA(b[2:])))
		s.Close()
	}
	go func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				for {
					s, err := c.AcceptStream(context.Background())
					if err != nil {
						return
					}
					go answer(s)
				}
			}()
		}
	}()
	return l, nil
}

func acceptBenchConns(l net.Listener, wait time.Duration) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serveBenchConn(c, wait)
	}
}

// serveBenchConn answers each query after wait, in parallel.
func serveBenchConn(c net.Conn, wait time.Duration) {
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
			out := answerA(b)
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

// startBenchPeer starts the other process and returns a transport to it.
func startBenchPeer(b *testing.B, over string, wait time.Duration) transport {
	b.Helper()
	self, err := os.Executable()
	noError(b, err)
	cmd := exec.Command(self, "-test.run", "^TestBenchServer$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%s", benchServerEnv, over, wait))
	stdin, err := cmd.StdinPipe()
	noError(b, err)
	stdout, err := cmd.StdoutPipe()
	noError(b, err)
	noError(b, cmd.Start())
	b.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	var at, ca string
	if _, err := fmt.Fscanf(stdout, "at %s %s\n", &at, &ca); err != nil {
		b.Fatalf("reading where the server is: %v", err)
	}
	go io.Copy(io.Discard, stdout)
	opts := connOptions{expire: time.Hour}
	if over != "tcp" {
		if opts.tls, err = newTLSConfig(&config.TLSClient{CA: ca}, "dns.test"); err != nil {
			b.Fatal(err)
		}
	}
	switch over {
	case "quic":
		return newDoQTransport(netip.MustParseAddrPort(at), opts)
	case "https":
		return newDoHTransport(config.Target{Host: "dns.test"}, netip.MustParseAddrPort(at), dohOptions{connOptions: opts})
	}
	return newStreamTransport(netip.MustParseAddrPort(at), opts)
}

// BenchmarkTransport measures the CPU time of a query in this process, with a given number
// of queries in flight or a given rate. The server is another process.
func BenchmarkTransport(b *testing.B) {
	for _, over := range []string{"tcp", "tls", "https", "quic"} {
		for _, flying := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/flying=%d", over, flying), func(b *testing.B) {
				via := startBenchPeer(b, over, 0)
				defer via.close()
				var left atomic.Int64
				left.Store(int64(b.N))
				measureCPU(b, via, func() {
					var wg sync.WaitGroup
					for range flying {
						wg.Go(func() {
							q := fixedQuery(b)
							for left.Add(-1) >= 0 {
								roundTripOne(b, via, q)
							}
						})
					}
					wg.Wait()
				})
			})
		}
		for _, rate := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/rate=%d", over, rate), func(b *testing.B) { benchmarkRate(b, over, rate) })
		}
	}
}

// benchmarkRate sends the given number of queries per second.
func benchmarkRate(b *testing.B, over string, rate int) {
	via := startBenchPeer(b, over, 2*time.Millisecond)
	defer via.close()
	calls := sync.Pool{New: func() any { return fixedQuery(b) }}
	measureCPU(b, via, func() {
		var wg sync.WaitGroup
		places := make(chan struct{}, 512) // on a busy machine many are late at once
		start := time.Now()
		for i := range b.N {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				q := calls.Get().(*query)
				roundTripOne(b, via, q)
				calls.Put(q)
			})
		}
		wg.Wait()
	})
}

func roundTripOne(b *testing.B, via transport, q *query) {
	q.deadline = time.Now().Add(10 * time.Second)
	via.start(q)
	if <-q.done; q.err != nil {
		b.Error(q.err)
	}
}

// measureCPU runs f, which makes b.N exchanges over via, and reports their CPU time.
func measureCPU(b *testing.B, via transport, f func()) {
	roundTripOne(b, via, fixedQuery(b)) // opens a connection
	b.ReportAllocs()
	before := cpuTime(b)
	b.ResetTimer()
	f()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	_, misses := via.reuse()
	b.ReportMetric(float64(misses), "conns")
}

// cpuTime returns the CPU time of this process.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	noError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
