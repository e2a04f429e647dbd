// These tests use data and rcodeMask, which are not exported.

package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/miekg/dns"
)

// FuzzRestoreSaved: a saved message is restored unchanged, and saved again as the same bytes.
func FuzzRestoreSaved(f *testing.F) {
	addReplies(f, 100)
	q := stubQuery(f, "a.", dns.TypeA)
	f.Fuzz(func(t *testing.T, counts, body []byte, flags uint16) {
		msg, ok := replyTo(counts, body, flags)
		if !ok {
			return
		}
		resp, err := ParseResponse(msg, q)
		if err != nil {
			return
		}
		saved := resp.Packed.Append(nil)
		var back Query
		again, err := back.Restore(saved, true, false)
		if err != nil {
			t.Fatalf("what was saved is refused: %v\n%x", err, saved)
		}
		if !bytes.Equal(again.Packed.data, resp.Packed.data) {
			t.Errorf("saved\n%x, read\n%x", resp.Packed.data, again.Packed.data)
		}
		again.Packed, resp.Packed = Packed{}, Packed{}
		resp.Rcode &= rcodeMask // the rest went with the OPT record
		if !reflect.DeepEqual(again, resp) {
			t.Errorf("saved\n%+v, read\n%+v", resp, again)
		}
		if string(back.Name()) != string(q.Name()) || back.Type != q.Type || back.Class != q.Class || !back.DO || back.CD() || !back.RD() {
			t.Errorf("it is the reply to %+v", back)
		}
	})
}

// FuzzRestoreAny restores arbitrary bytes. They are rejected, or valid for the returned query.
func FuzzRestoreAny(f *testing.F) {
	f.Add(ErrorResponse(stubQuery(f, "a.example.", dns.TypeA), ServFail).Packed.Append(nil), false)
	for seed := range uint64(50) {
		m := newMaker(seed)
		q := stubQuery(f, m.mixed(m.names[0]), dns.TypeA)
		resp, err := ParseResponse(packed(f, m.response(f, q)), q)
		noError(f, err)
		f.Add(resp.Packed.Append(nil), seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, msg []byte, cd bool) {
		q := Query{Packet: make([]byte, 3, 300)}
		resp, err := q.Restore(msg, false, cd)
		if err != nil {
			if !errors.Is(err, ErrResponse) {
				t.Errorf("an error of its own: %v", err)
			}
			return
		}
		if !resp.Packed.IsReplyTo(&q) || q.CD() != cd || q.DO {
			t.Fatalf("%x is not the reply to %+v", msg, q)
		}
		var r Reply
		r.Start(nil, &q)
		r.Copy(resp.Packed, 60)
		r.Shuffle()
		out := r.Finish(MinUDP)
		if len(out) > MinUDP {
			t.Errorf("%d bytes", len(out))
		}
		unpacked(t, out)
	})
}

// TestRestoredQuery: the query of a restored reply has RD set, and DO and CD as given.
func TestRestoredQuery(t *testing.T) {
	saved := ErrorResponse(stubQuery(t, "a.example.", dns.TypeA), NXDomain).Packed.Append(nil)
	for _, do := range []bool{false, true} {
		for _, cd := range []bool{false, true} {
			var q Query
			if _, err := q.Restore(saved, do, cd); err != nil || !q.RD() || q.DO != do || q.CD() != cd {
				t.Errorf("DO %t, CD %t: RD %t, DO %t, CD %t, error %v", do, cd, q.RD(), q.DO, q.CD(), err)
			}
		}
	}
}

// TestRestoreRefuses rejects messages that are not replies to one question.
func TestRestoreRefuses(t *testing.T) {
	good := ErrorResponse(stubQuery(t, "a.example.", dns.TypeA), NXDomain).Packed.Append(nil)
	change := func(at int, to ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], to)
		return b
	}
	var q Query
	if resp, err := q.Restore(good, false, false); err != nil || resp.Rcode != NXDomain {
		t.Fatalf("a good one: %+v, error %v", resp, err)
	}
	for name, msg := range map[string][]byte{
		"nothing":             nil,
		"half a header":       good[:HeaderLen-1],
		"a header":            good[:HeaderLen],
		"a bare error":        change(4, 0, 0),
		"two questions":       change(4, 0, 2),
		"a query":             change(2, 0),
		"another opcode":      change(2, 0x80|5<<3),
		"no end of the name":  good[:HeaderLen+3],
		"half a question":     good[:len(good)-1],
		"a compressed name":   change(HeaderLen, 0xC0, HeaderLen),
		"a record not there":  change(6, 0, 1),
		"more than a message": append(bytes.Clone(good), make([]byte, MaxMessage)...),
	} {
		if _, err := q.Restore(msg, false, false); !errors.Is(err, ErrResponse) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
