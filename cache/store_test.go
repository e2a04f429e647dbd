package cache

import (
	"testing"
	"unsafe"

	"github.com/nodens-dns/nodens/internal/wire"
)

// put keeps resp under k as a flight would; k's shard is locked.
func put(c *Cache, k *key, resp wire.Response) {
	v := c.judge(k.q, &resp)
	if v.keep {
		k.part.shard.put(k, entry{packed: resp.Packed, kind: v.kind, stored: c.store.clock(), life: v.life})
	}
}

func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(slot{}); n != slotBytes {
		t.Errorf("a slot has %d bytes, want %d", n, slotBytes)
	}
	if n := unsafe.Sizeof(none); n != refBytes {
		t.Errorf("a ref has %d bytes, want %d", n, refBytes)
	}
	if n := unsafe.Sizeof(part{}); n%64 != 0 {
		t.Errorf("a part has %d bytes, which is no multiple of a line", n)
	}
}

func TestShares(t *testing.T) {
	for _, tt := range []struct{ success, denial, want int }{
		{0, 0, 1}, {1, 0, 1}, {255, 1, 1}, {256, 0, 2}, {0, 600, 4}, {9984, 9984, 32}, {1 << 20, 1, 32},
	} {
		cfg := defaults()
		cfg.Success.Entries, cfg.Denial.Entries = tt.success, tt.denial
		c := newCache(cfg, Options{})
		if n := len(c.parts); n != tt.want {
			t.Errorf("parts for %d and %d entries: %d, want %d", tt.success, tt.denial, n, tt.want)
		}
		var successes, denials int
		for i := range c.parts {
			successes += int(c.parts[i].lists[success].limit)
			denials += int(c.parts[i].lists[denial].limit)
		}
		if successes != tt.success || denials != tt.denial {
			t.Errorf("the parts hold %d and %d entries, want %d and %d", successes, denials, tt.success, tt.denial)
		}
	}
}
