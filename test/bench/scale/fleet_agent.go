package scale

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/watches"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

// view is a nodens agent: its view of the cluster and the answers from that.
type view struct {
	*kubernetes.View
	zone *kubernetes.Zone
}

// openView opens the view of an agent.
func openView(scope config.Scope, o agentOptions) (*view, error) {
	name, err := wire.ParseName("cluster.local")
	if err != nil {
		return nil, err
	}
	cfg := &config.Kubernetes{
		Zones: []wire.Name{name}, TTL: 5, Kubeconfig: o.kubeconfig, Scope: scope, ScopeIdle: time.Hour, ScopeMax: 32, Save: o.save,
	}
	v, err := kubernetes.Open(cfg, kubernetes.Options{
		Node: apiobjects.Node(o.node), Zone: apiobjects.Zone(o.node), WrapTransport: o.wrap,
		ObserveNamespace: func(string, string) {}, // as in an agent: the annotations are in the saved view
	})
	if err != nil {
		return nil, err
	}
	return &view{v, kubernetes.NewZone(v, cfg)}, nil
}

// shows says whether the answers have the change.
func (v *view) shows(c apiobjects.Change) bool {
	m, err := v.answer(c.Name, c.Qtype)
	return err == nil && c.Shown(m)
}

// answer returns the answer to a question; it has no rcode that tells of data that are not in view: those have no records.
func (v *view) answer(name string, qtype uint16) (*dns.Msg, error) {
	q, err := newQuery(name, qtype)
	if err != nil {
		return nil, err
	}
	var r wire.Reply
	r.Start(nil, q)
	r.SetLimit(wire.MaxMessage)
	v.zone.Answer(q, &r, nil)
	m := new(dns.Msg)
	return m, m.Unpack(r.Finish(wire.MaxMessage))
}

// await waits until the addresses of a name are in view.
func (v *view) await(ctx context.Context, name string) error {
	q, err := newQuery(name, dns.TypeA)
	if err != nil {
		return err
	}
	return v.zone.Await(ctx, q)
}

func newQuery(name string, qtype uint16) (*wire.Query, error) {
	question := new(dns.Msg).SetQuestion(name, qtype)
	question.SetEdns0(wire.MaxMessage, false)
	packet, err := question.Pack()
	if err != nil {
		return nil, err
	}
	q := new(wire.Query)
	q.Parse(packet)
	return q, nil
}

// answers returns the answers about all Services, as sorted records: the addresses, and the ports of the Services that this node
// can tell of.
func (v *view) answers(list []apiobjects.Service) ([]string, error) {
	var all []string
	for _, s := range list {
		for name, qtype := range map[string]uint16{s.Host(): dns.TypeA, "_http._tcp." + s.Host(): dns.TypeSRV} {
			m, err := v.answer(name, qtype)
			if err != nil {
				return nil, err
			}
			for _, rr := range m.Answer {
				all = append(all, rr.String())
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// plainWatches are the watches of CoreDNS.
type plainWatches struct{ *watches.Watches }

func openWatches(o agentOptions) (agent, error) {
	w, err := watches.Open(o.kubeconfig, o.wrap)
	return plainWatches{w}, err
}

// shows says whether the change has come.
func (w plainWatches) shows(c apiobjects.Change) bool {
	resource := "endpointslices"
	if c.Qtype == dns.TypeSRV {
		resource = "services"
	}
	return w.Reached(resource, c.Version)
}

// shower is an agent that says whether it has a change.
type shower interface {
	agent
	shows(c apiobjects.Change) bool
}

// member is an agent of a fleet that runs, with a connection of its own that goes through its own tap.
type member struct {
	shower
	options agentOptions
	log     *requestLog
	tap     *wiretap.Tap
	cancel  context.CancelFunc
	ended   chan struct{}
}

// stop ends the agent, and returns when it has ended.
func (m *member) stop() {
	m.cancel()
	<-m.ended
	m.tap.Close()
}

// requestLog counts requests by the second. It is safe for concurrent use.
type requestLog struct {
	mu      sync.Mutex
	begun   time.Time
	seconds []requestSecond
}

// requestSecond are the requests of a second.
type requestSecond struct {
	// requests are all that were begun, failed those without an answer or with an error status, and lists those that an answer
	// with all objects came to.
	requests, failed, lists int
	// watching are the watches that were opened, and slices those of EndpointSlices among them.
	watching, slices int
}

// restart makes now the begin of the first second.
func (l *requestLog) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun, l.seconds = time.Now(), nil
}

// add changes the counts of the present second.
func (l *requestLog) add(change func(*requestSecond)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := int(time.Since(l.begun) / time.Second)
	for len(l.seconds) <= at {
		l.seconds = append(l.seconds, requestSecond{})
	}
	change(&l.seconds[at])
}

// series returns the seconds until now.
func (l *requestLog) series() []requestSecond {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seconds)
}

// total is the sum of all seconds from the one with the number first on.
func (l *requestLog) total(first int) (sum requestSecond) {
	for _, s := range l.series()[min(first, len(l.series())):] {
		sum.requests += s.requests
		sum.failed += s.failed
		sum.lists += s.lists
		sum.watching += s.watching
		sum.slices += s.slices
	}
	return sum
}

// wrap returns a transport that counts the requests to next.
func (l *requestLog) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		l.add(func(s *requestSecond) { s.requests++ })
		resp, err := next.RoundTrip(req)
		if req.Context().Err() != nil {
			return resp, err // its agent has ended
		}
		q := req.URL.Query()
		l.add(func(s *requestSecond) {
			switch watch := q.Get("watch") != ""; {
			case err != nil || resp.StatusCode >= http.StatusBadRequest:
				s.failed++
			case watch:
				s.watching++
				if strings.HasSuffix(req.URL.Path, "/endpointslices") {
					s.slices++
				}
				fallthrough
			default:
				if listsAll(req, watch) {
					s.lists++
				}
			}
		})
		return resp, err
	})
}

// listsAll says whether the answer to the request has all objects.
func listsAll(req *http.Request, watch bool) bool {
	q := req.URL.Query()
	if watch {
		return q.Get("sendInitialEvents") != ""
	}
	return req.Method == http.MethodGet && q.Get("limit") != "1" && !strings.Contains(q.Get("fieldSelector"), "metadata.name=")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
