package config

import (
	"cmp"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Trace is `trace otlp ENDPOINT { every AMOUNT; slow DURATION; service NAME }`: spans of queries that waited are
// sent to an OpenTelemetry collector. CoreDNS's forms, `trace [zipkin|datadog] [ENDPOINT] { … }`, export nothing.
type Trace struct {
	// Endpoint is the URL that spans are sent to; "" exports none.
	Endpoint string
	// Service is the service name of the spans.
	Service string
	// Every says that one in so many of the queries is chosen; 0 is none. Failed ones are always chosen.
	Every int64
	// Slow is the least time of queries that are always chosen; 0 is none.
	Slow time.Duration
}

const (
	// otlpPort and tracePath are the defaults of OTLP over HTTP.
	otlpPort     = ":4318"
	tracePath    = "/v1/traces"
	traceService = "nodens"
	maxTraceSlow = time.Minute
)

func (t *Trace) parse(p *parser, s statement) {
	args := s.args()
	if !p.count(s, "trace [ENDPOINT-TYPE] [ENDPOINT]") {
		return
	}
	otlp := false
	switch {
	case len(args) == 2 && strings.EqualFold(args[0].text, "otlp"):
		otlp = true
		t.endpoint(p, args[1])
	case len(args) == 1 && strings.EqualFold(args[0].text, "otlp"):
		p.errorf(args[0], "otlp needs an endpoint; write: trace otlp http://HOST:4318")
	case len(args) == 2:
		choice(p, lowerToken(args[0]), "endpoint type", map[string]bool{"otlp": true, "zipkin": true, "datadog": true})
	}
	every := int64(-1)
	p.body(s, t.options(p, &every)...)
	t.Service = cmp.Or(t.Service, traceService)
	switch {
	case every >= 0:
		t.Every = every
	case t.Slow == 0:
		t.Every = 1
	}
	if !otlp {
		p.warn(s.name(), "nodens has no exporter for zipkin and datadog, so no spans are sent; write `trace otlp http://HOST:4318` with the address of an OpenTelemetry collector, which passes them on")
	}
}

// options are the options of both programs. every gets the value of the option of this name.
func (t *Trace) options(p *parser, every *int64) options {
	size := toNumber(p, new(int64), math.MinInt64, math.MaxInt64)
	return options{
		opt("every AMOUNT", toNumber(p, every, 0, math.MaxInt32)),
		opt("service NAME", toText(&t.Service)),
		opt("slow DURATION", p.toDuration(&t.Slow, time.Millisecond, maxTraceSlow)),
		opt("client_server [true|false]", func(args []token) {
			for _, w := range args {
				if _, err := strconv.ParseBool(w.text); err != nil {
					p.unknown(w, "value", []string{"true", "false"})
				}
			}
		}),
		opt("datadog_analytics_rate [RATE]", func(args []token) {
			for _, w := range args {
				if rate, err := strconv.ParseFloat(w.text, 64); err != nil || !(rate >= 0 && rate <= 1) {
					p.errorf(w, "%q is not a rate from 0 to 1", w.text)
				}
			}
		}),
		opt("zipkin_max_backlog_size SIZE", size),
		opt("zipkin_max_batch_size SIZE", size),
		opt("zipkin_max_batch_interval DURATION", p.toDuration(new(time.Duration), math.MinInt64, math.MaxInt64)),
	}
}

// endpoint reads HOST, HOST:PORT or a URL.
func (t *Trace) endpoint(p *parser, w token) {
	u, err := endpointURL(w.text)
	switch {
	case err != nil || u.Hostname() == "":
		p.errorf(w, "%q is not a URL such as http://192.0.2.9:4318", w.text)
		return
	case u.Scheme != "http" && u.Scheme != "https":
		p.errorf(w, "%q is neither an http:// nor an https:// URL; write the OTLP endpoint for HTTP of the collector, usually on port 4318", w.text)
		return
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		p.errorf(w, "%q has more than a host, a port and a path; let a collector on the node add credentials", w.text)
		return
	}
	t.Endpoint = u.String()
}

// endpointURL returns the URL that text stands for, with the defaults of OTLP over HTTP.
func endpointURL(text string) (*url.URL, error) {
	bare := !strings.Contains(text, "://")
	if bare {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if bare && u.Port() == "" {
		u.Host += otlpPort
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = tracePath
	}
	return u, nil
}
