// Package portable builds the program for the systems of operators' workstations. The agent
// needs Linux; check, plan, migrate, flush and the other commands that need no node run there.
package portable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/toolcache"
	"github.com/nodens-dns/nodens/test/peer"
)

// systems are these systems, as GOOS/GOARCH.
var systems = []string{"darwin/arm64", "windows/amd64"}

// workstation are the packages with tests that build on these systems. They import neither
// the agent nor anything else that only Linux has, except in files named *_linux.go.
var workstation = []string{"./cmd/nodens", "./cmd/nodens/advice", "./cmd/nodens/kubectl", "./cmd/nodens/migrate", "./cmd/nodens/options"}

// TestOtherSystems builds nodens and vets it, its tests included, for macOS and Windows.
func TestOtherSystems(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range systems {
		t.Run(system, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(system, "/")
			out := binaryOf(t, root, goos)
			for _, args := range [][]string{{"build", "-trimpath", "-o", out, "./cmd/nodens"}, append([]string{"vet", "-trimpath"}, workstation...)} {
				cmd := exec.CommandContext(t.Context(), "go", args...)
				cmd.Dir = root
				cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOOS="+goos, "GOARCH="+goarch)
				if text, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("GOOS=%s GOARCH=%s go %s: %v\n%sput code that needs Linux into a file named *_linux.go, and what the commands do elsewhere into *_other.go",
						goos, goarch, strings.Join(args, " "), err, text)
				}
			}
		})
	}
}

// binaryOf returns where to build the program for a system. It is the same path in each run
// for this clone, because go build does not link a binary again that is up to date.
func binaryOf(t *testing.T, root, goos string) string {
	t.Helper()
	cache, err := toolcache.Open()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(root))
	entry := toolcache.Entry{Name: "nodens-" + goos, Key: hex.EncodeToString(sum[:8]), Limit: 6}
	dir, release, err := cache.Use(context.WithoutCancel(t.Context()), entry, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return filepath.Join(dir, "nodens")
}
