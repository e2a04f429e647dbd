package debian

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// File is a regular file or a symbolic link in a package.
type File struct {
	// Path is relative to the root, without a leading slash.
	Path string
	// Mode is the type and the permissions.
	Mode fs.FileMode
	// Link is the target of a symbolic link.
	Link string
	// Body is the content of a regular file.
	Body []byte
}

// Package is an unpacked package.
type Package struct {
	Name, Version, Arch, Source string
	// Sum is the file's SHA-256.
	Sum string
	// Control is the text of the control file.
	Control string
	// Files are the files and links, by their [MergedPath].
	Files map[string]File
}

// Unpack reads a package. It fails if the files are larger than limit bytes. It runs no
// program or script of the package and writes no file.
func Unpack(ctx context.Context, file string, limit int64) (*Package, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", file).Output()
	if err != nil {
		return nil, fmt.Errorf("dpkg-deb --field: %w", err)
	}
	p := &Package{Control: string(control), Sum: hex.EncodeToString(sum[:]), Files: make(map[string]File)}
	if err := p.parseControl(); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = p.readFiles(tar.NewReader(io.LimitReader(pipe, limit)))
	// Read what follows the end of the tar file: dpkg-deb fails if it can't write.
	_, rest := io.Copy(io.Discard, pipe)
	return p, errors.Join(err, rest, cmd.Wait())
}

// parseControl sets the fields of p from its control file. All are required except Source,
// which defaults to the name of the package.
func (p *Package) parseControl() error {
	fields := make(map[string]string)
	for line := range strings.Lines(p.Control) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	p.Name, p.Version, p.Arch = fields["Package"], fields["Version"], fields["Architecture"]
	if p.Name == "" || p.Version == "" || p.Arch == "" {
		return errors.New("not a package: name, version or architecture is missing")
	}
	// The version follows the source if it differs from the package's version.
	p.Source, _, _ = strings.Cut(cmp.Or(fields["Source"], p.Name), " ")
	return nil
}

// readFiles adds the files of a tar archive.
func (p *Package) readFiles(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := File{Path: MergedPath(strings.Trim(strings.TrimPrefix(h.Name, "."), "/"))}
		switch h.Typeflag {
		case tar.TypeReg:
			f.Mode = fs.FileMode(h.Mode).Perm()
			if f.Body, err = io.ReadAll(r); err != nil {
				return err
			}
		case tar.TypeSymlink:
			f.Mode, f.Link = fs.ModeSymlink|0o777, h.Linkname
		default:
			continue // folders follow from the paths of files
		}
		p.Files[f.Path] = f
	}
}

// MergedPath returns the path of a file in a system with merged /usr, where /lib, /sbin and
// the like are links to folders in /usr.
func MergedPath(name string) string {
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains(MergedDirs(), top) {
		return "usr/" + name
	}
	return name
}

// MergedDirs returns the top-level folders that are links to folders in /usr.
func MergedDirs() []string { return []string{"bin", "lib", "lib64", "sbin"} }
