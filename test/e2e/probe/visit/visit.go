// Package visit is a client that a default deny for egress applies to. Without a pause it looks up names that its policy allows and
// connects to their addresses at once, sends packets to an address that none of them has, and looks up a name that is denied.
package visit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Counts is what a client has done since it began.
type Counts struct {
	// Rounds are complete. Failed are those whose allowed name was not resolved or not reached, and Error is the last one's. Good are
	// the rounds since then.
	Rounds, Failed, Good int
	Error                string
	// Packets were sent to addresses that are denied.
	Packets int
	// Refused and Answered are the replies to look-ups of the denied name, Answered those with an address.
	Refused, Answered int
}

// Config says what a client does.
type Config struct {
	// Allowed are names. "*" at the beginning stands for two numbers, with a dash between them, that change from round to round.
	Allowed []string
	// DeniedName and Denied are what the client may not look up, and where it may not send anything.
	DeniedName string
	Denied     netip.Addr
	// Port is where the addresses of the names are connected to.
	Port uint16
}

const (
	// pause is the time between two rounds. 50 rounds a second on a node are far from filling it.
	pause = 20 * time.Millisecond
	// changing is how many names a "*" stands for: with all of them, a set of a policy still has room.
	changing = 2000
	// connectTimeout is longer than the second after which TCP sends its first packet again.
	connectTimeout = 5 * time.Second
	// attempts is how often a client asks the name server.
	attempts = 5
)

// visitor is a client.
type visitor struct {
	Config
	server string
	round  sync.Mutex // held during a round
	counts Counts
}

// Run visits until ctx is done. To each connection that l accepts it writes the counts as JSON, and does not go on until the other side closes
// the connection.
func Run(ctx context.Context, c Config, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	if len(conf.Servers) == 0 {
		return errors.New("/etc/resolv.conf has no name server")
	}
	v := &visitor{Config: c, server: net.JoinHostPort(conf.Servers[0], conf.Port)}
	go v.serve(l)
	for ctx.Err() == nil {
		v.round.Lock()
		err := v.visit(ctx)
		v.round.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// serve reports the counts.
func (v *visitor) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		v.round.Lock()
		if json.NewEncoder(conn).Encode(&v.counts) == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
		conn.Close()
		v.round.Unlock()
	}
}

// visit is a round. An error is about the pod itself.
func (v *visitor) visit(ctx context.Context) error {
	c := &v.counts
	name := v.Allowed[c.Rounds%len(v.Allowed)]
	if rest, ok := strings.CutPrefix(name, "*"); ok {
		n := c.Rounds / len(v.Allowed) % changing
		name = fmt.Sprintf("%d-%d%s", n/250, 1+n%250, rest)
	}
	if err := v.reach(ctx, name); err != nil {
		c.Failed, c.Good, c.Error = c.Failed+1, -1, err.Error()
	}
	c.Rounds, c.Good = c.Rounds+1, c.Good+1
	if err := v.attack(v.Denied); err != nil {
		return err
	}
	m := v.ask(ctx, v.DeniedName)
	if m == nil {
		return nil
	}
	if m.Rcode == dns.RcodeRefused {
		c.Refused++
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			c.Answered++
			addr, _ := netip.AddrFromSlice(a.A.To4())
			if err := v.attack(addr); err != nil {
				return err
			}
		}
	}
	return nil
}

// reach looks a name up, and connects to its addresses.
func (v *visitor) reach(ctx context.Context, name string) error {
	r := &net.Resolver{PreferGo: true}
	addrs, err := r.LookupNetIP(ctx, "ip4", dns.Fqdn(name))
	if err != nil {
		return err
	}
	for _, a := range addrs {
		conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp4", netip.AddrPortFrom(a, v.Port).String())
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		conn.Close()
	}
	return nil
}

// attack sends one packet over UDP and one over TCP, which is not sent again because the socket is closed at once.
func (v *visitor) attack(addr netip.Addr) error {
	for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
		if err := sendOnce(kind, netip.AddrPortFrom(addr, v.Port)); err != nil {
			return fmt.Errorf("sending a packet to %s: %w", addr, err)
		}
		v.counts.Packets++
	}
	return nil
}

// sendOnce sends a datagram, or begins a connection and gives it up.
func sendOnce(kind int, to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	addr := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	if kind == unix.SOCK_DGRAM {
		return unix.Sendto(fd, []byte("x"), 0, addr)
	}
	if err := unix.Connect(fd, addr); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	return nil
}

// ask asks the name server for the addresses of a name, again after SERVFAIL or without a reply; nil: there is none.
func (v *visitor) ask(ctx context.Context, name string) *dns.Msg {
	c := dns.Client{Timeout: time.Second}
	for range attempts {
		m, _, err := c.ExchangeContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), v.server)
		if err == nil && m.Rcode != dns.RcodeServerFailure {
			return m
		}
	}
	return nil
}
