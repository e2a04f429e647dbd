// Internal: makes files with a correct checksum.

package kubernetes

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestSavedViewCutShort: a file that ends within a value is refused at every byte, although its
// checksum is correct; at the end of a record it is a view with fewer objects.
func TestSavedViewCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	v, _ := openSaved(t, cfg)
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	handlerFixture{v, services}.put(makeService("b", "web", "10.0.0.2"))
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	good, err := os.ReadFile(path)
	noError(t, err)
	records := good[:len(good)-sha256.Size]
	read := make(map[int]int) // files by the number of Services in them
	for n := range len(records) + 1 {
		sum := sha256.Sum256(records[:n])
		noError(t, os.WriteFile(path, append(records[:n:n], sum[:]...), 0o600))
		v, log := openSaved(t, cfg)
		if v.Synced() == strings.Contains(log, "unusable") {
			t.Fatalf("%d bytes: synced %v, log %s", n, v.Synced(), log)
		}
		if v.Synced() {
			read[len(v.index.services)]++
		} else if len(v.index.services) > 0 {
			t.Fatalf("%d bytes: a refused file has left %d Services", n, len(v.index.services))
		}
	}
	for n := range 3 {
		if read[n] == 0 {
			t.Errorf("no file with %d Services: %v", n, read)
		}
	}
}

// TestIsTarget checks which names a saved alias may lead to.
func TestIsTarget(t *testing.T) {
	label := func(n int) string { return fmt.Sprintf("%c%s", n, strings.Repeat("x", n)) }
	for _, tt := range []struct {
		name wire.Name
		want bool
	}{
		{"\x03www\x07example\x00", true},
		{"\x03w_1\x00", true},
		{wire.Name(label(63) + "\x00"), true},
		{wire.Name(label(64) + "\x00"), false},
		{"", false},
		{"\x03www", false},
		{"\x03ww\x00", false},
		{"\x03www\x00\x00", false},
		{"\x03www\x00\x01a\x00", false},
		{"\x03Www\x00", false},
		{"\x03wwZ\x00", false},
		{"\x03w w\x00", false},
		{"\x03w\x01w\x00", false},
		{"\x03w\x7fw\x00", false},
		{"\x03w~w\x00", true},
		{"\x03w!w\x00", true},
		{"\x03w\\w\x00", false},
		{"\x03w.w\x00", false},
	} {
		if got := isTarget(tt.name); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestNamespaceCounts: headless Services of each kind are counted as they come and go.
func TestNamespaceCounts(t *testing.T) {
	v := emptyView()
	key, _ := namespaceKey("a")
	check := func(after string, selectorless, unlabelled, headless int) {
		t.Helper()
		ns := v.index.namespaces[key]
		if ns == nil {
			t.Fatalf("%s: no namespace", after)
		}
		if ns.selectorless != selectorless || ns.unlabelled != unlabelled || ns.headlessCount != headless {
			t.Errorf("%s: %d without selector, %d without a labelled slice, %d headless, want %d, %d, %d",
				after, ns.selectorless, ns.unlabelled, ns.headlessCount, selectorless, unlabelled, headless)
		}
	}
	put := func(name string, selector map[string]string) *corev1.Service {
		o := makeService("a", name, "None")
		o.Spec.Selector = selector
		handlerFixture{v, services}.put(o)
		return o
	}
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	one, two := put("one", nil), put("two", nil)
	check("two without selector", 2, 0, 2)
	three, _ := put("three", map[string]string{"app": "x"}), put("four", map[string]string{"app": "x"})
	check("two with a selector", 2, 2, 4)
	for i, o := range []*corev1.Service{one, two, three} {
		handlerFixture{v, services}.drop(o)
		check("deleted "+o.Name, max(1-i, 0), 2-i/2, 3-i)
	}
}
