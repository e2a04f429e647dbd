package app

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/tail"
)

const (
	// tailInterval is how often the queries since the last time are written, and the addresses of the selected
	// clients looked up. To write some at once costs the agent much less than to write each of them alone.
	tailInterval = 500 * time.Millisecond
	// keepOutTime is for how long the selected clients are kept out of the kernel path, again and again.
	keepOutTime = 3 * tailInterval
)

// tailRequest is a request to /tail.
type tailRequest struct {
	filter tail.Filter
	time   time.Duration // after which the reply ends
	all    bool
	// namespace and pod select clients; addr selects one by its address.
	namespace, pod string
	addr           netip.Addr
}

// parseTailRequest reads the parameters of /tail.
func parseTailRequest(values url.Values) (*tailRequest, error) {
	q := new(tailRequest)
	if err := q.parseClients(values); err != nil {
		return nil, err
	}
	if err := q.parseFilter(values); err != nil {
		return nil, err
	}
	return q, q.parseTime(values)
}

// parseTime reads the parameter that bounds the reply.
func (q *tailRequest) parseTime(values url.Values) (err error) {
	q.time = report.TailTime
	if text := values.Get("for"); text != "" {
		if q.time, err = time.ParseDuration(text); err != nil || q.time <= 0 || q.time > report.MaxTailTime {
			return fmt.Errorf("for is %q; give a duration such as 10m, at most %.0fh", text, report.MaxTailTime.Hours())
		}
	}
	return nil
}

// parseClients reads the parameters that select clients.
func (q *tailRequest) parseClients(values url.Values) (err error) {
	if text := values.Get("all"); text != "" {
		if q.all, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("all is %q; give true or false", text)
		}
	}
	q.filter.Selected = !q.all
	q.namespace, q.pod = values.Get("namespace"), values.Get("pod")
	selects := q.namespace != "" || q.pod != ""
	switch {
	case q.all && selects:
		return errors.New("all clients and a selection of clients; give one of them")
	case !q.all && !selects:
		return errors.New("no clients are selected; give pod, namespace, or all=true")
	}
	return q.splitPod()
}

// splitPod makes a namespace and a name, or an address, of what was given as a pod.
func (q *tailRequest) splitPod() error {
	if ns, name, ok := strings.Cut(q.pod, "/"); ok {
		if q.namespace != "" && q.namespace != ns {
			return fmt.Errorf("pod is %q and namespace is %q; give one of them", q.pod, q.namespace)
		}
		q.namespace, q.pod = ns, name
	} else if addr, err := netip.ParseAddr(q.pod); err == nil {
		q.pod, q.addr = "", addr.Unmap().WithZone("")
	}
	return nil
}

// parseFilter reads the parameters that select queries.
func (q *tailRequest) parseFilter(values url.Values) (err error) {
	if text := values.Get("name"); text != "" {
		if q.filter.Name, err = wire.ParseName(text); err != nil {
			return err
		}
	}
	if text := values.Get("rcode"); text != "" {
		if q.filter.Rcode, q.filter.HasRcode = parseRcode(text); !q.filter.HasRcode {
			return fmt.Errorf("rcode is %q; give a name such as NXDOMAIN or SERVFAIL", text)
		}
	}
	if text := values.Get("slow"); text != "" {
		if q.filter.Slow, err = time.ParseDuration(text); err != nil || q.filter.Slow < 0 {
			return fmt.Errorf("slow is %q; give a duration such as 100ms", text)
		}
	}
	return nil
}

// lastRcode is the last rcode with a name (BADCOOKIE).
const lastRcode = 23

// parseRcode returns the rcode with a name.
func parseRcode(text string) (wire.Rcode, bool) {
	for rcode := range wire.Rcode(lastRcode + 1) {
		if strings.EqualFold(rcode.String(), text) {
			return rcode, true
		}
	}
	return 0, false
}

// selects reports whether q selects an owner of addresses.
func (q *tailRequest) selects(kind clients.Kind, pod clients.Pod) bool {
	if q.addr.IsValid() {
		return false
	}
	return (q.namespace == "" || q.namespace == cmp.Or(pod.Namespace, kind.String())) && (q.pod == "" || q.pod == pod.Name)
}

// addrs returns the addresses that q selects now, sorted.
func (q *tailRequest) addrs(table *clients.Table) []netip.Addr {
	if q.addr.IsValid() {
		return []netip.Addr{q.addr}
	}
	list := table.Addrs(q.selects)
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// showTail answers with queries as they are finished, a line each, until the client goes away.
func (a *agent) showTail(w http.ResponseWriter, r *http.Request) {
	request, err := parseTailRequest(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sub, err := a.builder.tail.Subscribe(request.filter)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer sub.Close()
	s := &tailStream{agent: a, request: request, sub: sub, out: http.NewResponseController(w), enc: json.NewEncoder(w)}
	s.enc.SetEscapeHTML(false)
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = s.out.SetReadDeadline(time.Time{}) // else the server takes the client to be gone
	s.run(r.Context().Done())
}

// tailStream is the reply to one request to /tail.
type tailStream struct {
	*agent
	request *tailRequest
	sub     *tail.Subscription
	out     *http.ResponseController
	enc     *json.Encoder
	addrs   []netip.Addr // selected
	started bool
	written bool      // and not yet sent
	last    time.Time // when a line was written
}

// run writes lines until done is closed, the client takes none for ten seconds, or the time of the request
// is over.
func (s *tailStream) run(done <-chan struct{}) {
	ticker := time.NewTicker(tailInterval)
	defer ticker.Stop()
	end := time.NewTimer(s.request.time)
	defer end.Stop()
	for ok := s.updateClients() && s.flush(); ok; {
		select {
		case <-done:
			_ = s.writeQueued() // the agent ends, unless the client is gone
			return
		case <-ticker.C:
			ok = s.tick()
		case <-end.C:
			_ = s.writeQueued() && s.write(report.TailLine{End: &report.TailEnd{Seconds: s.request.time.Seconds()}})
			return
		}
	}
}

// tick does what is due every tailInterval. It returns false if the client is gone.
func (s *tailStream) tick() bool {
	return s.updateClients() && s.writeQueued() && s.writeLost() && s.writeHeartbeat() && s.flush()
}

// writeQueued writes the queries that wait. It returns false if the client is gone.
func (s *tailStream) writeQueued() bool {
	for range len(s.sub.Queries()) {
		if !s.writeQuery(<-s.sub.Queries()) {
			return false
		}
	}
	return true
}

func (s *tailStream) writeQuery(q *tail.Query) bool {
	return s.write(report.TailLine{Query: newTailQuery(q)})
}

// updateClients looks up the selected clients, and keeps them out of the kernel path. It returns false if the
// client of the stream is gone.
func (s *tailStream) updateClients() bool {
	if s.request.all {
		s.kernelPath.keepOut(func(netip.Addr) bool { return true }, keepOutTime)
	} else {
		addrs := s.request.addrs(s.builder.clients.owners())
		s.sub.SetClients(addrs)
		s.kernelPath.keepOut(func(addr netip.Addr) bool { return slices.Contains(addrs, addr) }, keepOutTime)
		if s.started && slices.Equal(addrs, s.addrs) {
			return true
		}
		s.addrs = addrs
	}
	if s.started && s.request.all {
		return true
	}
	s.started = true
	selected := &report.TailSelection{AllClients: s.request.all, Addresses: []string{}}
	for _, addr := range s.addrs {
		selected.Addresses = append(selected.Addresses, addr.String())
	}
	return s.write(report.TailLine{Selected: selected})
}

// writeLost writes how many queries were lost, if any were. It returns false if the client is gone.
func (s *tailStream) writeLost() bool {
	limited, slow := s.sub.Lost()
	return limited == 0 && slow == 0 || s.write(report.TailLine{Lost: &report.TailLost{Limit: limited, SlowReader: slow}})
}

// writeHeartbeat writes a line if there was none for a while, so that each side notices when the other is gone. It
// returns false if the client is gone.
func (s *tailStream) writeHeartbeat() bool {
	return time.Since(s.last) < report.TailHeartbeat || s.write(report.TailLine{Heartbeat: true})
}

// write writes a line. It returns false if the client is gone.
func (s *tailStream) write(line report.TailLine) bool {
	line.Header = s.header()
	s.last = time.Now()
	if !s.written { // the first line of some
		s.written = true
		_ = s.out.SetWriteDeadline(s.last.Add(endpoint.Timeout))
	}
	return s.enc.Encode(&line) == nil
}

// flush sends what is written. It returns false if the client is gone.
func (s *tailStream) flush() bool {
	if !s.written {
		return true
	}
	s.written = false
	_ = s.out.SetWriteDeadline(time.Now().Add(endpoint.Timeout))
	return s.out.Flush() == nil
}

// newTailQuery returns q as a reply shows it.
func newTailQuery(q *tail.Query) *report.TailQuery {
	line := &report.TailQuery{
		Time: q.Time.UTC(), Client: q.Client.String(), Namespace: q.Namespace, Pod: q.Pod, Workload: q.Workload,
		Protocol: q.Proto, Name: q.Name, Type: q.Type, Rcode: q.Rcode, Zone: q.Zone, View: q.View, Source: q.Source, Cache: q.Cache,
		Upstream: q.Upstream, UpstreamSeconds: q.Exchange.Seconds(), ViewSeconds: q.ViewWait.Seconds(), Hedged: q.Hedged, HedgeWon: q.HedgeWon, SearchPath: q.SearchPath, Policy: q.Policy,
		DurationSeconds: q.Latency.Seconds(), Error: q.Err,
	}
	if q.Cache != "" && q.Age >= 0 {
		age := q.Age.Seconds()
		line.CacheAgeSeconds = &age
	}
	return line
}
