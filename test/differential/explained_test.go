package differential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/scrape"
	"github.com/nodens-dns/nodens/test/soak"
)

// adminSocket explains queries, and counts what became of them.
type adminSocket struct {
	client  *http.Client
	scraper *http.Client
	metrics string // URL
	// places bounds the requests at once.
	places chan struct{}
	before map[string]int
	// late are the queries without a reply so far. The agent waits longer for upstreams than the test, and counts
	// them later.
	late []forecast
}

// serveAgent starts an agent of the program under test and waits until it is ready: see startAgent.
func (s *site) serveAgent(t *testing.T, a agent, text string, user apiserver.User) agent {
	t.Helper()
	a, started := s.startAgent(t, a, text, user)
	started.await(t)
	return a
}

// startAgent starts an agent of the program under test. If that has explanations, each query's is compared with
// what then happens.
func (s *site) startAgent(t *testing.T, a agent, text string, user apiserver.User) (agent, *server) {
	t.Helper()
	if agentProgram() != "nodens" {
		started := s.start(t, agentProgram(), text, user)
		a.addr = started.addr
		return a, started
	}
	socket := filepath.Join(t.TempDir(), "a")
	metrics := fmt.Sprintf("127.0.0.1:%d", peer.Ports(t, 1)[0])
	a.admin = &adminSocket{metrics: "http://" + metrics + "/metrics", places: make(chan struct{}, 4)}
	a.admin.client = &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: cap(a.admin.places),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	t.Cleanup(a.admin.client.CloseIdleConnections)
	a.admin.scraper = &http.Client{Transport: &http.Transport{DisableCompression: true}} // on loopback it costs more than it saves
	t.Cleanup(a.admin.scraper.CloseIdleConnections)
	started := s.start(t, agentProgram(), text, user, "-admin-socket="+socket, "-metrics-listen-address="+metrics)
	a.addr = started.addr
	return a, started
}

// explainedBatch is the number of queries after which the counters are compared with the explanations.
func explainedBatch() int { return soak.Choose(100, 10) }

// forecast is what the explanation of a query says.
type forecast struct {
	query string
	zone  string
	// sources are the steps that may make the reply. rcode is the reply's, "" if it is not known.
	sources []string
	rcode   string
	late    bool // it may be counted later
}

// explains reports whether the agent explains the queries of the batch.
func (r *run) explains(a agent) bool {
	if a.admin == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.forecasts[a.admin] != nil
}

// explain returns the agent's explanation of a query, nil if the query is not valid or the agent explains nothing.
func (r *run) explain(a agent, q query) *report.ExplainedQuestion {
	if !r.explains(a) {
		return nil
	}
	packet, err := q.pack(1)
	if err != nil {
		r.t.Errorf("packing %s: %v", q, err)
		return nil
	}
	values := url.Values{"packet": {base64.RawURLEncoding.EncodeToString(packet)}, "from": {"127.0.0.1"}}
	if q.from != "" {
		values.Set("from", q.from)
	}
	if q.tcp {
		values.Set("protocol", "tcp")
	}
	var e report.Explanation
	if err := a.admin.get("/explain?"+values.Encode(), &e); err != nil || len(e.Questions) != 1 {
		r.t.Errorf("%s: explaining %s: %v", a.name, q, err)
		return nil
	}
	if e.Questions[0].Name == "" {
		return nil
	}
	return &e.Questions[0]
}

// get asks the admin socket.
func (s *adminSocket) get(target string, reply any) error {
	s.places <- struct{}{}
	defer func() { <-s.places }()
	resp, err := s.client.Get("http://nodens" + target)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, reply)
}

// explained compares the explanation of a query, nil for none, with the reply, and keeps what it says of the
// counters.
func (r *run) explained(a agent, q query, e *report.ExplainedQuestion, got view) {
	if e == nil {
		return
	}
	f := forecast{query: q.String(), zone: "dropped", sources: append([]string{e.Source}, e.Alternatives...), rcode: e.Rcode}
	if e.Zone != nil {
		f.zone = e.Zone.Name
	}
	if r.mayChange(a, q, e) {
		f.sources, f.rcode = append(f.sources, "kubernetes", "cache", "forward", ""), ""
	}
	f.late = f.rcode == "" && got.Outcome == "silence"
	if wrong := wrongForecast(&f, e, got); wrong != "" {
		r.t.Errorf("%s: the explanation of %s is wrong: %s\n%v%s", a.name, q, wrong, got, explanationText(e))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forecasts[a.admin] = append(r.forecasts[a.admin], f)
	if f.rcode != "" {
		r.certain++
	}
}

// wrongForecast says what is wrong with the forecast of a reply; "" for nothing.
func wrongForecast(f *forecast, e *report.ExplainedQuestion, got view) string {
	switch {
	case f.rcode == "":
		return ""
	case e.NoReply && got.Outcome != "silence", !e.NoReply && got.Outcome == "silence":
		return fmt.Sprintf("no reply is %t, and there is %s", e.NoReply, got.Outcome)
	case e.NoReply:
		return ""
	case got.Rcode != f.rcode:
		return fmt.Sprintf("%s, and the reply is %s", f.rcode, got.Rcode)
	case !strings.Contains(got.Flags, "tc") && len(got.Answer) != len(e.Answers)+e.MoreAnswers:
		return fmt.Sprintf("%d records, and the reply has %d", len(e.Answers)+e.MoreAnswers, len(got.Answer))
	}
	return ""
}

// expiringSoon is the TTL, in seconds, from which on a cached answer may expire before the query comes.
const expiringSoon = 3

// mayChange reports whether the answer may have changed since the explanation: the view was loading, the entry was
// about to expire, or others ask the same meanwhile and there is a cache.
func (r *run) mayChange(a agent, q query, e *report.ExplainedQuestion) bool {
	loading := false
	for _, s := range e.Steps {
		if s.Cached != nil && s.Cached.TTLSeconds < expiringSoon {
			return true
		}
		loading = loading || strings.Contains(s.Reason, "the view does not hold")
	}
	if r.caches && q.dropped {
		return true
	}
	if !loading {
		return false
	}
	now := r.explain(a, q)
	return now == nil || now.Source != e.Source || now.Rcode != e.Rcode
}

// explanationText is e in short.
func explanationText(e *report.ExplainedQuestion) string {
	var b strings.Builder
	fmt.Fprintf(&b, "explained: %q %q %q waits for %q\n", e.Source, e.Alternatives, e.Rcode, e.Waits)
	for _, s := range e.Steps {
		fmt.Fprintf(&b, "  %s %s %s: %s; %s\n", s.Name, s.Type, s.Step, s.Outcome, s.Reason)
	}
	return b.String()
}

// startExplaining begins to compare explanations and counters, for a batch of queries. In the usual form each agent
// explains one batch of two, and the next agent the other one. All explain a batch in which a query may stay without a
// reply: such a query may be counted during a later batch.
func (r *run) startExplaining(batch []query) {
	r.forecasts = map[*adminSocket][]forecast{}
	all := soak.Enabled() || slices.ContainsFunc(batch, func(q query) bool { return q.dropped })
	for i, a := range r.agents {
		if a.admin != nil && (all || (r.batches+i)%2 == 0) {
			a.admin.before = r.responses(a.admin)
			r.forecasts[a.admin] = []forecast{}
		}
	}
	r.batches++
}

// checkExplained compares the counters since the last check with the explanations.
func (r *run) checkExplained() {
	for _, a := range r.agents {
		if !r.explains(a) {
			continue
		}
		now, list := r.responses(a.admin), append(r.forecasts[a.admin], a.admin.late...)
		counts := map[string]int{}
		for key, n := range now {
			if n > a.admin.before[key] {
				counts[key] = n - a.admin.before[key]
			}
		}
		r.explanations += len(list) - len(a.admin.late)
		var wrong []string
		if wrong, a.admin.late = unexplained(counts, list); len(wrong) > 0 {
			r.t.Errorf("%s: of the explanations of %d queries these don't agree with the counters:\n%s", a.name, len(list), strings.Join(wrong, "\n"))
		}
	}
}

// unexplained returns the forecasts that are not among the counts of responses, and the counts that no forecast
// expects. late are the forecasts that are not among them and may be counted later.
func unexplained(counts map[string]int, list []forecast) (wrong []string, late []forecast) {
	counts = maps.Clone(counts)
	list = slices.DeleteFunc(slices.Clone(list), func(f forecast) bool { return f.takeOnly(counts) })
	var responses []string
	for key, n := range counts {
		responses = append(responses, slices.Repeat([]string{key}, n)...)
	}
	owners := make([]int, len(responses)) // the forecast of each response, plus one; 0 is none
	// Forecasts that may be counted later take what the others leave.
	slices.SortStableFunc(list, func(a, b forecast) int {
		switch {
		case a.late == b.late:
			return 0
		case a.late:
			return 1
		}
		return -1
	})
	for i := range list {
		switch {
		case assign(list, i, responses, owners, make([]bool, len(responses))):
		case list[i].late:
			late = append(late, list[i])
		default:
			f := &list[i]
			wrong = append(wrong, fmt.Sprintf("  forecast of %s: zone %s, source %q, rcode %q", f.query, f.zone, f.sources, f.rcode))
		}
	}
	for i, key := range responses {
		if owners[i] == 0 {
			wrong = append(wrong, "  not forecast: "+key)
		}
	}
	return wrong, late
}

// takeOnly takes the only response that f may expect from the counts. It is false if there are several or none is left.
func (f *forecast) takeOnly(counts map[string]int) bool {
	if f.rcode == "" || len(f.sources) != 1 {
		return false
	}
	key := f.zone + " " + f.sources[0] + " " + f.rcode
	if counts[key] == 0 {
		return false
	}
	counts[key]--
	return true
}

// assign gives the forecast with the index i one of the responses, and if need be its owner another one. It is false
// if that is not possible. tried are the responses that have been tried.
func assign(list []forecast, i int, responses []string, owners []int, tried []bool) bool {
	for k, key := range responses {
		if tried[k] || !list[i].expects(key) {
			continue
		}
		tried[k] = true
		if owners[k] == 0 || assign(list, owners[k]-1, responses, owners, tried) {
			owners[k] = i + 1
			return true
		}
	}
	return false
}

// expects reports whether a response with that key is as f says.
func (f *forecast) expects(key string) bool {
	zone, rest, _ := strings.Cut(key, " ")
	plugin, rcode, _ := strings.Cut(rest, " ")
	if rcode == "BADSIG" { // the label of 16, as in CoreDNS
		rcode = "BADVERS"
	}
	return zone == f.zone && slices.Contains(f.sources, plugin) && (f.rcode == "" || rcode == f.rcode)
}

// responses returns the agent's counters of responses by "ZONE PLUGIN RCODE".
func (r *run) responses(s *adminSocket) map[string]int {
	text, err := scrape.Text(r.t.Context(), s.scraper, s.metrics)
	if err != nil {
		r.t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(text) {
		labels, ok := strings.CutPrefix(strings.TrimSpace(line), "coredns_dns_responses_total{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(labels, "} ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		counts[label(labels, "zone")+" "+label(labels, "plugin")+" "+label(labels, "rcode")] += int(n)
	}
	return counts
}

// label returns the value of a label.
func label(labels, name string) string {
	_, rest, _ := strings.Cut(labels, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// reportExplained says how many explanations were compared.
func (r *run) reportExplained() {
	if r.explanations > 0 {
		r.t.Logf("%d explanations compared, %d of them with the reply", r.explanations, r.certain)
	}
}

// TestUnexplained: what the comparison of explanations with counters finds.
func TestUnexplained(t *testing.T) {
	certain := forecast{query: "a", zone: ".", sources: []string{"cache"}, rcode: "NOERROR"}
	open := forecast{query: "b", zone: ".", sources: []string{"forward", "cache"}}
	silent := forecast{query: "c", zone: ".", sources: []string{"cache"}, late: true}
	for _, c := range []struct {
		name   string
		counts map[string]int
		list   []forecast
		wrong  int
		late   int
	}{
		{"all as forecast", map[string]int{". cache NOERROR": 1, ". forward SERVFAIL": 1}, []forecast{open, certain}, 0, 0},
		{"others move", map[string]int{". cache NOERROR": 1, ". forward NOERROR": 1, ". cache NXDOMAIN": 1}, []forecast{open, open, certain}, 0, 0},
		{"the strict one first", map[string]int{". cache NOERROR": 2}, []forecast{open, certain}, 0, 0},
		{"one that is late", map[string]int{". cache NOERROR": 1}, []forecast{silent, certain}, 0, 1},
		{"one that was late", map[string]int{". cache NOERROR": 2}, []forecast{silent, certain}, 0, 0},
		{"another source", map[string]int{". forward NOERROR": 1}, []forecast{certain}, 2, 0},
		{"another rcode", map[string]int{". cache NXDOMAIN": 1}, []forecast{certain}, 2, 0},
		{"another zone", map[string]int{"a. cache NOERROR": 1}, []forecast{certain}, 2, 0},
		{"one more", map[string]int{". cache NOERROR": 2}, []forecast{certain}, 1, 0},
		{"one less", map[string]int{}, []forecast{certain}, 1, 0},
	} {
		if wrong, late := unexplained(c.counts, c.list); len(wrong) != c.wrong || len(late) != c.late {
			t.Errorf("%s: %q, %d late; want %d, %d", c.name, wrong, len(late), c.wrong, c.late)
		}
	}
}
