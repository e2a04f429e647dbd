// Package zonefile answers authoritatively from zones: those of zone files (RFC 1035, 5), of a directory
// of zone files, and those transferred from a primary server (RFC 5936), as CoreDNS's directives
// file, auto and secondary do.
//
// A zone is read record by record and packed into a [Zone], one piece of memory that never
// changes. A query is looked up in it label by label from the zone's origin down (RFC 1034,
// 4.3.2): a zone cut gives a referral, a DNAME record redirects, a name that does not exist may be
// covered by a wildcard. Aliases are followed within the zone; for one that leads out of it the caller
// resolves the target ([authority.Leads]). Lookups take no lock and do not allocate.
//
// [Table.Run] keeps the zones up to date. It reads a file again when it has changed and replaces the zone if the
// serial in the SOA record is another one; it asks a primary server for the serial at the times that the SOA
// record says and when the server sends NOTIFY (RFC 1996), and transfers the zone if the serial is newer. What can't be read,
// or has an error, leaves the old zone in service.
//
// [Policies] are zones of the same kind that nobody asks for names in: their records are rules about the names and addresses that
// clients may have (`rpz`).
package zonefile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Table answers queries from the zones of one directive of a server block. It is created by [New], [NewAuto] or
// [NewSecondary] and safe for concurrent use.
type Table struct {
	log     *slog.Logger
	changed func(*Zone)
	// zones are replaced as a whole when a directory gets or loses files.
	zones atomic.Pointer[map[wire.Name]*served]
	// within are the zones that the names must be in; nil: they may be any. It is for directories, which may
	// have zones of other names.
	within       []wire.Name
	fallsThrough bool
	// scale multiplies the bounds of the zones. keepsExpired says that zones of primary servers stay in service when they expire.
	scale        int
	keepsExpired bool
	// maintain keeps the zones up to date until its context ends.
	maintain func(ctx context.Context)
}

// served is a zone in service.
type served struct {
	origin  wire.Name
	through *config.Fallthrough
	data    atomic.Pointer[Zone] // nil until it is loaded, and when it has expired
	// secondary keeps the zone up to date; nil for a zone from a file.
	secondary *secondary
}

// Options holds what a Table needs beside its directives.
type Options struct {
	// Logger gets warnings; nil discards them.
	Logger *slog.Logger
	// Changed, if not nil, is called by [Table.Run] for each zone that is loaded when Run begins, and each time a
	// zone was loaded or replaced, after the new data are in service. It must not block. Zones of [NewSecondary] call it
	// from several goroutines.
	Changed func(*Zone)

	policies bool // the zones are response policy zones
}

// newTable returns a table without zones.
func newTable(opts Options) *Table {
	t := &Table{log: opts.Logger, changed: opts.Changed, scale: 1, keepsExpired: opts.policies}
	if opts.policies {
		t.scale = policyScale
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if t.changed == nil {
		t.changed = func(*Zone) {}
	}
	return t
}

// Run passes the zones that are loaded to Options.Changed, in the order of their names, and keeps them up to date until
// ctx ends: files, directories and primary servers are checked at their intervals.
func (t *Table) Run(ctx context.Context) {
	zones := *t.zones.Load()
	for _, origin := range slices.Sorted(maps.Keys(zones)) {
		if data := zones[origin].data.Load(); data != nil {
			t.changed(data)
		}
	}
	t.maintain(ctx)
}

// Answer writes the answer to q into r. Only with [authority.Leads] it allocates. The lead is what
// [Zone.Complete] needs then.
func (t *Table) Answer(q *wire.Query, r *wire.Reply) (authority.Outcome, authority.Lead) {
	z := t.zone(q.Name())
	if z == nil {
		return authority.NotMine, authority.Lead{}
	}
	if q.Type == wire.TypeDS && len(z.origin) == len(q.Name()) {
		z = cmp.Or(t.delegating(q.Name()), z)
	}
	if q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR {
		r.Fail(wire.Refused)
		return authority.Answered, authority.Lead{}
	}
	data := z.data.Load()
	if data == nil {
		r.Fail(wire.ServFail)
		return authority.NotLoaded, authority.Lead{}
	}
	a := answers.Get().(*answer)
	o, lead := a.run(data, q, r, z.through)
	a.z, a.q, a.r, a.through, a.name = nil, nil, nil, nil, nil // they may be gone before the next time
	clear(a.expanded[:a.wilds])
	answers.Put(a)
	return o, lead
}

// Contains reports whether name is in one of the zones. See [authority.Zones].
func (t *Table) Contains(name []byte) bool { return t.zone(name) != nil }

// zone returns the longest zone that has name, nil for none.
func (t *Table) zone(name []byte) *served {
	if t.within != nil && !slices.ContainsFunc(t.within, func(z wire.Name) bool { return wire.Under(name, z) }) {
		return nil
	}
	zones := *t.zones.Load()
	for rest := name; len(rest) > 0; rest = rest[min(len(rest), 1+int(rest[0])):] {
		if z := zones[wire.Name(rest)]; z != nil {
			return z
		}
	}
	return nil
}

// delegating returns the zone that delegates name, whose DS record it has (RFC 4035, 3.1.4.1); nil if that is not in the table.
func (t *Table) delegating(name []byte) *served {
	above := t.zone(name[min(len(name), 1+int(name[0])):])
	if above == nil {
		return nil
	}
	data := above.data.Load()
	if data == nil {
		return nil
	}
	if cut := data.node(name); !cut.ok() || cut.flags()&hasNS == 0 {
		return nil
	}
	return above
}

// FallsThrough reports whether a zone leaves some of its names to the next step, or names may become a zone's
// later.
func (t *Table) FallsThrough() bool { return t.fallsThrough }

// Records returns the number of records of all zones.
func (t *Table) Records() (n int) {
	for _, z := range *t.zones.Load() {
		if data := z.data.Load(); data != nil {
			n += data.records
		}
	}
	return n
}

// Size returns the bytes that all zones take in memory.
func (t *Table) Size() (n int) {
	for _, z := range *t.zones.Load() {
		if data := z.data.Load(); data != nil {
			n += data.Size()
		}
	}
	return n
}

// openFile reads the zones of f.
func (t *Table) openFile(f *config.ZoneFile) (*source, error) {
	path, err := filepath.Abs(f.Path)
	if err != nil {
		return nil, fmt.Errorf("zone file %s: %w", f.Path, err)
	}
	src := &source{t: t, changed: t.changed, cfg: f, file: filewatch.File{Path: path}}
	for _, origin := range f.Zones {
		z := &served{origin: origin, through: f.Fallthrough}
		src.zones = append(src.zones, z)
	}
	if _, err := src.file.Changed(); err != nil {
		if f.Reload == 0 {
			return nil, fmt.Errorf("zone file %s: %w; make it readable, or let it be read later with `reload`", f.Path, err)
		}
		t.log.Warn("can't open the zone file; trying again", "file", f.Path, "err", err)
		return src, nil
	}
	for _, z := range src.zones {
		if err := src.load(z, nil); err != nil {
			return nil, fmt.Errorf("zone file %s: zone %s: %w", f.Path, z.origin, err)
		}
	}
	return src, nil
}

// Data returns the current data of the zone with this name. See [authority.Zones].
func (t *Table) Data(origin wire.Name) (data authority.Data, served bool) {
	if z := t.Zone(origin); z != nil {
		return z, true
	}
	return nil, (*t.zones.Load())[origin] != nil
}

// Zone returns the current data of the zone with this name; nil if the table does not serve it, or its data
// could not be loaded yet.
func (t *Table) Zone(origin wire.Name) *Zone {
	if z := (*t.zones.Load())[origin]; z != nil {
		return z.data.Load()
	}
	return nil
}
