package daemonset

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pinned is an image by its short name, with a version for a tag: "latest" and
// bare names of a distribution's release move on their own.
var pinned = regexp.MustCompile(`^[a-z0-9-]+:[0-9]+\.[0-9]+[a-z0-9.-]*$`)

func TestPinned(t *testing.T) {
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
		if got := pinned.MatchString(tt.image); got != tt.want {
			t.Errorf("%s: pinned %v, want %v", tt.image, got, tt.want)
		}
	}
}

func TestImage(t *testing.T) {
	_, c := pod(t)
	if !pinned.MatchString(c.Image) {
		t.Errorf("the manifest's image %s is not pinned", c.Image)
	}
}

// instructions returns the Dockerfile's instructions, continued lines joined.
func instructions(t *testing.T) []string {
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
	list := instructions(t)
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
	if len(bases) != 2 {
		t.Fatalf("stages from %v, want two", bases)
	}
	for _, base := range bases {
		if !pinned.MatchString(base) {
			t.Errorf("FROM %s is not pinned", base)
		}
	}
	whole := strings.Join(list, "\n")
	for _, want := range []string{"GOARCH=$TARGETARCH", "CGO_ENABLED=0", "--platform=$BUILDPLATFORM", "iptables"} {
		if !strings.Contains(whole, want) {
			t.Errorf("%q does not stand in the Dockerfile", want)
		}
	}
}
