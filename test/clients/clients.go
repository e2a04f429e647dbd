package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Client is a program that asks for names.
type Client struct {
	Name string
	// Program is the program, and Package Debian's package. An empty Program is Go's resolver, which is part of the suite.
	Program, Package string
	// args are the arguments, with the placeholders @ADDR@, @NAME@, @TYPE@ and @DIR@.
	args []string
	// conf says that it reads /etc/resolv.conf, addrs that it asks for addresses only. not are types that it can't ask for.
	conf, addrs bool
	not         string
	// types are the program's own words for types.
	types map[string]string
	// file is the name of a file with source in @DIR@.
	file, source string
	// newerPath is the path of the program in Debian 13's Package, and newerNode says that it is Node's from npm; newerMusl says that the
	// program is compiled here and run with the Package.
	newerPath            string
	newerNode, newerMusl bool
	// compiled is the compiler, with its arguments, of a program that calls getaddrinfo; version are arguments with which the program
	// prints the version of the library, or fails without the library.
	compiled, version []string
	// Note is for the table.
	Note string
	// Short says that it is in the short form.
	Short bool
}

// newerHAProxy is the client of Debian 13's HAProxy.
const newerHAProxy = "HAProxy 3"

// Situation is a name that is asked for.
type Situation struct {
	Title, name, qtype string
	want               int            // records
	found              *regexp.Regexp // one record in the output
	search             string         // the search path of those that read /etc/resolv.conf; only they ask then
}

var (
	addresses = regexp.MustCompile(`\b10\.4\.[01]\.\d+\b`)
	targets   = regexp.MustCompile(`\b10-4-1-\d+\.many`)
	anything  = regexp.MustCompile(`\b10\.4\.[01]\.\d+\b`)
	pointers  = regexp.MustCompile(`\bweb\.shop\.svc\.cluster\.local\b`)
)

// Situations returns all situations.
func Situations() []Situation {
	const in = "shop.svc.cluster.local"
	return []Situation{
		{"A", "web." + in, "A", 1, addresses, ""},
		{"A × 120", "many." + in, "A", many, addresses, ""},
		{"SRV × 120", "_http._tcp.many." + in, "SRV", many, targets, ""},
		{"alias", "alias." + in, "A", 1, addresses, ""},
		{"NXDOMAIN", "none." + in, "A", 0, anything, ""},
		{"NODATA", "web." + in, "AAAA", 0, anything, ""},
		{"ANY", "web." + in, "ANY", 1, anything, ""},
		{"PTR", "1.0.4.10.in-addr.arpa", "PTR", 1, pointers, ""},
		{"search path", "web", "A", 1, addresses, in + " svc.cluster.local cluster.local"},
		{"search path with SERVFAIL", "web", "A", 1, addresses, "broken.test " + in},
	}
}

// errAbsent says that a program is not installed.
var errAbsent = errors.New("not installed")

// prepare returns c ready to run, with what it needs in dir.
func (c Client) prepare(ctx context.Context, dir string) (Client, error) {
	if c.Program == "" {
		return c, nil
	}
	c, err := c.found()
	if err != nil {
		return c, err
	}
	switch {
	case c.newerNode || c.newerMusl || c.newerPath != "":
		c.Program, err = c.newer(ctx, dir)
	case filepath.Base(c.Program) == "musl-gcc":
		c.Program = filepath.Join(dir, "musl")
		err = compileMusl(ctx, dir, c.Program, "-static")
	}
	return c, err
}

// found returns c with the path of its program.
func (c Client) found() (Client, error) {
	path, err := exec.LookPath(c.Program)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + c.Program); err != nil {
			return c, fmt.Errorf("%s: %w", c.Program, errAbsent)
		}
	}
	c.Program = path
	return c, nil
}

// Asks reports whether the client can ask what s asks.
func (c Client) Asks(s Situation) bool {
	switch {
	case s.search != "":
		return c.conf && c.Name != "PHP's dns_get_record" && c.Name != "libunbound" // which don't search
	case strings.HasPrefix(c.Name, "HAProxy"):
		return s.want == many
	case c.Name == "nginx":
		return s.qtype == "A"
	case c.addrs:
		return s.qtype == "A"
	case c.Name == "Go's resolver":
		return s.qtype == "A" || s.qtype == "SRV"
	}
	return !slices.Contains(strings.Fields(c.not), s.qtype)
}

// maxTime bounds the time of a program.
const maxTime = 30 * time.Second

// Count returns how many records of s the client gets from the server at addr.
func (c Client) Count(ctx context.Context, dir, addr string, s Situation) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	var out string
	switch c.Name {
	case "HAProxy", newerHAProxy:
		return haproxy(ctx, c.Program, dir, addr, s)
	case "nginx":
		return nginx(ctx, c.Program, dir, addr, s)
	case "Go's resolver":
		out = askGo(ctx, addr, s)
	default:
		var err error
		if out, err = c.output(ctx, dir, addr, s); err != nil {
			return 0, err
		}
	}
	found := s.found.FindAllString(out, -1)
	slices.Sort(found)
	return len(slices.Compact(found)), nil
}

// output returns what the program prints.
func (c Client) output(ctx context.Context, dir, addr string, s Situation) (string, error) {
	if err := c.writeSource(dir); err != nil {
		return "", err
	}
	r := strings.NewReplacer("@ADDR@", addr, "@NAME@", s.name, "@TYPE@", cmp.Or(c.types[s.qtype], s.qtype), "@DIR@", dir)
	args := []string{c.Program}
	for _, a := range c.args {
		args = append(args, r.Replace(a))
	}
	if c.conf {
		text := "nameserver " + addr + "\n"
		if s.search != "" {
			text += "search " + s.search + "\noptions ndots:5\n"
		}
		b, _ := withConf(ctx, dir, text, args)
		return string(b), nil
	}
	b, _ := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput() //nolint:gosec // the table's
	return string(b), nil
}

// askGo returns what Go's resolver finds.
func askGo(ctx context.Context, addr string, s Situation) string {
	if s.qtype == "SRV" {
		_, list, _ := resolver(addr).LookupSRV(ctx, "", "", s.name+".")
		var b strings.Builder
		for _, r := range list {
			b.WriteString(r.Target + "\n")
		}
		return b.String()
	}
	list, _ := resolver(addr).LookupHost(ctx, s.name+".")
	return strings.Join(list, "\n")
}
