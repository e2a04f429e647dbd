package broken

import (
	"bytes"
	"testing"
)

// TestMutations: each mutation changes packets, and takes any bytes.
func TestMutations(t *testing.T) {
	const query = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03web\x04shop\x00\x00\x01\x00\x01" +
		"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x08\x00\x0c\x00\x04\x00\x00\x00\x00"
	m := New(1, 3, [][]byte{[]byte(query), []byte(query[:len(query)-19])})
	for _, mu := range mutations {
		changed := 0
		for i := range 1000 {
			packet := m.Corpus[i%len(m.Corpus)]
			if !bytes.Equal(mu.apply(m, bytes.Clone(packet)), packet) {
				changed++
			}
			mu.apply(m, m.Garbage(nil, i%50))
		}
		if changed < 100 {
			t.Errorf("%q changes %d of 1000 packets", mu.name, changed)
		}
	}
}
