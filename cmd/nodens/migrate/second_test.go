package migrate

import (
	"fmt"
	"strings"
	"testing"
)

// TestSecondDaemonSet: of two DaemonSets at one address each gets a hand-over directory of its own, and hooks that need a
// shell go, with notes.
func TestSecondDaemonSet(t *testing.T) {
	one := func(name string) string {
		text := strings.NewReplacer("EXTRA", "", "UPDATED", "3", `"name":"node-local-dns","namespace":"kube-system","generation"`, fmt.Sprintf(`"name":%q,"namespace":"kube-system","generation"`, name)).Replace(daemonSet)
		return strings.Replace(text, `"image":"old",`, `"image":"old","lifecycle":{"preStop":{"exec":{"command":["sh","-c","sleep 300"]}},"postStart":{"exec":{"command":["/bin/true"]}}},`, 1)
	}
	for _, c := range []struct {
		name, migrated string
		sets           []string
		wantDir        string
		wantTodo       bool
	}{
		{"alone", "nodelocaldns", []string{"nodelocaldns"}, "/var/lib/nodens", false},
		{"the first of two", "nodelocaldns", []string{"nodelocaldns", "nodelocaldns-second"}, "/var/lib/nodens", true},
		{"the second of two", "nodelocaldns-second", []string{"nodelocaldns", "nodelocaldns-second"}, "/var/lib/nodens-nodelocaldns-second", true},
		{"the second without the first", "nodelocaldns-second", []string{"nodelocaldns-second"}, "/var/lib/nodens-nodelocaldns-second", false},
		{"two of other names", "dns-b", []string{"dns-b", "dns-a"}, "/var/lib/nodens-dns-b", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o Objects
			for _, name := range c.sets {
				if err := o.Read(name, strings.NewReader(one(name))); err != nil {
					t.Fatal(err)
				}
			}
			if err := o.Read("configmaps", strings.NewReader(configMaps)); err != nil {
				t.Fatal(err)
			}
			r, err := Run(Request{Objects: &o, Name: c.migrated, Image: "new", Manifest: []byte(ownManifest), Flags: testFlags, Known: knownTestFlag})
			if err != nil {
				t.Fatal(err)
			}
			text, notes := string(r.Manifest), fmt.Sprint(r.Notes)
			for _, want := range []string{"- " + c.wantDir + "\n", "mountPath: " + c.wantDir + "\n", "path: " + c.wantDir + "\n"} {
				if !strings.Contains(text, want) {
					t.Errorf("the manifest lacks %q", want)
				}
			}
			if got := strings.Contains(notes, "an agent at the same addresses"); got != c.wantTodo {
				t.Errorf("the notes name the other DaemonSet: %v, want %v", got, c.wantTodo)
			}
			for _, want := range []string{"lifecycle.preStop", "lifecycle.postStart", "it runs sh", "it runs /bin/true"} {
				if !strings.Contains(notes, want) {
					t.Errorf("the notes lack %q", want)
				}
			}
			if strings.Contains(text, "sleep 300") {
				t.Error("the hook stays")
			}
			if t.Failed() {
				t.Logf("%s\n%s", text, notes)
			}
		})
	}
}
