package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

// apiserverMetrics reads what an API server says about itself.
type apiserverMetrics struct {
	client *kubernetes.Clientset
	plan   harness.Plan
}

// scrape returns the API server's metrics.
func (g apiserverMetrics) scrape(ctx context.Context) ([]byte, error) {
	return g.client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
}

// watchedResources are the resources that the agents watch. The API server has watches of
// its own on them, which are there before an agent comes.
var watchedResources = []string{"services", "endpointslices", "namespaces", "pods", "nodes"}

// watches is how many watches of these resources are open.
func (g apiserverMetrics) watches(ctx context.Context) (float64, error) {
	text, err := g.scrape(ctx)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, resource := range watchedResources {
		n, err := metric(text, "apiserver_longrunning_requests", `verb="WATCH"`, fmt.Sprintf("resource=%q", resource))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// watchesSettle is when no watch comes or goes for two seconds: an agent opens its
// last ones within one.
var watchesSettle = settleRule{every: 250 * time.Millisecond, samples: 8, limit: time.Minute}

// settledWatches is how many watches are open once none comes or goes.
func (g apiserverMetrics) settledWatches(ctx context.Context) (float64, error) {
	return watchesSettle.of(g.plan).await(ctx, func() (float64, error) { return g.watches(ctx) })
}

// collect makes the API server collect its garbage.
func (g apiserverMetrics) collect(ctx context.Context) error {
	return g.client.RESTClient().Get().AbsPath("/debug/pprof/heap").Param("gc", "1").Do(ctx).Error()
}

// memorySamples is how often the live memory is looked at; the least counts, because what
// serves the look itself, and requests that end meanwhile, only add to it.
const memorySamples = 4

// liveMemory is how much memory the API server has in use, in bytes: what is left of its
// heap by a collection, and its stacks.
func (g apiserverMetrics) liveMemory(ctx context.Context) (float64, error) {
	var least float64
	samples := memorySamples
	if g.plan.Short {
		samples = 1
	}
	for n := range samples {
		if err := g.collect(ctx); err != nil {
			return 0, err
		}
		text, err := g.scrape(ctx)
		if err != nil {
			return 0, err
		}
		heap, err := metric(text, "go_memstats_heap_alloc_bytes")
		if err != nil {
			return 0, err
		}
		stacks, err := metric(text, "go_memstats_stack_inuse_bytes")
		if err != nil {
			return 0, err
		}
		if n == 0 || heap+stacks < least {
			least = heap + stacks
		}
	}
	return least, nil
}

var errMetric = errors.New("a line that is no metric")

// metric is the sum of the metric's series that have all of the labels, in the text
// format of Prometheus; 0 if there is none.
func metric(text []byte, name string, labels ...string) (float64, error) {
	sum := 0.0
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
		if !ok || len(rest) == 0 || (rest[0] != '{' && rest[0] != ' ') || !containsAll(rest, labels) {
			continue
		}
		// A label's value may have spaces; the number is the last word but for a
		// timestamp, which the API server does not write.
		f := bytes.Fields(rest)
		v, err := strconv.ParseFloat(string(f[len(f)-1]), 64)
		if len(f) < 1 || err != nil {
			return 0, fmt.Errorf("%s: %w: %q", name, errMetric, line)
		}
		sum += v
	}
	return sum, nil
}

func containsAll(text []byte, parts []string) bool {
	for _, p := range parts {
		if !bytes.Contains(text, []byte(p)) {
			return false
		}
	}
	return true
}

// settleRule looks at a value again and again until it has not moved by more than the
// part of it, in so many looks, and returns the last. After the limit it takes what
// there is.
type settleRule struct {
	every, limit time.Duration
	samples      int
	part         float64
}

// shortSamples is how often the short form looks at a value at rest.
const shortSamples = 4

// of returns the rule in the form of the plan.
func (c settleRule) of(p harness.Plan) settleRule {
	c.every = p.Wait(c.every)
	if p.Short {
		c.samples = min(c.samples, shortSamples)
	}
	return c
}

// length is how long a value has to be at rest.
func (c settleRule) length() time.Duration { return c.every * time.Duration(c.samples) }

func (c settleRule) await(ctx context.Context, look func() (float64, error)) (float64, error) {
	end := time.Now().Add(c.limit)
	var least, most float64
	for n := 0; ; n++ {
		v, err := look()
		if err != nil {
			return 0, err
		}
		least, most = min(least, v), max(most, v)
		if n == 0 || most-least > c.part*v {
			n, least, most = 0, v, v
		}
		if n >= c.samples || !time.Now().Before(end) {
			return v, nil
		}
		if err := harness.Sleep(ctx, c.every); err != nil {
			return 0, err
		}
	}
}

// tapSettles is when what goes through a tap has come to its end: nothing for a second.
// Between two parts of a list there are milliseconds.
var tapSettles = settleRule{every: 100 * time.Millisecond, samples: 10, limit: time.Minute}

// awaitQuiet waits for silence on the tap and returns its count.
func awaitQuiet(ctx context.Context, p harness.Plan, t *wiretap.Tap) (wiretap.Count, error) {
	_, err := tapSettles.of(p).await(ctx, func() (float64, error) { return float64(t.Read().Bytes()), nil })
	return t.Read(), err
}

// openTap opens a tap on the API server and writes a kubeconfig file of the agent's
// that goes through it; the caller closes the tap.
func openTap(api *apiserver.Server, file string) (*wiretap.Tap, error) {
	c, err := clientcmd.LoadFromFile(api.Kubeconfig(apiserver.Agent))
	if err != nil {
		return nil, err
	}
	t, err := wiretap.Open(api.Addr())
	if err != nil {
		return nil, err
	}
	for _, cluster := range c.Clusters {
		cluster.Server = "https://" + t.Addr().String()
	}
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}
