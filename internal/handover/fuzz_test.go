// These tests use decode, helloHead and cacheHead, which are not exported.

package handover

import (
	"bytes"
	"testing"
)

// FuzzUnpack: no message takes either end by surprise, and what is packed is what is read.
func FuzzUnpack(f *testing.F) {
	whole, err := pack(nil, kindHello, helloHead{Min: 1, Max: 2, State: stateOK}, []byte("rest"))
	noError(f, err)
	for _, seed := range [][]byte{whole, whole[:5], {}, {1}, {3, 0, 2, '{', '}'}, {5, 255, 255, '{'}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		k, head, rest, err := unpack(p)
		if err != nil {
			return
		}
		if again := append([]byte{byte(k), byte(len(head) >> 8), byte(len(head))}, append(append([]byte(nil), head...), rest...)...); !bytes.Equal(again, p) {
			t.Errorf("%x became %x", p, again)
		}
		var hi helloHead
		if decode(k, head, &hi) == nil {
			if v := hi.commonVersion(); v != 0 && (v < hi.Min || v > hi.Max || v < minVersion || v > maxVersion) {
				t.Errorf("%+v: version %d is spoken", hi, v)
			}
		}
		for _, to := range []any{new(socketsHead), new(cacheHead), new(connHead), new(reasonHead)} {
			_ = decode(k, head, to)
		}
	})
}
