package startup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	// queryInterval is the time between two queries to a process that starts, and so the error of the
	// time to its first answer. Until the process listens, queries take time of the client's core only.
	queryInterval = 500 * time.Microsecond
	// answerLimit is the time that a process has to answer.
	answerLimit = 2 * time.Minute
)

// question is a name and the address that the answer must have.
type question struct {
	name string
	addr netip.Addr
}

// question returns what the row is asked: a Service, or a name of the upstream.
func (r *run) question(w row) question {
	if w.setting.cluster {
		return r.cluster.service
	}
	return question{upstreamName, netip.MustParseAddr(upstreamAddr)}
}

// firstAnswer says when the first correct answer arrived, and how many other replies there were before.
type firstAnswer struct {
	at     time.Time
	others int
}

var errEnded = errors.New("the process has ended")

// await sends queries over UDP until the correct answer arrives, the process or ctx ends, or for two
// minutes. Each query has an ID of its own; an answer to any of them counts.
func (q question) await(ctx context.Context, p process) (a firstAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	socket, err := connect(p.at)
	if err != nil {
		return a, err
	}
	defer unix.Close(socket) //nolint:errcheck // nothing is lost
	query, err := new(dns.Msg).SetQuestion(q.name, dns.TypeA).Pack()
	if err != nil {
		return a, err
	}
	for n := uint16(0); ; n++ {
		select {
		case <-p.Done():
			return a, errEnded
		case <-ctx.Done():
			return a, fmt.Errorf("waiting for the first answer: %w", ctx.Err())
		default:
		}
		next := time.Now().Add(queryInterval)
		binary.BigEndian.PutUint16(query, n)
		// A query that the kernel refuses is the error of the next call.
		if _, err := unix.Write(socket, query); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return a, err
		}
		if done, err := q.receive(socket, next, &a); done || err != nil {
			return a, err
		}
	}
}

// connect returns a UDP socket that is connected to the IPv4 address. Its calls do not block.
func connect(to netip.AddrPort) (socket int, err error) {
	socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return socket, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(socket, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		unix.Close(socket) //nolint:errcheck // nothing is lost
		return socket, os.NewSyscallError("connect", err)
	}
	return socket, nil
}

// receive reads replies until the time, or until it has read the correct answer. It waits in ppoll(2),
// because Go's timers are exact to a millisecond only while the process is idle.
func (q question) receive(socket int, until time.Time, a *firstAnswer) (done bool, err error) {
	buf := make([]byte, dns.MinMsgSize)
	for {
		n, err := unix.Read(socket, buf)
		a.at = time.Now()
		switch {
		case err == nil && q.answered(buf[:n]):
			return true, nil
		case err == nil:
			a.others++
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EINTR):
			return false, err
		case !a.at.Before(until):
			return false, nil
		}
		rest := unix.NsecToTimespec(until.Sub(a.at).Nanoseconds())
		// A signal or an error of the socket ends the wait early.
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, &rest, nil)
	}
}

// answered reports whether the reply is the correct answer.
func (q question) answered(reply []byte) bool {
	var m dns.Msg
	if m.Unpack(reply) != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		return false
	}
	a, ok := m.Answer[0].(*dns.A)
	return ok && a.Hdr.Name == q.name && a.A.Equal(q.addr.AsSlice())
}
