package main

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
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// wanted are the packages that are asked for; those that they need come with them. The
// first says which release of Debian they are of.
func wanted() []string { return []string{"base-files", "iptables", "nftables", certificatesPackage} }

// maxPackage bounds what is unpacked of one package. The largest, libc6, is 13 MB; what
// is five times that is no library.
const maxPackage = 64 << 20

// deb is a package, unpacked.
type deb struct {
	name, version, arch, source string
	// sum is the file's SHA-256.
	sum string
	// control is what the package says about itself.
	control string
	// files are all but folders, by their path in the image.
	files map[string]oci.File
}

// packages returns the wanted packages and those that they need. It asks apt if they are
// not kept yet, or if update says so, and then blocks for a download of 20 MB.
func (a architecture) packages(ctx context.Context, update bool) ([]*deb, error) {
	sources, err := sources()
	if err != nil {
		return nil, err
	}
	dir, unlock, err := a.kept(sources)
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	if update || len(files) == 0 {
		if err := a.download(ctx, sources, dir); err != nil {
			return nil, err
		}
		if files, err = filepath.Glob(filepath.Join(dir, "*.deb")); err != nil {
			return nil, err
		}
	}
	var debs []*deb
	for _, file := range files {
		d, err := unpack(ctx, file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		debs = append(debs, d)
	}
	return debs, nil
}

// sources is the file that says where Debian's packages come from. Others that a machine
// may have beside it are not Debian's.
func sources() (string, error) {
	const hint = "the image's programs come from Debian packages: run it on Debian, or use daemonset/Dockerfile"
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%w; %s", err, hint)
		}
	}
	for _, file := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", errors.New("there is neither /etc/apt/sources.list.d/debian.sources nor /etc/apt/sources.list; " + hint)
}

// kept is the folder of the packages that these sources gave, in $NODENS_CACHE or the
// user's cache folder. The caller has it for itself until unlock.
func (a architecture) kept(sources string) (dir string, unlock func(), err error) {
	base := os.Getenv("NODENS_CACHE")
	if base == "" {
		if base, err = os.UserCacheDir(); err != nil {
			return "", nil, fmt.Errorf("no folder to keep packages in, set NODENS_CACHE: %w", err)
		}
		base = filepath.Join(base, "nodens")
	}
	text, err := os.ReadFile(sources)
	if err != nil {
		return "", nil, err
	}
	// 32 bits tell the handful of sources apart that a machine ever has.
	sum := sha256.Sum256(fmt.Append(text, wanted()))
	dir = filepath.Join(base, fmt.Sprintf("debian-%s-%x", a.name, sum[:4]))
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", nil, err
	}
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("locking %s: %w", f.Name(), err), f.Close())
	}
	return dir, func() { _ = f.Close() }, nil
}

// aptConf has apt work for another architecture, in a folder of its own, without a look
// at this machine's packages. How to reach Debian is as the machine is configured.
const aptConf = `APT::Architecture "%[1]s";
#clear APT::Architectures;
APT::Architectures { "%[1]s"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
APT::Update::Error-Mode "any";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
Acquire::Languages "none";
Debug::NoLocking "true";
Dir::State "%[2]s";
Dir::State::lists "%[2]s/lists";
Dir::State::status "%[2]s/status";
Dir::Cache "%[2]s";
Dir::Cache::archives "%[2]s/archives";
Dir::Etc::sourcelist "%[3]s";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
`

// download fetches the newest packages into dir, which is there with all of them or not
// at all.
func (a architecture) download(ctx context.Context, sources, dir string) error {
	part := dir + ".part"
	archives, conf := filepath.Join(part, "archives"), filepath.Join(part, "apt.conf")
	err := errors.Join(
		os.RemoveAll(part),
		os.MkdirAll(filepath.Join(part, "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(archives, "partial"), 0o755),
		os.WriteFile(filepath.Join(part, "status"), nil, 0o644),
		os.WriteFile(conf, fmt.Appendf(nil, aptConf, a.name, part, sources), 0o644),
	)
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	get := append([]string{"install", "--download-only", "--yes"}, wanted()...)
	for _, args := range [][]string{{"update"}, get} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--config-file", conf, "--quiet"}, args...)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s for %s: %w\n%s", args[0], a.name, err, text)
		}
	}
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(filepath.Join(archives, "partial")), os.Rename(archives, dir))
}

// unpack reads a package. Nothing of it is run, and nothing written.
func unpack(ctx context.Context, file string) (*deb, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	control, err := output(ctx, "", nil, "dpkg-deb", "--field", file)
	if err != nil {
		return nil, err
	}
	d := &deb{control: control, sum: hex.EncodeToString(sum[:]), files: make(map[string]oci.File)}
	if err := d.identify(); err != nil {
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
	err = d.read(tar.NewReader(io.LimitReader(pipe, maxPackage)))
	// The end of a tar file is not the end of the pipe; a program that writes to a
	// closed one fails.
	_, rest := io.Copy(io.Discard, pipe)
	return d, errors.Join(err, rest, cmd.Wait())
}

// identify reads the package's fields. Those that it lacks are errors, but for the
// source, which then has the package's name.
func (d *deb) identify() error {
	fields := make(map[string]string)
	for line := range strings.Lines(d.control) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	d.name, d.version, d.arch = fields["Package"], fields["Version"], fields["Architecture"]
	if d.name == "" || d.version == "" || d.arch == "" {
		return errors.New("it is no package: name, version or architecture is missing")
	}
	// The source's version stands behind it if it is another.
	d.source, _, _ = strings.Cut(cmp.Or(fields["Source"], d.name), " ")
	return nil
}

// read takes the files of a package.
func (d *deb) read(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := oci.File{Path: merged(strings.Trim(strings.TrimPrefix(h.Name, "."), "/"))}
		switch h.Typeflag {
		case tar.TypeReg:
			f.Mode = fs.FileMode(h.Mode).Perm()
			if f.Body, err = io.ReadAll(r); err != nil {
				return err
			}
		case tar.TypeSymlink:
			f.Mode, f.Link = fs.ModeSymlink|0o777, h.Linkname
		default:
			continue // folders are made where a file is; nothing else is wanted
		}
		d.files[f.Path] = f
	}
}
