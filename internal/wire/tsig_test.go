// This test uses findTSIG, which is not exported.

package wire

import (
	"bytes"
	"encoding/base64"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The key of the tests, and when they take place.
const (
	tsigKey    = "key.test."
	tsigSecret = "c2VjcmV0IG9mIHRoZSBrZXkgb2YgdGVzdHM="
	tsigNow    = 1_700_000_000
)

// tsigKeys are the keys that are known.
func tsigKeys(tb testing.TB) TSIGKeys {
	tb.Helper()
	secret, err := base64.StdEncoding.DecodeString(tsigSecret)
	noError(tb, err)
	return TSIGKeys{"\x03key\x04test\x00": secret}
}

// sign signs m as it was the given number of seconds ago, and leaves out the last cut bytes of the MAC. It returns nil if m can't be signed.
func sign(m *dns.Msg, age int64, cut int) []byte {
	m.SetTsig(tsigKey, dns.HmacSHA256, tsigFudge, tsigNow-age)
	packet, _, err := dns.TsigGenerate(m, tsigSecret, "", false)
	if err != nil || m.Unpack(packet) != nil || m.IsTsig() == nil {
		return nil
	}
	sig := m.IsTsig()
	sig.MACSize -= uint16(cut)
	sig.MAC = sig.MAC[:2*sig.MACSize]
	if packet, err = m.Pack(); err != nil {
		return nil
	}
	return packet
}

// FuzzTSIG reads a packet as it is. Then it signs it, if it is a query, and changes a bit.
func FuzzTSIG(f *testing.F) {
	plain := func(name string, qtype uint16, size uint16) *dns.Msg {
		m := new(dns.Msg).SetQuestion(name, qtype)
		if size > 0 {
			m.SetEdns0(size, true)
		}
		return m
	}
	for i, m := range []*dns.Msg{plain("a.test.", dns.TypeA, 0), plain(".", dns.TypeNS, 1232), plain("Key.Test.", dns.TypeAXFR, 512), plain("x.key.test.", dns.TypeSOA, 0)} {
		f.Add(packed(f, m), int32(0), uint8(0), uint16(i), uint8(i))
		f.Add(packed(f, m), int32(301), uint8(0), uint16(12+i), uint8(5))
		f.Add(packed(f, m), int32(-301), uint8(8), uint16(40), uint8(0))
		f.Add(packed(f, m), int32(300), uint8(16), uint16(0xffff), uint8(1))
		f.Add(packed(f, m), int32(-300), uint8(17), uint16(70), uint8(7))
		signed := sign(m, 0, 0)
		f.Add(signed, int32(0), uint8(0), uint16(0), uint8(0))
		f.Add(signed[:len(signed)-1], int32(0), uint8(32), uint16(0), uint8(0))
	}
	keys := tsigKeys(f)
	f.Fuzz(func(t *testing.T, packet []byte, age int32, cut uint8, at uint16, bit uint8) {
		verifySigned(t, packet, keys)
		var m dns.Msg
		if m.Unpack(packet) != nil || slices.ContainsFunc(slices.Concat(m.Answer, m.Ns, m.Extra), isTSIG) {
			return
		}
		missing := int(cut % 33)
		packet = sign(&m, int64(age), missing)
		if packet == nil {
			return
		}
		var q Query
		if q.Parse(packet) != Serve {
			return
		}
		got, ok := VerifyTSIG(&q, keys, time.Unix(tsigNow, 0))
		if want := missing <= 16; ok != want || ok && got.Err() != errOf(age, missing) {
			t.Fatalf("a query signed %d s ago with %d bytes of the MAC missing: %v, %t", age, missing, got, ok)
		}
		if ok && got.Err() == NoError {
			changeSigned(t, packet, keys, int(at)%len(packet), bit%8)
		}
		verifySigned(t, packet, keys)
	})
}

func isTSIG(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeTSIG }

// errOf returns the error of a query that was signed with the right key.
func errOf(age int32, missing int) Rcode {
	switch {
	case age > tsigFudge || age < -tsigFudge:
		return BadTime
	case missing > 0:
		return BadTrunc
	}
	return NoError
}

// changeSigned changes a bit of a signed query. The signature is then not valid, unless it doesn't cover the bit: the ID, and the case of
// the names of key and algorithm.
func changeSigned(t *testing.T, packet []byte, keys TSIGKeys, at int, bit uint8) {
	t.Helper()
	var q Query
	q.Parse(packet)
	rr, _, _ := findTSIG(&q)
	owner, algorithm := rr.Start, rr.Data
	isName := at >= owner && at < owner+len("\x03key\x04test\x00") || at >= algorithm && at < algorithm+len("\x0bhmac-sha256\x00")
	changed := slices.Clone(packet)
	changed[at] ^= 1 << bit
	if at < 2 || isName && bytes.EqualFold(changed, packet) {
		return
	}
	if q.Parse(changed) != Serve {
		return
	}
	if got, ok := VerifyTSIG(&q, keys, time.Unix(tsigNow, 0)); ok && got != nil && got.Err() == NoError {
		t.Errorf("bit %d of byte %d changed, and the signature is valid:\n%x\n%x", bit, at, packet, changed)
	}
}

// verifySigned verifies a packet, and checks the signed reply to it: its length is as expected, it is the reply if the TSIG record is
// removed, and its MAC is the one of miekg/dns.
func verifySigned(t *testing.T, packet []byte, keys TSIGKeys) {
	t.Helper()
	var q Query
	if q.Parse(packet) != Serve {
		return
	}
	before := slices.Clone(packet)
	tsig, ok := VerifyTSIG(&q, keys, time.Unix(tsigNow, 0))
	if !bytes.Equal(before, packet) {
		t.Fatal("verification changed the packet")
	}
	if !ok || tsig == nil {
		return
	}
	var m dns.Msg
	requestMAC := ""
	if m.Unpack(packet) == nil && m.IsTsig() != nil && tsig.Err() != BadKey && tsig.Err() != BadSig {
		requestMAC = m.IsTsig().MAC
	}
	var r Reply
	r.Start(nil, &q)
	reply := r.Finish(MaxMessage)
	want := len(reply) + tsig.Len()
	signed := tsig.Sign(slices.Clone(reply), time.Unix(tsigNow, 0))
	if len(signed) != want {
		t.Errorf("the signed reply has %d bytes, want %d", len(signed), want)
	}
	removed := slices.Clone(signed[:len(reply)])
	put16(removed[10:], u16(removed[10:])-1)
	if !bytes.Equal(removed, reply) {
		t.Errorf("without its signature the reply is\n%x, want\n%x", removed, reply)
	}
	checkMAC(t, signed, requestMAC, tsig.Err())
}

// checkMAC checks the MAC of a signed reply.
func checkMAC(t *testing.T, signed []byte, requestMAC string, rcode Rcode) {
	t.Helper()
	back := unpacked(t, signed)
	sig := back.IsTsig()
	if sig == nil || Rcode(sig.Error) != rcode || (sig.MACSize == 0) != (rcode == BadKey || rcode == BadSig) {
		t.Fatalf("error %d, and the reply is\n%s", rcode, back)
	}
	if sig.MACSize == 0 {
		return
	}
	if _, mac, err := dns.TsigGenerate(back.Copy(), tsigSecret, requestMAC, false); err != nil || mac != sig.MAC {
		t.Errorf("the MAC is %s, want %s, %v", sig.MAC, mac, err)
	}
}
