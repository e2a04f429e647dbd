package zonefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxZones bounds the zones of a directory.
	maxZones = 1000
	// maxEntries bounds the files and directories that a search looks at.
	maxEntries = 10_000
)

var errTooManyFiles = fmt.Errorf("the directory has more than %d zone files, or %d files and directories in all; the rest is left out", maxZones, maxEntries)

// directory is a directory of zone files. NewAuto's caller and then Run's goroutine own it.
type directory struct {
	t       *Table
	cfg     *config.Auto
	pattern *regexp.Regexp
	sources map[wire.Name]*source
	// fresh are the zones that the current search has read.
	fresh []*Zone
	// warned are the warnings of the last search, which are not repeated.
	warned map[string]bool
}

// ZoneFileIn is a zone file in a directory of `auto`.
type ZoneFileIn struct {
	Path   string
	Origin wire.Name
}

// NewAuto returns the table of the zone files in a directory, and reads them. A file that can't be read, or has an error, is a
// warning, and its zone is left out until it is correct.
func NewAuto(cfg *config.Auto, opts Options) *Table {
	t := newTable(opts)
	t.within, t.fallsThrough = cfg.Zones, cfg.Fallthrough != nil || cfg.Reload > 0
	d := &directory{t: t, cfg: cfg, pattern: regexp.MustCompile(cfg.Pattern), sources: make(map[wire.Name]*source)}
	t.zones.Store(&map[wire.Name]*served{})
	d.search()
	d.fresh = nil // Run announces them
	t.maintain = d.run
	return t
}

// run searches the directory every `reload` until ctx ends.
func (d *directory) run(ctx context.Context) {
	filewatch.Every(ctx, d.cfg.Reload, func() {
		d.search()
		for _, z := range d.fresh {
			d.t.changed(z)
		}
		d.fresh = nil
	})
}

// search reads new and changed files and drops the zones of those that are gone. If the directory can't be read, the zones stay.
func (d *directory) search() {
	files, problems, err := list(d.cfg, d.pattern)
	warned := make(map[string]bool)
	for _, p := range problems {
		if text := p.Error(); !d.warned[text] {
			d.t.log.Warn("can't use a part of the directory of zone files", "directory", d.cfg.Directory, "err", p)
		}
		warned[p.Error()] = true
	}
	if err != nil {
		if !d.warned[err.Error()] {
			d.t.log.Warn("can't read the directory of zone files; keeping the last state", "directory", d.cfg.Directory, "err", err)
		}
		warned[err.Error()] = true
	}
	d.warned = warned
	if err == nil {
		d.read(files)
		d.publish()
	}
}

// read reads the files that are new or have changed.
func (d *directory) read(files []ZoneFileIn) {
	seen := make(map[wire.Name]bool, len(files))
	for _, f := range files {
		seen[f.Origin] = true
		src := d.sources[f.Origin]
		if src == nil {
			src = d.source(f)
			d.sources[f.Origin] = src
		}
		if src.file.Path != f.Path {
			src.cfg.Path, src.file = f.Path, filewatch.File{Path: f.Path}
		}
		src.reload()
	}
	maps.DeleteFunc(d.sources, func(origin wire.Name, src *source) bool {
		if seen[origin] {
			return false
		}
		d.t.log.Info("zone file removed", "file", src.cfg.Path, "zone", origin)
		return true
	})
}

// source returns the source of a new file.
func (d *directory) source(f ZoneFileIn) *source {
	return &source{
		t: d.t, file: filewatch.File{Path: f.Path}, changed: func(z *Zone) { d.fresh = append(d.fresh, z) },
		cfg:   &config.ZoneFile{Path: f.Path, Zones: []wire.Name{f.Origin}, Reload: d.cfg.Reload, Fallthrough: d.cfg.Fallthrough},
		zones: []*served{{origin: f.Origin, through: d.cfg.Fallthrough}},
	}
}

// publish puts the zones that have data into service.
func (d *directory) publish() {
	zones := make(map[wire.Name]*served, len(d.sources))
	for origin, src := range d.sources {
		if src.zones[0].data.Load() != nil {
			zones[origin] = src.zones[0]
		}
	}
	if !maps.Equal(zones, *d.t.zones.Load()) {
		d.t.zones.Store(&zones)
	}
}

// AutoFiles returns the zone files in the directory of cfg, in the order of their zones, and the reasons why some are left out. An
// error is about the directory as a whole.
func AutoFiles(cfg *config.Auto) (files []ZoneFileIn, leftOut []error, err error) {
	return list(cfg, regexp.MustCompile(cfg.Pattern))
}

func list(cfg *config.Auto, pattern *regexp.Regexp) (files []ZoneFileIn, leftOut []error, err error) {
	// The directory itself may be a symbolic link, as those of a mounted ConfigMap.
	dir, err := filepath.EvalSymlinks(cfg.Directory)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, nil, err
	}
	f := finder{cfg: cfg, pattern: pattern, dir: dir, paths: make(map[wire.Name]string)}
	err = filepath.WalkDir(dir, f.visit)
	if errors.Is(err, errTooManyFiles) {
		f.leftOut, err = append(f.leftOut, err), nil
	}
	for origin, path := range f.paths {
		files = append(files, ZoneFileIn{Path: path, Origin: origin})
	}
	slices.SortFunc(files, func(a, b ZoneFileIn) int { return cmp.Compare(a.Origin, b.Origin) })
	return files, f.leftOut, err
}

// finder is a search of a directory.
type finder struct {
	cfg     *config.Auto
	pattern *regexp.Regexp
	dir     string
	paths   map[wire.Name]string // of the zones found
	entries int
	leftOut []error
}

// visit is called for each file and directory, in the order of their paths.
func (f *finder) visit(path string, entry fs.DirEntry, err error) error {
	f.entries++
	switch {
	case err != nil && path == f.dir:
		return err
	case err != nil:
		f.leftOut = append(f.leftOut, err)
		return nil
	case f.entries > maxEntries, len(f.paths) == maxZones:
		return errTooManyFiles
	case path != f.dir && strings.HasPrefix(entry.Name(), ".."): // the kubelet's own, to which its links lead
		return skip(entry)
	case entry.IsDir():
		return nil
	}
	if err := addFile(f.paths, f.cfg, f.pattern, path); err != nil {
		f.leftOut = append(f.leftOut, err)
	}
	return nil
}

// skip returns what leaves out entry, and all that is below it.
func skip(entry fs.DirEntry) error {
	if entry.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// addFile adds the file at path to paths, if its name is one of a zone file's.
func addFile(paths map[wire.Name]string, cfg *config.Auto, pattern *regexp.Regexp, path string) error {
	base := filepath.Base(path)
	groups := pattern.FindStringSubmatchIndex(base)
	if groups == nil {
		return nil
	}
	text := string(pattern.ExpandString(nil, cfg.Template, base, groups))
	origin, err := wire.ParseName(text)
	switch {
	case err != nil:
		return fmt.Errorf("%s: the name of its zone would be %q: %w", path, text, err)
	case paths[origin] != "":
		return fmt.Errorf("%s: the zone %s is read from %s already", path, origin, paths[origin])
	}
	paths[origin] = path
	return nil
}
