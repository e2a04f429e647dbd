package oci_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/daemonset/release/oci"
)

// sample is an image with a file of each kind.
func sample(architecture string) oci.Image {
	return oci.Image{
		Architecture: architecture,
		Layers: []fs.FS{
			fstest.MapFS{
				"usr/bin/tool": {Mode: 0o700 | fs.ModeSetuid, ModTime: then, Data: []byte("tool for " + architecture)},
				"etc/passwd":   {Mode: 0o600, Data: []byte("root")},
				"bin":          {Mode: fs.ModeSymlink, Data: []byte("usr/bin")},
				"home/user":    {Mode: fs.ModeDir | 0o700},
				"tmp":          {Mode: fs.ModeDir | fs.ModeSticky},
			},
			fstest.MapFS{"usr/bin/tool": {Mode: 0o755, Data: []byte("of the second layer")}},
		},
		Entrypoint: []string{"/usr/bin/tool"},
		Command:    []string{"-v"},
		Env:        []string{"PATH=/usr/bin"},
		Labels:     map[string]string{"b": "2", "a": "1"},
	}
}

var then = time.Date(2020, 2, 3, 4, 5, 6, 789, time.FixedZone("", 3600))

// TestWrite compares what is written, as text, with the golden file of its name.
func TestWrite(t *testing.T) {
	for name, images := range map[string][]oci.Image{
		"one": {sample("amd64")},
		"two": {sample("amd64"), sample("arm64")},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if _, err := oci.Write(&out, "example.test/team/tool:1.2", then, images...); err != nil {
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

// reference matches how one blob refers to another.
var reference = regexp.MustCompile(`"size":([0-9]+),"digest":"sha256:([0-9a-f]+)"`)

// describe prints the content of a layout from index.json down: JSON as it is, layers as
// lists of their files. It checks digests and sizes, and prints the blob's number in their
// place, because both depend on the compressor.
func describe(t *testing.T, text []byte) string {
	t.Helper()
	blobs := make(map[string][]byte)
	var out strings.Builder
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, body := next(t, r)
		if h == nil {
			break
		}
		if got := h.ModTime.UTC().Format(time.RFC3339); got != "2020-02-03T03:05:06Z" {
			t.Errorf("%s has time %s", h.Name, got)
		}
		if h.Typeflag == tar.TypeReg {
			blobs[h.Name] = body
		}
	}
	fmt.Fprintf(&out, "oci-layout\n\t%s\n", compact(t, blobs["oci-layout"]))
	todo := []string{"index.json"}
	for i := 0; i < len(todo); i++ {
		fmt.Fprintf(&out, "%d\n", i)
		body := blobs[todo[i]]
		if body[0] == '{' {
			fmt.Fprintf(&out, "\t%s\n", reference.ReplaceAllStringFunc(compact(t, body), func(s string) string {
				m := reference.FindStringSubmatch(s)
				name := "blobs/sha256/" + m[2]
				sum := sha256.Sum256(blobs[name])
				if hex.EncodeToString(sum[:]) != m[2] || strconv.Itoa(len(blobs[name])) != m[1] {
					t.Errorf("%s refers to %s, which is missing or has another digest or size", todo[i], s)
				}
				if !slices.Contains(todo, name) {
					todo = append(todo, name)
				}
				return fmt.Sprint("blob ", slices.Index(todo, name))
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
	if len(blobs) != len(todo)+1 {
		t.Errorf("%d files in the layout, %d of them in use", len(blobs), len(todo)+1)
	}
	return out.String()
}

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatal(err)
	}
	return out.String()
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

// TestUncompressed: the layer's blob is its tar file.
func TestUncompressed(t *testing.T) {
	image := sample("amd64")
	image.Uncompressed = true
	var out bytes.Buffer
	if _, err := oci.Write(&out, "tool:1", then, image); err != nil {
		t.Fatal(err)
	}
	found := false
	for r := tar.NewReader(&out); ; {
		h, body := next(t, r)
		if h == nil {
			break
		}
		if h.Typeflag == tar.TypeReg && strings.HasPrefix(h.Name, "blobs/") && body[0] != '{' {
			first, text := next(t, tar.NewReader(bytes.NewReader(body)))
			found = found || first.Name == "bin" && first.Linkname == "usr/bin" && len(text) == 0
		}
	}
	if !found {
		t.Error("no blob is the tar file of the first layer")
	}
}

// TestContainerdName: containerd gets a full reference, which is what the kubelet asks for.
func TestContainerdName(t *testing.T) {
	for ref, want := range map[string]string{
		"nodens:0.1.0":            "docker.io/library/nodens:0.1.0",
		"team/nodens:0.1.0":       "docker.io/team/nodens:0.1.0",
		"example.test/nodens:1":   "example.test/nodens:1",
		"example:5000/a/nodens:1": "example:5000/a/nodens:1",
		"localhost/nodens:1":      "localhost/nodens:1",
	} {
		var out bytes.Buffer
		if _, err := oci.Write(&out, ref, then, oci.Image{Architecture: "amd64"}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(describe(t, out.Bytes()), fmt.Sprintf(`"io.containerd.image.name":%q`, want)) {
			t.Errorf("containerd would not find %s as %s", ref, want)
		}
	}
}

func TestBad(t *testing.T) {
	tests := []struct {
		name, image string
		images      []oci.Image
		want        string
	}{
		{"no-name", "", []oci.Image{sample("amd64")}, "not an image name"},
		{"tag-alone", ":1", []oci.Image{sample("amd64")}, "not an image name"},
		{"digest", "tool@sha256:00", []oci.Image{sample("amd64")}, "not an image name"},
		{"no-image", "tool:1", nil, "no image to write"},
		{"no-architecture", "tool:1", []oci.Image{{}}, "architecture"},
		{"architecture-twice", "tool:1", []oci.Image{sample("amd64"), sample("amd64")}, "twice"},
		{"device", "tool:1", []oci.Image{{Architecture: "amd64", Layers: []fs.FS{fstest.MapFS{"dev/null": {Mode: fs.ModeDevice}}}}}, "dev/null"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := oci.Write(io.Discard, tt.image, then, tt.images...); err == nil || !strings.Contains(err.Error(), tt.want) {
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
	if _, err := oci.Write(&whole, "tool:1", then, sample("amd64")); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < whole.Len(); n += 300 { // blocks are of 512 bytes: each is cut in some
		if _, err := oci.Write(&short{n}, "tool:1", then, sample("amd64")); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("%d of %d bytes could be written, and the error is %v", n, whole.Len(), err)
		}
	}
}
