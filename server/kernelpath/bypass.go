package kernelpath

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
)

// MaxDoH is the largest number of addresses in [BypassOptions.DoH].
const MaxDoH = int(programBoundMAX_DOH)

// BypassOptions say that packets of clients to other DNS servers than the agent are counted: those to the ports 53 (RFC 1035)
// and 853 (RFC 7858, RFC 9250) of any address that is no listener.
type BypassOptions struct {
	// Reporter receives the numbers. It is not nil.
	Reporter BypassReporter
	// DoH are addresses of servers whose port 443 (RFC 8484) counts, too, at most [MaxDoH].
	DoH []netip.Addr
}

// BypassReporter receives numbers of packets to other DNS servers.
type BypassReporter interface {
	// ReportBypass receives the number of packets since its last call with b, at least one; over TCP only the first of
	// each connection counts. It is called by [Program.Sweep], and must not call the Program.
	ReportBypass(b Bypass, n uint64)
}

// Bypass is a client and another DNS server that it sends packets to.
type Bypass struct {
	Client netip.Addr
	Server netip.AddrPort
	TCP    bool
}

// Protocol returns what the port is for: udp, tcp, tls, quic, https or http3.
func (b Bypass) Protocol() string {
	names := map[uint16][2]string{53: {"udp", "tcp"}, 853: {"quic", "tls"}, 443: {"http3", "https"}}[b.Server.Port()]
	return names[flag(b.TCP)]
}

// bypassCounts reads what the program has counted. It is safe for concurrent use.
type bypassCounts struct {
	mu       sync.Mutex
	counts   *ebpf.Map
	reporter BypassReporter // nil: nothing is counted
	reported map[programBypass]uint64
	// keys and values are scratch space for counts.
	keys   []programBypass
	values []uint64
}

// prepareBypass gives spec the DoH servers of o. If that is nil, the maps have hardly any memory.
func prepareBypass(spec *ebpf.CollectionSpec, o *BypassOptions) error {
	if o == nil {
		spec.Maps[programMapBypasses].MaxEntries, spec.Maps[programMapDohServers].MaxEntries = 1, 1
		return nil
	}
	if len(o.DoH) > MaxDoH {
		return fmt.Errorf("%d addresses of DoH servers; at most %d", len(o.DoH), MaxDoH)
	}
	for _, addr := range o.DoH {
		doh := spec.Maps[programMapDohServers]
		doh.Contents = append(doh.Contents, ebpf.MapKV{Key: newClient(addr), Value: uint32(1)})
	}
	return nil
}

// open makes b read the counts for the reporter.
func (b *bypassCounts) open(counts *ebpf.Map, reporter BypassReporter) {
	size := counts.MaxEntries()
	b.counts, b.reporter = counts, reporter
	b.keys, b.values = make([]programBypass, size), make([]uint64, size)
}

// read reports what was counted since the last call. A client loses what was not reported if another takes its place in the map.
func (b *bypassCounts) read() {
	if b.reporter == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var cursor ebpf.MapBatchCursor
	n, err := b.counts.BatchLookup(&cursor, b.keys, b.values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // the latter: these are all
		return // the next call reads them
	}
	now := make(map[programBypass]uint64, n)
	for i, key := range b.keys[:n] {
		count, before := b.values[i], b.reported[key]
		if count < before {
			before = 0 // it has lost its place meanwhile
		}
		if count > before {
			server := programDoor{Addr: key.Server.Addr, Port: key.Port}
			b.reporter.ReportBypass(Bypass{clientAddr(&key.Client), doorAddr(&server), key.Tcp == 1}, count-before)
		}
		now[key] = count
	}
	b.reported = now
}
