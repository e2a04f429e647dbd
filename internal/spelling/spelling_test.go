// These tests use editDistance, which is not exported.

package spelling

import (
	"strings"
	"testing"
)

func TestClosest(t *testing.T) {
	allowed := []string{"cache", "errors", "force_tcp", "loop"}
	for text, want := range map[string]string{
		"cahce": "cache", "Cache": "cache", "chache": "cache", "lop": "loop", "loops": "loop", "error": "errors", "forcetcp": "force_tcp",
		"": "", "x": "", "dns64": "", "rewrite": "", strings.Repeat("cache", 100): "",
	} {
		if got := Closest(text, allowed); got != want {
			t.Errorf("nearest to %q is %q, want %q", text, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 1},
		{"abc", "ab", 1}, {"abc", "xabc", 1}, {"ca", "abc", 3}, {"kitten", "sitting", 3},
	} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance of %q and %q is %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
