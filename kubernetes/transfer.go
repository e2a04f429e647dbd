package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// A zone transfer sends a [Snapshot]: pointers to the immutable values of all Services at one moment. The records are made
// while they are sent. Only headless Services need their slices; those that are not in view are requested, if the
// directive's scope allows it.
//
// The serial is a time in seconds. Once a snapshot has been taken, the next change gets a later serial
// (see [zoneSerial.change]), so that one serial never stands for two versions. Slices that leave the view change it, too: later
// changes of them would go unnoticed.

const (
	// maxTransferServices bounds a snapshot to 2.4 MB. Kubernetes is tested with 10,000 Services.
	maxTransferServices = 100_000
	// maxSnapshotAttempts bounds how often a snapshot is taken again because the view has changed meanwhile. An attempt takes
	// some milliseconds.
	maxSnapshotAttempts = 16
)

var (
	errNotSynced    = errors.New("the view of the cluster has not received its first lists")
	errManyServices = fmt.Errorf("the cluster has more than %d Services", maxTransferServices)
	errUnstable     = errors.New("the view of the cluster changes all the time")
)

// keyedService is a service with its key.
type keyedService struct {
	key string
	*service
}

// Snapshot is a version of a zone with Services. It is immutable, but [Snapshot.All] is for one goroutine at a time.
type Snapshot struct {
	zone        *Zone
	external    *External // nil for a zone of `kubernetes`
	origin      *origin
	serial      uint32
	nameservers []keyedService // that select the agent
	services    []keyedService // by namespace and name in wire form
}

// soa returns o's SOA record.
func (o *origin) soa(ttl, serial uint32) wire.RR {
	data := append([]byte(o.server), o.name...)
	data = append(append(data, o.mailbox...), o.name...)
	for _, v := range [...]uint32{serial, 7200, 1800, 86400, ttl} {
		data = append(data, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return wire.RR{Owner: []byte(o.name), Type: wire.TypeSOA, TTL: min(ttl, soaTTL), Data: data}
}

// current returns the current version of the zone of s, which has no Services.
func (s *Snapshot) current(ctx context.Context) (*Snapshot, error) {
	for {
		more := s.zone.view.scope.more()
		taken, err := s.take()
		if err != nil {
			return nil, err
		}
		missing, err := taken.requireHeadless()
		if missing == 0 || err != nil {
			return taken, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, fmt.Errorf("the endpoints of %d namespaces are not in view: %w", missing, ctx.Err())
		}
	}
}

// take is current with services whose slices are perhaps not in view.
func (s *Snapshot) take() (*Snapshot, error) {
	empty, v := *s, s.zone.view
	if !v.syncedFor(empty.origin) {
		return nil, errNotSynced
	}
	for range maxSnapshotAttempts {
		s := new(empty)
		s.serial = v.reserveSerial(s.origin)
		for key, svc := range (selectingServices{v, nil}).each {
			s.nameservers = append(s.nameservers, keyedService{key, svc})
		}
		current, err := s.collectServices()
		if err != nil {
			return nil, err
		}
		if current {
			slices.SortFunc(s.services, func(a, b keyedService) int {
				return cmp.Or(cmp.Compare(namespaceOf(a.key), namespaceOf(b.key)), cmp.Compare(a.key, b.key))
			})
			return s, nil
		}
	}
	return nil, errUnstable
}

// collectServices adds the services of the zone to s. It reports whether s.serial still is the zone's.
func (s *Snapshot) collectServices() (current bool, err error) {
	z, v := s.zone, s.zone.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := v.indexFor(s.origin.imports).services
	if len(all) > maxTransferServices {
		return false, errManyServices
	}
	s.services = make([]keyedService, 0, len(all))
	for key, svc := range all {
		if svc.kind != orphan && (s.external == nil || s.external.has(key, svc)) && z.exposesLocked(namespaceOf(key)) {
			s.services = append(s.services, keyedService{key, svc})
		}
	}
	return s.origin.serial.Load() == s.serial, nil
}

// requireHeadless requests the slices of the services whose endpoints are in s. It returns the number of namespaces whose slices are
// not in view. If they are too many for the scope, it requests nothing.
func (s *Snapshot) requireHeadless() (missing int, err error) {
	needed, absent := map[string]struct{}{}, map[string]struct{}{}
	for svc := range s.headless {
		needed[svc.ns.label] = struct{}{}
		if !svc.complete {
			absent[svc.ns.label] = struct{}{}
		}
	}
	if err := s.zone.view.fitsScope(needed, absent); err != nil {
		return len(absent), err
	}
	for svc := range s.headless {
		s.zone.view.requireSlices(svc, nil)
	}
	return len(absent), nil
}

// headless yields the services whose endpoints have records in s.
func (s *Snapshot) headless(yield func(*service) bool) {
	for _, svc := range s.services {
		if svc.kind == headless && (s.external == nil || !svc.externallyReachable()) && !yield(svc.service) {
			return
		}
	}
}

// countUnion returns how many labels are in set or list. list has each label once.
func countUnion(set map[string]struct{}, list []string) int {
	n := len(set)
	for _, label := range list {
		if _, dup := set[label]; !dup {
			n++
		}
	}
	return n
}
