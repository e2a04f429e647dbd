package handover

import (
	"context"
	"io"
	"testing"
)

// BenchmarkCache is the stream of a cache of 64 MiB, without what reads and writes the cache.
func BenchmarkCache(b *testing.B) {
	dir := b.TempDir()
	e := newFakeSource(b)
	buf := make([]byte, 4096)
	e.writeCache = func(_ context.Context, w io.Writer) error {
		for range 64 << 20 / len(buf) {
			if _, err := w.Write(buf); err != nil {
				return err
			}
		}
		return nil
	}
	h, err := Listen(dir, e, Config{})
	noError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go h.Serve(ctx)
	p, err := Connect(ctx, dir, Config{})
	noError(b, err)
	defer p.Close()
	b.SetBytes(64 << 20)
	b.ReportAllocs()
	for b.Loop() {
		r, err := p.Cache(ctx)
		noError(b, err)
		if n, err := io.Copy(io.Discard, r); n != 64<<20 || err != nil {
			b.Fatal(n, err)
		}
	}
}
