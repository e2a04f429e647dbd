// These tests use maxCacheAge, saveCache and loadCache, which are not exported.

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// newKept is a cache as of a bare directive, with n names of an address each.
func newKept(t *testing.T, n int) *cache.Cache {
	t.Helper()
	limits := config.CacheLimits{Entries: 9984, MaxTTL: time.Hour}
	c := cache.NewStore(16<<20, cache.Options{}).NewCache(&config.Cache{Success: limits, Denial: limits})
	for i := range n {
		q := keptQuery(t, i)
		var m dns.Msg
		check.NoError(t, m.Unpack(q.Packet))
		m.Response = true
		rr, err := dns.NewRR(fmt.Sprintf("n%d.example. 3600 IN A 192.0.2.1", i))
		check.NoError(t, err)
		m.Answer = []dns.RR{rr}
		packet, err := m.Pack()
		check.NoError(t, err)
		var r wire.Reply
		r.Start(nil, q)
		if _, err := c.Fetch(t.Context(), q, &r, func(context.Context, *wire.Query) (wire.Response, error) {
			return wire.ParseResponse(packet, q)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func keptQuery(t *testing.T, i int) *wire.Query {
	t.Helper()
	var m dns.Msg
	packet, err := m.SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeA).Pack()
	check.NoError(t, err)
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		t.Fatal("the query can't be read")
	}
	return &q
}

// only fails unless path is all there is in its directory.
func only(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	check.NoError(t, err)
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestSavedCache(t *testing.T) {
	const names = 1000
	path := filepath.Join(t.TempDir(), "cache")
	caches := func(n int) map[string]*cache.Cache { return map[string]*cache.Cache{"a block": newKept(t, n)} }
	if n, err := loadCache(t.Context(), path, caches(0)); n != 0 || err != nil {
		t.Errorf("without a file: %d answers, error %v", n, err)
	}
	killed := filepath.Join(filepath.Dir(path), ".nodens-cache-123")
	check.NoError(t, os.WriteFile(killed, []byte("half of"), 0o600))
	for _, n := range []int{1, names} { // the second in place of the first
		if saved, err := saveCache(t.Context(), path, caches(n)); saved != n || err != nil {
			t.Fatalf("saving %d answers: %d, error %v", n, saved, err)
		}
	}
	only(t, path)
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, error %v", st.Mode(), err)
	}
	to := caches(0)
	if n, err := loadCache(t.Context(), path, to); n != names || err != nil {
		t.Fatalf("loading: %d answers, error %v", n, err)
	}
	for i := range names {
		var r wire.Reply
		q := keptQuery(t, i)
		r.Start(nil, q)
		// The moment is the path's own, which the store counts from, too.
		if res := to["a block"].Get(q, &r, 0); !res.Hit() {
			t.Fatalf("n%d.example. is not there", i)
		}
	}
	if n, err := loadCache(t.Context(), path, map[string]*cache.Cache{"another": newKept(t, 0)}); n != 0 || err != nil {
		t.Errorf("for another block: %d answers, error %v", n, err)
	}
}

// TestSavedCacheOfKeptNames: of a file that is too old, a cache gets the names that it keeps.
func TestSavedCacheOfKeptNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	if _, err := saveCache(t.Context(), path, map[string]*cache.Cache{"c": newKept(t, 10)}); err != nil {
		t.Fatal(err)
	}
	limits := config.CacheLimits{Entries: 9984, MaxTTL: time.Hour}
	to := cache.NewStore(16<<20, cache.Options{}).NewCache(&config.Cache{Success: limits, Denial: limits, Keep: []wire.Name{"\x02n3\x07example\x00"}})
	if n, err := loadCacheUpTo(t.Context(), path, map[string]*cache.Cache{"c": to}, 0); n != 1 || err != nil {
		t.Errorf("%d answers, error %v", n, err)
	}
	if n := to.Stats().Entries.Success; n != 1 {
		t.Errorf("the cache has %d answers", n)
	}
	if _, ok := to.Inspect(keptQuery(t, 3), 0); !ok {
		t.Error("the kept name is not there")
	}
}

// TestSavedCacheRefused: what is not whole, not ours or too old is not taken, not even in part.
func TestSavedCacheRefused(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	if _, err := saveCache(t.Context(), good, map[string]*cache.Cache{"c": newKept(t, 3000)}); err != nil {
		t.Fatal(err)
	}
	stream, err := os.ReadFile(good)
	check.NoError(t, err)
	last := bytes.Clone(stream)
	last[len(last)-20] ^= 1
	write := func(b []byte) func(string) error {
		return func(path string) error { return os.WriteFile(path, b, 0o600) }
	}
	for _, tt := range []struct {
		name   string
		make   func(path string) error
		oldest time.Duration
		want   string
	}{
		{"too old", write(stream), 0, "ago"},
		{"empty", write(nil), maxCacheAge, "truncated"},
		{"cut short", write(stream[:len(stream)-1]), maxCacheAge, "truncated"},
		{"a bit at the end", write(last), maxCacheAge, "checksum"},
		{"something else", write(bytes.Repeat([]byte("x"), 1000)), maxCacheAge, "does not begin"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o700) }, maxCacheAge, "not a regular file"},
		{"a pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, maxCacheAge, "not a regular file"},
		{"a link", func(path string) error { return os.Symlink(good, path) }, maxCacheAge, "symbolic link"},
		{"others may write", func(path string) error {
			return errors.Join(os.WriteFile(path, stream, 0o600), os.Chmod(path, 0o620))
		}, maxCacheAge, "others may write"},
		{"far too long", func(path string) error {
			return errors.Join(os.WriteFile(path, stream, 0o600), os.Truncate(path, maxCacheFile+1))
		}, maxCacheAge, "at most"},
	} {
		path := filepath.Join(dir, tt.name)
		if err := tt.make(path); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		c := newKept(t, 0)
		n, err := loadCacheUpTo(t.Context(), path, map[string]*cache.Cache{"c": c}, tt.oldest)
		if n != 0 || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %d answers, error %v; want one with %q", tt.name, n, err, tt.want)
		}
		if st := c.Stats(); st.Entries != (cache.Kinds{}) {
			t.Errorf("%s: %d answers were taken", tt.name, st.Entries.Success)
		}
	}
}

func TestSavedCacheForeign(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := filepath.Join(t.TempDir(), "cache")
	if _, err := saveCache(t.Context(), path, map[string]*cache.Cache{"c": newKept(t, 1)}); err != nil {
		t.Fatal(err)
	}
	check.NoError(t, os.Chown(path, 12345, 0))
	if n, err := loadCache(t.Context(), path, map[string]*cache.Cache{"c": newKept(t, 0)}); n != 0 || err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("%d answers, error %v", n, err)
	}
}

// TestSaveFails: the file that was there stays, and nothing is left beside it.
func TestSaveFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	caches := map[string]*cache.Cache{"c": newKept(t, 10)}
	if _, err := saveCache(t.Context(), path, caches); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := saveCache(ended, path, caches); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := file.Replace(path, func(w io.Writer) error {
		_, err := w.Write([]byte("half of"))
		return errors.Join(err, syscall.ENOSPC)
	}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	only(t, path)
	if n, err := loadCache(t.Context(), path, map[string]*cache.Cache{"c": newKept(t, 0)}); n != 10 || err != nil {
		t.Errorf("the old file: %d answers, error %v", n, err)
	}
	if _, err := saveCache(t.Context(), filepath.Join(path, "under", "a file"), caches); err == nil {
		t.Error("no error where there is no directory")
	}
}
