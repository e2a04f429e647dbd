package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadTrace: lines are counted once for each query, accesses across a border twice, and what comes before the first
// query and after the last one not at all.
func TestReadTrace(t *testing.T) {
	const trace = `==1== Lackey
 S 00ff,8
I  1000,3
I  1003,4
 L 2000,8
 L 2008,8
 S 203e,4
 M 3000,8
I  1000,3
 L 2000,8
I  1000,3
==1== Counted
`
	list, err := readTrace(strings.NewReader(trace), 0x1000, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got [][4]int
	for _, q := range list {
		got = append(got, [4]int{len(q.code), len(q.data), len(q.written), q.instructions})
	}
	if d := cmp.Diff([][4]int{{1, 3, 3, 2}, {1, 1, 0, 1}}, got); d != "" {
		t.Errorf("code, data, written lines and instructions (-want +got):\n%s", d)
	}
}
