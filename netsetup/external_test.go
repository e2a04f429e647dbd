// These tests use defaultInterface, external and accepts, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"
)

func TestExternalNames(t *testing.T) {
	many := "eth0"
	for i := range maxExternal {
		many += fmt.Sprintf(",eth%d", i+1)
	}
	tests := []struct {
		name, setting string
		want          []string
		auto          bool
		fault         string // in the error; empty: none
	}{
		{"not given", "", nil, true, ""},
		{"auto", "auto", nil, true, ""},
		{"none", "none", nil, false, ""},
		{"one", "eth0", []string{"eth0"}, false, ""},
		{"in order and once", "eth1, bond0.100,eth1,br-ex", []string{"bond0.100", "br-ex", "eth1"}, false, ""},
		{"empty name", "eth0,", nil, false, `"" is not the name of an interface`},
		{"pattern of nft", "eth*", nil, false, `"eth*" is not the name`},
		{"pattern of iptables", "eth+", nil, false, `"eth+" is not the name`},
		{"end of a text", `eth0" accept`, nil, false, "is not the name"},
		{"option", "-j", nil, false, "is not the name"},
		{"too long", "a234567890123456", nil, false, "is not the name"},
		{"lo", "eth0,lo", nil, false, "lo carries the node's own queries"},
		{"too many", many, nil, false, "17 names; give 16 at most"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, auto, err := externalNames(tt.setting)
			if diff := cmp.Diff(tt.want, got); diff != "" || auto != tt.auto {
				t.Errorf("auto %v, want %v; (-want +got):\n%s", auto, tt.auto, diff)
			}
			c := dualStack()
			c.ExternalInterfaces = tt.setting
			_, planned := NewPlan(c)
			for _, err := range []error{err, planned} {
				if (err == nil) != (tt.fault == "") ||
					err != nil && (!strings.Contains(err.Error(), tt.fault) || !strings.Contains(err.Error(), "-external-interfaces: ")) {
					t.Errorf("error %v, want %q", err, tt.fault)
				}
			}
		})
	}
}

func TestSplitExternal(t *testing.T) {
	many := make([]defaultInterface, maxExternal+1)
	for i := range many {
		many[i] = defaultInterface{fmt.Sprintf("eth%02d", maxExternal-i), "device", false}
	}
	tests := []struct {
		name           string
		found          []defaultInterface
		external, open []string
	}{
		{"nothing", nil, nil, nil},
		{"hardware and a bridge", []defaultInterface{{"eth1", "device", false}, {"br0", "bridge", true}, {"eth0", "device", false}},
			[]string{"eth0", "eth1"}, []string{"br0 (bridge)"}},
		{"name that is a pattern", []defaultInterface{{"eth+", "device", false}}, nil, []string{"eth+ (device)"}},
		{"many", many, []string{"eth00", "eth01", "eth02", "eth03", "eth04", "eth05", "eth06", "eth07",
			"eth08", "eth09", "eth10", "eth11", "eth12", "eth13", "eth14", "eth15"}, []string{"eth16 (device)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			external, open := splitExternal(tt.found)
			check.Equal(t, [][]string{tt.external, tt.open}, [][]string{external, open}, "it differs")
		})
	}
}

// externalRulesFor has local addresses of all sorts.
func externalRulesFor(names ...string) desiredRules {
	return desiredRules{addrs: parseAddrs("169.254.20.10", "10.96.0.10", "fd00::a"), dnsPort: 53, healthPort: 8080, matchSocket: true,
		diversion: servers, external: names}
}

// TestExternalRules: the chains in which packets come in begin with what keeps the rest from
// those of hosts outside; the others are as without.
func TestExternalRules(t *testing.T) {
	for _, f := range families() {
		for _, c := range chains() {
			with, without := chainRules(externalRulesFor("eth0", "eth1"), f, c), chainRules(externalRulesFor(), f, c)
			var want []string
			switch c.table + " " + c.hook {
			case "raw PREROUTING":
				if f == IPv4 {
					want = []string{"-d 169.254.20.10/32 -i eth0 -j DROP", "-d 169.254.20.10/32 -i eth1 -j DROP"}
				}
				want = append(want, "-i eth0 -j RETURN", "-i eth1 -j RETURN")
			case "filter INPUT", "nat PREROUTING":
				want = []string{"-i eth0 -j RETURN", "-i eth1 -j RETURN"}
			}
			check.Equal(t, append(want, without...), with, "%v %s %s", f, c.table, c.name)
		}
	}
	// Where a chain has nothing to do it is not made for these alone.
	w := externalRulesFor("eth0")
	w.addrs, w.diversion = w.addrs[:1], nil
	if got := restoreScript(w, IPv6, nil, nil); got != "" {
		t.Errorf("rules of a family without addresses:\n%s", got)
	}
	if got := restoreScript(w, IPv4, nil, nil); strings.Contains(got, "*nat") {
		t.Errorf("table nat without a diversion:\n%s", got)
	}
}

func TestExternalNftRules(t *testing.T) {
	text := func(desired desiredRules) string {
		return regexp.MustCompile(` comment "nodens [0-9a-f]{8}"`).ReplaceAllString(newNftBackend(nil).describe(desired), "")
	}
	for _, part := range []string{`
	chain raw-prerouting {
		type filter hook prerouting priority -300; policy accept;
		iifname "eth0" ip daddr 169.254.20.10 counter drop
		iifname "eth1" ip daddr 169.254.20.10 counter drop
		iifname "eth0" return
		iifname "eth1" return
		ip daddr 10.96.0.10 udp dport 53 `, `
	chain nat-prerouting {
		type nat hook prerouting priority -95; policy accept;
		iifname "eth0" return
		iifname "eth1" return
		ip daddr 10.96.0.10 udp dport 53 `} {
		if got := text(externalRulesFor("eth0", "eth1")); !strings.Contains(got, part) {
			t.Errorf("no%s\nin\n%s", part, got)
		}
	}
	if got := text(externalRulesFor("eth0")); strings.Count(got, "\tiifname") != 3 {
		t.Errorf("external interfaces count in other chains, too:\n%s", got)
	}
	if got := text(externalRulesFor()); strings.Contains(got, "iifname") {
		t.Errorf("without external interfaces:\n%s", got)
	}
	w := externalRulesFor("eth0")
	w.diversion = nil
	if got := text(w); strings.Contains(got, "nat-prerouting") {
		t.Errorf("table nat without a diversion:\n%s", got)
	}
}

// TestExternalAccepts: the rules in chains of others don't let hosts outside in, either.
func TestExternalAccepts(t *testing.T) {
	tests := []struct {
		name  string
		names []string
		nft   string // how the rules of hook input begin
		xt    string // what iptables' have before the address
	}{
		{"none", nil, "", ""},
		{"one", []string{"eth0"}, `iifname != "eth0" `, "! -i eth0 "},
		{"two", []string{"eth0", "eth1"}, `iifname != "eth0" iifname != "eth1" `, "-m conntrack --ctstate UNTRACKED "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with, without := externalRulesFor(tt.names...), externalRulesFor()
			texts := func(family, hook string, desired desiredRules, text func(packetRule) string) (list []string) {
				for _, r := range acceptRules(family, hook, desired) {
					r.comment = "" // the mark differs
					list = append(list, text(r))
				}
				return list
			}
			for _, family := range []string{"inet", "ip", "ip6"} {
				var want []string
				for _, rule := range texts(family, "input", without, packetRule.nft) {
					want = append(want, tt.nft+rule)
				}
				check.Equal(t, want, texts(family, "input", with, packetRule.nft), "%s input", family)
				check.Equal(t, texts(family, "output", without, packetRule.nft), texts(family, "output", with, packetRule.nft), "%s output", family)
			}
			for i, line := range texts("ip", "input", without, packetRule.iptables) {
				before, after, _ := strings.Cut(line, " -p ")
				if got, want := texts("ip", "input", with, packetRule.iptables)[i], strings.TrimSpace(before+" "+tt.xt)+" -p "+after; got != want {
					t.Errorf("iptables: %q, want %q", got, want)
				}
			}
		})
	}
}

// The interfaces of these tests.
var (
	hardware0 = defaultInterface{"eth0", "device", false}
	hardware1 = defaultInterface{"eth1", "device", false}
	bridge    = defaultInterface{"br0", "bridge", true}
)

func TestFollowRoutes(t *testing.T) {
	steps := []struct {
		name    string
		over    []defaultInterface
		fail    bool
		want    []string
		changed bool
		warns   bool
	}{
		{name: "no default route yet"},
		{name: "the first", over: []defaultInterface{hardware0}, want: []string{"eth0"}, changed: true},
		{name: "the same", over: []defaultInterface{hardware0}, want: []string{"eth0"}},
		{name: "two", over: []defaultInterface{hardware1, hardware0}, want: []string{"eth0", "eth1"}, changed: true},
		{name: "another order", over: []defaultInterface{hardware0, hardware1}, want: []string{"eth0", "eth1"}},
		{name: "one is left", over: []defaultInterface{hardware1}, want: []string{"eth1"}, changed: true},
		{name: "none is left", want: []string{"eth1"}},
		{name: "routes can't be read", over: []defaultInterface{hardware0}, fail: true, want: []string{"eth1"}, warns: true},
		{name: "they can", over: []defaultInterface{hardware0}, want: []string{"eth0"}, changed: true},
		{name: "a bridge, too", over: []defaultInterface{hardware0, bridge}, want: []string{"eth0"}, warns: true},
		{name: "the bridge again", over: []defaultInterface{hardware0, bridge}, want: []string{"eth0"}},
		{name: "the bridge alone", over: []defaultInterface{bridge}, changed: true},
	}
	f := newFakeNode()
	var log strings.Builder
	c := dualStack()
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := newSetup(t, c, f)
	for _, step := range steps {
		log.Reset()
		f.setDefaults(step.over...)
		f.fail = func(string) error {
			if step.fail {
				return errors.New("no buffer space available")
			}
			return nil
		}
		s.externalChanged = false
		s.readDefaultRoutes()
		if got := s.externalChanged; got != step.changed {
			t.Errorf("%s: changed = %v", step.name, got)
		}
		if diff := cmp.Diff(step.want, s.rules.external); diff != "" && len(step.want)+len(s.rules.external) > 0 {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != map[bool]int{true: 1}[step.warns] {
			t.Errorf("%s: %d warnings:\n%s", step.name, got, log.String())
		}
	}
	if got := s.Stats().Errors[InterfaceCheck]; got != 1 {
		t.Errorf("%d errors counted, want 1", got)
	}
}

// TestExternalIsGiven: where interfaces are named, or none is wanted, nobody looks at routes.
func TestExternalIsGiven(t *testing.T) {
	for setting, want := range map[string][]string{"none": nil, "eth9,eth1": {"eth1", "eth9"}} {
		f := newFakeNode()
		f.setDefaults(hardware0)
		c := dualStack()
		c.ExternalInterfaces = setting
		s := newSetup(t, c, f)
		apply(t, s)
		s.recheck(t.Context())
		wantComplete(t, f, s, setting)
		check.Equal(t, want, s.rules.external, "%s", setting)
		if dump := f.dump(); strings.Contains(dump, "-i eth0 ") || strings.Contains(dump, "-i eth9 ") != (want != nil) {
			t.Errorf("%s: rules\n%s", setting, dump)
		}
	}
}

// TestRunFollowsRoutes: the rules follow at once, which counts as no repair; what fails is tried
// again at the next interval, and counts as none, either.
func TestRunFollowsRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode()
		f.setDefaults(hardware0)
		before := f.dump()
		s := newSetup(t, dualStack(), f)
		apply(t, s)
		stop := startRun(s)
		synctest.Wait()
		wantExternal := func(when string, names ...string) {
			t.Helper()
			synctest.Wait()
			check.Equal(t, names, s.rules.external, "%s", when)
			wantComplete(t, f, s, when)
		}
		wantExternal("at the start", "eth0")
		f.changeDefaults(hardware1)
		wantExternal("after a move", "eth1")
		f.changeDefaults(hardware1, bridge)
		wantExternal("a bridge, too", "eth1")

		failures := 0
		f.fail = func(call string) error {
			if strings.Contains(call, "-restore") {
				failures++
				return ErrLocked
			}
			return nil
		}
		f.changeDefaults(hardware0, hardware1)
		synctest.Wait()
		f.fail = nil
		if failures == 0 {
			t.Error("nothing was written")
		}
		f.signalRemoval() // the next re-check, whatever it is for
		wantExternal("after a failure", "eth0", "eth1")
		if got := s.Stats().Repairs; got != 0 {
			t.Errorf("%d repairs counted", got)
		}
		stop()
		check.NoError(t, s.Teardown(0, nil))
		check.Equal(t, before, f.dump(), "teardown")
	})
}
