// Package hosts answers from a hosts(5) file and from lines of the same form in the
// Corefile.
//
// The lines are kept in two maps from a qname in wire format: one from names to addresses,
// one from reverse names to names. The maps never change once they are built. [Table.Run]
// replaces them if the file has changed, so that queries need no lock and see a consistent
// state.
//
// An address query for a listed name is answered, with NODATA if the name only has
// addresses of the other family. For a name that is not listed, the query goes to the next
// step if `fallthrough` allows it, and is answered SERVFAIL otherwise: NXDOMAIN needs an
// SOA record (RFC 2308, 3), which a hosts file lacks. A reverse name that is not listed
// always goes to the next step, because listing some addresses of a zone does not claim the
// zone. A name `*.zone` stands for all names one label below zone that have no line of
// their own (RFC 4592).
package hosts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxFileSize bounds the file, which is read as a whole. A block list of a million names
// has about 30 MB.
const maxFileSize = 32 << 20

// Table answers queries from the lines. It is created by [New] and safe for concurrent use.
type Table struct {
	cfg     config.Hosts
	log     *slog.Logger
	records atomic.Pointer[records]
	file    filewatch.File // only New and Run use it
	epochs  *epoch.Table   // see [Options.Epochs]
	// epoch is the counter of the records, which copies of answers share while Run runs; only New and Run use it.
	epoch   epoch.Value
	version uint32 // its value
}

// Options holds what a Table needs beside its directive.
type Options struct {
	// Logger gets warnings; nil discards them.
	Logger *slog.Logger
	// Epochs has a counter for the copies of answers; nil: there are none.
	Epochs *epoch.Table
}

// New reads the file. If it does not exist, New logs a warning, as CoreDNS does, because
// the file may appear later. If it can't be read, New returns an error. Invalid lines are
// skipped with a warning.
func New(cfg *config.Hosts, opts Options) (*Table, error) {
	t := &Table{cfg: *cfg, log: opts.Logger, file: filewatch.File{Path: cfg.File}, epochs: opts.Epochs}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.records.Store(t.buildRecords(nil))
	_, err := t.file.Changed()
	if errors.Is(err, fs.ErrNotExist) {
		t.log.Warn("hosts file does not exist; waiting for it", "file", t.cfg.File)
		return t, nil
	}
	if err == nil {
		err = t.load()
	}
	if err != nil {
		return nil, fmt.Errorf("hosts file: %w; name another file or none, or make this one readable", err)
	}
	return t, nil
}

// Run checks the file every `reload` until ctx ends, and reads it again if it has changed
// ([filewatch.File.Changed]). If the file disappears or can't be read, the table keeps its
// state. With `reload 0` Run only waits for ctx. Call it once.
func (t *Table) Run(ctx context.Context) {
	t.epoch = t.epochs.AcquireValue()
	t.publish(*t.records.Load())
	defer func() {
		shared := t.epoch
		t.epoch = epoch.Value{}
		t.publish(*t.records.Load()) // of which no copies are made any more
		shared.Store(t.version)
		t.epochs.Release(shared)
	}()
	filewatch.Every(ctx, t.cfg.Reload, t.reloadIfChanged)
}

// publish makes v the records. Their counter moves before, so that copies of the former answers end.
func (t *Table) publish(v records) {
	t.version++
	t.epoch.Store(t.version)
	v.mark = epoch.Mark{Index: t.epoch.Index, Value: uint64(t.version)}
	t.records.Store(&v)
}

// Mark returns the mark of all answers, and of the names that are not listed. When it no longer matches, a copy of
// them may be outdated. Its index is 0 if copies can't be made: without [Options.Epochs], and while [Table.Run] does
// not run. The caller reads it before [Table.Answer].
func (t *Table) Mark() epoch.Mark { return t.records.Load().mark }

// reloadIfChanged reads the file if it has changed. It logs a failure once.
func (t *Table) reloadIfChanged() {
	changed, err := t.file.Changed()
	if !changed {
		return
	}
	if err != nil {
		t.log.Warn("can't check the hosts file; keeping the last state", "file", t.cfg.File, "err", err)
		return
	}
	if err := t.load(); err != nil {
		t.log.Warn("can't read the hosts file; keeping the last state", "file", t.cfg.File, "err", err)
		return
	}
	t.log.Info("hosts file loaded", "file", t.cfg.File, "entries", t.Entries())
}

// load reads the file and puts its lines into service.
func (t *Table) load() error {
	text, err := filewatch.Read(t.cfg.File, maxFileSize)
	if err != nil {
		return err
	}
	v := t.buildRecords(text)
	v.modTime = t.file.ModTime()
	t.publish(*v)
	return nil
}

// File returns the path of the hosts file.
func (t *Table) File() string { return t.cfg.File }

// Entries returns the number of addresses and reverse names, for coredns_hosts_entries.
func (t *Table) Entries() int { return t.records.Load().entries }

// ModTime returns the modification time of the file that was read last, the zero time if none was.
func (t *Table) ModTime() time.Time { return t.records.Load().modTime }

// Answer writes the answer to q into r and returns true, or returns false if the next step
// has to answer; r is then unchanged. It does not allocate.
func (t *Table) Answer(q *wire.Query, r *wire.Reply) bool {
	v := t.records.Load()
	if q.Type == wire.TypePTR {
		return t.answerReverse(v, q, r)
	}
	if q.Type == wire.TypeANY && t.answerReverse(v, q, r) {
		return true
	}
	if !inZones(q.Name(), t.cfg.Zones) {
		return false
	}
	h := v.lookup(q.Name())
	if h == nil {
		if t.cfg.Fallthrough != nil && inZones(q.Name(), t.cfg.Fallthrough.Zones) {
			return false
		}
		r.Fail(wire.ServFail)
		return true
	}
	r.Reset()
	r.SetAuthoritative()
	t.addAddrs(h, q.Type, r)
	return true
}

// addAddrs adds h's addresses of qtype.
func (t *Table) addAddrs(h *host, qtype uint16, r *wire.Reply) {
	if qtype == wire.TypeANY { // one RRset (RFC 8482, 4.1)
		if qtype = wire.TypeA; len(h.v4) == 0 {
			qtype = wire.TypeAAAA
		}
	}
	switch qtype {
	case wire.TypeA:
		for i := range h.v4 {
			r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, t.cfg.TTL, h.v4[i][:])
		}
	case wire.TypeAAAA:
		for i := range h.v6 {
			r.Add(wire.Answer, wire.AtQuestion, wire.TypeAAAA, t.cfg.TTL, h.v6[i][:])
		}
	}
}

func (t *Table) answerReverse(v *records, q *wire.Query, r *wire.Reply) bool {
	names := v.reverse[wire.Name(q.Name())]
	if len(names) == 0 {
		return false
	}
	r.Reset()
	r.SetAuthoritative()
	for _, rdata := range names {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, t.cfg.TTL, rdata)
	}
	return true
}

// inZones reports whether name, in lower case, is in one of zones; an empty list contains
// all names.
func inZones(name []byte, zones []wire.Name) bool {
	if len(zones) == 0 {
		return true
	}
	for rest := name; len(rest) > 0; rest = rest[min(len(rest), 1+int(rest[0])):] {
		if slices.ContainsFunc(zones, func(z wire.Name) bool { return string(rest) == string(z) }) {
			return true
		}
	}
	return false
}
