// These tests use parseTailRequest, which is not exported.

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// follow follows a request to /tail until the test ends, and returns its lines.
func follow(t *testing.T, socket string, values url.Values) (lines chan report.TailLine, end chan error, disconnect func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	lines, end = make(chan report.TailLine, 100), make(chan error, 1)
	go func() {
		end <- report.Follow(ctx, socket, "/tail", values, func(text []byte) error {
			var l report.TailLine
			if err := json.Unmarshal(text, &l); err != nil {
				return err
			}
			lines <- l
			return nil
		})
	}()
	t.Cleanup(cancel)
	return lines, end, cancel
}

// TestTail: the admin socket shows the queries of the selected clients as they are answered, until the agent
// ends.
func TestTail(t *testing.T) {
	p := peer.Ports(t, 1)
	socket := filepath.Join(t.TempDir(), "a.sock")
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[0]), func(o *options.Agent) {
		o.AdminSocket, o.NodeName, o.ClientMetrics = socket, "node-1", options.ClientMetricsOff
	})
	all, end, _ := follow(t, socket, url.Values{"all": {"true"}})
	host, _, _ := follow(t, socket, url.Values{"pod": {"127.0.0.1"}, "name": {"test"}})
	other, _, _ := follow(t, socket, url.Values{"namespace": {"shop"}})
	for lines, want := range map[chan report.TailLine]*report.TailSelection{
		all: {AllClients: true, Addresses: []string{}}, host: {Addresses: []string{"127.0.0.1"}}, other: {Addresses: []string{}},
	} {
		l := <-lines
		if diff := cmp.Diff(want, l.Selected); diff != "" || l.SchemaVersion != report.SchemaVersion || l.Node != "node-1" || l.Query != nil {
			t.Errorf("the first line is %+v, %s", l, diff)
		}
	}
	if code, text := over(t, socket, "GET", "/status"); code != http.StatusOK {
		t.Errorf("/status meanwhile: %d %s", code, text)
	}
	agenttest.Ask(t, p[0], "a.test.")
	want := &report.TailQuery{
		Namespace: "(host)", Protocol: "udp", Name: "a.test.", Type: "A", Rcode: "NOERROR", Zone: ".", Source: "hosts",
	}
	for name, lines := range map[string]chan report.TailLine{"all": all, "host": host} {
		q := (<-lines).Query
		if q == nil || q.DurationSeconds <= 0 || q.Time.IsZero() || !strings.HasPrefix(q.Client, "127.0.0.1:") {
			t.Fatalf("%s: the query is %+v", name, q)
		}
		want.Time, want.Client, want.DurationSeconds = q.Time, q.Client, q.DurationSeconds
		if diff := cmp.Diff(want, q); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	agenttest.Ask(t, p[0], "a.other.")
	if q := (<-all).Query; q == nil || q.Name != "a.other." {
		t.Errorf("the next query is %+v", q)
	}
	if len(host)+len(other) > 0 {
		t.Errorf("queries that are not selected: %d, %d", len(host), len(other))
	}
	r.Stop()
	if err := <-end; !errors.Is(err, report.ErrEnded) {
		t.Errorf("after the end of the agent: %v", err)
	}
}

// TestTailLimit: there are four requests at once, which do not keep others away. The end of one makes room.
func TestTailLimit(t *testing.T) {
	p := peer.Ports(t, 1)
	socket := filepath.Join(t.TempDir(), "a.sock")
	r := startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n whoami\n}\n", p[0]), func(o *options.Agent) { o.AdminSocket = socket })
	var disconnect func()
	for range 4 {
		var lines chan report.TailLine
		lines, _, disconnect = follow(t, socket, url.Values{"all": {"true"}})
		<-lines
	}
	lines, end, _ := follow(t, socket, url.Values{"all": {"true"}})
	if err := <-end; err == nil || !strings.Contains(err.Error(), "four commands follow queries") {
		t.Errorf("a fifth: %v", err)
	}
	lines, end, _ = follow(t, socket, url.Values{"all": {"true"}})
	disconnect()
	r.Await("room for another request", func() bool {
		select {
		case <-lines:
			return true
		case <-end:
			lines, end, _ = follow(t, socket, url.Values{"all": {"true"}})
		default:
		}
		return false
	})
	if code, _ := over(t, socket, "GET", "/upstreams"); code != http.StatusOK {
		t.Errorf("/upstreams: %d", code)
	}
	if code, text := over(t, socket, "GET", "/tail?pod=a&rcode=x"); code != http.StatusBadRequest || !strings.Contains(text, "rcode is") {
		t.Errorf("an rcode that is none: %d %s", code, text)
	}
}

// TestTailRequest: what the parameters select, and their errors.
func TestTailRequest(t *testing.T) {
	table := clients.New(clients.Options{Stripes: 1})
	for i, pod := range []clients.Pod{{Namespace: "shop", Name: "web-1", UID: "1"}, {Namespace: "shop", Name: "web-2", UID: "2"}, {Namespace: "test", Name: "web-1", UID: "3"}} {
		table.SetPod(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), pod)
	}
	for text, want := range map[string]string{
		"pod=web-1":                "[10.0.0.1 10.0.0.3]",
		"pod=shop/web-1":           "[10.0.0.1]",
		"pod=web-1&namespace=test": "[10.0.0.3]",
		"namespace=shop":           "[10.0.0.1 10.0.0.2]",
		"pod=nosuch":               "[]",
		"pod=::ffff:10.9.9.9":      "[10.9.9.9]",

		"":                          "no clients are selected; give pod, namespace, or all=true",
		"all=true&pod=a":            "all clients and a selection of clients; give one of them",
		"all=x":                     `all is "x"; give true or false`,
		"pod=a/b&namespace=c":       `pod is "a/b" and namespace is "c"; give one of them`,
		"pod=a&name=a..b":           "label",
		"pod=a&rcode=NXDOMAINS":     `rcode is "NXDOMAINS"; give a name such as NXDOMAIN or SERVFAIL`,
		"pod=a&rcode=nxdomain":      "[]",
		"pod=a&slow=fast":           `slow is "fast"; give a duration such as 100ms`,
		"pod=a&slow=-1s":            `slow is "-1s"; give a duration such as 100ms`,
		"pod=a&slow=1s&name=a.test": "[]",
		"pod=a&for=24h1s":           `for is "24h1s"; give a duration such as 10m, at most 24h`,
		"pod=a&for=0s":              `for is "0s"; give a duration such as 10m, at most 24h`,
		"pod=a&for=long":            `for is "long"; give a duration such as 10m, at most 24h`,
		"pod=a&for=24h":             "[]",
	} {
		values, err := url.ParseQuery(text)
		check.NoError(t, err)
		q, err := parseTailRequest(values)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", text, err, want)
			}
			continue
		}
		list := q.addrs(table)
		if got := fmt.Sprint(list); got != want {
			t.Errorf("%s selects %s, want %s", text, got, want)
		}
	}
}
