package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// fakeAgent is an agent that hands each packet to the one upstream in its Corefile, and
// back. What it does wrong is up to the tests.
type fakeAgent struct {
	in    *net.UDPConn
	clock time.Duration
	wrong func(reply []byte) // nil: nothing
}

func (r *fakeAgent) run(to string) {
	buf := make([]byte, 65535)
	for {
		n, from, err := r.in.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		query := append([]byte(nil), buf[:n]...)
		go func() {
			c, err := net.Dial("udp4", to)
			if err != nil {
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = c.Write(query)
			reply := make([]byte, 65535)
			n, err := c.Read(reply)
			if err != nil {
				return
			}
			if r.wrong != nil {
				r.wrong(reply[:n])
			}
			_, _ = r.in.WriteToUDPAddrPort(reply[:n], from)
		}()
	}
}

func (r *fakeAgent) Advance(by time.Duration) { r.clock += by }

func (r *fakeAgent) Reload(_ context.Context, corefile string) error {
	if strings.Contains(corefile, "bad") {
		return errors.New("the file is bad")
	}
	return nil
}

func (r *fakeAgent) Flush(name string, subtree bool) (int, error) { return len(name), nil }

func (r *fakeAgent) Metrics() (string, error) {
	return "# HELP queries x\nqueries{a=\"1\",b=\"2\"} 3\nqueries{a=\"2\",b=\"2\"} 4\nqueries_total 9\nbare 1\nclock " + fmt.Sprint(int(r.clock/time.Second)) + "\n", nil
}

func (r *fakeAgent) Log() string { return "all is well\n" }

func (r *fakeAgent) Close() error { return r.in.Close() }

// startFakeAgent makes a relay that does wrong what it says.
func startFakeAgent(wrong func([]byte)) Start {
	return func(_ context.Context, s Setup) (Agent, error) {
		if strings.Contains(s.Corefile, "bad") {
			return nil, errors.New("the file is bad")
		}
		in, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(s.Listen))
		if err != nil {
			return nil, err
		}
		r := &fakeAgent{in: in, wrong: wrong}
		go r.run(strings.TrimSpace(s.Corefile))
		return r, nil
	}
}

// stagehand is a file with one upstream, in 12 lines; the steps follow.
const stagehand = `TITLE t
COREFILE
$up
END
UPSTREAM up
ON nothing.test *
    SILENT
ON addr.test *
    ANSWER @ 300 TXT $up.ip $up.port $n
ON * *
    ANSWER @ 300 A 192.0.2.$n

`

// runText plays a file against a relay.
func runText(t *testing.T, text string, wrong func([]byte)) error {
	t.Helper()
	sc, err := Parse("f.txt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return Run(t.Context(), sc, t.TempDir(), startFakeAgent(wrong))
}

// TestRun: steps that go as the file says.
func TestRun(t *testing.T) {
	steps := `QUERY a.test A
EXPECT NOERROR ra rd -aa -tc -edns bytes 40..
    ANSWER a.test 300 A 192.0.2.1
QUERY a.test A edns 1232 do
EXPECT NOERROR edns do
    ANSWER a.test 200..300 A 192.0.2.2
QUERY nothing.test A
EXPECT nothing
QUERY b.test A times 5 spread as crowd
EXPECT NOERROR answers 1 of crowd
EXPECT-UPSTREAM up 3.b.test A over udp count 1
EXPECT-UPSTREAM up count 8
EXPECT-METRIC queries 7
EXPECT-METRIC queries{b="2",a="1"} 3
EXPECT-METRIC queries{a="3"} 0
EXPECT-METRIC bare 0..1
ADVANCE 30s
EXPECT-METRIC clock 30
EXPECT-LOG is well
EXPECT-NO-LOG is ill
FLUSH a.test count 7
RELOAD
good
END
RELOAD refused is bad
bad
END
QUERY d.test A again
EXPECT NOERROR
    ANSWER d.test 300 A 192.0.2.12
QUERY addr.test TXT
EXPECT NOERROR answers 1
STOP up
REVIVE up
QUERY c.test A
EXPECT NOERROR answers 1
`
	if err := runText(t, stagehand+steps, nil); err != nil {
		t.Error(err)
	}
	if err := runText(t, "TITLE t\nCOREFILE\nbad\nEND\nREFUSED is bad\n", nil); err != nil {
		t.Errorf("a start that is refused: %v", err)
	}
}

// TestWindow: no more queries are in flight than the window says, and all are sent.
func TestWindow(t *testing.T) {
	sc, err := Parse("f.txt", []byte(`TITLE t
COREFILE
$up
END
UPSTREAM up
ON * *
    DELAY 1ms
    ANSWER @ 300 A 192.0.2.1
QUERY a.test A times 30 spread window 3 as some
EXPECT NOERROR answers 1 of some
EXPECT-UPSTREAM up count 30
`))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	inFlight, most := 0, 0
	sc.Observe = func(_, _ *dns.Msg, upstream string) {
		mu.Lock()
		defer mu.Unlock()
		if upstream == "" { // the client has its reply
			inFlight--
			return
		}
		inFlight++
		most = max(most, inFlight)
	}
	if err := Run(t.Context(), sc, t.TempDir(), startFakeAgent(nil)); err != nil {
		t.Error(err)
	}
	if most > 3 {
		t.Errorf("%d queries in flight, want 3 at most", most)
	}
}

// TestRunFails: whatever is otherwise than the file says is found, with its line.
func TestRunFails(t *testing.T) {
	wrongID := func(b []byte) { b[0]++ }
	wrongCase := func(b []byte) { b[13] ^= 0x20 }
	for _, c := range []struct {
		name, steps string
		wrong       func([]byte)
		want        string
	}{
		{"rcode", "QUERY a.test A\nEXPECT NXDOMAIN any\n", nil, "f.txt:14: reply 1 of 1 to a.test. A: the rcode is NOERROR, want NXDOMAIN"},
		{"flag", "QUERY a.test A\nEXPECT NOERROR aa any\n", nil, "aa is not set"},
		{"no flag", "QUERY a.test A\nEXPECT NOERROR -ra any\n", nil, "ra is set"},
		{"one record too many", "QUERY a.test A\nEXPECT NOERROR\n", nil, "ANSWER: there is a.test. 300 IN A 192.0.2.1, which is not wanted"},
		{"a record is missing", "QUERY a.test A\nEXPECT NOERROR\nANSWER a.test 300 A 192.0.2.1\nANSWER a.test 300 A 192.0.2.2\n", nil, "missing: [a.test. 300 IN A 192.0.2.2]"},
		{"TTL", "QUERY a.test A\nEXPECT NOERROR\nANSWER a.test 0..299 A 192.0.2.1\n", nil, "still wanted: [a.test. 0..299 IN A 192.0.2.1]"},
		{"case of an owner", "QUERY a.test A\nEXPECT NOERROR\nANSWER A.test 300 A 192.0.2.1\n", nil, "still wanted"},
		{"count", "QUERY a.test A\nEXPECT NOERROR answers 2\n", nil, "there are 1 answers, want 2"},
		{"size", "QUERY a.test A\nEXPECT NOERROR any bytes 0..20\n", nil, "bytes, want 0..20"},
		{"no OPT record", "QUERY a.test A\nEXPECT NOERROR any edns\n", nil, "the OPT record is"},
		{"no DO", "QUERY a.test A edns 512\nEXPECT NOERROR any do\n", nil, "the DO bit is"},
		{"no NSID", "QUERY a.test A edns 512\nEXPECT NOERROR any nsid me\n", nil, "the NSID is not 6d65"},
		{"a reply", "QUERY a.test A\nEXPECT nothing\n", nil, "there is one, want none"},
		{"another ID", "QUERY a.test A\nEXPECT NOERROR any\n", wrongID, "the reply has another ID or question"},
		{"another case", "QUERY a.test A\nEXPECT NOERROR any\n", wrongCase, "the reply has another ID or question"},
		{"no message", "QUERY a.test A\nEXPECT NOERROR any\n", func(b []byte) { b[len(b)-5] = 99 }, "f.txt:14: reply 1 of 1 to a.test. A: the reply is no message"},
		{"counts", "QUERY a.test A\nEXPECT NOERROR any\n", func(b []byte) { b[7] = 9 }, "the reply says that 9 records are in ANSWER, and has 1"},
		{"a line that should not be in the log", "EXPECT-NO-LOG is well\n", nil, `the log says "is well"`},
		{"a reload that is taken", "RELOAD refused x\ngood\nEND\n", nil, `f.txt:13: the Corefile is taken, want it refused with "x"`},
		{"a reload that is refused", "RELOAD\nbad\nEND\n", nil, "f.txt:13: the Corefile is refused: the file is bad"},
		{"a reload that is refused for something else", "RELOAD refused x\nbad\nEND\n", nil, `want "x" in it`},
		{"flush", "FLUSH a.test count 1\n", nil, "f.txt:13: 7 entries are flushed, want 1"},
		{"placeholder", "EXPECT-LOG $upp\n", nil, "f.txt:13: $upp stands for nothing; write the $NAME of an upstream"},
		{"a start that is taken", "REFUSED x\n", nil, `f.txt:3: the Corefile is taken, want it refused with "x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := runText(t, stagehand+c.steps, c.wrong)
			if err == nil || !strings.HasPrefix(err.Error(), "f.txt:") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestWaits: what is waited for in vain is an error too, once the play ends.
func TestWaits(t *testing.T) {
	for _, step := range []string{"EXPECT-LOG ill", "EXPECT-METRIC queries 8", "EXPECT-METRIC queries{a=\"1\"} 4..", "EXPECT-UPSTREAM up count 1", "EXPECT-CONNECTIONS up count 1"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			sc, err := Parse("f.txt", []byte(stagehand+step+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			start := func(ctx context.Context, s Setup) (Agent, error) {
				a, err := startFakeAgent(nil)(ctx, s)
				cancel() // each step still looks once
				return a, err
			}
			err = Run(ctx, sc, t.TempDir(), start)
			if err == nil || !strings.HasPrefix(err.Error(), "f.txt:13: ") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
