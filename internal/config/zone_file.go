package config

import (
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// ZoneFile is `file DBFILE [ZONES…] { reload DURATION; reload_by_mtime; fallthrough [ZONES…] }`.
type ZoneFile struct {
	// Path is the zone file's (RFC 1035, 5). It may be relative to the working directory.
	Path string
	// Zones are the zones that are read from the file, each with the file's relative names below
	// it; the block's zones by default.
	Zones []wire.Name
	// Reload is the time between two checks of the file; 0 is never.
	Reload time.Duration
	// ByModTime says that the file is read again if its modification time has changed, and not if the serial in
	// its SOA record has.
	ByModTime   bool
	Fallthrough *Fallthrough
	// Next is the next file of the same block, nil for the last.
	Next *ZoneFile
}

// needsAgent: a name that the file does not have is asked of the next source, until the file changes.
func (f *ZoneFile) needsAgent() bool {
	return f != nil && (f.Fallthrough != nil || f.Next.needsAgent())
}

// maxFiles bounds the zone files of a block.
const maxFiles = 1000

func (f *ZoneFile) parse(p *parser, s statement) {
	*f = ZoneFile{Reload: time.Minute}
	if !p.count(s, "file DBFILE [ZONES…]") {
		return
	}
	f.Path = p.filePath(s.name(), s.word())
	f.Zones = p.zonesOr(s.args()[1:])
	p.body(s,
		opt("reload DURATION", p.toDuration(&f.Reload, 0, longest)),
		flag("reload_by_mtime", &f.ByModTime),
		p.fallthroughs(&f.Fallthrough),
		ignoredUpstream(),
	)
}

func (f *ZoneFile) next() **ZoneFile { return &f.Next }

// join appends a further file to the chain.
func (f *ZoneFile) join(p *parser, s statement, next directive) {
	more := next.(*ZoneFile)
	for first := range chain(f) {
		if zone, ok := common(first.Zones, more.Zones); ok {
			p.errorf(s.name(), "the zone %s is read from %s already; a zone has one file", zone, first.Path)
			return
		}
	}
	extend(p, s, f, more, maxFiles, "zone files; write a server block for some of the zones")
}

// common returns the first of zones that is also one of others.
func common(others, zones []wire.Name) (zone wire.Name, ok bool) {
	i := slices.IndexFunc(zones, func(z wire.Name) bool { return slices.Contains(others, z) })
	if i < 0 {
		return zone, false
	}
	return zones[i], true
}

// All returns the files of a block in order; none if f is nil.
func (f *ZoneFile) All() []*ZoneFile { return slices.Collect(chain(f)) }

// FileCheck are the mistakes in files that directives read when the agent starts.
type FileCheck struct {
	// Readable reports whether a path is one of this machine's; Skipped are those that are not.
	Readable func(path string) bool
	Skipped  []string
	// Faults keep the agent from starting.
	Faults, Warnings []*ParseError
}

// AddWarning adds a warning about a directive of b.
func (c *FileCheck) AddWarning(b *Block, directive, text string) {
	c.Warnings = append(c.Warnings, &ParseError{File: b.File, Line: b.Line, Directive: directive, Text: text})
}
