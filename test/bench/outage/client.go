package outage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// Job is what a client asks.
type Job struct {
	Server netip.AddrPort
	// Count is the number of questions, and Rate how many are asked a second.
	Count, Rate int
	// Name gives the name of the i-th question, which is of type A.
	Name func(i int) string
	// Each is called before the i-th question is asked; nil is nothing. It must not
	// block.
	Each func(i int)
}

// Fate is what became of a question.
type Fate struct {
	// Asked is when it was asked, from the first one's time, and Took how long the
	// answer took; of one that got none, how long it was waited for.
	Asked, Took time.Duration
	// Failed says that no answer with an address came.
	Failed bool
}

// patience is how long an answer is waited for. Servers end an exchange after five
// seconds, as clients do; one more is for those that are late to say so.
const patience = 6 * time.Second

// most is the number of questions that may wait: there are 65,536 IDs, and each must
// be free again when its turn comes.
const most = 1 << 15

// Ask asks and waits for all answers. The fates are in the order of the questions.
func (j Job) Ask(ctx context.Context) ([]Fate, error) {
	if j.Rate < 1 || j.Rate > most/int(patience/time.Second) {
		return nil, fmt.Errorf("%d questions a second; between 1 and %d are possible", j.Rate, most/int(patience/time.Second))
	}
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(j.Server))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	a := &asking{Job: j, conn: conn, start: time.Now(), fates: make([]Fate, j.Count), came: make([]time.Duration, j.Count), failed: make([]bool, j.Count)}
	read := make(chan error, 1)
	go func() { read <- a.read() }()
	err = a.send(ctx)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if err != nil {
		_ = conn.SetReadDeadline(time.Now())
	}
	if err := errors.Join(err, <-read); err != nil {
		return nil, err
	}
	for i := range a.fates {
		f := &a.fates[i]
		f.Took, f.Failed = a.came[i]-f.Asked, a.failed[i] || a.came[i] == 0
		if a.came[i] == 0 {
			f.Took = patience
		}
	}
	return a.fates, nil
}

// asking is a job under way. The sender writes fates, the reader all else.
type asking struct {
	Job
	conn   *net.UDPConn
	start  time.Time
	fates  []Fate
	came   []time.Duration
	failed []bool
}

func (a *asking) send(ctx context.Context) error {
	for i := range a.Count {
		time.Sleep(time.Until(a.start.Add(time.Duration(i) * time.Second / time.Duration(a.Rate))))
		if err := ctx.Err(); err != nil {
			return err
		}
		if a.Each != nil {
			a.Each(i)
		}
		m := new(dns.Msg).SetQuestion(a.Name(i), dns.TypeA)
		m.Id = uint16(i)
		packed, err := m.Pack()
		if err != nil {
			return err
		}
		a.fates[i].Asked = time.Since(a.start)
		if _, err := a.conn.Write(packed); err != nil {
			return fmt.Errorf("asking %s: %w", a.Server, err)
		}
	}
	return nil
}

// read takes answers until all are there or the deadline has come.
func (a *asking) read() error {
	buf := make([]byte, dns.MaxMsgSize)
	for left := a.Count; left > 0; {
		n, err := a.conn.Read(buf)
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", a.Server, err)
		}
		now := time.Since(a.start)
		if n < 12 {
			continue
		}
		// The last question with this ID: those before it were given up long ago.
		i := a.latest(int(binary.BigEndian.Uint16(buf)), now)
		if i < 0 || a.came[i] != 0 {
			continue
		}
		rcode, answers := buf[3]&15, binary.BigEndian.Uint16(buf[6:])
		a.came[i], a.failed[i] = now, rcode != 0 || answers == 0
		left--
	}
	return nil
}

// latest is the last question that has been asked by now with the ID, -1 if there is
// none.
func (a *asking) latest(id int, now time.Duration) int {
	asked := min(a.Count, int(now*time.Duration(a.Rate)/time.Second)+2)
	if id >= asked {
		return -1
	}
	return id + (asked-1-id)>>16<<16
}
