package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// CompareSeconds is how long a new agent compares itself with the old one where a test is about that:
// the least time there is. With the minute of the manifest each rollout would take two minutes.
const CompareSeconds = 5

// WithComparison returns a manifest with a comparison of this many seconds; 0: none. The agent must
// have the argument -skipteardown, and no -handover-compare.
func WithComparison(manifest string, seconds int) (string, error) {
	argument := regexp.MustCompile(`\n( *- )-skipteardown\n`)
	places := argument.FindAllString(manifest, -1)
	if len(places) != 1 || strings.Contains(manifest, "- -handover-compare") {
		return "", fmt.Errorf("the manifest has -skipteardown %d times, want once, or has -handover-compare", len(places))
	}
	return argument.ReplaceAllString(manifest, fmt.Sprintf("$0$1-handover-compare=%ds\n", seconds)), nil
}

// SetComparison changes the manifest and the values of the chart in a copy of the tree to a comparison
// of this many seconds; 0: none.
func SetComparison(tree string, seconds int) error {
	for name, edit := range map[string]func(string) (string, error){
		"daemonset/base/nodens.yaml": func(manifest string) (string, error) { return WithComparison(manifest, seconds) },
		"daemonset/chart/values.yaml": func(values string) (string, error) {
			return replaceOnce(values, "\nhandoverCompareSeconds: 60\n", fmt.Sprintf("\nhandoverCompareSeconds: %d\n", seconds))
		},
	} {
		file := filepath.Join(tree, filepath.FromSlash(name))
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed, err := edit(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// replaceOnce replaces pairs of texts, each of which has to be there once.
func replaceOnce(text string, pairs ...string) (string, error) {
	for i := 0; i < len(pairs); i += 2 {
		if n := strings.Count(text, pairs[i]); n != 1 {
			return "", fmt.Errorf("%q is there %d times, want once", pairs[i], n)
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text, nil
}
