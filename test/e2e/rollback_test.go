package main

import (
	"encoding/json"
	"go/format"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestFaultEdits: the edits that make the bad agents fit the tree. Only a run in a cluster
// compiles them.
func TestFaultEdits(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, err := writeOverlay(root, t.TempDir(), faultEdits, faultFiles)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for from, to := range list.Replace {
		before, _ := os.ReadFile(from) // none for an additional file
		after, err := os.ReadFile(to)
		if err != nil || string(before) == string(after) {
			t.Errorf("%s is not another version of %s (%v)", to, from, err)
		}
		if _, err := format.Source(after); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	if _, err := writeOverlay(root, t.TempDir(), []edit{{"go.mod", "no such text", ""}}, map[string]string{}); err == nil {
		t.Error("an edit of a text that does not occur has no error")
	}
}

func TestChooseBadAgents(t *testing.T) {
	if list, err := chooseBadAgents(splitList(usualBadAgents)); err != nil || len(list) != 2 {
		t.Errorf("%v, %v; want the two usual ones", list, err)
	}
	if _, err := chooseBadAgents([]string{"x"}); err == nil {
		t.Error("an unknown name has no error")
	}
}
