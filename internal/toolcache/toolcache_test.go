package toolcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// open returns an empty cache.
func open(t *testing.T) *Cache {
	t.Helper()
	t.Setenv("NODENS_CACHE", t.TempDir())
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// write returns a create function that writes a file with this text.
func write(text string) func(dir string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o644) }
}

// use creates the entry if it is missing, and releases it unless hold is set.
func (c *Cache) use(t *testing.T, e Entry, hold bool) (dir string, release func()) {
	t.Helper()
	dir, release, err := c.Use(t.Context(), e, write(e.Key))
	if err != nil {
		t.Fatal(err)
	}
	if !hold {
		release()
	}
	return dir, release
}

// files returns the names in the folder that are not locks.
func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range list {
		if d.Name() != lockFile {
			names = append(names, d.Name())
		}
	}
	return names
}

// setAge sets the time of a file's last access and change.
func setAge(t *testing.T, path string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// TestUse: of several callers one creates the entry, and all get the same complete one.
func TestUse(t *testing.T) {
	c := open(t)
	base := filepath.Join(c.dir, "tool")
	// A creation that was killed has left this.
	if err := os.MkdirAll(filepath.Join(base, "other"+partSuffix, "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	var created atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, release, err := c.Use(t.Context(), Entry{Name: "tool", Key: "1", Limit: 2}, func(dir string) error {
				created.Add(1)
				return write("text")(dir)
			})
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "text" {
				t.Errorf("the entry holds %q, %v", text, err)
			}
		})
	}
	wg.Wait()
	if n := created.Load(); n != 1 {
		t.Errorf("created %d times", n)
	}
	if got := files(t, base); !slices.Equal(got, []string{"1"}) {
		t.Errorf("the folder holds %q", got)
	}
}

// TestCreateFails: a failed creation is no entry.
func TestCreateFails(t *testing.T) {
	c, failed := open(t), errors.New("no such module")
	e := Entry{Name: "tool", Key: "1", Limit: 2}
	_, _, err := c.Use(t.Context(), e, func(dir string) error { return errors.Join(write("half")(dir), failed) })
	if !errors.Is(err, failed) {
		t.Errorf("error %v, want %v", err, failed)
	}
	if got := files(t, filepath.Join(c.dir, "tool")); len(got) > 0 {
		t.Errorf("left behind: %q", got)
	}
	c.use(t, e, false)
}

// TestLimit: a new entry replaces the least recently used one, but no entry in use.
func TestLimit(t *testing.T) {
	c := open(t)
	entry := func(key string) Entry { return Entry{Name: "tool", Key: key, Limit: 2} }
	_, release := c.use(t, entry("1"), true)
	want := func(names ...string) {
		t.Helper()
		if diff := cmp.Diff(names, files(t, filepath.Join(c.dir, "tool"))); diff != "" {
			t.Errorf("entries, want -, got +\n%s", diff)
		}
	}
	c.use(t, entry("2"), false)
	c.use(t, entry("3"), false)
	want("1", "2", "3") // 1 is in use
	release()
	c.use(t, entry("2"), false)
	c.use(t, entry("4"), false)
	want("2", "4")
	c.use(t, Entry{Name: "other", Key: "1", Limit: 1}, false)
	want("2", "4")
}

// TestUnused: a creation removes entries of other names that were not used for a long time,
// but none that is in use or whose name is locked.
func TestUnused(t *testing.T) {
	c := open(t)
	var dirs []string
	for _, name := range []string{"unused", "locked", "recent"} {
		dir, _ := c.use(t, Entry{Name: name, Key: "1", Limit: 2}, false)
		dirs = append(dirs, dir)
	}
	held, release := c.use(t, Entry{Name: "held", Key: "1", Limit: 2}, true)
	defer release()
	dirs = append(dirs, held)
	unlock, err := c.Lock(t.Context(), filepath.Join("locked", lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for _, dir := range dirs {
		if age := maxUnused + time.Hour; filepath.Base(filepath.Dir(dir)) != "recent" {
			setAge(t, dir, age)
		}
	}
	c.use(t, Entry{Name: "new", Key: "1", Limit: 2}, false)
	for i, want := range []bool{false, true, true, true} {
		if _, err := os.Stat(dirs[i]); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s is there: %t, want %t", dirs[i], !want, want)
		}
	}
}

// TestRenew: the entry is replaced once nothing uses it, and stays if that fails.
func TestRenew(t *testing.T) {
	c := open(t)
	e := Entry{Name: "tool", Key: "1", Limit: 2}
	dir, release := c.use(t, e, true)
	e.Renew = true
	content := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != want {
			t.Errorf("the entry holds %q, %v, want %q", text, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := c.Use(ctx, e, func(dir string) error { cancel(); return write("new")(dir) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("replacing an entry in use: %v", err)
	}
	content("1")
	release()
	failed := errors.New("no network")
	if _, _, err := c.Use(t.Context(), e, func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v, want %v", err, failed)
	}
	content("1")
	_, release, err = c.Use(t.Context(), e, write("new"))
	if err != nil {
		t.Fatal(err)
	}
	release()
	content("new")
}

// TestLockEnds: waiting for a lock ends with the context.
func TestLockEnds(t *testing.T) {
	c := open(t)
	unlock, err := c.Lock(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Lock(ctx, "lock"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	unlock()
	if unlock, err = c.Lock(t.Context(), "lock"); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestOldLayout: files of the first layout are removed once nothing uses them. Other files in
// the folder stay, whatever their age.
func TestOldLayout(t *testing.T) {
	c := open(t)
	add := func(name string, age time.Duration) {
		t.Helper()
		path := filepath.Join(c.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		setAge(t, path, age)
		if dir := filepath.Dir(path); dir != c.root {
			setAge(t, dir, age)
		}
	}
	const day = 24 * time.Hour
	for name, age := range map[string]time.Duration{
		"etcd-2b2900ecedadc94b": 15 * day, "etcd.lock": 15 * day, "debian-amd64-ce8faa01/a.deb": 15 * day,
		"debian-amd64-ce8faa01.lock": 15 * day, "lint/golangci-lint": 15 * day, "nodens": 15 * day,
		"kubectl-06e4857bcc9209e1": 13 * day, "kubectl.lock": 15 * day,
		"notes.txt": 15 * day, "helm-charts/web.yaml": 15 * day,
	} {
		add(name, age)
	}
	c.use(t, Entry{Name: "new", Key: "1", Limit: 2}, false)
	want := []string{"debian-amd64-ce8faa01.lock", "etcd.lock", "helm-charts", "kubectl-06e4857bcc9209e1", "kubectl.lock", "lint", "notes.txt", layout}
	if diff := cmp.Diff(want, files(t, c.root)); diff != "" {
		t.Errorf("after the first creation, want -, got +\n%s", diff)
	}
	setAge(t, filepath.Join(c.root, "kubectl-06e4857bcc9209e1"), 15*day)
	c.use(t, Entry{Name: "new", Key: "2", Limit: 2}, false)
	if diff := cmp.Diff([]string{"helm-charts", "notes.txt", layout}, files(t, c.root)); diff != "" {
		t.Errorf("without a used file, want -, got +\n%s", diff)
	}
}
