package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

// listForm is a way to list all Services.
type listForm struct {
	name     string
	query    string
	gzip     bool
	metadata bool
}

// listForms are the rows of the table of lists. The agent's are pages of 100, compressed.
func listForms() []listForm {
	const streamed = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	return []listForm{
		{name: "streamed, gzip", query: streamed, gzip: true},
		{name: "streamed", query: streamed},
		{name: "streamed, metadata alone, gzip", query: streamed, gzip: true, metadata: true},
		{name: "one page, gzip", gzip: true},
		{name: "one page"},
		{name: "pages of 500, gzip", query: "limit=500", gzip: true},
		{name: "pages of 500", query: "limit=500"},
		{name: "any version (`resourceVersion=0`), gzip", query: "resourceVersion=0", gzip: true},
		{name: "metadata alone, gzip", gzip: true, metadata: true},
	}
}

// listRun is what one list took.
type listRun struct {
	kib  float64 // from the API server, TLS included
	cpu  time.Duration
	took time.Duration
}

// listRepeats is how often each list is read in a round.
const listRepeats = 3

// measureLists reads each list some times.
func (d *designRuns) measureLists(ctx context.Context) error {
	if !d.Only.MatchesName("lists") {
		return nil
	}
	file := filepath.Join(d.dir, "lists.kubeconfig")
	tap, err := openTap(d.API, file)
	if err != nil {
		return err
	}
	defer tap.Close()
	repeats := listRepeats
	if d.Short {
		repeats = 1
	}
	for range repeats {
		for _, form := range listForms() {
			r, err := d.measureList(ctx, file, tap, form)
			if err != nil {
				return fmt.Errorf("listing Services, %s: %w", form.name, err)
			}
			at := harness.Cell{Server: form.name}
			d.out.lists[at] = append(d.out.lists[at], r)
		}
	}
	return nil
}

// measureList reads a list over a connection of its own.
func (d *designRuns) measureList(ctx context.Context, file string, tap *wiretap.Tap, form listForm) (r listRun, err error) {
	c, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return r, err
	}
	tlsConfig, err := rest.TLSConfigFor(c)
	if err != nil {
		return r, err
	}
	own := &http.Transport{TLSClientConfig: tlsConfig, DisableCompression: !form.gzip, ForceAttemptHTTP2: true}
	defer own.CloseIdleConnections()
	through, err := rest.HTTPWrappersForConfig(c, own)
	if err != nil {
		return r, err
	}
	api, _ := d.API.Pids()
	before := tap.Read()
	cpu, err := machine.CPUClock(api)
	if err != nil {
		return r, err
	}
	start := time.Now()
	for token, more := "", true; more; more = token != "" {
		if token, err = form.read(ctx, through, c.Host, token); err != nil {
			return r, err
		}
	}
	r.took = time.Since(start)
	end, err := machine.CPUClock(api)
	if err != nil {
		return r, err
	}
	r.kib, r.cpu = figures.Kibi(tap.Read().Sub(before).Received), end-cpu
	return r, nil
}

// errStatus is a reply that is no list.
var errStatus = errors.New("unexpected status")

// read reads a page, or a stream until the end of the list, and returns the token of the next page.
func (f listForm) read(ctx context.Context, through http.RoundTripper, host, token string) (next string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of a watch
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/api/v1/services?"+f.query+"&continue="+url.QueryEscape(token), nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", runtime.ContentTypeProtobuf+f.mediaParameters())
	reply, err := through.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	switch {
	case reply.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w %s", errStatus, reply.Status)
	case f.streamed():
		return "", readUntil(reply.Body, metav1.InitialEventsAnnotationKey)
	}
	data, err := io.ReadAll(reply.Body)
	if err != nil || f.mediaParameters() != "" {
		return "", err
	}
	var envelope runtime.Unknown
	var list corev1.ServiceList
	if err := envelope.Unmarshal(bytes.TrimPrefix(data, []byte("k8s\x00"))); err != nil {
		return "", err
	}
	err = list.Unmarshal(envelope.Raw)
	return list.Continue, err
}

func (f listForm) streamed() bool { return strings.HasPrefix(f.query, "watch") }

// mediaParameters returns the parameters of the media type.
func (f listForm) mediaParameters() string {
	switch {
	case !f.metadata:
		return ""
	case f.streamed():
		return ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	}
	return ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
}

// readUntil reads until the text has come.
func readUntil(from io.Reader, text string) error {
	part, tail := make([]byte, 64<<10), []byte(nil)
	for {
		n, err := from.Read(part)
		tail = append(tail, part[:n]...)
		if bytes.Contains(tail, []byte(text)) {
			return nil
		}
		if err != nil {
			return err
		}
		tail = append([]byte(nil), tail[max(0, len(tail)-len(text)):]...)
	}
}
