// Package hosts answers from a hosts(5) file and from lines of the same form in
// the Corefile.
//
// The lines become two maps, both keyed by what a query carries, its qname in wire
// form: names to addresses, and reverse names to names. They are built once and
// never changed; Run looks at the file's time and size and puts new maps in the
// place of the old ones when they differ, so that a query reads without a lock and
// sees one state of the file.
//
// An address query for a name that is there is answered, with NODATA if only the
// other family is. A name that is not there goes on to the next step if
// `fallthrough` says so and is SERVFAIL otherwise: a hosts file has no SOA, and
// NXDOMAIN without one is a denial without a life. A reverse name that is not there
// always goes on, because no zone is claimed by listing some of its addresses. A
// name `*.zone` stands for all names one label below zone that have no line of
// their own (RFC 4592).
package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxFileSize bounds the file, which is read whole. A block list of a million names has
// about 30 MB; half as much would refuse it, twice as much would let one mistyped
// path take memory that a node's agent has not got.
const maxFileSize = 32 << 20

var (
	errTooLarge   = fmt.Errorf("it is larger than %d MiB", maxFileSize>>20)
	errNotRegular = errors.New("it is not a regular file")
)

// Table is safe for concurrent use. [New] makes it.
type Table struct {
	cfg     config.Hosts
	log     *slog.Logger
	records atomic.Pointer[records]

	// What the file looked like when it was last read or failed to be; nil if it
	// was not there. Only New and Run touch it.
	lastInfo fs.FileInfo
}

// Options are what a Table needs beside its directive.
type Options struct {
	// Logger gets the warnings; nil drops them.
	Logger *slog.Logger
}

// New reads the file once. One that does not exist is a warning, as it is to
// CoreDNS: it may come. One that can't be read is an error. Lines that say nothing
// are skipped, with a warning that has their number.
func New(cfg *config.Hosts, opts Options) (*Table, error) {
	t := &Table{cfg: *cfg, log: opts.Logger}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.records.Store(t.buildRecords(nil))
	info, err := os.Stat(t.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		t.log.Warn("the file does not exist; it is read as soon as it does", "file", t.cfg.File)
		return t, nil
	}
	if err == nil {
		err = t.load(info)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w; name another file or none, or make this one readable", t.cfg.File, err)
	}
	return t, nil
}

// Run looks at the file every `reload` until ctx ends, and reads it when its time,
// its size or the file itself is another. A file that goes away or can't be read
// leaves what was read before in place. With `reload 0` it only waits.
func (t *Table) Run(ctx context.Context) {
	if t.cfg.Reload <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(t.cfg.Reload)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.reloadIfChanged()
		}
	}
}

// reloadIfChanged reads the file if it has changed. A failure is logged once, not at every
// look.
func (t *Table) reloadIfChanged() {
	info, err := os.Stat(t.cfg.File)
	if err != nil {
		if t.lastInfo != nil {
			t.log.Warn("the file can't be looked at; the last state stays", "file", t.cfg.File, "error", err)
		}
		t.lastInfo = nil
		return
	}
	if t.lastInfo != nil && os.SameFile(info, t.lastInfo) && info.ModTime().Equal(t.lastInfo.ModTime()) && info.Size() == t.lastInfo.Size() {
		return
	}
	if err := t.load(info); err != nil {
		t.log.Warn("the file can't be read; the last state stays", "file", t.cfg.File, "error", err)
		return
	}
	t.log.Info("read the file", "file", t.cfg.File, "entries", t.Entries())
}

// load reads the file that info was got from.
func (t *Table) load(info fs.FileInfo) error {
	t.lastInfo = info
	if !info.Mode().IsRegular() { // to open a pipe would wait for its writer
		return errNotRegular
	}
	f, err := os.Open(t.cfg.File)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return err
	}
	if len(text) > maxFileSize {
		return errTooLarge
	}
	t.records.Store(t.buildRecords(text))
	return nil
}

// Entries is the number of addresses and reverse names held: coredns_hosts_entries.
func (t *Table) Entries() int { return t.records.Load().entries }

// Answer makes r the answer to q and reports true, or reports false if the next
// step has to answer; r is untouched then. It does not allocate.
func (t *Table) Answer(q *wire.Query, r *wire.Reply) bool {
	v := t.records.Load()
	if q.Type == wire.TypePTR {
		return t.answerReverse(v, q, r)
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
	switch q.Type {
	case wire.TypeA:
		for i := range h.v4 {
			r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, t.cfg.TTL, h.v4[i][:])
		}
	case wire.TypeAAAA:
		for i := range h.v6 {
			r.Add(wire.Answer, wire.AtQuestion, wire.TypeAAAA, t.cfg.TTL, h.v6[i][:])
		}
	}
	return true
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

// inZones reports whether name, lower case, is in one of zones; none means all.
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
