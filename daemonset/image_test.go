package daemonset

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pinnedImage matches the short name of an image with a version as tag. "latest" and names of
// releases change over time.
var pinnedImage = regexp.MustCompile(`^[a-z0-9-]+:[0-9]+\.[0-9]+[a-z0-9.-]*$`)

func TestPinnedImage(t *testing.T) {
	tests := []struct {
		image string
		want  bool
	}{
		{"golang:1.26.8-trixie", true},
		{"debian:13.2-slim", true},
		{"debian", false},
		{"debian:latest", false},
		{"debian:trixie-slim", false},
		{"registry.example/debian:13.2", false},
	}
	for _, tt := range tests {
		if got := pinnedImage.MatchString(tt.image); got != tt.want {
			t.Errorf("%s: pinned %v, want %v", tt.image, got, tt.want)
		}
	}
}

func TestManifestImage(t *testing.T) {
	_, c := podSpec(t)
	if !pinnedImage.MatchString(c.Image) {
		t.Errorf("the manifest's image %s is not pinned", c.Image)
	}
}

// dockerfileInstructions returns the instructions of the Dockerfile, with continued lines joined.
func dockerfileInstructions(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	joined := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part, more := strings.CutSuffix(line, "\\")
		joined += part
		if !more {
			list = append(list, joined)
			joined = ""
		}
	}
	return list
}

func TestDockerfile(t *testing.T) {
	list := dockerfileInstructions(t)
	args := map[string]string{}
	var bases []string
	for _, in := range list {
		word, rest, _ := strings.Cut(in, " ")
		fields := strings.Fields(rest)
		switch word {
		case "ARG":
			if name, value, ok := strings.Cut(rest, "="); ok {
				args[name] = value
			}
		case "FROM":
			at := slices.IndexFunc(fields, func(f string) bool { return !strings.HasPrefix(f, "--") })
			bases = append(bases, os.Expand(fields[at], func(name string) string { return args[name] }))
		case "LABEL":
			for _, label := range []string{"title", "source", "licenses", "version", "revision"} {
				if !strings.Contains(rest, "org.opencontainers.image."+label+"=") {
					t.Errorf("the image has no label org.opencontainers.image.%s", label)
				}
			}
		}
	}
	if len(bases) != 2 || bases[1] != "scratch" {
		t.Fatalf("stages from %v, want two, the second from scratch", bases)
	}
	if !pinnedImage.MatchString(bases[0]) {
		t.Errorf("FROM %s is not pinned", bases[0])
	}
	whole := strings.Join(list, "\n")
	for _, want := range []string{
		"--platform=$BUILDPLATFORM", `go -C daemonset/image run . -arch "$TARGETARCH"`, "-root /image", "COPY --from=build /image/ /",
	} {
		if !strings.Contains(whole, want) {
			t.Errorf("the Dockerfile does not contain %q", want)
		}
	}
	// The second stage must not run programs: it may be of another architecture.
	if _, second, _ := strings.Cut(whole, "FROM scratch"); strings.Contains(second, "\nRUN") {
		t.Error("the second stage runs a program")
	}
}

// dockerIgnores reports whether the Docker build ignores a file: the last pattern that matches
// it, or a folder above it, decides.
func dockerIgnores(patterns []string, name string) (out bool) {
	for _, p := range patterns {
		p, back := strings.CutPrefix(p, "!")
		anywhere, deep := strings.CutPrefix(p, "**/")
		for at := name; at != "."; at = path.Dir(at) {
			seen, err := path.Match(p, at)
			if deep {
				seen, err = path.Match(anywhere, path.Base(at))
			}
			if seen && err == nil {
				out = !back
				break
			}
		}
	}
	return out
}

// TestIgnored: the Docker context contains all files that the build needs, and no others.
func TestIgnored(t *testing.T) {
	text, err := os.ReadFile("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			patterns = append(patterns, line)
		}
	}
	const files = `{{if not .Standard}}{{with .Module}}{{if or .Main .Replace}}{{$at := $.ImportPath}}` +
		`{{range $.GoFiles}}{{$at}}/{{.}}{{"\n"}}{{end}}{{range $.EmbedFiles}}{{$at}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}`
	needed := []string{"go.mod", "go.sum", "LICENSE", "daemonset/image/go.mod", "daemonset/image/go.sum"}
	for dir, program := range map[string]string{"..": "./cmd/nodens", "image": "."} {
		out, err := exec.Command("go", "-C", dir, "list", "-deps", "-f", files, program).Output()
		if err != nil {
			t.Fatalf("go list in %s: %v", dir, err)
		}
		needed = append(needed, strings.Fields(string(out))...)
	}
	if len(needed) < 100 {
		t.Fatalf("go list found only %d files", len(needed))
	}
	for _, name := range needed {
		if name = strings.TrimPrefix(name, "github.com/nodens-dns/nodens/"); dockerIgnores(patterns, name) {
			t.Errorf("the Docker build needs %s, which is ignored", name)
		}
	}
	for _, name := range []string{"README.md", "test/peer/peer.go", "daemonset/nodens.yaml", "cache/cache_test.go", "netsetup/testdata/x", ".git/config", "bin/nodens"} {
		if !dockerIgnores(patterns, name) {
			t.Errorf("the Docker build does not need %s, which is not ignored", name)
		}
	}
}
