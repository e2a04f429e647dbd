//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestCacheCommands: what is cached for a name, the caches in numbers, and removing names.
func TestCacheCommands(t *testing.T) {
	p := peer.Ports(t, 3)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[1]))
	_, dir := adminOf(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n cache 300\n forward . 127.0.0.1:%d\n}\n", p[0], p[1]))
	agenttest.Expect(t, p[0], "a.test.", "192.0.2.1")
	at := func(args string) []string { return append(strings.Fields(args), "--handover-dir", dir) }
	for _, c := range []struct {
		args  string
		wants []string
	}{
		{"cache get a.test", []string{"TYPE  BITS  REPLY", "\nA     -     NOERROR  1 ", "  test.\n"}},
		{"cache get a.test A -o wide", []string{"SUBTREE", "IN     success  false"}},
		{"cache get a.test MX", []string{"a.test. is not cached\n"}},
		{"cache get a.other", []string{"no cache covers a.other.\n"}},
		{"cache stats", []string{" KiB are in use\n", "ZONES  SUCCESS", "test.  1/9984   0/9984"}},
		{"cache stats -o wide", []string{"PREFETCHES"}},
		{"explain a.test --ask", []string{"answered by  cache", "asked        NOERROR, TTL ", ", by cache in ", " IN A 192.0.2.1"}},
		{"cache flush a.test", []string{"1 entries removed\n"}},
		{"cache get a.test", []string{"a.test. is not cached\n"}},
	} {
		code, out, stderr := outcome(t, at(c.args)...)
		for _, want := range c.wants {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%s: %d, no %q in\n%s%s", c.args, code, want, out, stderr)
			}
		}
	}
	var s report.CacheStats
	if _, out, _ := outcome(t, at("cache stats -o json")...); json.Unmarshal([]byte(out), &s) != nil || s.SchemaVersion != 1 || len(s.Caches) != 1 {
		t.Errorf("as JSON:\n%s", out)
	}
	for args, want := range map[string]string{
		"cache get":            "it got 0 arguments",
		"cache stats all":      "unexpected argument",
		"cache get a..b":       "give a domain name",
		"cache flush":          "takes one name",
		"cache get a.test QQQ": "give the name of a record type",
	} {
		if code, _, stderr := outcome(t, at(args)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s, want %q", args, code, stderr, want)
		}
	}
	for args, want := range map[string]string{"cache": "give one of the commands get, flush and stats", "cache gte": "unknown command"} {
		if code, _, stderr := outcome(t, strings.Fields(args)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s, want %q", args, code, stderr, want)
		}
	}
	_, none := adminOf(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", p[2]))
	if _, out, _ := outcome(t, "cache", "stats", "--handover-dir", none); out != "no cache directives\n" {
		t.Errorf("without cache:\n%s", out)
	}
}

// TestPrintCaches: the text of what an agent of a test does not have.
func TestPrintCaches(t *testing.T) {
	var b strings.Builder
	zones, left, idle := []string{"a.", "b.", "c.", "d."}, 12.4, 0.6
	err := printCacheEntries(&b, &report.CacheEntries{Name: "x.", More: 2, Caches: []report.CachedName{{
		Cache: report.Cache{Zones: zones}, MoreEntries: 3,
		Entries: []report.CacheEntry{{Type: "AAAA", DNSSEC: true, CheckingDisabled: true, Rcode: "NXDOMAIN", StaleSeconds: 99.6}},
	}}, MoreKernelCopies: 1, KernelCopies: []report.KernelCopy{
		{Listener: "192.0.2.1:53", Type: "A", Rcode: "NOERROR", State: "outdated"},
		{Listener: "192.0.2.1:53", Type: "AAAA", Flags: []string{"RD", "EDNS"}, Rcode: "NXDOMAIN", State: "valid", TTLSeconds: &left, IdleSeconds: &idle},
	}}, false)
	if err == nil {
		err = printCacheStats(&b, &report.CacheStats{More: 1, Bytes: 2048, BudgetBytes: 8192, Caches: []report.CacheCounts{{
			Cache: report.Cache{Zones: zones, Line: 7, View: "v"}, Bytes: 2000, Misses: 1, Stale: 4, Cuts: 5, Prefetches: 6,
			Success: report.KindCount{Entries: 1, Capacity: 10, Hits: 2, Evictions: 1}, Denial: report.KindCount{Entries: 2, Capacity: 20, Hits: 1, Evictions: 2},
		}}}, true)
	}
	want := `TYPE  BITS   REPLY     RECORDS  AGE  LEFT     STALE  ZONES
AAAA  DO,CD  NXDOMAIN  0        -    expired  100s   a.,b.,c.,+1
and 3 more entries
and 2 more caches

In the kernel:
TYPE  QUERIES  REPLY     STATE     LEFT  LAST GIVEN  LISTENER
A     -        NOERROR   outdated  -     -           192.0.2.1:53
AAAA  RD,EDNS  NXDOMAIN  valid     12s   1s ago      192.0.2.1:53
and 1 more copies
2 of 8 KiB are in use

ZONES        SUCCESS  DENIAL  BYTES  HITS  MISSES  HIT    EVICTIONS  STALE  LINE  VIEW  CUTS  PREFETCHES
a.,b.,c.,+1  1/10     2/20    2000   3     1       75.0%  3          4      7     v     5     6
and 1 more caches
`
	if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}
