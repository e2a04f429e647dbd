package app

import (
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/upstream"
)

// metrics returns the handler of /metrics. The parts count in plain numbers; a scrape gives
// them names and labels: those that dashboards and alerts for CoreDNS and NodeLocal DNSCache
// query.
func (a *agent) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), a)
	return endpoint.NewExposition(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
}

// noView is the view label of zones without a view.
const noView = ""

// declared is a metric, with what reads it.
type declared struct {
	metric
	read any // see [read]
}

// metric is a metric as Prometheus has it.
type metric struct {
	name   string
	desc   *prometheus.Desc
	kind   prometheus.ValueType // 0 for a histogram
	labels []string
	former []*prometheus.Desc // the names before CoreDNS 1.7, for --former-metric-names
	isSum  bool               // see summed
}

func newMetric(kind prometheus.ValueType, name, help string, labels []string) metric {
	return metric{name: name, desc: prometheus.NewDesc(name, help, labels, nil), kind: kind, labels: labels}
}

func counter(name, help string, labels ...string) metric {
	return newMetric(prometheus.CounterValue, name, help, labels)
}

func gauge(name, help string, labels ...string) metric {
	return newMetric(prometheus.GaugeValue, name, help, labels)
}

func histogram(name, help string, labels ...string) metric { return newMetric(0, name, help, labels) }

// formerly adds names that m had before CoreDNS 1.7, with the same labels.
func (m metric) formerly(names ...string) metric {
	for _, name := range names {
		m.former = append(m.former, prometheus.NewDesc(name, "The name of "+m.name+" before CoreDNS 1.7.", m.labels, nil))
	}
	return m
}

// summed says that values with the same labels are added. Without it there is one value for the same labels.
func (m metric) summed() metric {
	m.isSum = true
	return m
}

// scrape takes the values of one scrape.
type scrape struct {
	ch     chan<- prometheus.Metric
	former bool               // send the former names, too
	sums   map[string]*sample // of summed metrics, by name and labels
}

// sample is one value, or one histogram.
type sample struct {
	*metric
	labels    []string
	value     float64
	histogram stat.Snapshot
}

// series takes the values of one metric. The first labels are given.
type series struct {
	*scrape
	*metric
	labels []string
}

func (s series) put(n uint64, labels ...string) {
	s.add(sample{s.metric, labels, float64(n), stat.Snapshot{}})
}
func (s series) set(v float64, labels ...string)             { s.add(sample{s.metric, labels, v, stat.Snapshot{}}) }
func (s series) histogram(h stat.Snapshot, labels ...string) { s.add(sample{s.metric, labels, 0, h}) }

// add adds a value whose labels follow those of s.
func (s series) add(x sample) {
	x.labels = slices.Concat(s.labels, x.labels)
	for i, text := range x.labels { // names in the cluster may be invalid, and an invalid label is a panic
		x.labels[i] = strings.ToValidUTF8(text, "\uFFFD")
	}
	if !s.isSum {
		s.send(&x)
		return
	}
	key := s.name + "\x00" + strings.Join(x.labels, "\x00")
	if sum := s.sums[key]; sum != nil {
		x.value, x.histogram = x.value+sum.value, x.histogram.Add(sum.histogram)
	}
	s.sums[key] = &x
}

// send sends x, also under its former names.
func (s *scrape) send(x *sample) {
	put := func(desc *prometheus.Desc) {
		if x.kind == 0 {
			s.ch <- prometheus.MustNewConstHistogram(desc, x.histogram.Count, x.histogram.Sum, x.histogram.Buckets, x.labels...)
		} else {
			s.ch <- prometheus.MustNewConstMetric(desc, x.kind, x.value, x.labels...)
		}
	}
	put(x.desc)
	if s.former {
		for _, desc := range x.former {
			put(desc)
		}
	}
}

// byLabel are the values of a metric by its last label.
type byLabel = map[string]uint64

// readers are the metrics by the type that they are read from.
var readers = sync.OnceValue(func() map[reflect.Type][]*declared {
	by := make(map[reflect.Type][]*declared)
	for i := range metricsTable {
		from := reflect.TypeOf(metricsTable[i].read).In(0)
		by[from] = append(by[from], &metricsTable[i])
	}
	return by
})

// read reads the metrics whose functions take a T, from one. labels are the first labels.
func read[T any](s *scrape, from T, labels ...string) { //nolint:gocyclo // one case for each form of reader
	for _, d := range readers()[reflect.TypeFor[T]()] {
		to := series{s, &d.metric, labels}
		switch read := d.read.(type) {
		case func(T) uint64:
			to.put(read(from))
		case func(T) int:
			to.put(uint64(read(from)))
		case func(T) float64:
			to.set(read(from))
		case func(T) bool:
			to.put(oneIf(read(from)))
		case func(T) stat.Snapshot:
			to.histogram(read(from))
		case func(T) byLabel:
			for label, n := range read(from) {
				to.put(n, label)
			}
		case func(T, func(label string, n uint64)):
			read(from, func(label string, n uint64) { to.put(n, label) })
		case func(T, func(first, second string, n uint64)):
			read(from, func(first, second string, n uint64) { to.put(n, first, second) })
		case func(T, func(first, second, third string, n uint64)):
			read(from, func(first, second, third string, n uint64) { to.put(n, first, second, third) })
		case func(T, series):
			read(from, to)
		default:
			panic(fmt.Sprintf("%s is read by a %T", d.name, read))
		}
	}
}

// oneIf returns 1 for true and 0 for false.
func oneIf(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Describe sends nothing, because the metrics depend on the Corefile: the agent is an unchecked
// collector.
func (a *agent) Describe(chan<- *prometheus.Desc) {}

// Collect reads all counters of the agent.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	collect(ch, a.opts.FormerMetricNames, func(s *scrape) { s.agent(a) })
}

// collect sends the metrics that readAll reads to ch, also under their former names if former is set.
func collect(ch chan<- prometheus.Metric, former bool, readAll func(*scrape)) {
	s := &scrape{ch: ch, former: former, sums: make(map[string]*sample)}
	readAll(s)
	for _, x := range s.sums {
		s.send(x)
	}
}

// agent reads all metrics.
func (s *scrape) agent(a *agent) {
	a.kernelPath.updateCounters() // before the counters are read
	read(s, a)
	read(s, a.server)
	read(s, a.http)
	read(s, a.selfProbe)
	read(s, &a.handoverState)
	read(s, a.builder.store)
	read(s, a.kernelPath.state())
	if a.kernelPath.available() && a.kernelPath.bypass != nil {
		read(s, a.kernelPath.bypass)
	}
	if a.net != nil {
		st := a.net.Stats()
		read(s, st)
		if st.Backend != "" { // without rules there is nothing to fail open, and nothing to alert of
			read(s, nodeRules(st))
		}
	}
	s.clients(a.builder.clients.counted())
	read(s, &a.builder.policies)
	if a.builder.egress != nil {
		read(s, a.builder.egress.Stats())
	}
	if g := a.current.Load(); g != nil {
		s.generation(g, a.server)
		for _, d := range a.builder.directives {
			if d.metrics != nil {
				d.metrics(s, g)
			}
		}
	}
}

// generation reads the metrics of what was built from the configuration.
func (s *scrape) generation(g *generation, srv *server.Server) {
	read(s, g)
	for at, l := range g.listeners {
		s.listener(srv, at, l)
	}
	for _, t := range g.taps {
		read(s, t, t.Endpoint())
	}
	for _, e := range g.exporters {
		read(s, e, e.Endpoint())
	}
	for _, c := range g.certs {
		read(s, c, c.File())
	}
	read(s, upstream.Stats{}) // 0 without upstreams
	for f := range g.forwards() {
		read(s, f.pool.Stats())
	}
	for to, sum := range g.servers() {
		s.upstream(to.String(), sum)
	}
	s.blocks(g)
	var views []kubernetes.Stats
	for _, v := range g.views {
		views = append(views, v.Stats())
		if st, ok := v.PolicyStats(); ok {
			read(s, st)
		}
	}
	s.views(views)
}

// listener reads the metrics of the zones that are served at an address.
func (s *scrape) listener(srv *server.Server, at server.ListenAddr, l server.ListenerConfig) {
	label, zones := serverLabel(l.Transport, at.AddrPort), slices.Collect(l.Routes.Zones())
	for _, z := range zones {
		s.zone(z.Stats, label, z.Name.String(), z.View.Name())
		read(s, servedZone{z, label, z.Stats.Verdicts()})
	}
	s.zone(l.Routes.Dropped(), label, droppedZone, noView)
	read(s, served{srv, at, l, zones}, label)
}

// zone reads the counters of a zone.
func (s *scrape) zone(st *resolver.Stats, srv, zone, view string) {
	read(s, st, srv, zone, view)
	st.EachSize(func(proto string, query, reply stat.Snapshot) {
		read(s, querySize{query}, srv, zone, view, proto)
		read(s, replySize{reply}, srv, zone, view, proto)
	})
}

// blocks reads the metrics of the blocks' parts. The tables of hosts share their labels.
func (s *scrape) blocks(g *generation) {
	var tables []*hosts.Table
	for _, p := range g.blocks {
		s.block(p)
		if t := p.hosts(); t != nil {
			tables = append(tables, t)
			read(s, t)
		}
	}
	if len(tables) > 0 {
		read(s, tables)
	}
}

// views reads the metrics of all views, which have the same labels.
func (s *scrape) views(list []kubernetes.Stats) {
	if len(list) == 0 {
		return
	}
	all, last := viewStates{true, byLabel{"node": 0, "wide": 0, "all": 0}}, time.Now()
	for _, st := range list {
		read(s, st)
		all.synced, all.levels[st.Level] = all.synced && st.Synced, 1
		if st.LastEvent.Before(last) {
			last = st.LastEvent
		}
	}
	read(s, all)
	if !last.IsZero() { // otherwise one has had none
		read(s, lastEvent(last))
	}
}

// block reads the metrics of the parts of p, under the first address of its block.
func (s *scrape) block(p *blockParts) {
	label := serverLabel(p.block.Transport, p.block.Listen[0])
	read(s, p, label)
	if p.cache() == nil {
		return
	}
	st, zones := p.cache().Stats(), make([]string, len(p.block.Zones))
	for i, z := range p.block.Zones {
		zones[i] = z.String()
	}
	all, view := strings.Join(zones, ","), p.block.ViewName()
	read(s, st, label, all, view)
	read(s, cacheKind{st.Entries.Success, st.Hits.Success, st.Evictions.Success}, label, "success", all, view)
	read(s, cacheKind{st.Entries.Denial, st.Hits.Denial, st.Evictions.Denial}, label, "denial", all, view)
}

// upstream reads the metrics of one upstream.
func (s *scrape) upstream(label string, sum *upstreamSum) {
	read(s, &sum.Server, label)
	if sum.Budget != nil {
		read(s, sum.Budget, label)
	}
	for directive, x := range sum.byDirective {
		s.exchanges(exchanges{Server: x}, label, directive)
	}
}

// exchanges reads the metrics of the exchanges with one upstream because of one directive.
func (s *scrape) exchanges(x exchanges, label, directive string) {
	for rcode, h := range x.Durations {
		read(s, rcodeExchanges{h}, label, rcode.String(), directive)
		if x.GRPC {
			read(s, rcodeGRPC{h}, label, rcode.String())
		} else {
			read(s, rcodeForward{h}, label, rcode.String())
		}
		x.total = x.total.Add(h)
	}
	read(s, x, label, directive)
	read(s, x.TCP, label, "tcp", directive)
	for i, used := range []upstream.Reuse{x.TLS, x.QUIC} {
		if used != (upstream.Reuse{}) { // most agents have no such upstream
			read(s, used, label, []string{"tcp-tls", "quic"}[i], directive)
		}
	}
	if x.GRPC {
		read(s, viaGRPC{x}, label)
		return
	}
	read(s, x.UDP, label, "udp", directive)
	read(s, viaForward{x}, label)
}

// clients reads the metrics by client. of is nil if none are counted.
func (s *scrape) clients(of *clients.Table) {
	if of == nil {
		return
	}
	for _, x := range of.Series() {
		read(s, x, x.Namespace)
		read(s, x.Counts, x.Namespace, workloadLabel(x.Workload))
	}
}

// workloadLabel returns the value of the label workload, "" for none.
func workloadLabel(w clients.Workload) string {
	if w == (clients.Workload{}) {
		return ""
	}
	return w.Kind + "/" + w.Name
}

// serverLabel returns CoreDNS's value of the server label.
func serverLabel(via config.Transport, addr netip.AddrPort) string {
	if addr.Addr().IsUnspecified() {
		return via.String() + "://:" + strconv.Itoa(int(addr.Port()))
	}
	return via.String() + "://" + addr.String()
}

// The following are what metrics are read from, where it is not a part itself.
type (
	// served is a listener.
	served struct {
		from *server.Server
		at   server.ListenAddr
		server.ListenerConfig
		zones []*resolver.Zone
	}
	// servedZone is a zone of a listener.
	servedZone struct {
		*resolver.Zone
		server   string
		verdicts resolver.Verdicts
	}
	// querySize and replySize are of one zone and protocol.
	querySize struct{ stat.Snapshot }
	replySize struct{ stat.Snapshot }
	// cacheKind are the numbers of one kind of entries.
	cacheKind struct{ entries, hits, evictions uint64 }
	// nodeRules is the state of the rules.
	nodeRules netsetup.Stats
	// exchanges are those with an upstream because of one directive, which is that of viaForward or viaGRPC; rcodeExchanges are
	// those with one rcode.
	exchanges struct {
		upstream.Server
		total stat.Snapshot // of Durations
	}
	viaForward     struct{ exchanges }
	viaGRPC        struct{ exchanges }
	rcodeExchanges struct{ stat.Snapshot }
	rcodeForward   struct{ stat.Snapshot }
	rcodeGRPC      struct{ stat.Snapshot }
	// secondaryZones are the zones of primary servers, their transfers and NOTIFY messages.
	secondaryZones struct{ zones, transfers, notifies byLabel }
	// zoneTransfers counts the transfers to other servers.
	zoneTransfers interface {
		EachCount(f func(zone, result string, n uint64))
		EachNotify(f func(zone, result string, n uint64))
	}
	// viewStates says whether all views are synced, and at which levels they are.
	viewStates struct {
		synced bool
		levels byLabel
	}
	// lastEvent is when the view that has waited longest for an event received its last one.
	lastEvent time.Time
	// kernelState is the state of the kernel path.
	kernelState struct {
		active             bool
		answering, watched int
		failed             uint64
		kernelpath.Counters
	}
)

// putStatus puts the replies by HTTP status if clients use the transport.
func (l *served) putStatus(via config.Transport, s series) {
	if l.Transport == via {
		l.from.EachHTTPStatus(l.at, func(status int, n uint64) { s.put(n, strconv.Itoa(status)) })
	}
}

// putVerdicts puts the queries with one verdict, by the zone of the rule.
func (z *servedZone) putVerdicts(byZone map[wire.Name]uint64, s series) {
	for zone, n := range byZone {
		s.put(n, z.server, zone.String(), z.View.Name())
	}
}

// given returns what is known of the handovers to successors.
func (of *handoverState) given() (st handover.Stats) {
	if host := of.handoverServer.Load(); host != nil {
		st = host.Stats()
	}
	return st
}
