package kubernetes

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// maxPodIPs bounds the addresses that are read of a pod. Kubernetes has one of each family.
const maxPodIPs = 16

// convertPod converts a Pod to a record. node is the agent's node; shown selects the pods
// that may have names. It returns nil if the namespace can't be a label, or if the pod has
// ended: its addresses may already belong to other pods. The result shares no memory with
// o.
func convertPod(o *corev1.Pod, node string, shown labels.Selector, f *faults) *pod {
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	ns, ok := namespaceKey(o.Namespace)
	if !ok {
		f.add("namespace %q is not a DNS label", o.Namespace)
		return nil
	}
	p := &pod{
		name: objectKey(o.Namespace, o.Name), ns: ns, label: []byte(ns),
		named:  shown == nil || shown.Matches(labels.Set(o.Labels)),
		onNode: node != "" && o.Spec.NodeName == node, hostNetwork: o.Spec.HostNetwork, terminating: o.DeletionTimestamp != nil,
	}
	for _, ip := range atMost(o.Status.PodIPs, maxPodIPs, "pod IPs", f) {
		p.addIP(ip.IP, f)
	}
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		p.addIP(o.Status.PodIP, f)
	}
	return p
}

func (p *pod) addIP(text string, f *faults) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		f.add("pod IP %q is not an IP address", text)
		return
	}
	p.ips = append(p.ips, packAddr(a.Unmap()))
}

// pod is what DNS knows of a Pod. It is immutable.
type pod struct {
	name string // namespace/name of the object
	ns   string // the namespace's label in wire form
	ips  []string
	// onNode says that the pod is on the agent's node, hostNetwork that it has the node's
	// addresses, terminating that it is about to lose its own.
	onNode, hostNetwork, terminating bool
	// named says that the pod may have a name (`labels`). Other pods count, too: they may
	// have been given the address.
	named bool
	// label is ns as bytes, for queries.
	label []byte
}

// compare orders the pods of an address by namespace and name.
func (p *pod) compare(q *pod) int {
	if c := strings.Compare(p.ns, q.ns); c != 0 {
		return c
	}
	return strings.Compare(p.name, q.name)
}

// awaitsAddr reports whether p will get an address that is not known yet.
func (p *pod) awaitsAddr() bool {
	return p.onNode && len(p.ips) == 0 && !p.hostNetwork && !p.terminating
}

// maxAddrWait bounds the time for which a pod without an address makes the clients of its
// node uncertain. Most have one after seconds; one whose volume can't be mounted never has
// one, and tenants can make such pods.
const maxAddrWait = 30 * time.Second

// addrWait is the wait of a pod for its address. The view's lock guards it.
type addrWait struct {
	limited bool // a timer runs, or has run
	over    bool // for longer than maxAddrWait
}

func (p *pod) same(q *pod) bool {
	return p.ns == q.ns && p.onNode == q.onNode && p.hostNetwork == q.hostNetwork && p.terminating == q.terminating && p.named == q.named && slices.Equal(p.ips, q.ips)
}

// appendDashed appends the label of a packed address: its text form with dashes in place of
// dots and colons. A label must not end in a dash, so an IPv6 address that ends in "::"
// gets a zero.
func appendDashed(b []byte, addr string) []byte {
	start := len(b)
	b = unpackAddr(addr).AppendTo(b)
	for i := start; i < len(b); i++ {
		if b[i] == '.' || b[i] == ':' {
			b[i] = '-'
		}
	}
	if b[len(b)-1] == '-' {
		b = append(b, '0')
	}
	return b
}

// parseDashed parses an address with dashes. Three single dashes are an IPv4 address;
// otherwise dashes stand for colons. An IPv4-mapped IPv6 address is returned as IPv4.
func parseDashed(text []byte) (addr packedAddr, ok bool) {
	if bytes.Count(text, dash) == 3 && !bytes.Contains(text, doubleDash) {
		return parseDashedIPv4(text)
	}
	return parseDashedIPv6(text)
}

// packedAddr is an address in RDATA form that needs no heap memory: the first size bytes, 4
// or 16. The zero value is no address.
type packedAddr struct {
	bytes [16]byte
	size  uint8
}

var (
	dash       = []byte("-")
	doubleDash = []byte("--")
)

func parseDashedIPv4(text []byte) (a packedAddr, ok bool) {
	a.size = 4
	for i := range 4 {
		part := text
		if i < 3 {
			end := bytes.IndexByte(text, '-')
			part, text = text[:end], text[end+1:]
		}
		v, ok := parseOctet(part)
		if !ok {
			return packedAddr{}, false
		}
		a.bytes[i] = v
	}
	return a, true
}

// parseOctet parses one byte of an IPv4 address. Leading zeros are invalid: some parsers
// take them for octal.
func parseOctet(part []byte) (byte, bool) {
	if len(part) == 0 || len(part) > 3 || len(part) > 1 && part[0] == '0' {
		return 0, false
	}
	v := 0
	for _, c := range part {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = 10*v + int(c-'0')
	}
	return byte(v), v <= 255
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// parseDashedIPv6 parses groups of one to four hex digits between dashes. "--" stands for
// one or more groups of zeros and appears at most once (RFC 4291, section 2.2).
func parseDashedIPv6(text []byte) (packedAddr, bool) {
	var b [16]byte
	n, gap := 0, -1
	if bytes.HasPrefix(text, doubleDash) {
		gap, text = 0, text[2:]
	}
	for len(text) > 0 {
		v, digits := hexGroup(text)
		if digits == 0 || digits > 4 || n == len(b) {
			return packedAddr{}, false
		}
		b[n], b[n+1] = byte(v>>8), byte(v)
		n += 2
		var sep separator
		switch sep, text = cutSeparator(text[digits:]); {
		case sep == badSeparator, sep == gapSeparator && gap >= 0:
			return packedAddr{}, false
		case sep == gapSeparator:
			gap = n
		}
	}
	return expandGap(b, n, gap)
}

// hexGroup reads the hex digits at the start of text, at most five.
func hexGroup(text []byte) (v, digits int) {
	for digits < len(text) && digits < 5 {
		d, ok := hexDigit(text[digits])
		if !ok {
			break
		}
		v = v<<4 | int(d)
		digits++
	}
	return v, digits
}

// separator is what follows a group of hex digits.
type separator uint8

const (
	badSeparator separator = iota
	noSeparator
	dashSeparator
	gapSeparator
)

// cutSeparator reads the separator at the start of text and returns the rest. Only a double
// dash may end the text.
func cutSeparator(text []byte) (separator, []byte) {
	switch {
	case len(text) == 0:
		return noSeparator, text
	case bytes.HasPrefix(text, doubleDash):
		return gapSeparator, text[2:]
	case text[0] == '-' && len(text) > 1:
		return dashSeparator, text[1:]
	}
	return badSeparator, text
}

// expandGap inserts the zeros that "--" stands for. n bytes of b are set; gap is where the
// zeros belong, -1 if nowhere.
func expandGap(b [16]byte, n, gap int) (a packedAddr, ok bool) {
	switch {
	case gap < 0 && n != 16, gap >= 0 && n == 16:
		return a, false
	case gap >= 0:
		tail := n - gap
		var whole [16]byte
		copy(whole[:], b[:gap])
		copy(whole[16-tail:], b[gap:n])
		b = whole
	}
	return packedAddr{bytes: b, size: 16}.unmap(), true
}

// unmap returns the IPv4 address of an IPv4-mapped IPv6 address, and other addresses
// unchanged.
func (a packedAddr) unmap() packedAddr {
	for i, c := range a.bytes[:12] {
		want := byte(0)
		if i >= 10 {
			want = 0xFF
		}
		if c != want {
			return a
		}
	}
	out := packedAddr{size: 4}
	copy(out.bytes[:], a.bytes[12:])
	return out
}

// equals reports whether a is the packed address addr.
func (a *packedAddr) equals(addr string) bool { return string(a.bytes[:a.size]) == addr }
