package harness

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// program is a DNS server's binary and how it is started.
type program struct {
	// Find returns the binary's path, building it in dir if need be. An error
	// wrapping errAbsent leaves the program's rows out of the report.
	Find func(ctx context.Context, dir string) (string, error)
	// version are the arguments that make it print its version, and named is the
	// word at which that starts in the first line of what it prints; empty is the
	// whole output.
	version       []string
	versionPrefix string
	// file is the name that its configuration file must have; empty is any.
	file string
	// Args are its arguments, with placeholders.
	Args []string
	// cluster says that it answers for a Kubernetes cluster.
	cluster bool
	// Foreign says that the version is the machine's.
	Foreign bool
	// PerSet says that it can answer one set of questions only: there is a process
	// for each.
	PerSet bool
}

// ErrAbsent says that the machine lacks something that is no part of the tree.
var ErrAbsent = errors.New("not installed")

// Programs are the binaries, by the names that servers call them. The
// placeholders are those of settings.fill. All stay in the foreground.
var Programs = map[string]program{
	"nodens": {
		Find: findInTree("nodens"), version: []string{"-version"}, cluster: true,
		Args: []string{"-conf", "@CONF@", "-setupinterface=false", "-setupiptables=false", "-health-port=0", "-metrics-listen-address="},
	},
	"coredns": {
		Find: findInTree("coredns"), version: []string{"-version"}, cluster: true,
		Args: []string{"-conf", "@CONF@"},
	},
	"unbound": {
		Find: findInstalled("unbound"), Foreign: true, version: []string{"-V"}, versionPrefix: "Version",
		Args: []string{"-d", "-p", "-c", "@CONF@"},
	},
	"dnsdist": {
		Find: findInstalled("dnsdist"), Foreign: true, version: []string{"--version"}, versionPrefix: "dnsdist",
		Args: []string{"--supervised", "--disable-syslog", "-C", "@CONF@"},
	},
	"kresd": {
		Find: findInstalled("kresd"), Foreign: true, version: []string{"-V"}, versionPrefix: "Knot",
		Args: []string{"-n", "-q", "-c", "@CONF@", "@DIR@"},
	},
	"pdns-recursor": {
		Find: findInstalled("pdns_recursor"), Foreign: true, version: []string{"--version"}, versionPrefix: "PowerDNS", file: "recursor.conf",
		Args: []string{"--config-dir=@DIR@"},
	},
	"echo": {
		Find: CompileC("echo", echoSource), PerSet: true, cluster: true,
		Args: []string{"@LISTEN@", "@PORT@", "@LENGTH@", "@RCODE@"},
	},
	"goecho": {
		Find: compileGo("goecho", "./test/bench/harness/goecho"), PerSet: true, cluster: true,
		Args: []string{"@LISTEN@", "@PORT@", "@LENGTH@", "@RCODE@"},
	},
}

// findInTree finds a program that package peer builds.
func findInTree(name string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, dir string) (string, error) { return peer.Binary(ctx, name, dir) }
}

// findInstalled finds a program that the machine has, also where only root's path
// goes.
func findInstalled(name string) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) {
		for _, at := range []string{name, "/usr/sbin/" + name} {
			if path, err := exec.LookPath(at); err == nil {
				return path, nil
			}
		}
		return "", fmt.Errorf("%s: %w", name, ErrAbsent)
	}
}

//go:embed echo/echo.c
var echoSource []byte

// CompileC compiles a program of one C file, which is that of the tree.
func CompileC(name string, source []byte) func(context.Context, string) (string, error) {
	return func(ctx context.Context, dir string) (string, error) {
		gcc, err := exec.LookPath("gcc")
		if err != nil {
			return "", fmt.Errorf("gcc: %w", ErrAbsent)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".c", source, 0o644); err != nil {
			return "", err
		}
		text, err := exec.CommandContext(ctx, gcc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, path+".c").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("compiling %s.c: %w\n%s", name, err, text)
		}
		return path, nil
	}
}

// compileGo compiles a program of this module, built as the agent is.
func compileGo(name, pkg string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, dir string) (string, error) {
		path := filepath.Join(dir, name)
		return path, peer.BuildPackage(ctx, pkg, path)
	}
}

// versionLine is the version that the binary states, in one line.
func (p program) versionLine(ctx context.Context, path string) string {
	if p.version == nil {
		return ""
	}
	text, err := exec.CommandContext(ctx, path, p.version...).CombinedOutput()
	if err != nil {
		return "unknown"
	}
	line := string(text)
	if p.versionPrefix != "" {
		i := strings.Index(line, p.versionPrefix)
		if i < 0 {
			return "unknown"
		}
		line, _, _ = strings.Cut(line[i:], "\n")
	}
	return strings.Trim(strings.Join(strings.Fields(line), " "), ", ")
}
