package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// checkZoneFiles reads the zone files of `file` and `auto` that are on this machine. An error in a file of `file` keeps
// the agent from starting; one of `auto`, or a file that may come later, is a warning.
func (in *checkInput) checkZoneFiles() {
	if in.cfg == nil || in.objects {
		return
	}
	for _, b := range in.cfg.Blocks {
		for _, f := range b.ZoneFile.All() {
			if !in.readable(f.Path) {
				in.skipped = append(in.skipped, f.Path)
				continue
			}
			for _, origin := range f.Zones {
				in.checkZoneFile(b, f, origin)
			}
		}
		in.checkAuto(b)
	}
	if len(in.faults) > 0 {
		in.cfg = nil
	}
}

// readable reports whether the file or directory is one of this machine's.
func (in *checkInput) readable(name string) bool {
	return in.local || !path.IsAbs(name) && !filepath.IsAbs(name)
}

// checkZoneFile reads a file of `file` for one of its zones.
func (in *checkInput) checkZoneFile(b *config.Block, f *config.ZoneFile, origin wire.Name) {
	err := zonefile.Check(f.Path, origin)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && f.Reload > 0:
		in.zoneWarnings = append(in.zoneWarnings, blockError(b, "file", fmt.Sprintf("there is no file %s; the names of %s are SERVFAIL until it is there", f.Path, origin)))
	default:
		in.faults = append(in.faults, zoneFileError(f.Path, "file", origin, err))
	}
}

// checkAuto reads the files of `auto`.
func (in *checkInput) checkAuto(b *config.Block) {
	if b.Auto == nil {
		return
	}
	if !in.readable(b.Auto.Directory) {
		return // the parser has noted it
	}
	files, leftOut, err := zonefile.AutoFiles(b.Auto)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // that there is none is a warning of the parser's
		leftOut = append(leftOut, err)
	}
	for _, err := range leftOut {
		in.zoneWarnings = append(in.zoneWarnings, blockError(b, "auto", err.Error()))
	}
	for _, f := range files {
		if err := zonefile.Check(f.Path, f.Origin); err != nil {
			in.zoneWarnings = append(in.zoneWarnings, zoneFileError(f.Path, "auto", f.Origin, err))
		}
	}
}

// zoneFileError is an error in a zone file, or in one that it includes, with its line.
func zoneFileError(file, directive string, origin wire.Name, err error) *config.ParseError {
	e := &config.ParseError{File: file, Directive: directive, Text: fmt.Sprintf("zone %s: %v", origin, err)}
	if included, line, text := wire.ZoneFilePlace(err); line > 0 {
		e.Line, e.Text = line, fmt.Sprintf("zone %s: %s", origin, text)
		if !path.IsAbs(included) { // as the names of an fs.FS
			e.File = filepath.FromSlash("/" + included)
		}
	}
	return e
}
