// Package oci writes container images as OCI image layouts in one tar file, the form
// that `ctr images import`, `podman load` and `skopeo` read, without a registry and
// without a container engine. The same input gives the same bytes: files are in the
// order of their names, and every time is the one that the caller gives.
//
// The formats are those of the OCI image specification 1.1: image-layout.md, index,
// manifest, config, layer.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// File is an entry of a layer. Folders above it that no File names are made, for root
// and with mode 0755.
type File struct {
	// Path is relative to the image's root, without a slash at its start.
	Path string
	// Mode is the type, of which folders, symbolic links and plain files are known, with
	// the permissions, setuid and the like included.
	Mode fs.FileMode
	// UID and GID own it.
	UID, GID int
	// Link is where a symbolic link leads to.
	Link string
	// Body is what a plain file holds. It is not changed, nor kept after Write.
	Body []byte
}

// Layer is a set of files, which are sorted by Write.
type Layer []File

// Image is an image for one architecture of linux.
type Image struct {
	// Architecture is Go's name of it: amd64, arm64.
	Architecture string
	// Layers lie upon each other in this order.
	Layers []Layer
	// Entrypoint, Command, Env (of the form NAME=value), User and Labels are the
	// container's, as in a Dockerfile.
	Entrypoint, Command, Env []string
	User                     string
	Labels                   map[string]string
	// Plain leaves the layers as they are, for images that are used where they are made:
	// packing takes longer than writing what it saves.
	Plain bool
}

// Write writes one name with an image for each architecture, at least one. name is what
// a pod's `image` says, with its tag; now is the time of creation, while all files in the
// image are of 1970. What was written before an error is of no use. It holds each image
// in memory, packed and unpacked.
func Write(w io.Writer, name string, now time.Time, images ...Image) error {
	if err := valid(name, images); err != nil {
		return err
	}
	l := layout{tar: tar.NewWriter(w), now: now.UTC().Truncate(time.Second), seen: make(map[string]bool)}
	var manifests []descriptor
	for _, image := range images {
		d, err := l.image(image)
		if err != nil {
			return fmt.Errorf("image for %s: %w", image.Architecture, err)
		}
		manifests = append(manifests, d)
	}
	top := manifests
	if len(images) > 1 {
		d, err := l.marshal(indexType, index{Version: 2, MediaType: indexType, Manifests: manifests})
		if err != nil {
			return err
		}
		top = []descriptor{d}
	}
	_, tag, _ := strings.Cut(path.Base(name), ":")
	for i := range top {
		top[i].Annotations = map[string]string{
			"io.containerd.image.name":          full(name),
			"org.opencontainers.image.ref.name": cmp.Or(tag, "latest"),
		}
	}
	text, err := json.Marshal(index{Version: 2, MediaType: indexType, Manifests: top})
	if err != nil {
		return err
	}
	if err := l.file("index.json", text); err != nil {
		return err
	}
	if err := l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return l.tar.Close()
}

// valid is an error for what no reader would take, or each reader in another way.
func valid(name string, images []Image) error {
	if base := path.Base(name); name == "" || strings.HasPrefix(base, ":") || strings.ContainsAny(name, " @") {
		return fmt.Errorf("%q is no name of an image; give one with a tag, such as example:1.0", name)
	}
	if len(images) == 0 {
		return fmt.Errorf("%s: there is no image to write", name)
	}
	seen := make(map[string]bool)
	for _, i := range images {
		if i.Architecture == "" || seen[i.Architecture] {
			return fmt.Errorf("%s: architecture %q is missing, or there twice; a node takes the one that is its own", name, i.Architecture)
		}
		seen[i.Architecture] = true
	}
	return nil
}

// full is the name as container runtimes keep it: with a registry, whose default is
// that of the Docker Hub.
func full(name string) string {
	first, _, slash := strings.Cut(name, "/")
	switch {
	case !slash:
		return "docker.io/library/" + name
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return name
	default:
		return "docker.io/" + name
	}
}

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
	plainType    = "application/vnd.oci.image.layer.v1.tar"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	Version   int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Manifests []descriptor `json:"manifests"`
}

type manifest struct {
	Version   int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

type config struct {
	Created time.Time `json:"created"`
	platform
	Config runtime `json:"config"`
	RootFS rootfs  `json:"rootfs"`
}

type runtime struct {
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

type rootfs struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// layout writes blobs, each once.
type layout struct {
	tar  *tar.Writer
	now  time.Time
	seen map[string]bool
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (l *layout) file(name string, text []byte) error {
	err := l.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: l.now})
	if err == nil {
		_, err = l.tar.Write(text)
	}
	return err
}

func (l *layout) blob(mediaType string, text []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(text), Size: len(text)}
	if l.seen[d.Digest] {
		return d, nil
	}
	l.seen[d.Digest] = true
	return d, l.file("blobs/"+strings.Replace(d.Digest, ":", "/", 1), text)
}

func (l *layout) marshal(mediaType string, value any) (descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, text)
}

func (l *layout) image(i Image) (descriptor, error) {
	p := platform{Architecture: i.Architecture, OS: "linux"}
	c := config{
		Created: l.now, platform: p,
		Config: runtime{User: i.User, Env: i.Env, Entrypoint: i.Entrypoint, Cmd: i.Command, Labels: i.Labels},
		RootFS: rootfs{Type: "layers"},
	}
	m := manifest{Version: 2, MediaType: manifestType}
	for _, layer := range i.Layers {
		plain, err := l.layer(layer)
		if err != nil {
			return descriptor{}, err
		}
		d, err := l.pack(plain, i.Plain)
		if err != nil {
			return descriptor{}, err
		}
		m.Layers = append(m.Layers, d)
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digest(plain))
	}
	var err error
	if m.Config, err = l.marshal(configType, c); err != nil {
		return descriptor{}, err
	}
	d, err := l.marshal(manifestType, m)
	d.Platform = &p
	return d, err
}

// pack writes a layer's blob.
func (l *layout) pack(layer []byte, plain bool) (descriptor, error) {
	if plain {
		return l.blob(plainType, layer)
	}
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(layer); err != nil {
		return descriptor{}, err
	}
	if err := zip.Close(); err != nil {
		return descriptor{}, err
	}
	return l.blob(layerType, packed.Bytes())
}

// layer is the layer's tar file.
func (l *layout) layer(layer Layer) ([]byte, error) {
	files, err := withFolders(layer)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h, err := header(f)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Body); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return out.Bytes(), w.Close()
}

// withFolders are the files in their order, with the folders above them.
func withFolders(layer Layer) ([]File, error) {
	files := slices.Clone(layer)
	named := make(map[string]fs.FileMode)
	for _, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return nil, fmt.Errorf("%q is no path in an image: it has to be relative, and without . or .. in it", f.Path)
		}
		if _, twice := named[f.Path]; twice {
			return nil, fmt.Errorf("%s is in a layer twice", f.Path)
		}
		named[f.Path] = f.Mode.Type()
	}
	for _, f := range layer {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			switch mode, there := named[dir]; {
			case !there:
				named[dir] = fs.ModeDir
				files = append(files, File{Path: dir, Mode: fs.ModeDir | 0o755})
			case mode != fs.ModeDir:
				return nil, fmt.Errorf("%s is below %s, which is no folder", f.Path, dir)
			}
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files, nil
}

func header(f File) (*tar.Header, error) {
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
		return nil, fmt.Errorf("%s: a file of type %s has no place in an image", f.Path, f.Mode.Type())
	}
	return h, nil
}
