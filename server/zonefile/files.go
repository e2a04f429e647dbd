package zonefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// source is a file and the zones that are read from it.
type source struct {
	t   *Table
	cfg *config.ZoneFile
	// changed is told of each new state of a zone.
	changed func(*Zone)
	zones   []*served
	// Only the table's constructor and Run use file and included. The path of file is absolute. included says that the
	// zone file includes others, whose changes file does not detect.
	file     filewatch.File
	included bool
}

// fileList are the files of a table.
type fileList []*source

// New reads the files of cfg and those chained to it. A file that can't be opened is a warning, and the zone's
// names are SERVFAIL until it can, unless it is never read again: as in CoreDNS. A file with an error is
// an error.
func New(cfg *config.ZoneFile, opts Options) (*Table, error) {
	t := newTable(opts)
	zones := make(map[wire.Name]*served)
	var list fileList
	for _, f := range cfg.All() {
		src, err := t.openFile(f)
		if err != nil {
			return nil, err
		}
		for _, z := range src.zones {
			zones[z.origin] = z
		}
		list = append(list, src)
		t.fallsThrough = t.fallsThrough || f.Fallthrough != nil
	}
	t.zones.Store(&zones)
	t.maintain = list.run
	return t, nil
}

// run checks each file every `reload` until ctx ends.
func (l fileList) run(ctx context.Context) {
	due := make([]time.Time, len(l))
	for i, src := range l {
		due[i] = time.Now().Add(src.cfg.Reload)
	}
	for {
		next := -1
		for i, src := range l {
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
		l[next].reload()
		due[next] = time.Now().Add(l[next].cfg.Reload)
	}
}

// reload reads the file again if it may have changed. It logs a failure once.
func (src *source) reload() {
	changed, err := src.file.Changed()
	if err != nil {
		if changed {
			src.t.log.Warn("can't open the zone file; keeping the last state", "file", src.cfg.Path, "err", err)
		}
		return
	}
	if !changed && (!src.included || src.cfg.ByModTime) {
		return
	}
	for _, z := range src.zones {
		src.reloadZone(z, changed)
	}
}

// reloadZone reads z again. changed says that the file itself has changed.
func (src *source) reloadZone(z *served, changed bool) {
	var serial *uint32
	if old := z.data.Load(); old != nil && !src.cfg.ByModTime {
		serial = &old.serial
	}
	switch err := src.load(z, serial); {
	case errors.Is(err, errSameSOA):
		if changed {
			src.t.log.Info("the zone file has changed, but the serial of its SOA record has not; keeping the last state", "file", src.cfg.Path, "zone", z.origin)
		}
	case err != nil && changed:
		src.t.log.Warn("can't read the zone file; keeping the last state", "file", src.cfg.Path, "zone", z.origin, "err", err)
	case err == nil:
		now := z.data.Load()
		src.t.log.Info("zone file loaded", "file", src.cfg.Path, "zone", z.origin, "serial", now.serial, "records", now.records)
		src.changed(now)
	}
}

// Check reads a zone file as [New] does, and returns why it can't be served. A missing file is [fs.ErrNotExist]; the place of
// another error is [wire.ZoneFilePlace].
func Check(path string, origin wire.Name) error { return check(path, origin, 1) }

// check is Check for a zone whose bounds are scale times those of other zones.
func check(path string, origin wire.Name, scale int) error {
	path, err := filepath.Abs(path)
	if err == nil {
		_, _, err = readFile(path, origin, scale, nil)
	}
	return err
}

// readFile reads the zone in a file. included says that the file includes others. The bounds are scale times the usual ones.
func readFile(path string, origin wire.Name, scale int, unchanged *uint32) (zone *Zone, included bool, err error) {
	open := files{left: int64(scale) * maxFileSize, scale: int64(scale)}
	defer open.close()
	f, err := open.Open(path)
	if err != nil {
		return nil, false, err
	}
	zone, err = read(wire.ZoneFile{Origin: origin, Path: path, Files: &open}, f, scale, unchanged)
	return zone, len(open.list) > 1, err
}

// load reads z from its file. It is errSameSOA if the file's serial is *unchanged.
func (src *source) load(z *served, unchanged *uint32) error {
	zone, included, err := readFile(src.file.Path, z.origin, src.t.scale, unchanged)
	src.included = included
	if err != nil {
		return err
	}
	if zone.outside > 0 {
		src.t.log.Warn("left out records that are not in the zone", "file", src.cfg.Path, "zone", z.origin, "records", zone.outside)
	}
	z.data.Store(zone)
	return nil
}

// maxFileSize bounds a zone file and those that it includes, in bytes. A zone of 100,000 names has about
// 8 MB.
const maxFileSize = 32 << 20

// files opens the files of one zone, and bounds what is read of all of them.
type files struct {
	left, scale int64
	list        []*os.File
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
	opened, err := filewatch.Open(name)
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
		return 0, fmt.Errorf("the zone file and those that it includes have more than %d MiB", b.of.scale*maxFileSize>>20)
	}
	return n, err
}

var _ io.Reader = (*boundedFile)(nil)
