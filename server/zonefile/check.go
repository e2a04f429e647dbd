package zonefile

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// CheckFiles reads the files of b's file directives. An error in one keeps the agent from starting, unless the file may come later.
func CheckFiles(b *config.Block, to *config.FileCheck) {
	for _, f := range b.ZoneFile.All() {
		if !to.Readable(f.Path) {
			to.Skipped = append(to.Skipped, f.Path)
			continue
		}
		for _, origin := range f.Zones {
			err := Check(f.Path, origin)
			switch {
			case err == nil:
			case errors.Is(err, fs.ErrNotExist) && f.Reload > 0:
				to.AddWarning(b, "file", fmt.Sprintf("there is no file %s; the names of %s are SERVFAIL until it is there", f.Path, origin))
			default:
				to.Faults = append(to.Faults, fileError(f.Path, "file", origin, err))
			}
		}
	}
}

// CheckAuto reads the files of b's auto directive. Errors in them are warnings.
func CheckAuto(b *config.Block, to *config.FileCheck) {
	if b.Auto == nil || !to.Readable(b.Auto.Directory) { // the parser has noted it
		return
	}
	files, leftOut, err := AutoFiles(b.Auto)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // that there is none is a warning of the parser's
		leftOut = append(leftOut, err)
	}
	for _, err := range leftOut {
		to.AddWarning(b, "auto", err.Error())
	}
	for _, f := range files {
		if err := Check(f.Path, f.Origin); err != nil {
			to.Warnings = append(to.Warnings, fileError(f.Path, "auto", f.Origin, err))
		}
	}
}

// fileError is an error in a zone file, or in one that it includes, with its line.
func fileError(file, directive string, origin wire.Name, err error) *config.ParseError {
	e := &config.ParseError{File: file, Directive: directive, Text: fmt.Sprintf("zone %s: %v", origin, err)}
	if included, line, text := wire.ZoneFilePlace(err); line > 0 {
		e.Line, e.Text = line, fmt.Sprintf("zone %s: %s", origin, text)
		if !path.IsAbs(included) { // as the names of an fs.FS
			e.File = filepath.FromSlash("/" + included)
		}
	}
	return e
}
