// These tests use dnsMessageType, dohPath and closeUnused, which are not exported.

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects connections and uses the HTTP limits.

// httpsClient asks over HTTPS.
type httpsClient struct{ *http.Client }

func newHTTPS(cfg *tls.Config, two bool) httpsClient {
	var protocols http.Protocols
	protocols.SetHTTP1(!two)
	protocols.SetHTTP2(two)
	return httpsClient{&http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: cfg.Clone(), Protocols: &protocols}}}
}

// ask asks with the bytes of q in a body.
func (c httpsClient) ask(addr netip.AddrPort, q *dns.Msg) (*dns.Msg, http.Header, error) {
	packet, err := q.Pack()
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.Post("https://"+addr.String()+dohPath, dnsMessageType, bytes.NewReader(packet))
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, nil, statusError(resp.StatusCode)
	}
	m := new(dns.Msg)
	return m, resp.Header, m.Unpack(body)
}

// statusError is the status of a response that is not 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprint("status ", int(e)) }

func askOnceHTTPS(t testing.TB, addr netip.AddrPort, cfg *tls.Config) error {
	t.Helper()
	client := newHTTPS(cfg, true)
	defer client.CloseIdleConnections()
	m, _, err := client.ask(addr, question("by.hand.", dns.TypeA))
	if err == nil && len(m.Answer) != 1 {
		err = fmt.Errorf("not the answer: %v", m)
	}
	return err
}

var dohConfig = ListenerConfig{Transport: config.DNSOverHTTPS}

// openHTTPS is a client for as long as the test lasts.
func openHTTPS(t testing.TB, cfg *tls.Config, two bool) httpsClient {
	c := newHTTPS(cfg, two)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// eachHTTP runs f over HTTP/1.1 and HTTP/2.
func eachHTTP(t *testing.T, cfg *tls.Config, f func(t *testing.T, c httpsClient)) {
	for _, two := range []bool{false, true} {
		t.Run(fmt.Sprintf("two=%t", two), func(t *testing.T) { f(t, openHTTPS(t, cfg, two)) })
	}
}

// TestDoH: what is asked in either way is answered, with how long it holds.
func TestDoH(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := resolvertest.Address("192.0.2.1")(q)
		switch q.Question[0].Name {
		case "fails.test.":
			m.Answer, m.Rcode = nil, dns.RcodeServerFailure
		case "none.test.":
			m.Answer, m.Rcode = nil, dns.RcodeNameError
			m.Ns = []dns.RR{&dns.SOA{
				Hdr: dns.RR_Header{Name: "test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60},
				Ns:  "ns.test.", Mbox: "mail.test.", Minttl: 17,
			}}
		case "long.test.":
			m.Answer[0].Header().Ttl = 86400
		case "empty.test.":
			m.Answer = nil
		}
		return m
	})
	_, addr, roots := startListener(t, patientLimits(), dohConfig, byHand(t, b.Addr()))
	for _, tt := range []struct {
		name, age string
		rcode     int
	}{
		{"by.hand.", "3600", 0}, {"a.test.", "60", 0}, {"long.test.", "3600", 0}, {"fails.test.", "5", dns.RcodeServerFailure},
		{"none.test.", "17", dns.RcodeNameError}, {"empty.test.", "5", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachHTTP(t, &tls.Config{RootCAs: roots}, func(t *testing.T, c httpsClient) {
				q := question(tt.name, dns.TypeA)
				q.SetEdns0(1232, false)
				q.Id = 0
				m, header, err := c.ask(addr, q)
				if err != nil {
					t.Fatal(err)
				}
				if m.Rcode != tt.rcode || m.Id != 0 || !m.Response {
					t.Errorf("reply %v", m)
				}
				if got := header.Get("Cache-Control"); got != "max-age="+tt.age {
					t.Errorf("%s, want %s", got, tt.age)
				}
				if got := header.Get("Content-Type"); got != dnsMessageType {
					t.Errorf("type %s", got)
				}
			})
		})
	}
}

// TestDoHRequests: what is wrong with a request is said in HTTP, and counted.
func TestDoHRequests(t *testing.T) {
	s, addr, roots := startListener(t, Limits{}, dohConfig, byHand(t))
	packet, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	long, err := question("by.hand.", dns.TypeA).SetEdns0(1232, false).Pack()
	if err != nil {
		t.Fatal(err)
	}
	long = append(long, make([]byte, 65535-len(long))...) // trailing bytes
	text := base64.RawURLEncoding.EncodeToString(packet)
	want := make(map[int]uint64)
	for _, tt := range []struct {
		name, method, path, kind string
		body                     []byte
		status                   int
	}{
		{"post", "POST", "/dns-query", dnsMessageType, packet, 200},
		{"post with a parameter", "POST", "/dns-query", "Application/DNS-Message; x=y", packet, 200},
		{"get", "GET", "/dns-query?dns=" + text, "", nil, 200},
		{"get with more", "GET", "/dns-query?x=y&dns=" + text, "", nil, 200},
		{"get padded", "GET", "/dns-query?dns=" + text + "%3D", "", nil, 400}, // RFC 8484, 6
		{"another path", "POST", "/", dnsMessageType, packet, 404},
		{"below the path", "POST", "/dns-query/", dnsMessageType, packet, 404},
		{"get without a query", "GET", "/dns-query", "", nil, 400},
		{"get of nothing", "GET", "/dns-query?dns=", "", nil, 400},
		{"get of two", "GET", "/dns-query?dns=" + text + "&dns=" + text, "", nil, 400},
		{"get of no base64", "GET", "/dns-query?dns=a+b", "", nil, 400},
		{"put", "PUT", "/dns-query", dnsMessageType, packet, 405},
		{"head", "HEAD", "/dns-query?dns=" + text, "", nil, 405},
		{"no type", "POST", "/dns-query", "", packet, 415},
		{"another type", "POST", "/dns-query", "text/plain", packet, 415},
		{"empty", "POST", "/dns-query", dnsMessageType, nil, 400},
		{"not a header", "POST", "/dns-query", dnsMessageType, packet[:11], 400},
		{"half a query", "POST", "/dns-query", dnsMessageType, packet[:20], 400},
		{"two questions", "POST", "/dns-query", dnsMessageType, append([]byte{0, 0, 1, 0, 0, 2}, packet[6:]...), 400},
		{"an update", "POST", "/dns-query", dnsMessageType, append([]byte{0, 0, 0x29}, packet[3:]...), 400},
		{"a reply", "POST", "/dns-query", dnsMessageType, append([]byte{0, 0, 0x80}, packet[3:]...), 400},
		{"the largest", "POST", "/dns-query", dnsMessageType, long, 200},
		{"too large", "POST", "/dns-query", dnsMessageType, append(long, 0), 413},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachHTTP(t, &tls.Config{RootCAs: roots}, func(t *testing.T, c httpsClient) {
				req, err := http.NewRequest(tt.method, "https://"+addr.String()+tt.path, bytes.NewReader(tt.body))
				if err != nil {
					t.Fatal(err)
				}
				if tt.kind != "" {
					req.Header.Set("Content-Type", tt.kind)
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != tt.status {
					t.Errorf("status %d, want %d", resp.StatusCode, tt.status)
				}
				want[tt.status]++
			})
		})
	}
	got := make(map[int]uint64)
	s.EachHTTPStatus(ListenAddr{AddrPort: addr}, func(status int, n uint64) { got[status] = n })
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// TestDoHBounds: headers and bodies that don't end are cut off, and so are clients
// that send them slowly.
func TestDoHBounds(t *testing.T) {
	door := dohConfig
	door.Timeouts = config.Timeouts{Read: 50 * time.Millisecond}
	s, addr, roots := startListener(t, Limits{}, door, byHand(t))
	for _, start := range []string{
		"GET /dns-query?dns=" + strings.Repeat("A", 2*maxHTTPHeader) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /dns-query HTTP/1.1\r\nHost",
		"POST /dns-query HTTP/1.1\r\nHost: x\r\nContent-Type: " + dnsMessageType + "\r\nContent-Length: 100\r\n\r\nx",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		eventually(t, "the connection to end", func() bool {
			conn, err := dialTLS(addr, &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}})
			if err != nil {
				return false // the handshake was too slow as well
			}
			defer conn.Close()
			_, _ = io.WriteString(conn.Conn, start)
			_, err = io.Copy(io.Discard, conn.Conn)
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				t.Errorf("%.20q… is waited for", start)
			}
			return true
		})
	}
	eventually(t, "all to be gone", func() bool { return connections(s, addr) == 0 })
}

// TestDoHWaits: queries of one connection wait side by side. One more than there may be ends the first with
// status 503, and one that its client gives up holds nobody.
func TestDoHWaits(t *testing.T) {
	b, asked, release := holdingBackend(t)
	s, addr, roots := startListener(t, Limits{Waiting: 4, ReadTimeout: patience}, dohConfig, byHand(t, b.Addr()))
	c := openHTTPS(t, &tls.Config{RootCAs: roots}, true)
	first := make(chan error, 1)
	go func() {
		_, _, err := c.ask(addr, question("first.test.", dns.TypeA))
		first <- err
	}()
	<-asked
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if m, _, err := c.ask(addr, question("w"+itoa(i)+".test.", dns.TypeA)); err != nil || len(m.Answer) != 1 {
				t.Errorf("%v, %v", m, err)
			}
		})
		<-asked
	}
	packet, err := question("gone.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+addr.String()+dohPath, bytes.NewReader(packet))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", dnsMessageType)
	given := make(chan struct{})
	go func() {
		defer close(given)
		if resp, err := c.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Error("a request that was given up is answered")
		}
	}()
	<-asked
	select {
	case err := <-first:
		if !errors.Is(err, statusError(http.StatusServiceUnavailable)) {
			t.Errorf("the first request, when there is one more than there may be: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the first request does not end")
	}
	if n := shed(s); n != 1 {
		t.Errorf("%d shed, want one", n)
	}
	cancel()
	<-given // an answer that comes at the same time might win
	close(release)
	all.Wait()
	eventually(t, "requests to end", func() bool { return askOnceHTTPS(t, addr, &tls.Config{RootCAs: roots}) == nil })
}

// TestCloseUnused: only connections that have never had a request are closed at once. On
// any other connection net/http may still be writing a reply.
func TestCloseUnused(t *testing.T) {
	s, addr, roots := startListener(t, Limits{}, dohConfig, byHand(t))
	client := openHTTPS(t, &tls.Config{RootCAs: roots}, true)
	if _, _, err := client.ask(addr, question("by.hand.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	unused := openTLS(t, addr, roots)
	ln := s.listeners[ListenAddr{AddrPort: addr}].tcp
	states := func() (used, hijacked, closing int) {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		for c := range ln.conns.All() {
			if c.requested.Load() {
				used++
			}
			if c.hijacked {
				hijacked++
			}
			if c.closing.Load() {
				closing++
			}
		}
		return used, hijacked, closing
	}
	eventually(t, "both connections to be net/http's", func() bool { _, n, _ := states(); return n == 2 })
	ln.closeUnused()
	if !isClosed(unused) {
		t.Error("the connection without a request is open")
	}
	eventually(t, "the closed connection to be removed", func() bool { return connections(s, addr) == 1 })
	if used, _, closing := states(); used != 1 || closing != 0 {
		t.Errorf("%d connections with a request are left, %d of them closing; want one, not closing", used, closing)
	}
}
