package zonefile_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/testlog"
)

// autoOf returns the directive for a directory.
func autoOf(tb testing.TB, dir, args string, options ...string) *config.Auto {
	tb.Helper()
	text := fmt.Sprintf(". {\nauto test {\ndirectory %q %s\n%s\n}\n}\n", dir, args, strings.Join(options, "\n"))
	c, err := config.Parse(config.Source{Text: []byte(text)})
	if err != nil {
		tb.Fatal(err)
	}
	return c.Blocks[0].Auto
}

// zoneOf is a zone whose name www has an address that ends with serial.
func zoneOf(serial int) string {
	return fmt.Sprintf("@ 60 SOA ns host %d 2 3 4 5\nwww 60 A 192.0.2.%d\n", serial, serial)
}

func writeZone(tb testing.TB, path, text string, version time.Time) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chtimes(path, version, version); err != nil {
		tb.Fatal(err)
	}
}

// wwwOf is the last number of the address of www in each zone, the rcode, or - for a zone that is not served.
func wwwOf(tb testing.TB, tab *zonefile.Table, zones ...string) string {
	tb.Helper()
	list := make([]string, len(zones))
	for i, zone := range zones {
		o, text := ask(tb, tab, "www."+zone+".", dns.TypeA, false)
		_, number, _ := strings.Cut(text, " A 192.0.2.")
		list[i] = number
		if o == authority.NotMine {
			list[i] = "-"
		}
	}
	return strings.Join(list, " ")
}

// TestAuto: zones come and go with their files.
func TestAuto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		version := time.Now()
		write := func(name, text string) {
			version = version.Add(time.Second)
			writeZone(t, filepath.Join(dir, name), text, version)
		}
		remove := func(name string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		write("db.a.test", zoneOf(1))
		write("db.outside.example", zoneOf(1))
		write("readme", "not a zone")
		var log testlog.Buffer
		var served []string
		tab := zonefile.NewAuto(autoOf(t, dir, "", "reload 10s"), zonefile.Options{
			Logger:  slog.New(slog.NewTextHandler(&log, nil)),
			Changed: func(z *zonefile.Zone) { served = append(served, fmt.Sprintf("%s %d", z.Origin(), z.Serial())) },
		})
		if got := wwwOf(t, tab, "a.test", "outside.example"); got != "1 -" {
			t.Errorf("before Run: %s", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { tab.Run(ctx); close(ended) }()
		logged := 0
		for _, step := range []struct {
			name   string
			change func()
			want   string // a.test b.test c.test
			log    string
		}{
			{"nothing", func() {}, "1 - -", ""},
			{"a new file", func() { write("db.b.test", zoneOf(1)) }, "1 1 -", "zone file loaded"},
			{"a new serial", func() { write("db.a.test", zoneOf(2)) }, "2 1 -", "serial=2"},
			{"an error", func() { write("db.b.test", zoneOf(2)+"x 60 A y\n") }, "2 1 -", "line: 3"},
			{"a new file with an error", func() { write("db.c.test", "x 60 A y\n") }, "2 1 -", "line: 1"},
			{"it is correct", func() { write("db.c.test", zoneOf(3)) }, "2 1 3", "serial=3"},
			{"a file moves", func() { remove("db.a.test"); write("sub/db.a.test", zoneOf(4)) }, "4 1 3", "serial=4"},
			{"two files for one zone", func() { write("x/db.a.test", zoneOf(5)) }, "4 1 3", "is read from"},
			{"a file is gone", func() { remove("db.b.test") }, "4 - 3", "zone file removed"},
			{"the directory is gone", func() { remove("") }, "4 - 3", "keeping the last state"},
			{"it is back", func() { write("db.c.test", zoneOf(6)) }, "- - 6", "zone file removed"},
		} {
			step.change()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got := wwwOf(t, tab, "a.test", "b.test", "c.test"); got != step.want {
				t.Errorf("%s: %s, want %s", step.name, got, step.want)
			}
			lines := log.String()[logged:]
			logged += len(lines)
			if !strings.Contains(lines, step.log) || strings.Count(lines, "level=WARN") > 1 {
				t.Errorf("%s: the log has %q, want %q", step.name, lines, step.log)
			}
		}
		cancel()
		<-ended
		want := []string{"a.test. 1", "outside.example. 1", "b.test. 1", "a.test. 2", "c.test. 3", "a.test. 4", "c.test. 6"}
		if slices.Sort(served[:2]); !slices.Equal(served, want) {
			t.Errorf("changed: %q, want %q", served, want)
		}
	})
}

// TestAutoNames: the zone's name is made of the groups of the expression; a mounted ConfigMap has each file once.
func TestAutoNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mounted")
	writeZone(t, filepath.Join(dir, "..2000", "zone-a.test.txt"), zoneOf(1), time.Now())
	for link, to := range map[string]string{"..data": "..2000", "zone-a.test.txt": "..data/zone-a.test.txt"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	linked := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, linked); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{`^zone-(.*)\.txt$ {1}`, "a.test."},
		{`^zone-(.*)\.(test)\.txt$ {2}.{1}`, "test.a."},
		{`^(zone)-(.*)\.txt$ {1}.{2}.`, "zone.a.test."},
		{`^(other) {1}`, ""},
		{``, ""},
	} {
		cfg := autoOf(t, linked, tt.args)
		files, leftOut, err := zonefile.AutoFiles(cfg)
		var got string
		for _, f := range files {
			got += f.Origin.String()
		}
		if err != nil || len(leftOut) > 0 || got != tt.want {
			t.Errorf("%s: the zones %q, %v, %v; want %q", tt.args, got, leftOut, err, tt.want)
		}
	}
	if got := wwwOf(t, zonefile.NewAuto(autoOf(t, linked, `^zone-(.*)\.txt$ {1}`), zonefile.Options{}), "a.test"); got != "1" {
		t.Errorf("the answer from the ConfigMap is %s", got)
	}
	writeZone(t, filepath.Join(dir, "zone-..txt"), zoneOf(1), time.Now())
	if _, leftOut, err := zonefile.AutoFiles(autoOf(t, dir, `^zone-(.*)\.txt$ a..{1}`)); err != nil || len(leftOut) != 2 {
		t.Errorf("names that are none: %v, %v", leftOut, err)
	}
}

// TestAutoMany: a directory with too many files is read in part.
func TestAutoMany(t *testing.T) {
	dir := t.TempDir()
	for i := range 1100 {
		if err := os.Symlink("none", filepath.Join(dir, fmt.Sprintf("db.%04d.test", i))); err != nil {
			t.Fatal(err)
		}
	}
	files, leftOut, err := zonefile.AutoFiles(autoOf(t, dir, ""))
	if err != nil || len(files) != 1000 || len(leftOut) != 1 {
		t.Errorf("%d files, %v, %v", len(files), leftOut, err)
	}
}

// TestAutoOnce: with `reload 0s` the directory is read at the start only, and names fall through as the directive says.
func TestAutoOnce(t *testing.T) {
	dir := t.TempDir()
	writeZone(t, filepath.Join(dir, "db.a.test"), zoneOf(1), time.Now())
	tab := zonefile.NewAuto(autoOf(t, dir, "", "reload 0s"), zonefile.Options{})
	got := map[string]bool{"once": tab.FallsThrough()}
	tab = zonefile.NewAuto(autoOf(t, dir, "", "reload 0s", "fallthrough"), zonefile.Options{})
	got["fallthrough"] = tab.FallsThrough()
	o, _ := ask(t, tab, "none.a.test.", dns.TypeA, false)
	got["none.a.test. goes on"] = o == authority.NotMine
	got["files may come"] = zonefile.NewAuto(autoOf(t, dir, ""), zonefile.Options{}).FallsThrough()
	if diff := cmp.Diff(map[string]bool{"once": false, "fallthrough": true, "none.a.test. goes on": true, "files may come": true}, got); diff != "" {
		t.Error(diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tab.Run(ctx)
}
