package scenario

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// errSilence: nothing came back.
var errSilence = errors.New("there is no reply")

const (
	// patience ends what would hang. It measures nothing: what is waited for takes
	// milliseconds, on a machine that does nothing else.
	patience = 30 * time.Second
	// stillness is how long `EXPECT nothing` waits for a reply that must not come. A
	// reply takes well under a millisecond; half of it would see as much, twice as
	// much would make the suite slower.
	stillness = 400 * time.Millisecond
	// look is the time between two looks at a condition.
	look = 10 * time.Millisecond
)

// ask sends m to the agent as q says, and gives the reply.
func (st *run) ask(ctx context.Context, q *query, m *dns.Msg) reply {
	packet, err := m.Pack()
	if err != nil {
		return reply{err: fmt.Errorf("packing a query: %w", err)}
	}
	var raw []byte
	if q.over == "https" {
		raw, err = st.post(ctx, packet)
	} else {
		raw, err = st.exchange(q, packet)
	}
	if err != nil {
		return reply{err: err}
	}
	return read(packet, raw)
}

// read makes a reply of raw. It checks what every one must have: the ID and the very
// question of the packet, case and all, and as many records as it says.
func read(packet, raw []byte) reply {
	r := reply{msg: new(dns.Msg), bytes: len(raw)}
	if err := r.msg.Unpack(raw); err != nil {
		return reply{err: fmt.Errorf("the reply is no message: %w: %x", err, raw)}
	}
	for i, section := range [][]dns.RR{r.msg.Answer, r.msg.Ns, r.msg.Extra} {
		if n := int(binary.BigEndian.Uint16(raw[6+2*i:])); n != len(section) {
			return reply{err: fmt.Errorf("the reply says that %d records are in %s, and has %d: %x", n, sectionNames[i], len(section), raw)}
		}
	}
	end := 12
	for packet[end] != 0 {
		end += 1 + int(packet[end])
	}
	end += 5
	if len(raw) < end || !bytes.Equal(raw[:2], packet[:2]) || !bytes.Equal(raw[12:end], packet[12:end]) || !r.msg.Response {
		return reply{err: fmt.Errorf("the reply has another ID or question than was asked:\n%s", r.msg)}
	}
	return r
}

// exchange sends the packet over UDP, TCP or TLS.
func (st *run) exchange(q *query, packet []byte) ([]byte, error) {
	c, err := st.dial(q)
	if err != nil {
		return nil, fmt.Errorf("%w over %s: %w", errSilence, q.over, err)
	}
	defer c.Close()
	wait := patience
	if st.unanswered[q] {
		wait = stillness
	}
	_ = c.SetDeadline(time.Now().Add(wait))
	if q.over == "udp" {
		if _, err := c.Write(packet); err != nil {
			return nil, fmt.Errorf("%w over udp: %w", errSilence, err)
		}
		buf := make([]byte, dns.MaxMsgSize)
		n, err := c.Read(buf)
		if err != nil {
			return nil, expectSilence(err, q)
		}
		return buf[:n], nil
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)); err != nil {
		return nil, expectSilence(err, q)
	}
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, expectSilence(err, q)
	}
	buf := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c, buf); err != nil {
		return nil, fmt.Errorf("a reply is broken off: %w", err)
	}
	return buf, nil
}

// expectSilence is the error for no reply.
func expectSilence(err error, q *query) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w over %s", errSilence, q.over)
	}
	return fmt.Errorf("%w over %s: %w", errSilence, q.over, err)
}

// dial connects to the agent.
func (st *run) dial(q *query) (net.Conn, error) {
	to := st.listen
	if q.over == "tls" {
		to = st.tlsAddr()
	}
	d := net.Dialer{Timeout: patience}
	network := "tcp4"
	if q.over == "udp" {
		network = "udp4"
	}
	if q.from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(q.from, 0))
		if q.over == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(q.from, 0))
		}
	}
	if q.over == "tls" {
		return tls.DialWithDialer(&d, network, to.String(), st.clientTLS())
	}
	return d.Dial(network, to.String())
}

func (st *run) clientTLS() *tls.Config {
	return &tls.Config{RootCAs: st.ca.Pool(), ServerName: serverName, MinVersion: tls.VersionTLS12}
}

// post asks over HTTPS.
func (st *run) post(ctx context.Context, packet []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	url := "https://" + st.httpsAddr().String() + fakedns.Path
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(packet))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/dns-message")
	t := &http.Transport{TLSClientConfig: st.clientTLS(), ForceAttemptHTTP2: true}
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("%w over https: %w", errSilence, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w over https: the status is %s", errSilence, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, dns.MaxMsgSize))
}
