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

const (
	fileUsage = "file DBFILE [ZONES…]"
	// maxFiles bounds the zone files of a block.
	maxFiles = 1000
)

func (f *ZoneFile) parse(p *parser, s statement) {
	*f = ZoneFile{Reload: time.Minute}
	if !p.count(s, 1, -1, fileUsage) {
		return
	}
	if f.Path = p.path(s.args()[0].text); f.Path == "" {
		p.errorf(s.name(), "the file's name is empty; is an environment variable unset?")
	}
	f.Zones = p.zonesOr(s.args()[1:])
	p.body(s, options{
		"reload": {usage: "reload DURATION", least: 1, most: 1, set: func(args []token) {
			f.Reload, _ = p.duration(args[0], 0, longest)
		}},
		"reload_by_mtime": flag("reload_by_mtime", &f.ByModTime),
		"fallthrough":     p.fallthroughs(&f.Fallthrough),
		// CoreDNS ignores it: the server always resolves targets of aliases itself.
		"upstream": {usage: "upstream", most: -1, set: func([]token) {}},
	})
}

// join appends a further file to the chain.
func (f *ZoneFile) join(p *parser, s statement, next directive) {
	more, last, n := next.(*ZoneFile), f, 2
	for ; ; n++ {
		for _, zone := range more.Zones {
			if slices.Contains(last.Zones, zone) {
				p.errorf(s.name(), "the zone %s is read from %s already; a zone has one file", zone, last.Path)
				return
			}
		}
		if last.Next == nil {
			break
		}
		last = last.Next
	}
	if n > maxFiles {
		p.errorf(s.name(), "a block has more than %d zone files; write a server block for some of the zones", maxFiles)
		return
	}
	last.Next = more
}

// All returns the files of a block in order; none if f is nil.
func (f *ZoneFile) All() []*ZoneFile {
	var list []*ZoneFile
	for ; f != nil; f = f.Next {
		list = append(list, f)
	}
	return list
}
