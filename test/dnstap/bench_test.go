package dnstap

import (
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	framestream "github.com/farsightsec/golang-framestream"
	"google.golang.org/protobuf/proto"

	"github.com/nodens-dns/nodens/internal/config"
	tap "github.com/nodens-dns/nodens/server/dnstap"
)

// BenchmarkSend compares what a message costs from the query path to a collector on a unix
// socket: with server/dnstap; with golang-dnstap as documented; and with golang-dnstap's
// protobuf types and framestream's Writer, reusing messages and buffers. dropped is the share
// of messages that found the queue full, and cpu-ns/op the CPU time of the process. Both that
// and allocs/op include the collector, which allocates once per message.
func BenchmarkSend(b *testing.B) {
	packet := make([]byte, 100)
	client := netip.MustParseAddrPort("192.0.2.7:4242")
	b.Run("nodens", func(b *testing.B) {
		to := tap.New(config.Dnstap{Network: "unix", Address: discard(b), Queue: config.DnstapQueue, Identity: "node-1", Version: "v1"}, "", slog.New(slog.DiscardHandler))
		run(b, to)
		m := tap.Message{Type: tap.ClientQuery, Protocol: tap.UDP, Client: client, Query: time.Now(), Packet: packet}
		measure(b, func() bool { to.Send(&m); return true })
		b.ReportMetric(float64(to.Dropped())/float64(b.N), "dropped")
	})
	b.Run("golang-dnstap", func(b *testing.B) {
		out, err := dnstap.NewFrameStreamSockOutput(&net.UnixAddr{Net: "unix", Name: discard(b)})
		if err != nil {
			b.Fatal(err)
		}
		go out.RunOutputLoop()
		b.Cleanup(out.Close)
		queue := out.GetOutputChannel()
		measure(b, func() bool {
			frame, err := proto.Marshal(libraryMessage(new(dnstap.Dnstap), client, time.Now(), packet))
			if err != nil {
				b.Fatal(err)
			}
			select {
			case queue <- frame:
				return true
			default:
				return false
			}
		})
	})
	b.Run("framestream", func(b *testing.B) {
		conn, err := net.Dial("unix", discard(b))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		queue, done := make(chan []byte, config.DnstapQueue), make(chan error, 1)
		free := make(chan []byte, config.DnstapQueue)
		go func() { done <- writeFrames(conn, queue, free) }()
		m := new(dnstap.Dnstap)
		measure(b, func() bool {
			var frame []byte
			select {
			case frame = <-free:
			default:
			}
			frame, err := proto.MarshalOptions{}.MarshalAppend(frame[:0], libraryMessage(m, client, time.Now(), packet))
			if err != nil {
				b.Fatal(err)
			}
			select {
			case queue <- frame:
				return true
			default:
				return false
			}
		})
		close(queue)
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
}

// writeFrames writes the frames of queue to conn with framestream, flushes when the queue
// is empty, and returns the buffers to free.
func writeFrames(conn net.Conn, queue <-chan []byte, free chan<- []byte) error {
	w, err := framestream.NewWriter(conn, &framestream.WriterOptions{ContentTypes: [][]byte{dnstap.FSContentType}, Bidirectional: true})
	if err != nil {
		return err
	}
	for frame := range queue {
		if _, err := w.WriteFrame(frame); err != nil {
			return err
		}
		select {
		case free <- frame:
		default:
		}
		if len(queue) == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

// libraryMessage fills m as server/dnstap would.
func libraryMessage(m *dnstap.Dnstap, client netip.AddrPort, at time.Time, packet []byte) *dnstap.Dnstap {
	if m.Message == nil {
		m.Message = new(dnstap.Message)
	}
	m.Type, m.Identity, m.Version = dnstap.Dnstap_MESSAGE.Enum(), []byte("node-1"), []byte("v1")
	in := m.Message
	in.Type, in.SocketFamily, in.SocketProtocol = dnstap.Message_CLIENT_QUERY.Enum(), dnstap.SocketFamily_INET.Enum(), dnstap.SocketProtocol_UDP.Enum()
	in.QueryAddress, in.QueryPort = client.Addr().AsSlice(), proto.Uint32(uint32(client.Port()))
	in.QueryTimeSec, in.QueryTimeNsec = proto.Uint64(uint64(at.Unix())), proto.Uint32(uint32(at.Nanosecond()))
	in.QueryMessage = packet
	return m
}

// burst is how many messages are sent at once, each millisecond: fewer than golang-dnstap's
// queue has room for.
const burst = 16

// measure runs send b.N times, at 16,000 times per second. The time that send itself takes is
// send-ns/op; ns/op is the pace.
func measure(b *testing.B, send func() bool) {
	b.ReportAllocs()
	var dropped int
	var sending time.Duration
	before := cpu(b)
	b.ResetTimer()
	for i := 0; i < b.N; {
		began := time.Now()
		for range min(burst, b.N-i) {
			if !send() {
				dropped++
			}
			i++
		}
		sending += time.Since(began)
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(sending)/float64(b.N), "send-ns/op")
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(dropped)/float64(b.N), "dropped")
}

// cpu is the processor time of the process so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// discard starts a collector that discards what it gets, and returns its path.
func discard(b *testing.B) string {
	path := filepath.Join(b.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go discardConn(conn)
		}
	}()
	return path
}

func discardConn(conn net.Conn) {
	defer conn.Close()
	r, err := framestream.NewReader(conn, &framestream.ReaderOptions{ContentTypes: [][]byte{dnstap.FSContentType}, Bidirectional: true})
	if err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	for {
		if _, err := r.ReadFrame(buf); err != nil {
			return
		}
	}
}
