package main

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
	// find returns the binary's path, building it in dir if need be. An error
	// wrapping errAbsent leaves the program's rows out of the report.
	find func(ctx context.Context, dir string) (string, error)
	// version are the arguments that make it print its version, and named is the
	// word at which that starts in the first line of what it prints; empty is the
	// whole output.
	version       []string
	versionPrefix string
	// file is the name that its configuration file must have; empty is any.
	file string
	// args are its arguments, with placeholders.
	args []string
	// cluster says that it answers for a Kubernetes cluster.
	cluster bool
	// foreign says that the version is the machine's.
	foreign bool
	// perSet says that it can answer one set of questions only: there is a process
	// for each.
	perSet bool
}

// errAbsent says that the machine lacks something that is no part of the tree.
var errAbsent = errors.New("not installed")

// programs are the binaries, by the names that servers call them. The
// placeholders are those of settings.fill. All stay in the foreground.
var programs = map[string]program{
	"nodens": {
		find: findInTree("nodens"), version: []string{"-version"}, cluster: true,
		args: []string{"-conf", "@CONF@", "-setupinterface=false", "-setupiptables=false", "-health-port=0", "-metrics-listen-address="},
	},
	"coredns": {
		find: findInTree("coredns"), version: []string{"-version"}, cluster: true,
		args: []string{"-conf", "@CONF@"},
	},
	"unbound": {
		find: findInstalled("unbound"), foreign: true, version: []string{"-V"}, versionPrefix: "Version",
		args: []string{"-d", "-p", "-c", "@CONF@"},
	},
	"dnsdist": {
		find: findInstalled("dnsdist"), foreign: true, version: []string{"--version"}, versionPrefix: "dnsdist",
		args: []string{"--supervised", "--disable-syslog", "-C", "@CONF@"},
	},
	"kresd": {
		find: findInstalled("kresd"), foreign: true, version: []string{"-V"}, versionPrefix: "Knot",
		args: []string{"-n", "-q", "-c", "@CONF@", "@DIR@"},
	},
	"pdns-recursor": {
		find: findInstalled("pdns_recursor"), foreign: true, version: []string{"--version"}, versionPrefix: "PowerDNS", file: "recursor.conf",
		args: []string{"--config-dir=@DIR@"},
	},
	"echo": {
		find: compileC("echo", echoSource), perSet: true, cluster: true,
		args: []string{"@LISTEN@", "@PORT@", "@LENGTH@", "@RCODE@"},
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
		return "", fmt.Errorf("%s: %w", name, errAbsent)
	}
}

//go:embed echo/echo.c
var echoSource []byte

// compileC compiles a program of one C file, which is that of the tree.
func compileC(name string, source []byte) func(context.Context, string) (string, error) {
	return func(ctx context.Context, dir string) (string, error) {
		gcc, err := exec.LookPath("gcc")
		if err != nil {
			return "", fmt.Errorf("gcc: %w", errAbsent)
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
