// These tests use loadProgram, table and programSlot, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxTornAddrs is the number of different answers of TestTornAnswers, and the most addresses in one.
const maxTornAddrs = 16

// TestTornAnswers: a client gets a whole answer or none while the agent writes others into the same slot. The answers
// differ in their length and in every address.
func TestTornAnswers(t *testing.T) {
	l := newTestProgram(t)
	query := ask(t, "web.default.svc.cluster.local.", dns.TypeA, nil)
	in := frame(client4, listener4, query)
	var list []*Answer
	var want [maxTornAddrs + 1][]byte // by the number of addresses
	for i := range maxTornAddrs {
		a := answerTo(t, query, func(r *wire.Reply) {
			for n := range i + 1 {
				r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{byte(i), byte(i), byte(n), byte(i)})
			}
		})
		list, want[i+1] = append(list, a), frame(listener4, client4, a.Reply)
	}
	l.put(list[0])
	done := make(chan struct{})
	var answered atomic.Int64
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() { answered.Add(l.readWhole(in, &want, done)) })
	}
	for i := range 100_000 {
		a := list[i%len(list)]
		a.Expires = clock.Now() + time.Hour + time.Duration(i) // or the existing copy is kept
		a.Mark, a.Source = list[0].Mark, list[0].Source
		l.Put(a)
	}
	close(done)
	readers.Wait()
	if answered.Load() == 0 {
		t.Error("no query was answered")
	}
	t.Logf("%d answered; %v", answered.Load(), l.Counters().Results)
}

// readWhole asks until done is closed and returns how many queries were answered. Each reply has to be the one in want with
// its number of addresses, in its UDP header, which has the checksum, and its message.
func (l *testProgram) readWhole(in []byte, want *[maxTornAddrs + 1][]byte, done <-chan struct{}) (answered int64) {
	const udp, ancount = 34, 48
	for {
		select {
		case <-done:
			return answered
		default:
		}
		l.Heartbeat()
		run := ebpf.RunOptions{Data: in, DataOut: make([]byte, 2048)}
		verdict, err := l.objects.NodensAnswer.Run(&run)
		if err != nil {
			l.t.Error(err)
			return answered
		}
		if verdict != redirected {
			continue
		}
		answered++
		out := run.DataOut
		n := min(binary.BigEndian.Uint16(out[ancount:]), maxTornAddrs)
		if n == 0 || !bytes.Equal(out[udp:], want[n][udp:]) {
			l.t.Errorf("the reply is %x", out)
			return answered
		}
	}
}

// TestFences: a fence of the programs is an atomic operation that returns the value. Without that, the just-in-time
// compiler for arm64 makes an instruction of it that orders nothing. The operation changes nothing; clang chooses it.
func TestFences(t *testing.T) {
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	at := int16(-1)
	for _, m := range programStruct(t, "work").Members {
		if m.Name == "fence" {
			at = int16(m.Offset.Bytes())
		}
	}
	fences := 0
	for _, i := range spec.Programs["nodens_answer"].Instructions {
		switch op := i.OpCode.AtomicOp(); {
		case i.Offset != at || op == asm.InvalidAtomic:
		case op == asm.FetchAdd || op == asm.FetchOr:
			fences++
		default:
			t.Errorf("%v does not return the value", i)
		}
	}
	// One before the reading of a slot and one after it, and one for the look-up of a listener.
	if fences < 3 {
		t.Errorf("%d fences, want at least 3", fences)
	}
}

// TestAlignedWords: the fields that the agent and the programs both write, or read without a fence, are aligned words,
// which every processor reads and writes whole.
func TestAlignedWords(t *testing.T) {
	for name, fields := range map[string][]string{
		"slot":         {"seq", "hits", "used"},
		"client_state": {"place", "barred", "group"},
		"state":        {"deadline", "watched", "unnoted", "door_changes", "releases", "limit", "burst", "ports", "drop"},
	} {
		s := programStruct(t, name)
		for _, field := range fields {
			found := false
			for _, m := range s.Members {
				if m.Name != field {
					continue
				}
				found = true
				size, err := btf.Sizeof(m.Type)
				if err != nil {
					t.Fatal(err)
				}
				if size > 8 || m.Offset.Bytes()%uint32(size) != 0 || s.Size%uint32(size) != 0 {
					t.Errorf("%s.%s has %d bytes at %d of %d", name, field, size, m.Offset.Bytes(), s.Size)
				}
			}
			if !found {
				t.Errorf("%s has no field %s", name, field)
			}
		}
	}
}
