package config

import (
	"fmt"
	"testing"
)

// TestBindAll: 0.0.0.0 is all addresses of both families, unless another block has the zone at "::".
func TestBindAll(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{". {\nbind 0.0.0.0\n}\n", "[[[::]:53]]"},
		{". {\nbind ::\n}\n", "[[[::]:53]]"},
		{". {\nbind ::ffff:0.0.0.0\n}\n", "[[[::]:53]]"},
		{". {\nbind 0.0.0.0 ::\n}\n", "[[[::]:53]]"},
		{". {\nbind 0.0.0.0\nbind 127.0.0.1\n}\n", "[[[::]:53 127.0.0.1:53]]"},
		{".:53 a.test:54 {\nbind 0.0.0.0\n}\n", "[[[::]:53] [[::]:54]]"},
		{"a.test {\nbind 0.0.0.0\n}\nb.test {\nbind ::\n}\n", "[[[::]:53] [[::]:53]]"},
		{". {\nbind 0.0.0.0\n}\n. {\nbind ::\n}\n", "[[0.0.0.0:53] [[::]:53]]"},
		{".:53 {\nbind 0.0.0.0\n}\n.:54 {\nbind ::\n}\n", "[[[::]:53] [[::]:54]]"},
	} {
		c, err := parse(t, tt.text)
		if err != nil {
			t.Fatal(err)
		}
		var got [][]string
		for _, b := range c.Blocks {
			var list []string
			for _, at := range b.Listen {
				list = append(list, at.String())
			}
			got = append(got, list)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%q: %v, want %s", tt.text, got, tt.want)
		}
	}
}
