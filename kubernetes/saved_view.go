package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"sync"
	"time"
	"unique"

	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// A saved view is a file of gob values: a header, records in any order, and the SHA-256 of
// these. It is replaced atomically. It is read like untrusted input: [file.Open] opens it
// only if the agent's user wrote it, sizes and counts are checked before anything is
// decoded, and so is each record (see savedRecord.check). One invalid record rejects the
// whole file.

const (
	// saveInterval is how often a changed view is saved. A file of 5 MB for a large cluster
	// is then written 300 times a day at most.
	saveInterval = 5 * time.Minute
	// maxSavedBytes bounds the file. A view of 10,000 services and 100,000 endpoints is a
	// tenth of it.
	maxSavedBytes = 128 << 20
	// maxSavedRecords bounds the records. The largest clusters have 10,000 services and
	// 150,000 pods.
	maxSavedRecords = 1 << 20
	// maxRecordBytes bounds one record, and thereby the memory that decoding takes at once,
	// at most sixteen times as much. What handlers make is smaller: 4,096 ports and 1,000
	// endpoints with names are less than 1 MiB.
	maxRecordBytes = 4 << 20
	// maxTypeBytes bounds the type definitions, with room for the definitions of later versions.
	maxTypeBytes = 64 << 10
	// savedVersion is the version of the format. Files of other versions are not read.
	savedVersion = 1
)

// savedView is a view that is written to its file or read from it.
type savedView struct{ *View }

// viewSaver keeps the file of a view up to date.
type viewSaver struct {
	view *View
	path string // "" is none
	mu   sync.Mutex
	last uint64 // the view's number of changes when it was last saved
}

// Save writes the view to the file of `save`, if it has one, if the view is synced, and if anything has come since the
// last time. It blocks until then. Errors are logged. A view that is opened next, here or by another agent, goes on from
// there.
func (v *View) Save() {
	if v.saver.path != "" {
		v.saver.save()
	}
}

// run saves the view at each interval until ctx ends.
func (s *viewSaver) run(ctx context.Context) {
	tick := time.NewTicker(saveInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.save()
		case <-ctx.Done():
			return
		}
	}
}

// save saves the view if it is synced and has changed.
func (s *viewSaver) save() {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.view.changes.Load()
	if !s.view.Synced() || last == s.last {
		return
	}
	if err := file.Replace(s.path, savedView{s.view}.writeSaved); err != nil {
		s.view.log.Error("view not saved, file unchanged", "save", s.path, "err", err)
		return
	}
	s.last = last
}

// errTooLarge is a view that would not be read again.
var errTooLarge = fmt.Errorf("more than %d objects or %d bytes", maxSavedRecords, maxSavedBytes)

// writeSaved writes the records of v and their checksum.
func (v savedView) writeSaved(to io.Writer) error {
	head, records := v.savedRecords()
	if len(records) > maxSavedRecords {
		return errTooLarge
	}
	sum := sha256.New()
	b := bufio.NewWriter(&limitedWriter{io.MultiWriter(to, sum), maxSavedBytes - sha256.Size})
	enc := gob.NewEncoder(b)
	if err := enc.Encode(head); err != nil {
		return err
	}
	for _, r := range records {
		if err := enc.Encode(r()); err != nil {
			return err
		}
	}
	if err := b.Flush(); err != nil {
		return err
	}
	_, err := to.Write(sum.Sum(nil))
	return err
}

// limitedWriter fails with errTooLarge when more than left bytes are written.
type limitedWriter struct {
	to   io.Writer
	left int
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, errTooLarge
	}
	return l.to.Write(b)
}

// savedRecords returns the header and functions that return the records. The records'
// sources are immutable, so only the listing needs the lock.
func (v savedView) savedRecords() (savedHead, []func() savedRecord) {
	v.mu.RLock()
	before := v.positions()
	v.mu.RUnlock()
	policies, podLabels, knowsPolicies := v.policies.saved() // whose lock is taken before the view's
	observed := v.nodePods.saved()
	v.mu.RLock()
	defer v.mu.RUnlock()
	head := savedHead{
		Version: savedVersion, Made: v.fingerprint, Zone: v.converter.zone, At: time.Unix(0, v.lastEvent.Load()),
		Serial: v.serial.Load(), ImportSerial: v.importSerial.Load(), Level: v.index.level, Foreign: true, NoImports: !v.importsListed(),
		Conversion: conversionVersion, Policies: knowsPolicies, Observed: v.nodePods != nil,
	}
	if v.nodePods != nil {
		head.PodLabels = v.nodePods.labels
	}
	var list []func() savedRecord
	for i := range policies {
		list = append(list, func() savedRecord { return savedRecord{Policy: &policies[i]} })
	}
	for _, ns := range v.index.namespaces {
		rec := savedNamespace{Label: ns.label, Object: ns.hasObject, Whole: ns.complete, ClientMetrics: v.annotations.get(ns.label[1:])}
		list = append(list, func() savedRecord { return savedRecord{Namespace: &rec} })
	}
	for _, p := range v.index.pods {
		list = append(list, func() savedRecord { return savedRecord{Pod: p.saved(podLabels[p.name], observed[p.name])} })
	}
	for _, x := range []*index{&v.index, &v.imports} {
		for key, s := range x.services {
			if s.kind != orphan {
				list = append(list, func() savedRecord { return savedRecord{Service: newSavedService(s, key), Import: x == &v.imports} })
			}
		}
		for _, s := range x.slices {
			version := s.version // which changes, unlike the rest
			list = append(list, func() savedRecord { return savedRecord{Slice: s.saved(version), Import: x == &v.imports} })
		}
	}
	return head, append(list, v.sourceRecords(before)...)
}

// sourceRecords returns what a list gives besides the records of objects. before are the positions from before what is
// known of pods outside of the index was read. The view's lock is held.
func (v savedView) sourceRecords(before map[sourceKey]reflector.Position) (list []func() savedRecord) {
	for _, src := range v.index.sources {
		if src.names != nil && src.complete {
			rec := savedSource{src.key, make(map[string]uint64, len(src.names))}
			for key := range src.names {
				rec.Services[key] = src.floor[key]
			}
			list = append(list, func() savedRecord { return savedRecord{Source: &rec} })
		}
	}
	for source, p := range v.positions() {
		if source.Resource == pods {
			p = before[source] // what has come since is not in all of the records, and is sent again
		}
		if p.Version == 0 {
			continue
		}
		list = append(list, func() savedRecord { return savedRecord{Position: &savedPosition{source, p}} })
	}
	for _, f := range v.faults.faulty() {
		if rec := (savedFault{f.resource, f.ns, f.name}); v.savesFault(&rec) {
			list = append(list, func() savedRecord { return savedRecord{Fault: &rec} })
		}
	}
	return list
}

// savesFault reports whether f may be in a file: an older agent knows no policies, which are listed in any case.
func (v savedView) savesFault(f *savedFault) bool {
	return f.check() == nil && f.Resource != dnsPolicies && (f.Resource != endpointSlices || v.index.mayHaveSlice(f.NS, f.Name))
}

func (p *pod) saved(labels savedLabels, observed *savedNodePod) *savedPod {
	return &savedPod{
		Name: p.name, NS: p.ns, IPs: p.ips, Here: p.onNode, Host: p.hostNetwork, Ending: p.terminating, Shown: p.named, Labels: labels, Observed: observed,
	}
}

func newSavedService(s *service, key string) *savedService {
	r := &savedService{
		Key: key, Kind: s.kind, Ports: s.ports, Target: s.target, Selects: s.selects, Nearest: s.distribution,
		External4: s.external4, External6: s.external6,
	}
	if s.kind == clusterIP {
		r.V4, r.V6 = s.v4, s.v6
	}
	return r
}

func (s *slice) saved(version uint64) *savedSlice {
	r := &savedSlice{
		Name: s.name, Key: s.key, Cluster: s.cluster, Size: s.size, Addrs: s.addrs, Hosts: s.hosts, Ports: s.ports,
		Near: s.localities, Labelled: s.class == headlessSlice, Controlled: s.class == anySlice, Withheld: s.withheld, Version: version,
	}
	for _, z := range s.zones {
		text := ""
		if z != (zoneName{}) && len(z.Value()) <= wire.MaxName { // no query can name others
			text = z.Value()
		}
		r.Zones = append(r.Zones, text)
	}
	return r
}

// withoutExternal ends the fingerprint of a view without external addresses. Such a view can
// use the file of one that has them.
const withoutExternal = " without external addresses"

// errOtherConfig is a saved view of another configuration, node or version.
var errOtherConfig = errors.New("saved with other options, on another node or by another version")

// restore loads the file at path, if there is one for this configuration and node. The view
// then counts as synced and is as old as the file. An invalid file is logged, and the view
// starts empty.
func (v savedView) restore(path string) {
	fresh := newView(Options{Now: v.now, Epochs: v.index.epochs})
	fresh.index.nearestOnly = v.index.nearestOnly
	fresh.policies = v.policies.fresh(fresh)
	head, err := savedView{fresh}.loadFile(path, v.fingerprint)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		v.log.Warn("saved view unusable, waiting for the API server", "save", path, "err", err)
		return
	}
	if v.converter.zone == "" {
		v.converter.zone = head.Zone
	}
	v.restorePositions(fresh, &head)
	if head.Policies {
		v.policies.adopt(fresh.policies)
	}
	v.faults.objects = fresh.faults.objects
	v.index, v.imports, v.savedSources = fresh.index, fresh.imports, fresh.savedSources
	for key := range v.index.restored {
		if s := v.index.services[key]; s != nil {
			v.scope.noteUse(s.used) // so that they are watched again
		}
	}
	v.index.level = head.level()
	v.index.recompute()
	v.scope.level.Store(uint32(v.index.level))
	v.scope.restored = v.index.level
	v.serial.Store(head.Serial)
	v.importSerial.Store(head.ImportSerial)
	v.lastEvent.Store(head.At.UnixNano())
	v.savedWithoutImports = head.NoImports
	for r := range v.listed {
		v.listed[r].Store(!resource(r).forImports() || !head.NoImports)
	}
	v.syncTime.Store(int64(max(v.now().Sub(v.opened), 1)))
	v.log.Info("saved view restored", "save", path, "services", len(v.index.services),
		"endpointslices", len(v.index.slices), "age", v.now().Sub(head.At).Round(time.Second))
}

// restorePositions lets the view go on from where fresh is, which was loaded from a file with that header, if it can.
func (v savedView) restorePositions(fresh *View, head *savedHead) {
	if !v.resumable(head) {
		return
	}
	v.saved, v.savedZone, v.savedAnnotations, v.savedPods = fresh.saved, head.Zone, fresh.savedAnnotations, fresh.savedPods
	if !v.hasPods(head) {
		v.dropSaved(pods)
	}
}

// loadFile fills v, which must be empty, from the file at path. v must not be used after an
// error.
func (v savedView) loadFile(path, made string) (head savedHead, err error) {
	f, err := file.Open(path, maxSavedBytes)
	if err != nil {
		return head, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return head, err
	}
	size := st.Size() - sha256.Size
	if size < 0 {
		return head, errTruncated
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, size)); err != nil {
		return head, err
	}
	var sum [sha256.Size]byte
	if _, err := f.ReadAt(sum[:], size); err != nil {
		return head, err
	}
	if !bytes.Equal(h.Sum(nil), sum[:]) {
		return head, errors.New("wrong checksum")
	}
	return v.decodeRecords(io.NewSectionReader(f, 0, size), made)
}

// decodeRecords reads what precedes the checksum.
func (v savedView) decodeRecords(from io.Reader, made string) (head savedHead, err error) {
	m := gobMessages{from: bufio.NewReader(from)}
	dec := gob.NewDecoder(&m.decodable)
	if head, err = readHead(&m, dec, made); err != nil {
		return head, err
	}
	for n := 1; n <= maxSavedRecords; n++ {
		r, err := readRecord(&m, dec)
		if errors.Is(err, io.EOF) {
			return head, nil
		}
		if err != nil {
			return head, fmt.Errorf("record %d: %w", n, err)
		}
		v.putRecord(r)
	}
	if err := m.next(); !errors.Is(err, io.EOF) {
		return head, errTooLarge
	}
	return head, nil
}

func readHead(m *gobMessages, dec *gob.Decoder, made string) (head savedHead, err error) {
	if err = m.next(); err == nil {
		err = dec.Decode(&head)
	}
	if err != nil {
		return head, fmt.Errorf("reading the header: %w", err)
	}
	if head.Version != savedVersion || head.Made != made && head.Made+withoutExternal != made {
		return head, errOtherConfig
	}
	return head, head.check()
}

// readRecord reads the next record and checks it. At the end it returns io.EOF.
func readRecord(m *gobMessages, dec *gob.Decoder) (*savedRecord, error) {
	if err := m.next(); err != nil {
		return nil, err
	}
	var r savedRecord
	if err := dec.Decode(&r); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return &r, r.check()
}

// putRecord adds one checked record to the index.
func (v savedView) putRecord(r *savedRecord) {
	x := &v.index
	if r.Import {
		x = &v.imports
	}
	switch {
	case r.Namespace != nil:
		v.putNamespace(x.ensureNamespace(r.Namespace.Label), r.Namespace)
	case r.Service != nil:
		s := r.Service
		rec := service{
			kind: s.Kind, v4: s.V4, v6: s.V6, ports: s.Ports, target: s.Target, selects: s.Selects, distribution: s.Nearest,
			external4: s.External4, external6: s.External6,
		}
		x.fit(s.Key, &rec, new(faults))
		x.putService(s.Key, rec)
	case r.Slice != nil:
		x.putSlice(r.Slice.slice())
	case r.Pod != nil:
		p := r.Pod
		x.putPod(&pod{name: p.Name, ns: p.NS, label: []byte(p.NS), ips: p.IPs, onNode: p.Here, hostNetwork: p.Host, terminating: p.Ending, named: p.Shown})
		v.policies.restorePod(p)
		v.savedPods[p.Name] = p.Observed
	case r.Policy != nil:
		v.policies.put(r.Policy.record(), new(faults))
	case r.Position != nil:
		v.saved[r.Position.Source] = r.Position.Position
	case r.Source != nil:
		v.savedSources[r.Source.Key] = r.Source.Services
		maps.Copy(x.restored, servicesOf(r.Source.Services))
	case r.Fault != nil:
		v.faults.restore(faultKey{r.Fault.Resource, r.Fault.NS, r.Fault.Name})
	}
}

// putNamespace sets the fields of ns.
func (v savedView) putNamespace(ns *namespace, saved *savedNamespace) {
	ns.hasObject, ns.complete = saved.Object, saved.Whole
	if ns.complete {
		ns.reverseUsed.Store(v.scope.tick.Load()) // so that it is watched again
	}
	if saved.ClientMetrics != "" {
		v.savedAnnotations[ns.label[1:]] = saved.ClientMetrics
	}
}

// slice returns s as a record of the index.
func (s *savedSlice) slice() *slice {
	sl := &slice{
		name: s.Name, key: s.Key, cluster: s.Cluster, size: s.Size, addrs: s.Addrs, hosts: s.Hosts, ports: s.Ports,
		localities: s.Near, class: s.class(), withheld: s.Withheld, version: s.Version,
	}
	for _, text := range s.Zones {
		var z zoneName
		if text != "" {
			z = unique.Make(text)
		}
		sl.zones = append(sl.zones, z)
	}
	return sl
}
