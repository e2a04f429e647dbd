// Package oci writes container images as an OCI image layout in one tar file, which
// `ctr images import`, `podman load` and `skopeo` read. It needs no registry and no
// container engine. Manifests, digests and the layout are made by go-containerregistry;
// this package adds layers made of file systems, and the tar file around the layout.
//
// The output is reproducible: it depends on names, kinds and content of the files, on who
// may execute them, and on the time that the caller gives.
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

// Image is a Linux image for one architecture.
type Image struct {
	// Architecture is a GOARCH: amd64, arm64.
	Architecture string
	// Layers are listed from the bottom up, as [WriteTar] writes them, dated 1970.
	Layers []fs.FS
	// Entrypoint, Command, Env (NAME=value) and Labels have the meaning that they have in a
	// Dockerfile.
	Entrypoint, Command, Env []string
	Labels                   map[string]string
	// Uncompressed writes layers without compression, which is faster for images that
	// are used on the machine that makes them.
	Uncompressed bool
}

// Write writes one image reference with an image for each architecture, at least one, and
// returns the digest of the index that the reference leads to. ref is the name and tag as
// in a pod's `image` field; now is the creation time. Output written before an error is
// useless. Write holds every layer in memory, and a second copy of the image in a temporary
// directory.
func Write(w io.Writer, ref string, now time.Time, images ...Image) (digest string, err error) {
	tag, err := name.NewTag(ref)
	if err != nil {
		return "", fmt.Errorf("%q is not an image name with a tag, such as example:1.0: %w", ref, err)
	}
	if err := checkArchitectures(ref, images); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "nodens-oci-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	now = now.UTC().Truncate(time.Second)
	hash, err := writeLayout(dir, tag, now, images)
	if err != nil {
		return "", err
	}
	return hash.String(), WriteTar(w, os.DirFS(dir), now)
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

// writeLayout writes an index of the images to a layout directory, and returns its digest.
func writeLayout(dir string, tag name.Tag, now time.Time, images []Image) (v1.Hash, error) {
	root, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
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
			return v1.Hash{}, fmt.Errorf("image for %s: %w", i.Architecture, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	digest, err := index.Digest()
	return digest, errors.Join(err, root.AppendIndex(index, annotations))
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
		layer, err := buildLayer(files, i.Uncompressed)
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
	config.Config = v1.Config{Env: i.Env, Entrypoint: i.Entrypoint, Cmd: i.Command, Labels: i.Labels}
	return mutate.ConfigFile(image, config)
}

func buildLayer(files fs.FS, uncompressed bool) (v1.Layer, error) {
	var content bytes.Buffer
	if err := WriteTar(&content, files, time.Unix(0, 0)); err != nil {
		return nil, err
	}
	if uncompressed {
		return static.NewLayer(content.Bytes(), types.OCIUncompressedLayer), nil
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression))
}

// WriteTar writes the directories, regular files and symbolic links of a file system, in
// lexical order, all modified at the given time and owned by root. Files have mode 0755 if
// their owner may execute them, and otherwise 0644; directories have 0755, or 1777 if they are
// sticky. Nothing is setuid or setgid.
func WriteTar(w io.Writer, files fs.FS, modified time.Time) error {
	out := tar.NewWriter(w)
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h, body, err := entry(files, path, info.Mode())
		if err != nil {
			return err
		}
		h.ModTime = modified
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err = out.Write(body)
		return err
	})
	return errors.Join(err, out.Close())
}

// entry returns the header and the content of a file, as described at [WriteTar].
func entry(files fs.FS, path string, mode fs.FileMode) (h *tar.Header, body []byte, err error) {
	h = &tar.Header{Name: path, Mode: 0o644}
	switch mode.Type() {
	case 0:
		if mode&0o100 != 0 {
			h.Mode = 0o755
		}
		body, err = fs.ReadFile(files, path)
		h.Typeflag, h.Size = tar.TypeReg, int64(len(body))
	case fs.ModeSymlink:
		h.Linkname, err = fs.ReadLink(files, path)
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
	case fs.ModeDir:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, path+"/", 0o755
		if mode&fs.ModeSticky != 0 {
			h.Mode = 0o1777
		}
	default:
		err = fmt.Errorf("%s: files of type %s are not supported", path, mode.Type())
	}
	return h, body, err
}
