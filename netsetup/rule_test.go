package netsetup

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRuleListed(t *testing.T) {
	var r Rule
	for _, r = range rulesFor(netip.MustParseAddr("169.254.20.10"), 53, 0) {
		if r.Table == "raw" && r.Chain == "PREROUTING" && r.Spec[1] == "udp" {
			break
		}
	}
	const comment = ` -m comment --comment "NodeLocal DNS Cache: skip conntrack"`
	tests := []struct {
		name, line string
		want       bool
	}{
		{"as iptables prints it", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j NOTRACK`, true},
		{"with the modern target", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j CT --notrack`, true},
		{"in the order of our own words", `-A PREROUTING -p udp -d 169.254.20.10 --dport 53 -j NOTRACK` + comment, true},
		{"policy", `-P PREROUTING ACCEPT`, false},
		{"empty", ``, false},
		{"chain without a rule", `-A PREROUTING`, false},
		{"other chain", `-A OUTPUT -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j NOTRACK`, false},
		{"other address", `-A PREROUTING -d 169.254.20.11/32 -p udp -m udp --dport 53` + comment + ` -j NOTRACK`, false},
		{"other protocol", `-A PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53` + comment + ` -j NOTRACK`, false},
		{"other port", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 5` + comment + ` -j NOTRACK`, false},
		{"one match more", `-A PREROUTING -d 169.254.20.10/32 -i eth0 -p udp -m udp --dport 53` + comment + ` -j NOTRACK`, false},
		{"one match less", `-A PREROUTING -d 169.254.20.10/32 -p udp` + comment + ` -j NOTRACK`, false},
		{"other target", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j DROP`, false},
		{"other use of CT", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j CT --zone 5`, false},
		{"option at the end", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j`, false},
		{"one word more", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j NOTRACK --log`, false},
		{"one word more after CT", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j CT --notrack --log`, false},
		{"negation", `-A PREROUTING ! -d 169.254.20.10/32 -p udp -m udp --dport 53` + comment + ` -j NOTRACK`, false},
		{"no comment", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NOTRACK`, false},
		{"somebody's comment", `-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -m comment --comment "say \"hi\"" -j NOTRACK`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := r.listed(tt.line); got != tt.want {
				t.Errorf("listed(%s) = %v for %v", tt.line, got, r)
			}
		})
	}
}

func TestSplitWords(t *testing.T) {
	tests := []struct {
		line string
		want []string
	}{
		{``, nil},
		{`  `, nil},
		{`-A  INPUT `, []string{"-A", "INPUT"}},
		{`--comment "a b" -j X`, []string{"--comment", "a b", "-j", "X"}},
		{`"say \"hi\" \\ there"`, []string{`say "hi" \ there`}},
		{`--comment ""`, []string{"--comment", ""}},
		{`"never closed`, []string{"never closed"}},
		{`"at the end\`, []string{`at the end\`}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, splitWords(tt.line)); diff != "" {
			t.Errorf("splitWords(%s) (-want +got):\n%s", tt.line, diff)
		}
	}
}

// FuzzRuleListed feeds lines that no iptables prints. A line that counts as ours
// must hold every word of the rule's matches.
func FuzzRuleListed(f *testing.F) {
	rules := rulesFor(netip.MustParseAddr("fd00::a"), 53, 8080)
	for _, r := range rules {
		_, spec, _ := strings.Cut(r.String(), " 1 ")
		f.Add("-A " + r.Chain + " " + spec)
	}
	f.Add(`-A INPUT ! -s 10.0.0.0/8 -p tcp --syn -m comment --comment "a \"b\\" -j CT --notrack`)
	f.Add(`-A "`)
	f.Fuzz(func(t *testing.T, line string) {
		ours := 0
		for _, r := range rules {
			if !r.listed(line) {
				continue
			}
			ours++
			flat := strings.ReplaceAll(strings.ReplaceAll(line, `"`, ""), `\`, "")
			for i, w := range r.Spec {
				named := i%2 == 1 && r.Spec[i-1] != "-m" && w != "NOTRACK"
				if named && !strings.Contains(flat, w) {
					t.Errorf("%q counts as %v and lacks %q", line, r, w)
				}
			}
		}
		if ours > 1 {
			t.Errorf("%q counts as %d rules at once", line, ours)
		}
	})
}

// FuzzSplitWords puts words together as iptables quotes them and takes them apart.
func FuzzSplitWords(f *testing.F) {
	f.Add("-A", "a b", `"\`)
	f.Fuzz(func(t *testing.T, a, b, c string) {
		words := []string{a, b, c}
		var line []string
		for _, w := range words {
			line = append(line, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w)+`"`)
		}
		if diff := cmp.Diff(words, splitWords(strings.Join(line, " "))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
