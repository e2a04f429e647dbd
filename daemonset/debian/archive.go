// Package debian fetches Debian's packages by apt-get, which checks that they are signed,
// from where this machine gets its own, keeps them in a folder outside of the tree, and
// reads what is in them. Nothing is installed, and nothing of a package is run.
package debian

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Archive says which packages are wanted, and where they come from.
type Archive struct {
	// Arch is Debian's name of the packages' architecture.
	Arch string
	// Names are the packages, which others come with that they need.
	Names []string
	// WithoutDependencies leaves out what they need.
	WithoutDependencies bool
	// Suites are Debian's releases to look in; none are those that the machine has.
	Suites []string
	// Limit bounds what is unpacked of one package, in bytes.
	Limit int64
	// sources is the file that says where packages come from; "" is the machine's.
	sources string
}

// Packages returns the wanted packages. It asks apt if they are not kept yet, or if update
// says so, and then blocks for a download. Of several processes that want the same, one
// does the work.
func (a Archive) Packages(ctx context.Context, update bool) ([]*Package, error) {
	name, text, err := a.sourcesList()
	if err != nil {
		return nil, err
	}
	dir, unlock, err := a.lockCacheDir(text)
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	if update || len(files) == 0 {
		if err := a.download(ctx, name, text, dir); err != nil {
			return nil, err
		}
		if files, err = filepath.Glob(filepath.Join(dir, "*.deb")); err != nil {
			return nil, err
		}
	}
	var packages []*Package
	for _, file := range files {
		p, err := Unpack(ctx, file, a.Limit)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// Sources is the file that says where Debian's packages come from. Others that a machine
// may have beside it are not Debian's. The error says what the machine lacks.
func Sources() (string, error) {
	const hint = "programs come from Debian packages here: run it on Debian; for the agent's image there is daemonset/Dockerfile"
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

// sourcesList is what apt is told about where packages come from, and the file's name, by whose
// end it knows the form.
func (a Archive) sourcesList() (name string, text []byte, err error) {
	file := a.sources
	if file == "" {
		if file, err = Sources(); err != nil {
			return "", nil, err
		}
	}
	if text, err = os.ReadFile(file); err != nil {
		return "", nil, err
	}
	if len(a.Suites) > 0 {
		text, err = selectSuites(text, a.Suites)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", file, err)
	}
	return filepath.Base(file), text, nil
}

// selectSuites is the first of the places of a file in the form of deb822 (sources.list(5)), with
// other suites. The first is Debian's own, where all suites are but those of security.
func selectSuites(text []byte, suites []string) ([]byte, error) {
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n\n")
	var b strings.Builder
	changed := false
	for line := range strings.Lines(first) {
		if strings.HasPrefix(line, "Suites:") {
			line, changed = "Suites: "+strings.Join(suites, " ")+"\n", true
		}
		b.WriteString(line)
	}
	if !changed {
		return nil, fmt.Errorf("its first place names no Suites:, so it can't be asked for %s; write it in the form of deb822, as debian.sources is", strings.Join(suites, " "))
	}
	return []byte(b.String() + "\n"), nil
}

// lockCacheDir is the folder of the packages that these sources gave, in $NODENS_CACHE or the
// user's cache folder. The caller has it for itself until unlock.
func (a Archive) lockCacheDir(sources []byte) (dir string, unlock func(), err error) {
	base := os.Getenv("NODENS_CACHE")
	if base == "" {
		if base, err = os.UserCacheDir(); err != nil {
			return "", nil, fmt.Errorf("no folder to keep packages in, set NODENS_CACHE: %w", err)
		}
		base = filepath.Join(base, "nodens")
	}
	// 32 bits tell the handful of sources apart that a machine ever has.
	sum := sha256.Sum256(fmt.Append(sources, a.Names))
	dir = filepath.Join(base, fmt.Sprintf("debian-%s-%x", a.Arch, sum[:4]))
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
func (a Archive) download(ctx context.Context, name string, list []byte, dir string) error {
	part := dir + ".part"
	archives, conf, sources := filepath.Join(part, "archives"), filepath.Join(part, "apt.conf"), filepath.Join(part, name)
	err := errors.Join(
		os.RemoveAll(part),
		os.MkdirAll(filepath.Join(part, "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(archives, "partial"), 0o755),
		os.WriteFile(filepath.Join(part, "status"), nil, 0o644),
		os.WriteFile(sources, list, 0o644),
		os.WriteFile(conf, fmt.Appendf(nil, aptConf, a.Arch, part, sources), 0o644),
	)
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	get := []string{"install", "--download-only", "--yes"}
	if a.WithoutDependencies {
		get = []string{"download"} // into the working directory
	}
	for _, args := range [][]string{{"update"}, append(get, a.Names...)} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--config-file", conf, "--quiet"}, args...)...)
		cmd.Dir = archives
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s for %s: %w\n%s", args[0], a.Arch, err, text)
		}
	}
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(filepath.Join(archives, "partial")), os.Rename(archives, dir))
}
