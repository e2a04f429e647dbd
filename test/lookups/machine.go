package lookups

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/internal/toolcache"
)

// release is a Debian release with the programs that write a resolv.conf.
type release struct{ number, suite string }

// releases returns the releases, the oldest first. systemd-resolved is a package of its own from 12 on; in 12
// systemd restarts it, in 13 it reads its files again.
func releases() []release { return []release{{"12", "bookworm"}, {"13", "trixie"}} }

// errAbsent says that the programs of a release can't be had.
var errAbsent = errors.New("not available")

// maxPackage bounds an unpacked package.
const maxPackage = 64 << 20

// root returns the folder with the release's programs, which nobody may change. The first call downloads
// and unpacks them.
func (r release) root(ctx context.Context) (string, error) {
	cache, err := toolcache.Open()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, r, prepareScript, accounts, names))
	entry := toolcache.Entry{Name: "lookups-debian" + r.number, Key: hex.EncodeToString(sum[:8]), Limit: 2}
	// The lock is not released before the process ends.
	dir, _, err := cache.Use(ctx, entry, func(dir string) error { return r.unpack(ctx, dir) })
	if err != nil {
		return "", fmt.Errorf("the programs of Debian %s: %w", r.number, err)
	}
	return dir, nil
}

// names are the packages.
var names = []string{"systemd-resolved", "network-manager", "dbus", "dash", "coreutils", "grep", "iproute2", "libc-bin"}

// unpack writes the files of the packages to dir and does what their installation would have done.
func (r release) unpack(ctx context.Context, dir string) error {
	for _, top := range debian.MergedDirs() {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "usr", top), 0o755), os.Symlink("usr/"+top, filepath.Join(dir, top))); err != nil {
			return err
		}
	}
	packages, err := debian.Archive{Arch: "amd64", Names: names, Suites: []string{r.suite}, Limit: maxPackage}.Packages(ctx, false)
	if err != nil {
		return fmt.Errorf("%w: %w", errAbsent, err)
	}
	for _, p := range packages {
		for _, f := range p.Files {
			if err := writePackaged(dir, f); err != nil {
				return fmt.Errorf("package %s: %w", p.Name, err)
			}
		}
	}
	for name, text := range accounts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if text, err := exec.CommandContext(ctx, "chroot", dir, "/bin/sh", "-euc", prepareScript).CombinedOutput(); err != nil {
		return fmt.Errorf("preparing: %w\n%s", err, text)
	}
	return nil
}

// accounts are the users that the programs need.
var accounts = map[string]string{
	"etc/passwd": "root:x:0:0::/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\nsystemd-resolve:x:101:101::/:/bin/false\npolkitd:x:102:102::/:/bin/false\n",
	"etc/group":  "root:x:0:\nmessagebus:x:100:\nsystemd-resolve:x:101:\npolkitd:x:102:\nnetdev:x:103:\n",
}

const prepareScript = `mkdir -p /proc /sys /dev /run /tmp /var/lib/dbus /var/lib/NetworkManager /var/log /etc`

// writePackaged writes a file of a package below dir.
func writePackaged(dir string, f debian.File) error {
	path := filepath.Join(dir, f.Path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.Mode.Type() == fs.ModeSymlink {
		// /usr/lib64 may be a link that another package has as well.
		if err := os.Symlink(f.Link, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	if err := os.WriteFile(path, f.Body, f.Mode.Perm()); err != nil {
		return err
	}
	return os.Chmod(path, f.Mode.Perm())
}
