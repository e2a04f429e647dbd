package server

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tsig"
	"github.com/nodens-dns/nodens/test/ca"
)

// Inside the package: it shares helpers with the tests of zone transfers.

// Secrets of the tests' keys.
const (
	tsigSecret  = "NoTCJU+DMqFWywaPyxSijrDEA/eC3nK0xi3AMEZuPVk="
	otherSecret = "X28hl0BOfAL5G0jsmJWSacrwn7YRm2f6U5brnzwWEus="
)

// tsigZone returns a zone with the directives file, for text, transfer and tsig.
func tsigZone(tb testing.TB, text, options string) *resolver.Zone {
	tb.Helper()
	z, _ := transferZone(tb, text, "to *")
	c, err := config.Parse(config.Source{Text: fmt.Appendf(nil, "z.test {\ntsig {\nsecret key.test %s\n%s\n}\n}\n", tsigSecret, options)})
	if err != nil {
		tb.Fatal(err)
	}
	z.TSIG = tsig.New(c.Blocks[0].TSIG)
	return z
}

// TestTSIG: queries with right and wrong signatures, and without one, over UDP and TCP.
func TestTSIG(t *testing.T) {
	_, addr := start(t, Limits{}, tsigZone(t, smallZone, "require MX"))
	for name, tt := range map[string]struct {
		q                      *dns.Msg
		key, secret, algorithm string
		age                    time.Duration
		rcode                  int
		tsigError              uint16
		unsigned               bool // the reply has no MAC
	}{
		"SHA-1":                    {algorithm: dns.HmacSHA1},
		"SHA-224":                  {algorithm: dns.HmacSHA224},
		"SHA-256":                  {algorithm: dns.HmacSHA256},
		"SHA-384":                  {algorithm: dns.HmacSHA384},
		"SHA-512":                  {algorithm: dns.HmacSHA512},
		"key in upper case":        {algorithm: dns.HmacSHA256, key: "KEY.test."},
		"EDNS":                     {algorithm: dns.HmacSHA256, q: question("ns1.z.test.", dns.TypeA).SetEdns0(1232, true)},
		"NXDOMAIN":                 {algorithm: dns.HmacSHA256, q: question("none.z.test.", dns.TypeA), rcode: dns.RcodeNameError},
		"required":                 {algorithm: dns.HmacSHA256, q: question("a.wild.z.test.", dns.TypeMX)},
		"unknown key":              {algorithm: dns.HmacSHA256, key: "other.test.", rcode: dns.RcodeNotAuth, tsigError: dns.RcodeBadKey, unsigned: true},
		"wrong secret":             {algorithm: dns.HmacSHA256, secret: otherSecret, rcode: dns.RcodeNotAuth, tsigError: dns.RcodeBadSig, unsigned: true},
		"too old":                  {algorithm: dns.HmacSHA256, age: time.Hour, rcode: dns.RcodeNotAuth, tsigError: dns.RcodeBadTime},
		"in the future":            {algorithm: dns.HmacSHA256, age: -time.Hour, rcode: dns.RcodeNotAuth, tsigError: dns.RcodeBadTime},
		"not signed":               {},
		"not signed, but required": {q: question("a.wild.z.test.", dns.TypeMX), rcode: dns.RcodeRefused},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(name+"/"+network, func(t *testing.T) {
				q := question("ns1.z.test.", dns.TypeA)
				if tt.q != nil {
					q = tt.q.Copy()
				}
				key, secret := "key.test.", tsigSecret
				if tt.key != "" {
					key = tt.key
				}
				if tt.secret != "" {
					secret = tt.secret
				}
				var requestMAC string
				packet, err := q.Pack()
				if tt.algorithm != "" {
					q.SetTsig(key, tt.algorithm, 300, time.Now().Add(-tt.age).Unix())
					packet, requestMAC, err = dns.TsigGenerate(q, secret, "", false)
				}
				if err != nil {
					t.Fatal(err)
				}
				reply, msg := exchangeSigned(t, network, addr, packet)
				sig := reply.IsTsig()
				if reply.Rcode != tt.rcode || (sig != nil) != (tt.algorithm != "") {
					t.Fatalf("want rcode %s, got %s", dns.RcodeToString[tt.rcode], reply)
				}
				if sig == nil {
					return
				}
				if sig.Error != tt.tsigError || (sig.MACSize == 0) != tt.unsigned || (sig.OtherLen == 6) != (tt.tsigError == dns.RcodeBadTime) {
					t.Errorf("got %s", sig)
				}
				if tt.unsigned {
					return
				}
				if tt.rcode == dns.RcodeNotAuth { // TsigVerify never takes such a reply
					if _, mac, err := dns.TsigGenerate(reply, secret, requestMAC, false); err != nil || mac != sig.MAC {
						t.Errorf("the reply's signature is %s, want %s (%v)", sig.MAC, mac, err)
					}
					return
				}
				if err := dns.TsigVerify(msg, secret, requestMAC, false); err != nil {
					t.Errorf("the reply's signature: %v", err)
				}
			})
		}
	}
}

// exchangeSigned returns the reply to packet, also as it arrived.
func exchangeSigned(t *testing.T, network string, addr netip.AddrPort, packet []byte) (*dns.Msg, []byte) {
	t.Helper()
	conn, err := dns.DialTimeout(network, addr.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, dns.MaxMsgSize)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	m := new(dns.Msg)
	if err := m.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	return m, buf[:n]
}

// TestTSIGMalformed: TSIG records that are not the last one, or have too short a MAC, are FORMERR.
func TestTSIGMalformed(t *testing.T) {
	_, addr := start(t, Limits{}, tsigZone(t, smallZone, ""))
	signed := func(mac string) *dns.TSIG {
		return &dns.TSIG{
			Hdr: dns.RR_Header{Name: "key.test.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256, TimeSigned: uint64(time.Now().Unix()),
			Fudge: 300, MACSize: uint16(len(mac) / 2), MAC: mac,
		}
	}
	opt := question("a.", dns.TypeA).SetEdns0(1232, false).Extra[0]
	for name, extra := range map[string][]dns.RR{
		"before OPT": {signed(fmt.Sprintf("%064d", 0)), opt},
		"two":        {signed(fmt.Sprintf("%064d", 0)), signed(fmt.Sprintf("%064d", 0))},
		"short MAC":  {signed("00112233445566778899aabbccddee")},
		"long MAC":   {signed(fmt.Sprintf("%066d", 0))},
	} {
		t.Run(name, func(t *testing.T) {
			q := question("ns1.z.test.", dns.TypeA)
			q.Extra = extra
			packet, err := q.Pack()
			if err != nil {
				t.Fatal(err)
			}
			if m, _ := exchangeSigned(t, "udp", addr, packet); m.Rcode != dns.RcodeFormatError || m.IsTsig() != nil {
				t.Errorf("got %s", m)
			}
		})
	}
}

// TestTSIGTruncated: a signed reply fits into the client's payload size, and its signature is valid.
func TestTSIGTruncated(t *testing.T) {
	text := smallZone
	for i := range 29 { // 41 bytes of question and header, and 16 for each address: they fit without a signature
		text += fmt.Sprintf("many A 192.0.2.%d\n", i+1)
	}
	_, addr := start(t, Limits{}, tsigZone(t, text, ""))
	q := question("many.z.test.", dns.TypeA)
	if m := query(t, "udp", addr, q); m.Truncated || len(m.Answer) != 29 {
		t.Fatalf("without signature: %s", m)
	}
	q.SetTsig("key.test.", dns.HmacSHA512, 300, time.Now().Unix())
	packet, mac, err := dns.TsigGenerate(q, tsigSecret, "", false)
	if err != nil {
		t.Fatal(err)
	}
	m, msg := exchangeSigned(t, "udp", addr, packet)
	if err := dns.TsigVerify(msg, tsigSecret, mac, false); err != nil || len(msg) > dns.MinMsgSize || !m.Truncated || len(m.Answer) == 0 {
		t.Errorf("%d bytes, error %v: %s", len(msg), err, m)
	}
}

// TestTSIGTransfer: the client verifies each message of a signed transfer, over TCP and TLS; without a signature it is REFUSED.
func TestTSIGTransfer(t *testing.T) {
	z := tsigZone(t, largeZone(10_000), "require AXFR IXFR")
	z.Stats = resolver.NewStats()
	authority := ca.ForTest(t)
	cert := mustCertificate(t, writeCertificate(t, authority, t.TempDir(), "a server", time.Now().Add(time.Hour)))
	for name, c := range map[string]ListenerConfig{"tcp": {}, "tls": {Transport: config.DNSOverTLS, Certificate: cert}} {
		t.Run(name, func(t *testing.T) {
			_, addr, _ := startListener(t, patientLimits(), c, z)
			client := &dns.Transfer{TsigSecret: map[string]string{"key.test.": tsigSecret}}
			if name == "tls" {
				client.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the certificate is not what is tested
			}
			got, messages, err := transferred(t, client, axfr("z.test.").SetTsig("key.test.", dns.HmacSHA256, 300, time.Now().Unix()), addr)
			if err != nil || messages < 10 || len(got) != len(smallRecords)+10_000 {
				t.Errorf("%d records in %d messages, error %v", len(got), messages, err)
			}
			if name == "tls" {
				return
			}
			if m := query(t, "tcp", addr, axfr("z.test.")); m.Rcode != dns.RcodeRefused {
				t.Errorf("without signature: %s", m)
			}
		})
	}
}
