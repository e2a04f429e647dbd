package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sample is an image with a file of each kind.
func sample(architecture string) Image {
	return Image{
		Architecture: architecture,
		Layers: []Layer{
			{
				{Path: "usr/bin/tool", Mode: 0o755 | fs.ModeSetuid, Body: []byte("tool for " + architecture)},
				{Path: "bin", Mode: fs.ModeSymlink | 0o777, Link: "usr/bin"},
				{Path: "home/user", Mode: fs.ModeDir | 0o700, UID: 1000, GID: 100},
			},
			{{Path: "usr/bin/tool", Mode: 0o700, UID: 65534, Body: []byte("of the second layer")}},
		},
		Entrypoint: []string{"/usr/bin/tool"},
		Command:    []string{"-v"},
		Env:        []string{"PATH=/usr/bin"},
		User:       "1000:100",
		Labels:     map[string]string{"b": "2", "a": "1"},
	}
}

var then = time.Date(2020, 2, 3, 4, 5, 6, 789, time.FixedZone("", 3600))

// TestWrite compares what is written, as text, with the golden file of its name.
func TestWrite(t *testing.T) {
	for name, images := range map[string][]Image{
		"one": {sample("amd64")},
		"two": {sample("amd64"), sample("arm64")},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Write(&out, "example.test/team/tool:1.2", then, images...); err != nil {
				t.Fatal(err)
			}
			got := describe(t, out.Bytes())
			golden := filepath.Join("testdata", name+".txt")
			if os.Getenv("GOLDEN") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("after a look, GOLDEN=1 makes the file anew (-want +got):\n%s", d)
			}
		})
	}
}

// described is how one blob speaks of another.
var described = regexp.MustCompile(`"digest":"sha256:([0-9a-f]+)","size":([0-9]+)`)

// describe says what is in a layout: files of JSON as they are, layers by their files. A
// blob is called by its place among them, because its sum, which is checked here as its
// size is, would be another with each way to compress.
func describe(t *testing.T, text []byte) string {
	t.Helper()
	var out strings.Builder
	sizes, places := make(map[string]string), make(map[string]string)
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, body := next(t, r)
		if h == nil {
			return out.String()
		}
		name := h.Name
		if sum, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			if digest(body) != "sha256:"+sum {
				t.Errorf("%s is of sum %s", h.Name, digest(body))
			}
			sizes[sum], places[sum] = strconv.Itoa(len(body)), strconv.Itoa(len(places)+1)
			name = "blob " + places[sum]
		}
		fmt.Fprintf(&out, "%s %o %s\n", name, h.Mode, h.ModTime.UTC().Format(time.RFC3339))
		if body[0] == '{' {
			fmt.Fprintf(&out, "\t%s\n", described.ReplaceAllStringFunc(string(body), func(s string) string {
				m := described.FindStringSubmatch(s)
				if places[m[1]] == "" || sizes[m[1]] != m[2] {
					t.Errorf("%s of %s, which is not there, or of size %s", s, name, sizes[m[1]])
				}
				return "blob " + places[m[1]]
			}))
			continue
		}
		zip, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for l := tar.NewReader(zip); ; {
			h, body := next(t, l)
			if h == nil {
				break
			}
			fmt.Fprintf(&out, "\t%c %s %o %d:%d %d %q %q\n", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, h.ModTime.Unix(), h.Linkname, body)
		}
	}
}

// next is nil at the end.
func next(t *testing.T, r *tar.Reader) (*tar.Header, []byte) {
	t.Helper()
	h, err := r.Next()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return h, body
}

// TestSame: the order in which files and labels are given is none in the bytes.
func TestSame(t *testing.T) {
	var first bytes.Buffer
	if err := Write(&first, "tool:1", then, sample("amd64")); err != nil {
		t.Fatal(err)
	}
	for range 5 { // maps have another order each time
		image := sample("amd64")
		slices.Reverse(image.Layers[0])
		given := slices.Clone(image.Layers[0])
		var again bytes.Buffer
		if err := Write(&again, "tool:1", then.UTC(), image); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), again.Bytes()) {
			t.Fatal("the same image in other bytes")
		}
		if d := cmp.Diff(given, image.Layers[0]); d != "" {
			t.Errorf("the caller's layer has changed:\n%s", d)
		}
	}
}

func TestFull(t *testing.T) {
	for name, want := range map[string]string{
		"nodens:0.1.0":            "docker.io/library/nodens:0.1.0",
		"team/nodens:0.1.0":       "docker.io/team/nodens:0.1.0",
		"example.test/nodens:1":   "example.test/nodens:1",
		"example:5000/a/nodens:1": "example:5000/a/nodens:1",
		"localhost/nodens:1":      "localhost/nodens:1",
	} {
		if got := full(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestBad(t *testing.T) {
	layer := func(files ...File) []Image { return []Image{{Architecture: "amd64", Layers: []Layer{files}}} }
	tests := []struct {
		name, image string
		images      []Image
		want        string
	}{
		{"no-name", "", []Image{sample("amd64")}, "no name"},
		{"tag-alone", ":1", []Image{sample("amd64")}, "no name"},
		{"digest", "tool@sha256:00", []Image{sample("amd64")}, "no name"},
		{"no-image", "tool:1", nil, "no image"},
		{"no-architecture", "tool:1", []Image{{}}, "architecture"},
		{"architecture-twice", "tool:1", []Image{sample("amd64"), sample("amd64")}, "twice"},
		{"absolute", "tool:1", layer(File{Path: "/etc/x"}), `"/etc/x"`},
		{"out", "tool:1", layer(File{Path: "../x"}), `"../x"`},
		{"root", "tool:1", layer(File{Path: ".", Mode: fs.ModeDir}), `"."`},
		{"slash-behind", "tool:1", layer(File{Path: "etc/", Mode: fs.ModeDir}), `"etc/"`},
		{"file-twice", "tool:1", layer(File{Path: "x"}, File{Path: "x"}), "twice"},
		{"below-a-link", "tool:1", layer(File{Path: "lib/x"}, File{Path: "lib", Mode: fs.ModeSymlink, Link: "usr/lib"}), "lib/x is below lib"},
		{"below-a-file", "tool:1", layer(File{Path: "a"}, File{Path: "a/b/c"}), "a/b/c is below a"},
		{"device", "tool:1", layer(File{Path: "dev/null", Mode: fs.ModeDevice}), "dev/null"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := Write(io.Discard, tt.image, then, tt.images...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %s", err, tt.want)
			}
		})
	}
}

// short is a disk that is full: it takes so many bytes and no more.
type short struct{ left int }

func (s *short) Write(p []byte) (int, error) {
	if s.left -= len(p); s.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// TestShort: wherever the writing ends, it is an error.
func TestShort(t *testing.T) {
	var whole bytes.Buffer
	if err := Write(&whole, "tool:1", then, sample("amd64")); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < whole.Len(); n += 300 { // blocks are of 512 bytes: each is cut in some
		if err := Write(&short{n}, "tool:1", then, sample("amd64")); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("%d of %d bytes could be written, and the error is %v", n, whole.Len(), err)
		}
	}
}
