package firewalls

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
	"slices"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/internal/toolcache"
)

// Release is a Debian release. Its programs have fixed versions; a point release that replaces one makes
// [Release.Root] fail until the version here is the new one, unless the packages are in the cache.
type Release struct {
	Number, Suite string
	// Nft, Iptables, Ufw, Firewalld and Keepalived are versions of packages.
	Nft, Iptables, Ufw, Firewalld, Keepalived string
}

// Releases returns the releases, the oldest first.
func Releases() []Release {
	return []Release{
		{"11", "bullseye", "0.9.8-3.1+deb11u2", "1.8.7-1", "0.36-7.1", "0.9.3-2", "1:2.1.5-0.2+deb11u1"},
		{"12", "bookworm", "1.0.6-2+deb12u2", "1.8.9-2", "0.36.2-1", "1.3.3-1~deb12u2", "1:2.2.7-1+b2"},
		{"13", "trixie", "1.1.3-1", "1.8.11-2", "0.36.2-9", "2.3.1-1+deb13u1", "1:2.3.3-1"},
	}
}

// release returns the release with a number, which must be one of Releases.
func release(number string) Release {
	all := Releases()
	return all[slices.IndexFunc(all, func(r Release) bool { return r.Number == number })]
}

// ErrAbsent says that the programs of a release can't be had.
var ErrAbsent = errors.New("not available")

// maxPackage bounds an unpacked package. The largest, perl-modules, has 20 MB.
const maxPackage = 64 << 20

// archives are the packages of a release. The second one is without dependencies, because ufw conflicts
// with netfilter-persistent.
func (r Release) archives() []debian.Archive {
	with := []string{
		"nftables=" + r.Nft, "iptables=" + r.Iptables, "ufw=" + r.Ufw, "firewalld=" + r.Firewalld, "keepalived=" + r.Keepalived,
		"dash", "coreutils", "grep", "sed", "mawk", "procps", "systemd",
	}
	suites := []string{r.Suite}
	return []debian.Archive{
		{Arch: "amd64", Names: with, Suites: suites, Limit: maxPackage},
		{Arch: "amd64", Names: []string{"iptables-persistent", "netfilter-persistent"}, WithoutDependencies: true, Suites: suites, Limit: maxPackage},
	}
}

// Root returns the folder with the release's programs, which nobody may change; a [view] of it may be
// written to. The first call downloads 45 MB and unpacks 200 MB, which takes a minute.
func (r Release) Root(ctx context.Context) (string, error) {
	cache, err := toolcache.Open()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, r, prepareScript, accounts))
	entry := toolcache.Entry{Name: "firewalls-debian" + r.Number, Key: hex.EncodeToString(sum[:8]), Limit: 2}
	// The lock is not released before the process ends.
	dir, _, err := cache.Use(ctx, entry, func(dir string) error { return r.unpack(ctx, dir) })
	if err != nil {
		return "", fmt.Errorf("the programs of Debian %s: %w", r.Number, err)
	}
	return dir, nil
}

// unpack writes the files of the packages to dir and does what their installation would have done.
func (r Release) unpack(ctx context.Context, dir string) error {
	for _, top := range debian.MergedDirs() {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "usr", top), 0o755), os.Symlink("usr/"+top, filepath.Join(dir, top))); err != nil {
			return err
		}
	}
	for _, a := range r.archives() {
		packages, err := a.Packages(ctx, false)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrAbsent, err)
		}
		for _, p := range packages {
			for _, f := range p.Files {
				if err := writePackaged(dir, f); err != nil {
					return fmt.Errorf("package %s: %w", p.Name, err)
				}
			}
		}
	}
	return prepare(ctx, dir)
}

// prepare makes the unpacked programs in dir usable.
func prepare(ctx context.Context, dir string) error {
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

// accounts are the users that firewalld's message bus and networkd need.
var accounts = map[string]string{
	"etc/passwd": "root:x:0:0::/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\npolkitd:x:101:101::/:/bin/false\nsystemd-network:x:102:102::/:/bin/false\n",
	"etc/group":  "root:x:0:\nmessagebus:x:100:\npolkitd:x:101:\nsystemd-network:x:102:\n",
}

// prepareScript replaces the alternatives of iptables, and copies ufw's rules as its installation does.
// Traffic through the node passes, as on every node of a cluster.
const prepareScript = `
mkdir -p /proc /sys /dev /run /tmp /var/lib /var/log /etc/iptables
for f in iptables ip6tables; do for do in "" -save -restore; do ln -sf $f-nft$do /usr/sbin/$f$do; done; done
cp /usr/share/ufw/*.rules /usr/share/ufw/*.init /usr/share/ufw/ufw.conf /etc/ufw/
cp /usr/share/ufw/iptables/*.rules /etc/ufw/
sed -i 's/^DEFAULT_FORWARD_POLICY=.*/DEFAULT_FORWARD_POLICY="ACCEPT"/' /etc/default/ufw
`

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
