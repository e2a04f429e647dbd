package zonefile

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// CheckFiles reads the files of b's file directives. An error in one keeps the agent from starting, unless the file may come later.
func CheckFiles(b *config.Block, to *config.FileCheck) {
	for _, f := range b.ZoneFile.All() {
		for _, origin := range f.Zones {
			checkFile(b, to, "file", f, origin, 1, fmt.Sprintf("the names of %s are SERVFAIL", origin))
		}
	}
}

// CheckPolicies reads the files of b's rpz directives, as CheckFiles does.
func CheckPolicies(b *config.Block, to *config.FileCheck) {
	for _, z := range b.RPZ.All() {
		if z.File != "" {
			checkFile(b, to, "rpz", &config.ZoneFile{Path: z.File, Reload: z.Reload}, z.Zone, policyScale, fmt.Sprintf("the rules of %s deny nothing", z.Zone))
		}
	}
}

// checkFile reads the zone in the file of a directive of b, whose bounds are scale times the usual ones. missing says what is so as long
// as there is no file.
func checkFile(b *config.Block, to *config.FileCheck, directive string, f *config.ZoneFile, origin wire.Name, scale int, missing string) {
	if !to.Readable(f.Path) {
		if !slices.Contains(to.Skipped, f.Path) {
			to.Skipped = append(to.Skipped, f.Path)
		}
		return
	}
	switch err := check(f.Path, origin, scale); {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && f.Reload > 0:
		to.AddWarning(b, directive, fmt.Sprintf("there is no file %s; %s until it is there", f.Path, missing))
	default:
		to.Faults = append(to.Faults, fileError(f.Path, directive, origin, err))
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
