// Package debian downloads Debian packages and reads their files. apt-get downloads them from
// the machine's own package sources and checks their signatures. The packages are cached in a
// folder outside of the repository. Nothing is installed, and no program or script of a
// package is run.
package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// Archive selects packages and their sources.
type Archive struct {
	// Arch is Debian's name of the architecture, such as amd64.
	Arch string
	// Names are the packages. Their dependencies are added.
	Names []string
	// WithoutDependencies omits the dependencies.
	WithoutDependencies bool
	// Suites are the Debian releases to use; nil for the machine's.
	Suites []string
	// Limit is the maximum size of an unpacked package, in bytes.
	Limit int64
	// sources is the file with the package sources; "" for the machine's.
	sources string
}

// maxCached is the number of sets of packages that are cached for each architecture: one for
// each caller and release of Debian, and for each kernel of test/kernels.
const maxCached = 20

// Packages returns the packages. It downloads them if they are not cached or if update is
// set, and blocks meanwhile. Only one process at a time downloads packages of an architecture.
func (a Archive) Packages(ctx context.Context, update bool) ([]*Package, error) {
	name, text, err := a.sourcesList()
	if err != nil {
		return nil, err
	}
	cache, err := toolcache.Open()
	if err != nil {
		return nil, err
	}
	entry := a.cacheEntry(text)
	entry.Renew = update
	dir, release, err := cache.Use(ctx, entry, func(dir string) error { return a.download(ctx, name, text, dir) })
	if err != nil {
		return nil, err
	}
	defer release()
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
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

// cacheEntry is the cache entry for the packages from these sources.
func (a Archive) cacheEntry(sources []byte) toolcache.Entry {
	// A machine has few sources, so 32 bits suffice.
	sum := sha256.Sum256(fmt.Append(sources, a.Names))
	return toolcache.Entry{Name: "debian-" + a.Arch, Key: hex.EncodeToString(sum[:4]), Limit: maxCached}
}

// Sources returns the file with the machine's Debian package sources. Other files beside it
// are not Debian's. The error says what the machine lacks.
func Sources() (string, error) {
	const hint = "programs come from Debian packages here: run it on Debian, or in a container with Debian and Go"
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

// sourcesList returns the name and the content of the file with the package sources. apt
// takes the format from the extension of the name.
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

// selectSuites returns the first stanza of a file in deb822 format (sources.list(5)), with
// these suites. The first stanza is Debian's own archive, which has all suites except the
// security updates.
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
		return nil, fmt.Errorf("the first stanza has no Suites: field to replace by %s; use the deb822 format, like debian.sources", strings.Join(suites, " "))
	}
	return []byte(b.String() + "\n"), nil
}

// aptConf makes apt work for another architecture and in its own folder, independent of the
// packages on this machine. Mirrors, proxies and keys are the machine's.
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

// download downloads the newest packages and replaces dir by them. On error dir stays as it
// was.
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
