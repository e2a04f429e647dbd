package kubernetes

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// savedHead is the header of the file.
type savedHead struct {
	Version int
	// Made is the fingerprint of the options and the node that shaped the records. Zone is
	// the node's topology zone, if the API server has told it.
	Made, Zone           string
	At                   time.Time
	Serial, ImportSerial uint32
	Level                level
	// Foreign says that levelWide has the slices of foreignSource.
	Foreign bool
	// NoImports says that the resources of `multicluster` had not been listed.
	NoImports bool
	// Policies says that the file has the DNSPolicies and the labels of pods.
	Policies bool
	// Observed says that the file has what is observed of the node's pods, with the values of the labels PodLabels.
	Observed  bool
	PodLabels []string
	// Conversion is the [conversionVersion] of the records. Older agents have none.
	Conversion int
}

// level returns the level of the file. Without the slices of foreignSource, levelWide is not
// sufficient for any Service.
func (h *savedHead) level() level {
	if h.Level == levelWide && !h.Foreign {
		return levelNode
	}
	return h.Level
}

// savedRecord is one record: exactly one of the pointers is set.
type savedRecord struct {
	Namespace *savedNamespace
	Service   *savedService
	Slice     *savedSlice
	Pod       *savedPod
	Position  *savedPosition
	Fault     *savedFault
	Source    *savedSource
	Policy    *savedPolicy
	// Import says that the service or slice belongs to the multicluster zones.
	Import bool
}

type savedNamespace struct {
	Label         string
	Object, Whole bool
	// ClientMetrics is the value of [ClientMetricsAnnotation].
	ClientMetrics string
}

type savedService struct {
	Key                  string
	Kind                 serviceKind
	V4, V6               string
	Ports                portList
	Target               wire.Name
	Selects              bool
	Nearest              trafficDistribution
	External4, External6 string
}

type savedSlice struct {
	Name, Key, Cluster string
	Size               int
	Addrs              string
	Hosts              []string
	Ports              portList
	Near               string
	Zones              []string
	// Labelled is a headlessSlice, Controlled one of anySlice. An agent that doesn't know
	// Controlled leaves it out.
	Labelled, Controlled bool
	Withheld             bool
	// Version is the resourceVersion. It counts only if the slices' positions do: the server's versions may have been set
	// back since.
	Version uint64
}

type savedPod struct {
	Name, NS           string
	IPs                []string
	Here, Host, Ending bool
	Shown              bool
	Labels             savedLabels // for DNSPolicies
	Observed           *savedNodePod
}

// savedNodePod is a [NodePod] without what its savedPod has.
type savedNodePod struct {
	UID                        string
	WorkloadKind, WorkloadName string
	Ndots                      uint8
	HasNdots                   bool
	Labels                     string
}

// savedPosition is how far the view was. The records are what a list at that version gives.
type savedPosition struct {
	Source   sourceKey
	Position reflector.Position
}

// savedSource is a source of single Services, whose slices are all in the file.
type savedSource struct {
	Key      string
	Services map[string]uint64 // the source's floor by their keys
}

// savedFault is an object with faults.
type savedFault struct {
	Resource resource
	NS, Name string
}

// class returns the class of s.
func (s *savedSlice) class() sliceClass {
	switch {
	case s.Labelled:
		return headlessSlice
	case s.Controlled:
		return anySlice
	}
	return foreignSlice
}

// gobMessages splits a stream of gob values into messages, so that sizes are checked before
// anything is decoded. A message is its length and that many bytes, which begin with the id
// of the value's type; a negative id defines that type.
type gobMessages struct {
	from *bufio.Reader
	// decodable holds the checked messages; the decoder reads from it.
	decodable bytes.Buffer
	typeBytes int // size of all type definitions
}

var (
	errTruncated      = errors.New("truncated file")
	errNotGob         = errors.New("not a gob stream")
	errRecordTooLarge = fmt.Errorf("a record exceeds %d bytes", maxRecordBytes)
)

// next appends the messages up to the end of the next value to decodable. At the end of the
// stream it returns io.EOF.
func (m *gobMessages) next() error {
	for {
		head, err := m.from.Peek(1)
		if err != nil {
			return err // io.EOF after a complete message
		}
		head, _ = m.from.Peek(uintBytes(head[0]))
		size, n := gobUint(head)
		if n == 0 {
			return errTruncated
		}
		if size > maxRecordBytes {
			return errRecordTooLarge
		}
		m.decodable.Write(head[:n])
		_, _ = m.from.Discard(n) // it is in the buffer
		id, err := m.from.Peek(1)
		if err != nil {
			return errTruncated
		}
		id, _ = m.from.Peek(min(uintBytes(id[0]), int(size)))
		number, n := gobUint(id)
		if n == 0 {
			return errNotGob
		}
		if _, err := io.CopyN(&m.decodable, m.from, int64(size)); err != nil {
			return errTruncated
		}
		if number&1 == 0 { // the lowest bit is the sign
			return nil
		}
		if m.typeBytes += int(size); m.typeBytes > maxTypeBytes {
			return fmt.Errorf("type definitions exceed %d bytes", maxTypeBytes)
		}
	}
}

// uintBytes returns the length of a gob's unsigned integer that begins with b. More than 9
// is invalid.
func uintBytes(b byte) int {
	if b < 0x80 {
		return 1
	}
	return 1 + int(^b) + 1
}

// gobUint reads a gob's unsigned integer: one byte below 128, or the negated number of
// bytes that follow. n is its length, 0 if b does not hold all of it.
func gobUint(b []byte) (x uint64, n int) {
	if len(b) == 0 || uintBytes(b[0]) > min(len(b), 9) {
		return 0, 0
	}
	if b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	n = uintBytes(b[0])
	for _, c := range b[1:n] {
		x = x<<8 | uint64(c)
	}
	return x, n
}

// invalid returns the error for a value of a record.
func invalid(what string, value any) error {
	return fmt.Errorf("invalid %s %q", what, fmt.Sprint(value))
}

// check returns an error if no view can have the header h.
func (h *savedHead) check() error {
	if h.Level > levelAll {
		return invalid("level", int(h.Level))
	}
	if at := h.At.Year(); at < 1970 || at >= 2262 { // the range of Unix nanoseconds
		return invalid("time", h.At.Format(time.RFC3339))
	}
	return nil
}

// check returns an error if r can't be made from an object. It accepts all that handlers
// make: otherwise a tenant who creates an object could prevent a node's view from being
// restored. A record without a known field comes from a later version and is ignored.
func (r *savedRecord) check() error {
	var results []error
	if r.Namespace != nil {
		results = append(results, r.Namespace.check(r.Import))
	}
	if r.Service != nil {
		results = append(results, r.Service.check(r.Import))
	}
	if r.Slice != nil {
		results = append(results, r.Slice.check(r.Import))
	}
	if r.Pod != nil {
		results = append(results, r.Pod.check(r.Import))
	}
	if r.Position != nil {
		results = append(results, r.Position.check())
	}
	if r.Fault != nil {
		results = append(results, r.Fault.check())
	}
	if r.Source != nil {
		results = append(results, r.Source.check(r.Import))
	}
	if r.Policy != nil {
		results = append(results, r.Policy.check(r.Import))
	}
	if len(results) > 1 {
		return fmt.Errorf("%d objects in one record", len(results))
	}
	return errors.Join(results...)
}

func (n *savedNamespace) check(imported bool) error {
	if !isLabels(n.Label, 1) || imported || len(n.ClientMetrics) > maxAnnotation {
		return invalid("namespace", n.Label)
	}
	return nil
}

// requirement is a condition that a record must meet, and the value that it is about.
type requirement struct {
	holds bool
	what  string
	value any
}

// firstViolated returns an error for the first requirement that is not met.
func firstViolated(list ...requirement) error {
	for _, c := range list {
		if !c.holds {
			return invalid(c.what, c.value)
		}
	}
	return nil
}

func (s *savedService) check(imported bool) error {
	return firstViolated(
		requirement{isLabels(s.Key, 2), "key", s.Key},
		requirement{s.Kind != orphan && s.Kind <= externalName, "kind", int(s.Kind)},
		requirement{areAddresses(s.V4, s.V6), "addresses", s.V4 + s.V6},
		requirement{s.Kind == clusterIP || s.V4+s.V6 == "", "addresses", s.V4 + s.V6},
		requirement{areAddresses(s.External4, s.External6), "external addresses", s.External4 + s.External6},
		requirement{s.Ports.wellFormed(), "ports", string(s.Ports)},
		requirement{s.Target == "" || isTarget(s.Target), "target", string(s.Target)},
		requirement{s.Nearest <= preferSameNode, "distance", int(s.Nearest)},
		requirement{!imported || s.Kind != externalName, "kind of import", int(s.Kind)},
		requirement{!imported || string(s.Target)+s.External4+s.External6 == "", "import's outside", s.Key},
	)
}

func (s *savedSlice) check(imported bool) error {
	if s.Size != 4 && s.Size != 16 {
		return invalid("size of addresses", s.Size)
	}
	if !isLabels(s.Key, 2) {
		return invalid("key", s.Key)
	}
	n := len(s.Addrs) / s.Size
	all := func(have int) bool { return have == 0 || have == n }
	if err := firstViolated(
		requirement{len(s.Addrs)%s.Size == 0 && (!s.Withheld || n == 0), "addresses", s.Addrs},
		requirement{isObjectKey(s.Name, namespaceOf(s.Key)), "name", s.Name},
		requirement{s.Cluster == "" || imported, "cluster", s.Cluster},
		requirement{s.Cluster == "" || isLabels(s.Cluster, 1), "cluster", s.Cluster},
		requirement{s.Ports.wellFormed(), "ports", string(s.Ports)},
		requirement{all(len(s.Hosts)), "number of hosts", len(s.Hosts)},
		requirement{all(len(s.Near)), "number of places", len(s.Near)},
		requirement{all(len(s.Zones)), "number of zones", len(s.Zones)},
	); err != nil {
		return err
	}
	return s.checkEndpoints(n)
}

// checkEndpoints checks the n endpoints.
func (s *savedSlice) checkEndpoints(n int) error {
	for i := range n {
		if err := s.checkEndpoint(i); err != nil {
			return err
		}
	}
	return nil
}

// checkEndpoint checks endpoint i and its order, by address and hostname.
func (s *savedSlice) checkEndpoint(i int) error {
	addr, host, zone := s.endpoint(i)
	if unpackAddr(addr).Is4In6() {
		return invalid("address", addr)
	}
	if host != "" && lowerLabel(host) != host {
		return invalid("host", host)
	}
	if zone != "" && !isLabels(zone, -1) {
		return invalid("zone", zone)
	}
	if i == 0 {
		return nil
	}
	before, beside, _ := s.endpoint(i - 1)
	if cmp.Or(strings.Compare(before, addr), strings.Compare(beside, host)) >= 0 {
		return invalid("order of addresses and hosts", s.Name)
	}
	return nil
}

// endpoint returns the values of endpoint i.
func (s *savedSlice) endpoint(i int) (addr, host, zone string) {
	addr = s.Addrs[i*s.Size : (i+1)*s.Size]
	if len(s.Hosts) > 0 {
		host = s.Hosts[i]
	}
	if len(s.Zones) > 0 {
		zone = s.Zones[i]
	}
	return addr, host, zone
}

func (p *savedPod) check(imported bool) error {
	if imported || !isLabels(p.NS, 1) || !isObjectKey(p.Name, p.NS) {
		return invalid("pod", p.Name)
	}
	for _, ip := range p.IPs {
		if a, ok := netip.AddrFromSlice([]byte(ip)); !ok || a.Is4In6() {
			return invalid("pod IP", ip)
		}
	}
	if p.Observed == nil {
		return nil
	}
	return p.Observed.check()
}

func (p *savedNodePod) check() error {
	return firstViolated(
		requirement{p.UID == "" || isUID(p.UID), "UID", p.UID},
		requirement{isKind(p.WorkloadKind), "kind", p.WorkloadKind},
		requirement{len(p.WorkloadName) <= maxObjectName && strings.Trim(p.WorkloadName, nameBytes) == "", "workload", p.WorkloadName},
		requirement{p.Ndots <= highestNdots, "ndots", int(p.Ndots)},
		requirement{areLabelValues(p.Labels), "values of labels", p.Labels},
	)
}

// nameBytes are the bytes of an object's name. The name of a Deployment, as cut off that of a ReplicaSet, may end in any.
const nameBytes = "abcdefghijklmnopqrstuvwxyz0123456789-."

// areLabelValues reports whether text may be [NodePod.Labels].
func areLabelValues(text string) bool {
	for value := range strings.SplitSeq(text, "\x00") {
		if len(value) > validation.LabelValueMaxLength {
			return false
		}
	}
	return text == "" || strings.HasSuffix(text, "\x00")
}

func (p *savedPosition) check() error {
	if p.Source.Resource >= numResources || len(p.Source.Scope) > maxObjectName || p.Position.Version == 0 {
		return invalid("position", p.Source.Scope)
	}
	for _, o := range p.Position.Newest {
		if !isSavedVersion(o) {
			return invalid("object of a position", o.Name)
		}
	}
	return nil
}

func (s *savedSource) check(imported bool) error {
	for key := range s.Services {
		if !isLabels(key, 2) {
			return invalid("key", key)
		}
	}
	set := servicesOf(s.Services)
	number, ok := strings.CutPrefix(s.Key, namesPrefix)
	if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil || imported || len(set) == 0 || set.selectorBytes() > maxSelectorBytes {
		return invalid("source", s.Key)
	}
	return nil
}

// isSavedVersion reports whether o, which requests will name, may be in a file.
func isSavedVersion(o reflector.ObjectVersion) bool {
	return (o.Namespace == "" || isObjectName(o.Namespace)) && isObjectName(o.Name) && o.Version > 0
}

func (f *savedFault) check() error {
	if f.Resource >= numResources || len(f.NS) > maxObjectName || len(f.Name) > maxObjectName {
		return invalid("object with faults", f.Name)
	}
	return nil
}

// isLabels reports whether s is n labels in wire form as [appendLabel] writes them, without
// a root. A negative n is any number but zero.
func isLabels(s string, n int) bool {
	for ; s != "" && n != 0; n-- {
		end := 1 + int(s[0])
		if end > len(s) || lowerLabel(s[1:end]) != s[1:end] || end == 1 {
			return false
		}
		s = s[end:]
	}
	return s == "" && n <= 0
}

// maxObjectName is the longest name of an object: an RFC 1123 subdomain.
const maxObjectName = 253

// isObjectKey reports whether s is an [objectKey] in the namespace of that label.
func isObjectKey(s, namespace string) bool {
	ns, name, ok := strings.Cut(s, "/")
	return ok && name != "" && len(name) <= maxObjectName && !strings.Contains(name, "/") && lowerLabel(ns) == namespace[1:]
}

// areAddresses reports whether v4 and v6 are packed addresses of their families without
// duplicates.
func areAddresses(v4, v6 string) bool {
	return distinctAddrs(v4, 4) && distinctAddrs(v6, 16)
}

func distinctAddrs(packed string, size int) bool {
	if len(packed)%size != 0 {
		return false
	}
	list := make([]string, 0, len(packed)/size)
	for ; packed != ""; packed = packed[size:] {
		if unpackAddr(packed[:size]).Is4In6() {
			return false
		}
		list = append(list, packed[:size])
	}
	slices.Sort(list)
	return len(slices.Compact(list)) == cap(list)
}

// isTarget reports whether [parseExternalName] can return name.
func isTarget(name wire.Name) bool {
	if len(name) > wire.MaxName || name == wire.Root {
		return false
	}
	for rest := string(name); rest != ""; {
		n := int(rest[0])
		if n == 0 {
			return len(rest) == 1
		}
		if n > wire.MaxLabel || 1+n > len(rest) {
			return false
		}
		if strings.IndexFunc(rest[1:1+n], invalidInTarget) >= 0 {
			return false
		}
		rest = rest[1+n:]
	}
	return false
}

// invalidInTarget reports whether no label of [parseExternalName] contains c.
func invalidInTarget(c rune) bool {
	return c <= ' ' || c > '~' || c == '\\' || c == '.' || 'A' <= c && c <= 'Z'
}
