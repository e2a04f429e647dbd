package differential

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// Secrets of keys.
const (
	tsigSecret  = "c2VjcmV0IG9mIHRoZSBmaXJzdCBrZXkgb2YgdGVzdHM="
	otherSecret = "c2VjcmV0IG9mIHRoZSBvdGhlciBrZXkgb2YgdGVzdHM="
)

// signedExchange is a query, how it is signed, and what is known to differ.
type signedExchange struct {
	name string
	// zone, of a Corefile's blocks, has ns1, which is asked for with the type.
	zone  string
	qtype uint16
	edns  bool
	// key is empty for a query that is not signed.
	key, secret, algorithm string
	age                    time.Duration
	// change, unless nil, changes the signed query.
	change func(*dns.Msg)
	// known, unless empty, are words of CoreDNS's reply, each followed by what the agent has instead because of the reason.
	known []string
	// knownKey, unless empty, is the key with which CoreDNS replies as the agent does to key because of the reason.
	knownKey string
	reason   string
}

// tsigCorefile has a block with its own key for each form of tsig.
func tsigCorefile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	zone, _, _ := strings.Cut(zoneText, "$ORIGIN") // the same file is read for several zones
	for name, text := range map[string]string{
		"db":    zone,
		"large": zone + "$GENERATE 1-2000 h$ 300 TXT \"" + strings.Repeat("x", 100) + "\"\n",
		"keys":  "key \"file.test.\" {\n\talgorithm hmac-sha256;\n\tsecret \"" + tsigSecret + "\";\n};\nkey second.test {\n\tsecret \"" + otherSecret + "\";\n};\n",
	} {
		check.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	text := ruleSet{}.corefile()
	for _, b := range []struct{ zone, file, options string }{
		{"default.test", "db", "secret key.test " + tsigSecret},
		{"types.test", "db", "require A AXFR IXFR\nsecret key.test " + tsigSecret},
		{"all.test", "db", "require all\nsecret key.test " + tsigSecret},
		{"none.test", "db", "secret key.test " + tsigSecret + "\nrequire none"},
		{"files.test", "db", "secrets " + filepath.Join(dir, "keys") + "\nrequire A"},
		{"large.test", "large", "secret key.test " + tsigSecret},
	} {
		text += fmt.Sprintf("%s:PORT {\nbind 127.0.0.1\ntsig {\n%s\n}\nfile %s\ntransfer {\nto *\n}\n}\n", b.zone, b.options, filepath.Join(dir, b.file))
	}
	return text + "zones.test:PORT {\nbind 127.0.0.1\nfile " + filepath.Join(dir, "db") + "\ntsig ns1.zones.test {\nsecret key.test " + tsigSecret + "\nrequire all\n}\n}\n"
}

// signedExchanges are the queries but for those of zone transfers.
func signedExchanges() []signedExchange {
	cut := func(n int) func(*dns.Msg) {
		return func(m *dns.Msg) {
			sig := m.IsTsig()
			sig.MAC, sig.MACSize = sig.MAC[:2*n], uint16(n)
		}
	}
	const key, sha256, a = "key.test.", dns.HmacSHA256, dns.TypeA
	short := []string{"NOTAUTH", "FORMERR", "key key.test., hmac-sha256., error 16, 0 bytes of other data, fudge 300, MAC empty", "not signed"}
	const shortReason = "a MAC of less than half of its bytes, or less than 10, is a format error (RFC 8945, 5.2.2.1)"
	list := []signedExchange{
		{name: "signed with EDNS", zone: "default.test.", qtype: a, key: key, algorithm: sha256, edns: true},
		{name: "signed, of no name", zone: "default.test.", qtype: dns.TypeMX, key: key, algorithm: sha256},
		{name: "key in upper case", zone: "default.test.", qtype: a, key: "KEY.Test.", algorithm: sha256, knownKey: key, reason: "names of keys are domain names, whose case does not count (RFC 8945, 4.2; RFC 4343)"},
		{name: "unknown key", zone: "default.test.", qtype: a, key: "unknown.test.", algorithm: sha256},
		{name: "wrong secret", zone: "default.test.", qtype: a, key: key, secret: otherSecret, algorithm: sha256},
		{name: "too old", zone: "default.test.", qtype: a, key: key, algorithm: sha256, age: time.Hour},
		{name: "in the future", zone: "default.test.", qtype: a, key: key, algorithm: sha256, age: -time.Hour},
		{name: "wrong secret and too old", zone: "default.test.", qtype: a, key: key, secret: otherSecret, algorithm: sha256, age: time.Hour},
		{name: "truncated MAC", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: cut(16), known: []string{"error 16", "error 22", "MAC empty", "MAC valid"}, reason: "a truncated MAC is right as far as it goes: the error is BADTRUNC (RFC 8945, 5.2.4)"},
		{name: "MAC that is too short", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: cut(8), known: short, reason: shortReason},
		{name: "no MAC", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: cut(0), known: short, reason: shortReason},
		{name: "unknown algorithm", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: func(m *dns.Msg) { m.IsTsig().Algorithm = "hmac-other." }, known: []string{"error 16", "error 17"}, reason: "an unknown algorithm is BADKEY (RFC 8945, 5.2.1)"},
		{name: "changed after signing", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT }},
		{name: "two TSIG records", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: func(m *dns.Msg) { m.Extra = append(m.Extra, m.Extra[len(m.Extra)-1]) }},
		{name: "not the last record", zone: "default.test.", qtype: a, key: key, algorithm: sha256, change: func(m *dns.Msg) { m.SetEdns0(ednsSize, false) }},
		{name: "not signed", zone: "default.test.", qtype: a},
		{name: "not signed, of a type that must be", zone: "types.test.", qtype: a},
		{name: "not signed, with EDNS", zone: "types.test.", qtype: a, edns: true},
		{name: "not signed, of another type", zone: "types.test.", qtype: dns.TypeTXT},
		{name: "signed, of a type that must be", zone: "types.test.", qtype: a, key: key, algorithm: sha256},
		{name: "not signed, all must be", zone: "all.test.", qtype: dns.TypeTXT},
		{name: "signed, all must be", zone: "all.test.", qtype: dns.TypeTXT, key: key, algorithm: sha256},
		{name: "not signed, none must be", zone: "none.test.", qtype: a},
		{name: "signed, none must be", zone: "none.test.", qtype: a, key: key, algorithm: sha256},
		{name: "key of a file", zone: "files.test.", qtype: a, key: "file.test.", algorithm: sha256},
		{name: "second key of a file", zone: "files.test.", qtype: a, key: "second.test.", secret: otherSecret, algorithm: sha256},
		{name: "no signature for a file's keys", zone: "files.test.", qtype: a},
		{name: "name in tsig's zones, not signed", zone: "zones.test.", qtype: a},
		{name: "name in tsig's zones", zone: "zones.test.", qtype: a, key: key, algorithm: sha256},
		{name: "AXFR over UDP", zone: "default.test.", qtype: dns.TypeAXFR, key: key, algorithm: sha256},
	}
	for _, algorithm := range []string{dns.HmacSHA1, dns.HmacSHA224, dns.HmacSHA256, dns.HmacSHA384, dns.HmacSHA512} {
		list = append(list, signedExchange{name: algorithm, zone: "default.test.", qtype: a, key: key, algorithm: algorithm})
	}
	return list
}

// TestTSIG compares replies to signed queries: rcode, records, the TSIG record's error, and whether its MAC is right.
func TestTSIG(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	s := newPlainSite(t)
	text := tsigCorefile(t)
	coredns, agent := s.serve(t, "coredns", text, apiserver.Admin), s.serve(t, agentProgram(), text, apiserver.Admin)
	valid := 0
	for _, e := range signedExchanges() {
		for _, network := range []string{"udp", "tcp"} {
			if e.qtype == dns.TypeAXFR && network == "tcp" {
				continue
			}
			t.Run(e.name+"/"+network, func(t *testing.T) {
				like := e
				if e.knownKey != "" {
					like.key = e.knownKey
				}
				want := like.exchange(t, network, coredns)
				if e.knownKey != "" && want == e.exchange(t, network, coredns) {
					t.Errorf("CoreDNS no longer differs: %s", e.reason)
				}
				e.compare(t, want, e.exchange(t, network, agent))
				if strings.Contains(want, "MAC valid") {
					valid++
				}
			})
		}
	}
	for _, e := range signedTransfers() {
		t.Run("transfer, "+e.name, func(t *testing.T) {
			want := e.transfer(t, coredns)
			e.compare(t, want, e.transfer(t, agent))
			if strings.Contains(want, "error <nil>") {
				valid++
			}
		})
	}
	if valid < 30 {
		t.Errorf("%d replies are right, want 30 or more", valid)
	}
}

// compare compares what the servers reply.
func (e signedExchange) compare(t *testing.T, want, got string) {
	t.Helper()
	if len(e.known) > 0 {
		known := strings.NewReplacer(e.known...).Replace(want)
		if known == want {
			t.Errorf("CoreDNS no longer differs: %s", e.reason)
		}
		want = known
	}
	check.Equal(t, want, got, "it differs")
}

// packet returns the query, and its MAC.
func (e signedExchange) packet(t *testing.T) (packet []byte, mac string) {
	t.Helper()
	m := new(dns.Msg).SetQuestion("ns1."+e.zone, e.qtype)
	if e.qtype == dns.TypeAXFR {
		m.SetAxfr(e.zone)
	}
	if e.edns {
		m.SetEdns0(ednsSize, true)
	}
	if e.key == "" {
		packet, err := m.Pack()
		check.NoError(t, err)
		return packet, ""
	}
	m.SetTsig(e.key, e.algorithm, 300, time.Now().Add(-e.age).Unix())
	packet, mac, err := dns.TsigGenerate(m, e.usedSecret(), "", false)
	check.NoError(t, err)
	if e.change == nil {
		return packet, mac
	}
	check.NoError(t, m.Unpack(packet))
	e.change(m)
	if sig := m.IsTsig(); sig != nil {
		mac = sig.MAC
	}
	if packet, err = m.Pack(); err != nil {
		t.Fatal(err)
	}
	return packet, mac
}

func (e signedExchange) usedSecret() string {
	if e.secret != "" {
		return e.secret
	}
	return tsigSecret
}

// exchange returns what a client sees of the server's reply.
func (e signedExchange) exchange(t *testing.T, network string, server netip.AddrPort) string {
	t.Helper()
	conn, err := dns.DialTimeout(network, server.String(), longWait)
	check.NoError(t, err)
	defer conn.Close()
	conn.UDPSize = dns.MaxMsgSize
	_ = conn.SetDeadline(time.Now().Add(longWait))
	packet, mac := e.packet(t)
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, dns.MaxMsgSize)
	n, err := conn.Read(buf)
	if err != nil {
		return "no reply"
	}
	m := new(dns.Msg)
	if err := m.Unpack(buf[:n]); err != nil {
		return err.Error()
	}
	sig := e.signature(m, buf[:n], mac)
	if m.IsTsig() != nil {
		m.Extra = m.Extra[:len(m.Extra)-1]
	}
	plain, err := m.Pack()
	check.NoError(t, err)
	return parseView(plain, m.Id).String() + sig
}

// signature describes the TSIG record of a reply to the query with the MAC.
func (e signedExchange) signature(m *dns.Msg, packet []byte, mac string) string {
	sig := m.IsTsig()
	if sig == nil {
		return "  not signed"
	}
	state := "valid"
	switch {
	case sig.MACSize == 0:
		state = "empty"
	case m.Rcode == dns.RcodeNotAuth: // which TsigVerify refuses
		if _, want, err := dns.TsigGenerate(m.Copy(), e.usedSecret(), mac, false); err != nil || want != sig.MAC {
			state = "wrong"
		}
	default:
		if err := dns.TsigVerify(packet, e.usedSecret(), mac, false); err != nil {
			state = err.Error()
		}
	}
	return fmt.Sprintf("  key %s, %s, error %d, %d bytes of other data, fudge %d, MAC %s", sig.Hdr.Name, sig.Algorithm, sig.Error, sig.OtherLen, sig.Fudge, state)
}

// signedTransfers are zone transfers over TCP.
func signedTransfers() []signedExchange {
	const key, sha256, axfr = "key.test.", dns.HmacSHA256, dns.TypeAXFR
	return []signedExchange{
		{name: "signed", zone: "default.test.", qtype: axfr, key: key, algorithm: sha256},
		{name: "not signed", zone: "default.test.", qtype: axfr},
		{name: "must be signed", zone: "types.test.", qtype: axfr, key: key, algorithm: sha256},
		{name: "must be signed, and is not", zone: "types.test.", qtype: axfr},
		{name: "wrong secret", zone: "types.test.", qtype: axfr, key: key, secret: otherSecret, algorithm: sha256},
		{name: "unknown key", zone: "types.test.", qtype: axfr, key: "unknown.test.", algorithm: sha256},
		{name: "large zone", zone: "large.test.", qtype: axfr, key: key, algorithm: sha256},
		{name: "large zone, not signed", zone: "large.test.", qtype: axfr},
	}
}

// transfer returns how many records a client takes, which verifies each message, or its error.
func (e signedExchange) transfer(t *testing.T, server netip.AddrPort) string {
	t.Helper()
	m := new(dns.Msg).SetAxfr(e.zone)
	client := &dns.Transfer{DialTimeout: longWait, ReadTimeout: longWait}
	if e.key != "" {
		m.SetTsig(e.key, e.algorithm, 300, time.Now().Unix())
		client.TsigSecret = map[string]string{e.key: e.usedSecret()}
	}
	messages, err := client.In(m, server.String())
	check.NoError(t, err)
	records := 0
	for part := range messages {
		records += len(part.RR)
		err = errors.Join(err, part.Error)
	}
	return fmt.Sprintf("%d records, error %v", records, err)
}
