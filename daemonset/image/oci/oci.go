// Package oci writes container images as an OCI image layout in one tar file, which
// `ctr images import`, `podman load` and `skopeo` read. It needs no registry and no
// container engine. Manifests, digests and the layout are made by go-containerregistry;
// this package adds layers made of files in memory, and the tar file around the layout.
//
// The output is reproducible: files are sorted by name, files in layers are dated 1970,
// and everything else has the time that the caller gives.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is an entry of a layer. [Write] adds missing parent directories, owned by root
// and with mode 0755.
type File struct {
	// Path is relative to the image's root, without a leading slash.
	Path string
	// Mode is the file type (regular file, directory or symbolic link) and the
	// permissions, including setuid, setgid and sticky.
	Mode fs.FileMode
	// UID and GID are the owner.
	UID, GID int
	// Link is the target of a symbolic link.
	Link string
	// Body is the content of a regular file. Write neither changes nor keeps it.
	Body []byte
}

// Layer is a set of files in any order.
type Layer []File

// Image is a Linux image for one architecture.
type Image struct {
	// Architecture is a GOARCH: amd64, arm64.
	Architecture string
	// Layers are listed from the bottom up.
	Layers []Layer
	// Entrypoint, Command, Env (NAME=value), User and Labels have the meaning that they
	// have in a Dockerfile.
	Entrypoint, Command, Env []string
	User                     string
	Labels                   map[string]string
	// Uncompressed writes layers without compression, which is faster for images that
	// are used on the machine that makes them.
	Uncompressed bool
}

// Write writes one image reference with an image for each architecture, at least one.
// ref is the name and tag as in a pod's `image` field; now is the creation time. Output
// written before an error is useless. Write holds every layer in memory, and a second
// copy of the image in a temporary directory.
func Write(w io.Writer, ref string, now time.Time, images ...Image) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("%q is not an image name with a tag, such as example:1.0: %w", ref, err)
	}
	if err := checkArchitectures(ref, images); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nodens-oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	now = now.UTC().Truncate(time.Second)
	if err := writeLayout(dir, tag, now, images); err != nil {
		return err
	}
	return writeTar(w, dir, now)
}

// checkArchitectures returns an error unless there is exactly one image for each
// architecture: a node pulls the one that matches its own.
func checkArchitectures(ref string, images []Image) error {
	if len(images) == 0 {
		return fmt.Errorf("%s: no image to write", ref)
	}
	seen := make(map[string]bool)
	for _, i := range images {
		if i.Architecture == "" || seen[i.Architecture] {
			return fmt.Errorf("%s: architecture %q is missing or given twice", ref, i.Architecture)
		}
		seen[i.Architecture] = true
	}
	return nil
}

// writeLayout writes the image, or an index of several, to a layout directory.
func writeLayout(dir string, tag name.Tag, now time.Time, images []Image) error {
	root, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	annotations := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          containerdName(tag),
		"org.opencontainers.image.ref.name": tag.TagStr(),
	})
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		platform := v1.Platform{Architecture: i.Architecture, OS: "linux"}
		image, err := i.build(now)
		if err != nil {
			return fmt.Errorf("image for %s: %w", i.Architecture, err)
		}
		if len(images) == 1 {
			return root.AppendImage(image, layout.WithPlatform(platform), annotations)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	return root.AppendIndex(index, annotations)
}

// containerdName is the reference as containerd stores it, with docker.io as the default registry.
func containerdName(tag name.Tag) string {
	if tag.RegistryStr() == name.DefaultRegistry {
		return "docker.io/" + tag.RepositoryStr() + ":" + tag.TagStr()
	}
	return tag.Name()
}

// build makes the image in memory.
func (i Image) build(now time.Time) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range i.Layers {
		layer, err := files.build(i.Uncompressed)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: now}}})
		if err != nil {
			return nil, err
		}
	}
	made, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := made.DeepCopy()
	config.Created, config.Architecture, config.OS = v1.Time{Time: now}, i.Architecture, "linux"
	config.Config = v1.Config{User: i.User, Env: i.Env, Entrypoint: i.Entrypoint, Cmd: i.Command, Labels: i.Labels}
	return mutate.ConfigFile(image, config)
}

// build makes a layer of the files.
func (l Layer) build(uncompressed bool) (v1.Layer, error) {
	files, err := l.withParents()
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, f := range files {
		if err := f.writeTo(w); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if uncompressed {
		return static.NewLayer(content.Bytes(), types.OCIUncompressedLayer), nil
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression))
}

// withParents returns the files with their parent directories, sorted by path.
func (l Layer) withParents() ([]File, error) {
	files := slices.Clone(l)
	kinds := make(map[string]fs.FileMode)
	for _, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return nil, fmt.Errorf("%q is not a path in an image: it must be relative and must not contain . or .. elements", f.Path)
		}
		if _, twice := kinds[f.Path]; twice {
			return nil, fmt.Errorf("%s is in a layer twice", f.Path)
		}
		kinds[f.Path] = f.Mode.Type()
	}
	for _, f := range l {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			switch kind, ok := kinds[dir]; {
			case !ok:
				kinds[dir] = fs.ModeDir
				files = append(files, File{Path: dir, Mode: fs.ModeDir | 0o755})
			case kind != fs.ModeDir:
				return nil, fmt.Errorf("%s is below %s, which is not a directory", f.Path, dir)
			}
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files, nil
}

// writeTo writes the file's header and content.
func (f File) writeTo(w *tar.Writer) error {
	h := &tar.Header{Name: f.Path, Mode: int64(f.Mode.Perm()), Uid: f.UID, Gid: f.GID, ModTime: time.Unix(0, 0), Linkname: f.Link}
	for bit, mode := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if f.Mode&mode != 0 {
			h.Mode |= bit
		}
	}
	switch f.Mode.Type() {
	case 0:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Body))
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
	default:
		return fmt.Errorf("files of type %s are not supported in an image", f.Mode.Type())
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(f.Body)
	return err
}

// writeTar writes the files of a layout directory, in lexical order.
func writeTar(w io.Writer, dir string, now time.Time) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		base := strings.TrimPrefix(filepath.ToSlash(file[len(dir):]), "/")
		if err := out.WriteHeader(&tar.Header{Name: base, Mode: 0o644, Size: int64(len(body)), ModTime: now}); err != nil {
			return err
		}
		_, err = out.Write(body)
		return err
	})
	return errors.Join(err, out.Close())
}
