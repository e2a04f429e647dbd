// Package zonefile answers authoritatively from zone files (RFC 1035, 5), as CoreDNS's file
// directive does.
//
// A file is parsed record by record and packed into a [Zone], one piece of memory that never
// changes. A query is looked up in it label by label from the zone's origin down (RFC 1034,
// 4.3.2): a zone cut gives a referral, a DNAME record redirects, a name that does not exist may be
// covered by a wildcard. Aliases are followed within the zone; for one that leads out of it the caller
// resolves the target ([Leads]). Lookups take no lock and do not allocate.
//
// [Table.Run] reads a file again when it has changed and replaces the zone if the serial in the
// SOA record is another one. A file that can't be read, or has an error, leaves the old zone in
// service.
package zonefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Table answers queries from the zone files of one server block. It is created by [New] and safe for
// concurrent use.
type Table struct {
	log     *slog.Logger
	changed func(*Zone)
	zones   map[wire.Name]*served
	files   []*source
}

// served is a zone in service.
type served struct {
	origin  wire.Name
	through *config.Fallthrough
	data    atomic.Pointer[Zone] // nil until the file is read
}

// source is a file and the zones that are read from it.
type source struct {
	cfg   *config.ZoneFile
	path  string // absolute
	zones []*served
	// Only New and Run use what follows. lastInfo describes the file when it was read last, even if
	// that failed; nil if it has to be read again. included says that it includes others, whose
	// changes do not show in it.
	lastInfo fs.FileInfo
	included bool
}

// Options holds what a Table needs beside its directives.
type Options struct {
	// Logger gets warnings; nil discards them.
	Logger *slog.Logger
	// Changed, if not nil, is called by [Table.Run] for each zone that is loaded when Run begins, and each time a
	// zone was loaded or replaced, after the new data are in service. It must not block.
	Changed func(*Zone)
}

// New reads the files of cfg and those chained to it. A file that can't be opened is a warning, and the zone's
// names are SERVFAIL until it can, unless it is never read again: as in CoreDNS. A file with an error is
// an error.
func New(cfg *config.ZoneFile, opts Options) (*Table, error) {
	t := &Table{log: opts.Logger, changed: opts.Changed, zones: make(map[wire.Name]*served)}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if t.changed == nil {
		t.changed = func(*Zone) {}
	}
	for _, f := range cfg.All() {
		if err := t.addFile(f); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// addFile adds the zones of f.
func (t *Table) addFile(f *config.ZoneFile) error {
	path, err := filepath.Abs(f.Path)
	if err != nil {
		return fmt.Errorf("zone file %s: %w", f.Path, err)
	}
	src := &source{cfg: f, path: path}
	for _, origin := range f.Zones {
		z := &served{origin: origin, through: f.Fallthrough}
		src.zones = append(src.zones, z)
		t.zones[origin] = z
	}
	t.files = append(t.files, src)
	info, err := os.Stat(path)
	if err != nil {
		if f.Reload == 0 {
			return fmt.Errorf("zone file %s: %w; make it readable, or let it be read later with `reload`", f.Path, err)
		}
		t.log.Warn("can't open the zone file; trying again", "file", f.Path, "err", err)
		return nil
	}
	src.lastInfo = info
	for _, z := range src.zones {
		if err := t.load(src, z, nil); err != nil {
			return fmt.Errorf("zone file %s: zone %s: %w", f.Path, z.origin, err)
		}
	}
	return nil
}

// Run checks each file every `reload` until ctx ends.
func (t *Table) Run(ctx context.Context) {
	t.announce()
	due := make([]time.Time, len(t.files))
	for i, src := range t.files {
		due[i] = time.Now().Add(src.cfg.Reload)
	}
	for {
		next := -1
		for i, src := range t.files {
			if src.cfg.Reload > 0 && (next < 0 || due[i].Before(due[next])) {
				next = i
			}
		}
		if next < 0 {
			<-ctx.Done()
			return
		}
		timer := time.NewTimer(time.Until(due[next]))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		t.reload(t.files[next])
		due[next] = time.Now().Add(t.files[next].cfg.Reload)
	}
}

// announce passes the zones that New has loaded to Options.Changed, in the order of the files.
func (t *Table) announce() {
	for _, src := range t.files {
		for _, z := range src.zones {
			if data := z.data.Load(); data != nil {
				t.changed(data)
			}
		}
	}
}

// reload reads the file again if it may have changed. It logs a failure once.
func (t *Table) reload(src *source) {
	info, err := os.Stat(src.path)
	if err != nil {
		if src.lastInfo != nil {
			t.log.Warn("can't open the zone file; keeping the last state", "file", src.cfg.Path, "err", err)
		}
		src.lastInfo = nil
		return
	}
	last := src.lastInfo
	same := last != nil && os.SameFile(info, last) && info.ModTime().Equal(last.ModTime()) && info.Size() == last.Size()
	if same && (!src.included || src.cfg.ByModTime) {
		return
	}
	src.lastInfo = info
	for _, z := range src.zones {
		t.reloadZone(src, z, !same)
	}
}

// reloadZone reads z again. changed says that the file itself has changed.
func (t *Table) reloadZone(src *source, z *served, changed bool) {
	var serial *uint32
	if old := z.data.Load(); old != nil && !src.cfg.ByModTime {
		serial = &old.serial
	}
	switch err := t.load(src, z, serial); {
	case errors.Is(err, errSameSOA):
		if changed {
			t.log.Info("the zone file has changed, but the serial of its SOA record has not; keeping the last state", "file", src.cfg.Path, "zone", z.origin)
		}
	case err != nil && changed:
		t.log.Warn("can't read the zone file; keeping the last state", "file", src.cfg.Path, "zone", z.origin, "err", err)
	case err == nil:
		now := z.data.Load()
		t.log.Info("zone file loaded", "file", src.cfg.Path, "zone", z.origin, "serial", now.serial, "records", now.records)
		t.changed(now)
	}
}

// load reads z from its file. It is errSameSOA if the file's serial is *unchanged.
func (t *Table) load(src *source, z *served, unchanged *uint32) error {
	open := files{left: maxFileSize}
	defer open.close()
	f, err := open.Open(src.path)
	if err != nil {
		return err
	}
	zone, err := read(wire.ZoneFile{Origin: z.origin, Path: src.path, Files: &open}, f, unchanged)
	src.included = len(open.list) > 1
	if err != nil {
		return err
	}
	if zone.outside > 0 {
		t.log.Warn("left out records that are not in the zone", "file", src.cfg.Path, "zone", z.origin, "records", zone.outside)
	}
	z.data.Store(zone)
	return nil
}

// Answer writes the answer to q into r. Only with [Leads] it allocates. The lead is what
// [Lead.Complete] needs then.
func (t *Table) Answer(q *wire.Query, r *wire.Reply) (Outcome, Lead) {
	z := t.zone(q.Name())
	if z == nil {
		return NotMine, Lead{}
	}
	if q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR {
		r.Fail(wire.Refused)
		return Answered, Lead{}
	}
	data := z.data.Load()
	if data == nil {
		r.Fail(wire.ServFail)
		return NotLoaded, Lead{}
	}
	a := answers.Get().(*answer)
	o, lead := a.run(data, q, r, z.through)
	a.release()
	return o, lead
}

// zone returns the longest zone that has name, nil for none.
func (t *Table) zone(name []byte) *served {
	for rest := name; len(rest) > 0; rest = rest[min(len(rest), 1+int(rest[0])):] {
		if z := t.zones[wire.Name(rest)]; z != nil {
			return z
		}
	}
	return nil
}

// FallsThrough reports whether a zone leaves some of its names to the next step.
func (t *Table) FallsThrough() bool {
	for _, src := range t.files {
		if src.cfg.Fallthrough != nil {
			return true
		}
	}
	return false
}

// Records returns the number of records of all zones.
func (t *Table) Records() (n int) {
	for _, z := range t.zones {
		if data := z.data.Load(); data != nil {
			n += data.records
		}
	}
	return n
}

// maxFileSize bounds a zone file and those that it includes, in bytes. A zone of 100,000 names has about
// 8 MB.
const maxFileSize = 32 << 20

var (
	errTooLarge   = fmt.Errorf("the zone file and those that it includes have more than %d MiB", maxFileSize>>20)
	errNotRegular = errors.New("it is not a regular file")
)

// files opens the files of one zone, and bounds what is read of all of them.
type files struct {
	left int64
	list []*os.File
}

func (f *files) close() {
	for _, opened := range f.list {
		_ = opened.Close() // those that were read to the end are closed
	}
}

// Open opens a file by its path, for [wire.ZoneFile] without the leading slash.
func (f *files) Open(name string) (fs.File, error) {
	if !filepath.IsAbs(name) {
		name = string(filepath.Separator) + filepath.FromSlash(name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		return nil, &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	opened, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	f.list = append(f.list, opened)
	return &boundedFile{opened, f}, nil
}

// boundedFile is a file whose bytes are taken from what is left.
type boundedFile struct {
	*os.File
	of *files
}

func (b *boundedFile) Read(p []byte) (int, error) {
	n, err := b.File.Read(p)
	if b.of.left -= int64(n); b.of.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

var _ io.Reader = (*boundedFile)(nil)

// Size returns the bytes that all zones take in memory.
func (t *Table) Size() (n int) {
	for _, z := range t.zones {
		if data := z.data.Load(); data != nil {
			n += data.Size()
		}
	}
	return n
}
