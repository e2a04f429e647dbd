package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// port is a port of 127.0.0.1.
type port uint16

func (p port) String() string { return strconv.Itoa(int(p)) }

// program is a DNS server's binary and how it is started.
type program struct {
	// find returns the binary's path, building it in dir if need be. An error
	// wrapping errAbsent leaves the program's rows out of the report.
	find func(ctx context.Context, dir string) (string, error)
	// version are the arguments that make it print its version.
	version []string
	// args are its arguments, with placeholders.
	args []string
	// each says that it can answer one workload only: there is a process for each.
	each bool
}

// errAbsent says that the machine lacks something that is no part of the tree.
var errAbsent = errors.New("not installed")

// programs are the binaries, by the names that servers call them. The
// placeholders are those of settings.fill.
var programs = map[string]program{
	"nodens": {
		find: fromTree("nodens"), version: []string{"-version"},
		args: []string{"-conf", "@CONF@", "-setupinterface=false", "-setupiptables=false", "-health-port=0", "-metrics-listen-address="},
	},
	"coredns": {
		find: fromTree("coredns"), version: []string{"-version"},
		args: []string{"-conf", "@CONF@"},
	},
	"echo": {
		find: compileEcho, each: true,
		args: []string{"@PORT@", "@LENGTH@", "@RCODE@"},
	},
}

// server is a row of the report: a program with a configuration.
type server struct {
	name    string
	program string
	// conf is the text of its configuration file, with placeholders.
	conf string
}

// servers are the rows, in the order in which they are measured. Those before
// the first program with each tell how long an answer is.
var servers = []server{
	{name: "nodens", program: "nodens", conf: deployed},
	{name: "CoreDNS", program: "coredns", conf: deployed},
	{name: "nodens, bare", program: "nodens", conf: bare},
	{name: "CoreDNS, bare", program: "coredns", conf: bare},
	{name: "C echo", program: "echo"},
}

// ratios are the comparisons that are made in each round: one row's price in
// units of another's.
var ratios = []struct{ of, to string }{
	{"nodens", "CoreDNS"},
	{"nodens, bare", "CoreDNS, bare"},
	{"nodens, bare", "C echo"},
}

// The Corefiles. A TTL of an hour instead of the usual 30 seconds keeps every
// answer cached for the whole run.
const (
	// deployed is what NodeLocal DNSCache's manifest has in a block, without
	// health and loop, which take no part in a query.
	deployed = `.:@PORT@ {
    bind 127.0.0.1
    errors
    cache 3600
    reload
@CLUSTER@    forward . @UPSTREAM@
    prometheus 127.0.0.1:@METRICS@
}
`
	// bare has nothing that counts queries.
	bare = `.:@PORT@ {
    bind 127.0.0.1
    cache 3600
@CLUSTER@    forward . @UPSTREAM@
}
`
	// watching is the part of both that cluster workloads take.
	watching = `    kubernetes cluster.local {
        kubeconfig @KUBECONFIG@
        ttl 30
    }
`
)

// settings are the values of the placeholders.
type settings struct {
	port, metrics        port
	conf                 string
	upstream, kubeconfig string
	// length and rcode are those of the answers of the one workload.
	length, rcode int
}

// fill returns the text with the values in place of the placeholders.
func (s settings) fill(text string) string {
	cluster := ""
	if s.kubeconfig != "" {
		cluster = strings.ReplaceAll(watching, "@KUBECONFIG@", s.kubeconfig)
	}
	return strings.NewReplacer(
		"@PORT@", s.port.String(),
		"@METRICS@", s.metrics.String(),
		"@CONF@", s.conf,
		"@UPSTREAM@", s.upstream,
		"@CLUSTER@", cluster,
		"@LENGTH@", strconv.Itoa(s.length),
		"@RCODE@", strconv.Itoa(s.rcode),
	).Replace(text)
}

// fromTree finds a program that package peer builds.
func fromTree(name string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, dir string) (string, error) { return peer.Binary(ctx, name, dir) }
}

//go:embed echo/echo.c
var echoSource []byte

// compileEcho compiles the echo server.
func compileEcho(ctx context.Context, dir string) (string, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", fmt.Errorf("gcc: %w", errAbsent)
	}
	source, path := filepath.Join(dir, "echo.c"), filepath.Join(dir, "echo")
	if err := os.WriteFile(source, echoSource, 0o644); err != nil {
		return "", err
	}
	text, err := exec.CommandContext(ctx, gcc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling echo.c: %w\n%s", err, text)
	}
	return path, nil
}

// release is the version that the binary states, in one line.
func (p program) release(ctx context.Context, path string) string {
	if p.version == nil {
		return ""
	}
	text, err := exec.CommandContext(ctx, path, p.version...).CombinedOutput()
	if err != nil {
		return "unknown"
	}
	return strings.Trim(strings.Join(strings.Fields(string(text)), " "), ", ")
}
