// Internal: makes invalid records.

package kubernetes

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// encodeSaved returns a saved view of those values, with its checksum.
func encodeSaved(t testing.TB, values ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := gob.NewEncoder(&b)
	for _, v := range values {
		noError(t, enc.Encode(v))
	}
	return appendChecksum(b.Bytes())
}

func appendChecksum(data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(bytes.Clone(data), sum[:]...)
}

// fingerprintOf returns the header of a saved view of cfg.
func fingerprintOf(t *testing.T, cfg *config.Kubernetes) savedHead {
	v, _ := openSaved(t, cfg)
	return savedHead{Version: savedVersion, Made: v.fingerprint, At: testClock()}
}

// wantRefused opens a view with the file of cfg, which must be rejected as a whole, with
// one log line that contains want.
func wantRefused(t *testing.T, cfg *config.Kubernetes, want string) {
	t.Helper()
	v, log := openSaved(t, cfg)
	if v.Synced() || v.index.dump()+v.imports.dump() != "" {
		t.Errorf("synced %v, and holds:\n%s", v.Synced(), v.index.dump()+v.imports.dump())
	}
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, want) {
		t.Errorf("log %q, want one line with %q", log, want)
	}
}

// A file that another user could have written is not read and does not block the start.
func TestSavedViewFileOwner(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	text := encodeSaved(t, fingerprintOf(t, savedConfig(t, good)), savedRecord{Namespace: &savedNamespace{Label: "\x01a", Object: true}})
	put := func(mode os.FileMode) func(string) error {
		return func(path string) error { return errors.Join(os.WriteFile(path, text, 0o600), os.Chmod(path, mode)) }
	}
	noError(t, put(0o600)(good))
	if v, log := openSaved(t, savedConfig(t, good)); !v.Synced() {
		t.Fatalf("the file that is right is refused: %s", log)
	}
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"a pipe":           {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"a folder":         {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		"a link":           {func(path string) error { return os.Symlink(good, path) }, "symbolic link"},
		"group may write":  {put(0o620), "others may write"},
		"others may write": {put(0o602), "others may write"},
		"far too long":     {func(path string) error { return errors.Join(put(0o600)(path), os.Truncate(path, maxSavedBytes+1)) }, "at most"},
		"somebody else's":  {func(path string) error { return errors.Join(put(0o600)(path), os.Chown(path, 12345, 0)) }, "another user"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := c.make(path); errors.Is(err, syscall.EPERM) {
				t.Skip("only root can give files away")
			} else if err != nil {
				t.Fatal(err)
			}
			wantRefused(t, savedConfig(t, path), c.want)
		})
	}
}

// invalidRecords are records that no object can produce, by their fault.
var invalidRecords = map[string]savedRecord{
	"namespace without a label":      {Namespace: &savedNamespace{}},
	"namespace cut off":              {Namespace: &savedNamespace{Label: "\x05a"}},
	"namespace of two labels":        {Namespace: &savedNamespace{Label: "\x01a\x01b"}},
	"namespace of imports":           {Namespace: &savedNamespace{Label: "\x01a"}, Import: true},
	"service without a key":          {Service: &savedService{Kind: clusterIP}},
	"service with one label":         {Service: &savedService{Key: "\x01s", Kind: clusterIP}},
	"service with a label cut off":   {Service: &savedService{Key: "\x01s\x3fx", Kind: clusterIP}},
	"service with a label too long":  {Service: &savedService{Key: "\x40" + strings.Repeat("x", 64) + "\x01n", Kind: clusterIP}},
	"service with an empty label":    {Service: &savedService{Key: "\x00\x01n", Kind: clusterIP}},
	"service in upper case":          {Service: &savedService{Key: "\x01S\x01n", Kind: clusterIP}},
	"service with a dot":             {Service: &savedService{Key: "\x03a.b\x01n", Kind: clusterIP}},
	"service of no kind":             {Service: &savedService{Key: "\x01s\x01n"}},
	"service of an unknown kind":     {Service: &savedService{Key: "\x01s\x01n", Kind: externalName + 1}},
	"service with an odd address":    {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, V4: "\x01\x02\x03"}},
	"service with an odd v6 address": {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, V6: "\x01\x02\x03\x04"}},
	"service with v4 in v6":          {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, V6: strings.Repeat("\x00", 10) + "\xff\xff\x0a\x00\x00\x01"}},
	"service with one address twice": {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, V4: "\x01\x02\x03\x04\x01\x02\x03\x04"}},
	"headless with an address":       {Service: &savedService{Key: "\x01s\x01n", Kind: headless, V4: "\x01\x02\x03\x04"}},
	"external address too short":     {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, External4: "\x01"}},
	"port cut off":                   {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, Ports: "\x01\x00\x50"}},
	"port with a name cut off":       {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, Ports: "\x01\x00\x50\x09http"}},
	"port without a protocol":        {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, Ports: "\x00\x00\x50\x04http"}},
	"port of an unknown protocol":    {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, Ports: "\x04\x00\x50\x04http"}},
	"port in upper case":             {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, Ports: "\x01\x00\x50\x04HTTP"}},
	"port with too long a name":      {Service: &savedService{Key: "\x01s\x01n", Kind: clusterIP, Ports: portList("\x01\x00\x50\x3f" + strings.Repeat("x", 63))}},
	"target without a root":          {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: "\x03com"}},
	"target that is the root":        {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: wire.Root}},
	"target with more behind":        {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: "\x03com\x00\x01x"}},
	"target cut off":                 {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: "\x3fcom"}},
	"target with a pointer":          {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: "\xc0\x0c"}},
	"target too long":                {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: wire.Name(strings.Repeat("\x3f"+strings.Repeat("x", 63), 4) + "\x00")}},
	"distance unknown":               {Service: &savedService{Key: "\x01s\x01n", Kind: headless, Nearest: preferSameNode + 1}},
	"import of an alias":             {Service: &savedService{Key: "\x01s\x01n", Kind: externalName, Target: "\x03com\x00"}, Import: true},
	"source of a namespace":          {Source: &savedSource{Key: "\x01n", Services: map[string]uint64{"\x01s\x01n": 1}}},
	"source without a number":        {Source: &savedSource{Key: namesPrefix, Services: map[string]uint64{"\x01s\x01n": 1}}},
	"source of nothing":              {Source: &savedSource{Key: namesPrefix + "1"}},
	"source of a name cut off":       {Source: &savedSource{Key: namesPrefix + "1", Services: map[string]uint64{"\x01s\x05n": 1}}},
	"source of imports":              {Source: &savedSource{Key: namesPrefix + "1", Services: map[string]uint64{"\x01s\x01n": 1}}, Import: true},
	"source of too many names":       {Source: &savedSource{Key: namesPrefix + "1", Services: manyServices()}},
	"slice of size 0":                {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Addrs: "\x01\x02\x03\x04"}},
	"slice of a negative size":       {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: -4, Addrs: "\x01\x02\x03\x04"}},
	"slice of size 5":                {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 5, Addrs: "\x01\x02\x03\x04\x05"}},
	"slice with half an address":     {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 16, Addrs: "\x01\x02\x03\x04"}},
	"slice with v4 in v6":            {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 16, Addrs: strings.Repeat("\x00", 10) + "\xff\xff\x0a\x00\x00\x01"}},
	"slice without a key":            {Slice: &savedSlice{Name: "n/b", Size: 4}},
	"slice without a name":           {Slice: &savedSlice{Name: "n/", Key: "\x01s\x01n", Size: 4}},
	"slice without a namespace":      {Slice: &savedSlice{Name: "b", Key: "\x01s\x01n", Size: 4}},
	"slice in another namespace":     {Slice: &savedSlice{Name: "m/b", Key: "\x01s\x01n", Size: 4}},
	"slice with too long a name":     {Slice: &savedSlice{Name: "n/" + strings.Repeat("x", maxObjectName+1), Key: "\x01s\x01n", Size: 4}},
	"slice out of order":             {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x02\x02\x03\x04\x01\x02\x03\x04"}},
	"slice with one address twice":   {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04\x01\x02\x03\x04"}},
	"slice with too few hosts":       {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04\x02\x02\x03\x04", Hosts: []string{"h"}}},
	"slice with hosts alone":         {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Hosts: []string{"h"}}},
	"slice with a host too long":     {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04", Hosts: []string{strings.Repeat("x", 64)}}},
	"slice with a host with a dot":   {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04", Hosts: []string{"a.b"}}},
	"slice with too many places":     {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04", Near: "\x80\x80"}},
	"slice with too few zones":       {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04\x02\x02\x03\x04", Zones: []string{"\x02z1"}}},
	"slice with a zone cut off":      {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Addrs: "\x01\x02\x03\x04", Zones: []string{"\x09z1"}}},
	"slice with a port cut off":      {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Ports: "\x01"}},
	"slice of a cluster, no import":  {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Cluster: "\x01c"}},
	"slice of a cluster cut off":     {Slice: &savedSlice{Name: "n/b", Key: "\x01s\x01n", Size: 4, Cluster: "\x09c"}, Import: true},
	"pod without a namespace":        {Pod: &savedPod{Name: "n/p"}},
	"pod in another namespace":       {Pod: &savedPod{Name: "m/p", NS: "\x01n"}},
	"pod with an odd address":        {Pod: &savedPod{Name: "n/p", NS: "\x01n", IPs: []string{"\x01\x02\x03"}}},
	"pod without an address":         {Pod: &savedPod{Name: "n/p", NS: "\x01n", IPs: []string{""}}},
	"pod with an odd UID":            {Pod: observedPod(savedNodePod{UID: "a b", WorkloadKind: "Pod", WorkloadName: "p"})},
	"pod with an odd workload":       {Pod: observedPod(savedNodePod{WorkloadKind: "Pod", WorkloadName: "p p"})},
	"pod with an odd controller":     {Pod: observedPod(savedNodePod{WorkloadKind: "{}", WorkloadName: "p"})},
	"pod with a high ndots":          {Pod: observedPod(savedNodePod{WorkloadKind: "Pod", WorkloadName: "p", Ndots: 16})},
	"pod with half a label":          {Pod: observedPod(savedNodePod{WorkloadKind: "Pod", WorkloadName: "p", Labels: "a"})},
	"pod with a long label":          {Pod: observedPod(savedNodePod{WorkloadKind: "Pod", WorkloadName: "p", Labels: strings.Repeat("a", 64) + "\x00"})},
	"pod of imports":                 {Pod: &savedPod{Name: "n/p", NS: "\x01n"}, Import: true},
	"annotation too long":            {Namespace: &savedNamespace{Label: "\x01a", ClientMetrics: strings.Repeat("x", maxAnnotation+1)}},
	"position of no resource":        {Position: &savedPosition{Source: sourceKey{Resource: numResources}, Position: reflector.Position{Version: 1}}},
	"position of too long a scope":   {Position: &savedPosition{Source: sourceKey{Scope: strings.Repeat("x", maxObjectName+1)}, Position: reflector.Position{Version: 1}}},
	"position without a version":     {Position: &savedPosition{}},
	"position with a path":           {Position: &savedPosition{Position: reflector.Position{Version: 1, Newest: []reflector.ObjectVersion{{Namespace: "a/b", Name: "x", Version: 1}}}}},
	"position with no name":          {Position: &savedPosition{Position: reflector.Position{Version: 1, Newest: []reflector.ObjectVersion{{Version: 1}}}}},
	"position with no version":       {Position: &savedPosition{Position: reflector.Position{Version: 1, Newest: []reflector.ObjectVersion{{Name: "x"}}}}},
	"faults of no resource":          {Fault: &savedFault{Resource: numResources}},
	"faults of too long a name":      {Fault: &savedFault{Name: strings.Repeat("x", maxObjectName+1)}},
	"two in one":                     {Pod: &savedPod{Name: "n/p", NS: "\x01n"}, Namespace: &savedNamespace{Label: "\x01n"}},
}

// A record that no object can produce rejects the whole file.
func TestSavedRecordsAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	head := fingerprintOf(t, cfg)
	good := savedRecord{Service: &savedService{Key: "\x03web\x01n", Kind: clusterIP, V4: "\x0a\x00\x00\x01"}}
	for name, r := range invalidRecords {
		t.Run(name, func(t *testing.T) {
			noError(t, os.WriteFile(path, encodeSaved(t, head, good, r, good), 0o600))
			wantRefused(t, cfg, "record 2: ")
		})
	}
	for name, spoil := range map[string]func(*savedHead){
		"level":      func(h *savedHead) { h.Level = levelAll + 1 },
		"early time": func(h *savedHead) { h.At = time.Time{} },
		"late time":  func(h *savedHead) { h.At = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		t.Run(name, func(t *testing.T) {
			h := head
			spoil(&h)
			noError(t, os.WriteFile(path, encodeSaved(t, h, good), 0o600))
			wantRefused(t, cfg, "invalid ")
		})
	}
}

// An object's name may have the maximum length.
func TestSavedLongestName(t *testing.T) {
	for n, want := range map[int]bool{maxObjectName: true, maxObjectName + 1: false} {
		p := savedPod{Name: "n/" + strings.Repeat("x", n), NS: "\x01n"}
		if err := p.check(false); (err == nil) != want {
			t.Errorf("a name of %d bytes: %v", n, err)
		}
	}
}

// A file that needs more than the allowed memory is rejected before it is decoded.
func TestSavedViewIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	whole := encodeSaved(t, fingerprintOf(t, cfg))
	head := whole[:len(whole)-sha256.Size]
	define := func() (b []byte) { // a type of one field, again and again
		for range maxTypeBytes / 16 {
			b = append(b, "\x10\xff\x81\x03\x01\x01\x01A\x01\xff\x82\x00\x01\x01\x01B\x00"...)
		}
		return b
	}
	for name, c := range map[string]struct {
		more []byte
		want string
	}{
		"a message as long as memory":  {[]byte("\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\x02"), "a record exceeds"},
		"a message longer than most":   {append([]byte("\xfc\x00\x40\x00\x01"), make([]byte, maxRecordBytes+1)...), "a record exceeds"},
		"a message longer than itself": {[]byte("\x7f\x02"), "truncated"},
		"a length cut off":             {[]byte("\xfc\x01"), "truncated"},
		"a length of ten bytes":        {[]byte("\xf6\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01"), "truncated"},
		"an empty message":             {[]byte("\x00\x00"), "not a gob stream"},
		"types without end":            {define(), "type definitions exceed"},
		"no values":                    {[]byte("\x03\x80\x01\x02"), "record 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			noError(t, os.WriteFile(path, appendChecksum(append(bytes.Clone(head), c.more...)), 0o600))
			wantRefused(t, cfg, c.want)
		})
	}
	if n, err := (&limitedWriter{new(bytes.Buffer), 3}).Write([]byte("four")); n != 0 || !errors.Is(err, errTooLarge) {
		t.Errorf("a view without end is written: %d bytes, error %v", n, err)
	}
}

// Whatever objects a tenant creates, the saved file can be read.
func TestSavedViewAcceptsHandlerRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	cfg.Zonal, cfg.EndpointPodNames = true, true
	v, _ := openSaved(t, cfg)
	v.nodePods = newNodePods(func(netip.Addr, NodePod) {}, []string{"odd"})
	for i := range v.listed {
		v.listed[i].Store(true)
	}
	for i, name := range []string{"a..b", "a b", "1.2.3.4", ".", "!~#.X-_", "fd00::1", strings.Repeat("x", 64), strings.Repeat("x.", 127), strings.Repeat("x.", 128), `a\.b`, "é", "k8s.io."} {
		s := makeService("Upper", fmt.Sprintf("Alias%d", i), "")
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, name
		s.Spec.ExternalIPs = []string{"::ffff:192.0.2.1", "192.0.2.1", "fd00::1%eth0", "2001:db8::1", "junk"}
		handlerFixture{v, services}.put(s)
		s = makeService("Upper", fmt.Sprintf("Balanced_%d", i), "::ffff:10.0.0.1")
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "10.0.0.1", "fd00::1", "fd00::1")
		s.Spec.Ports = []corev1.ServicePort{{Name: name, Port: int32(i * 9000)}, {Name: "X", Port: 1}, {Protocol: "SCTP", Port: 2}, {Protocol: "no", Port: 2}}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: name}}
		handlerFixture{v, services}.put(s)
		es := makeSlice("Upper", fmt.Sprintf("Balanced_%d", i), fmt.Sprintf("s%d", i), "10.1.0.2", "10.1.0.1", "10.1.0.1", "::ffff:10.1.0.1", "junk")
		zone := strings.Repeat("z.", i*30) + "Z"
		for j := range es.Endpoints {
			es.Endpoints[j].Hostname, es.Endpoints[j].Zone = &name, &zone
		}
		handlerFixture{v, endpointSlices}.put(es)
		es = makeSlice("Upper", fmt.Sprintf("Balanced_%d", i), fmt.Sprintf("six%d", i), "::ffff:10.1.0.1", "fd00::2", "fd00::1")
		es.AddressType = discoveryv1.AddressTypeIPv6
		handlerFixture{v, endpointSlices}.put(es)
		handlerFixture{v, pods}.put(makePod("Upper", fmt.Sprintf("p%d", i), "::ffff:10.1.0.1", "10.1.0.1", "junk", "fd00::1"))
		handlerFixture{v, pods}.put(oddPod(i))
	}
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	back, log := openSaved(t, cfg)
	if !back.Synced() {
		t.Fatalf("refused: %s", log)
	}
	if d := cmp.Diff(strings.Split(v.index.dump(), "\n"), strings.Split(back.index.dump(), "\n")); d != "" {
		t.Errorf("-before +after:\n%s", d)
	}
}

// oddPod is a pod whose UID, labels and controller an API server does not check.
func oddPod(i int) *corev1.Pod {
	isController := true
	p := makePod("odd", fmt.Sprint("p", i), "10.2.0.1")
	p.UID = types.UID(strings.Repeat("u", 20*i))
	p.Labels = map[string]string{"odd": strings.Repeat("\xff", 20*i), "pod-template-hash": "h"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: strings.Repeat("a", i) + "--h", Controller: &isController}}
	return p
}

// observedPod is a pod of which that is observed.
func observedPod(observed savedNodePod) *savedPod {
	return &savedPod{Name: "n/p", NS: "\x01n", Observed: &observed}
}

// Reading any data before a right checksum, and querying the result, does not panic.
func FuzzRestore(f *testing.F) {
	head := savedHead{Version: savedVersion, Made: "m", At: testClock(), Level: levelAll}
	unsealed := func(values ...any) []byte {
		b := encodeSaved(f, values...)
		return b[:len(b)-sha256.Size]
	}
	all := []any{head}
	for _, r := range invalidRecords {
		f.Add(unsealed(head, r))
		all = append(all, r)
	}
	f.Add(unsealed(all...))
	f.Add(randomSavedView(f))
	f.Add(unsealed(head, savedRecord{Policy: &savedPolicy{Namespace: "n", Name: "p", Selector: "a in (b)", Allow: "\x01\x01a\x00", Services: "\x01n\x00", Size: 2}},
		savedRecord{Pod: &savedPod{Name: "n/p", NS: "\x01n", IPs: []string{"\x0a\x00\x00\x01"}, Here: true, Labels: savedLabels{Labels: map[string]string{"a": "b"}}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		v := newView(Options{Now: testClock})
		v.policies = newPolicySet(v, dnspolicy.NewTable(), nil, nil)
		v.policies.restored = true
		if _, err := (savedView{v}).decodeRecords(bytes.NewReader(data), "m"); err == nil {
			queryEverything(t, v)
		}
	})
}

// randomSavedView is a saved view with every kind of record, without its checksum.
func randomSavedView(t testing.TB) []byte {
	v := openText(t, multiclusterConfig(t), cluster)
	testImports(t, v)
	handlerFixture{v, pods}.put(makePod("default", "p", "10.1.0.1", "fd00::1"))
	v.fingerprint = "m"
	var b bytes.Buffer
	noError(t, (savedView{v}).writeSaved(&b))
	return b.Bytes()[:b.Len()-sha256.Size]
}

// FuzzSavedRecord is FuzzRestore for records with fuzzed fields, which reach the index more
// often.
func FuzzSavedRecord(f *testing.F) {
	f.Add(byte(1), "\x03web\x01n", "\x0a\x00\x00\x01", "", "\x01\x00\x50\x04http", "", "\x0a\x00\x00\x01", "", false)
	f.Add(byte(3), "\x03web\x01n", "", "", "", "\x03com\x00", "", "", false)
	f.Add(byte(4), "\x02db\x01n", "\x0a\x00\x00\x01\x0a\x00\x00\x02", "h1,h2", "\x01\x00\x50\x04http", "\x02z1,\x02z1", "\x80\x40", "", false)
	f.Add(byte(4), "\x02db\x01n", "\x0a\x00\x00\x01\x0a\x00\x00\x02", "h1,h2", "\x01\x00\x50\x04http", "", "", "\x04east", true)
	f.Add(byte(16), "\x02db\x01n", "0123456789abcdef", "", "", "", "", "", false)
	f.Fuzz(func(t *testing.T, sort byte, key, addrs, hosts, list, target, near, cluster string, imported bool) {
		r := savedRecord{Import: imported}
		split := func(s string) []string {
			if s == "" {
				return nil
			}
			return strings.Split(s, ",")
		}
		switch sort {
		case 0, 1, 2, 3:
			r.Service = &savedService{Key: key, Kind: serviceKind(sort), V4: addrs, Ports: portList(list), Target: wire.Name(target), External4: near, External6: hosts}
		case 4, 16:
			r.Slice = &savedSlice{Name: "n/x", Key: key, Size: int(sort), Addrs: addrs, Hosts: split(hosts), Ports: portList(list), Near: near, Zones: split(target), Cluster: cluster}
		default:
			r.Pod = &savedPod{Name: hosts, NS: key, IPs: split(addrs)}
		}
		if r.check() != nil {
			return
		}
		v := newView(Options{Now: testClock})
		v.index.level = levelAll
		savedView{v}.putRecord(&savedRecord{Service: &savedService{Key: "\x02db\x01n", Kind: headless}, Import: imported})
		savedView{v}.putRecord(&r)
		queryEverything(t, v)
	})
}

// queryEverything queries v for every name that it has.
func queryEverything(t *testing.T, v *View) {
	for i := range v.listed {
		v.listed[i].Store(true)
	}
	cfg := multiclusterConfig(t)
	cfg.Zonal = true
	all := []answers{NewZone(v, cfg), NewExternal(v, &config.K8sExternal{Zones: names(t, "example.org", "in-addr.arpa", "ip6.arpa"), Apex: "dns", TTL: 5, Headless: true}, cfg)}
	var list []string
	for _, x := range []*index{&v.index, &v.imports} {
		for key, s := range x.services {
			below := []string{"", "\x05_http\x04_tcp", "\x02z1\x03pin\x05_zone"}
			for _, sl := range s.slices {
				for i := range min(sl.len(), 5) {
					host := sl.hostname(i)
					below = append(below, string(rune(len(host)))+host, string(rune(len(host)))+host+sl.cluster)
				}
			}
			for _, front := range below {
				for _, zone := range []string{"\x03svc\x07cluster\x05local", "\x03svc\x0aclusterset\x05local", "\x07example\x03org"} {
					list = append(list, front+key+zone+"\x00")
				}
			}
		}
		for _, m := range []map[addrKey]struct{}{keysOf(x.clusterIPs), keysOf(x.endpoints), keysOf(x.podIPs), keysOf(x.externalAddrs)} {
			for at := range m {
				name, err := dns.ReverseAddr(unpackAddr(string(at[:])).Unmap().String())
				if err == nil {
					packed, _ := wire.ParseName(name)
					list = append(list, string(packed))
				}
			}
		}
	}
	for _, name := range list {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME} {
			queryName(t, all, name, qtype)
		}
	}
	v.Stats()
}

func keysOf[T comparable](m map[addrKey]refSet[T]) map[addrKey]struct{} {
	keys := make(map[addrKey]struct{}, len(m))
	for at := range m {
		keys[at] = struct{}{}
	}
	return keys
}

func queryName(t *testing.T, all []answers, name string, qtype uint16) {
	packet := append([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"), name...)
	packet = append(packet, byte(qtype>>8), byte(qtype), 0, 1)
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		return // longer than a name can be
	}
	for _, z := range all {
		var r wire.Reply
		r.Start(nil, &q)
		z.Answer(&q, &r, nil)
		m := new(dns.Msg)
		if err := m.Unpack(r.Finish(wire.MaxMessage)); err != nil {
			t.Fatalf("the reply to %q %d can't be read: %v", name, qtype, err)
		}
	}
}

// manyServices returns the keys of more Services than a label selector has room for.
func manyServices() map[string]uint64 {
	keys := map[string]uint64{}
	for i := range 100 {
		key, _ := serviceKey(fmt.Sprintf("%s-%02d", strings.Repeat("x", 60), i), "n")
		keys[key] = 0
	}
	return keys
}
