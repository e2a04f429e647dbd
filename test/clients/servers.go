package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// Fault is what the first of two name servers does; the second one answers.
type Fault struct {
	Title  string
	silent bool
	closed bool // no program has the port, and the kernel says so by ICMP
	rcode  int  // of each reply
}

// Faults returns all faults; the first one is none.
func Faults() []Fault {
	return []Fault{
		{Title: "answers"},
		{Title: "is silent", silent: true},
		{Title: "port closed", closed: true},
		{Title: "SERVFAIL", rcode: dns.RcodeServerFailure},
		{Title: "REFUSED", rcode: dns.RcodeRefused},
		{Title: "NXDOMAIN", rcode: dns.RcodeNameError},
	}
}

// The addresses by which the servers answer.
const (
	fromFirst  = "192.0.2.1"
	fromSecond = "192.0.2.2"
)

// twoNames are looked up one after the other in one process.
var twoNames = []string{"one.test", "two.test"}

// Lookup is how a look-up ended.
type Lookup struct {
	// From is first or second, the server whose answer the program has; "" for none.
	From string
	Time time.Duration
	// Asked is how many queries the second server got.
	Asked int
}

// Lookups returns how c looks up two names, if the first name server in its resolv.conf has the fault.
func (c Client) Lookups(ctx context.Context, dir string, f Fault) (list []Lookup, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	first, second, err := openServers(f)
	if err != nil {
		return nil, err
	}
	defer first.Close()
	defer second.Close()
	if f.closed {
		first.Close()
	}
	first.SetSilent(f.silent)
	conf := fmt.Sprintf("nameserver %s\nnameserver %s\noptions ndots:5\n", first.Addr().Addr(), second.Addr().Addr())
	args := append([]string{c.Program}, c.args...)
	for _, name := range twoNames {
		args = append(args, name+".")
	}
	out, err := withConf(ctx, dir, conf, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", c.Name, err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(twoNames) {
		return nil, fmt.Errorf("%s printed %q, not a line for each name", c.Name, out)
	}
	for i, line := range lines {
		addr, seconds, _ := strings.Cut(line, " ")
		s, err := strconv.ParseFloat(seconds, 64)
		if err != nil {
			return nil, fmt.Errorf("%s printed %q: %w", c.Name, line, err)
		}
		from := map[string]string{fromFirst: "first", fromSecond: "second"}[addr]
		list = append(list, Lookup{from, time.Duration(s * float64(time.Second)), second.CountName(twoNames[i] + ".")})
	}
	return list, nil
}

// secondDelay makes the first server the faster one, as an agent on the node is.
const secondDelay = 50 * time.Millisecond

// openServers opens both servers at loopback addresses of their own and port 53.
func openServers(f Fault) (first, second *fakedns.Server, err error) {
	open := func(addr netip.Addr, delay time.Duration, reply func(*dns.Msg) *dns.Msg) (*fakedns.Server, error) {
		return fakedns.Open(func(q *fakedns.Query) { q.ReplyAfter(delay, reply(q.Msg)) }, fakedns.Options{Addr: netip.AddrPortFrom(addr, 53)})
	}
	firstReply := func(q *dns.Msg) *dns.Msg {
		if f.rcode != dns.RcodeSuccess {
			return new(dns.Msg).SetRcode(q, f.rcode)
		}
		return fakedns.Address(q, 60, fromFirst)
	}
	secondReply := func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, fromSecond) }
	const attempts = 10 // another run may have the address
	for range attempts {
		addr := netip.AddrFrom4([4]byte{127, 54, byte(rand.IntN(256)), byte(1 + 2*rand.IntN(126))})
		if first, err = open(addr, 0, firstReply); err != nil {
			continue
		}
		if second, err = open(addr.Next(), secondDelay, secondReply); err == nil {
			return first, second, nil
		}
		first.Close()
	}
	return nil, nil, err
}

// withConf runs a program with its own /etc/resolv.conf, in a mount namespace.
func withConf(ctx context.Context, dir, text string, args []string) ([]byte, error) {
	f, err := os.CreateTemp(dir, "resolv.conf-")
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteString(text); err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	args = append([]string{"-m", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && shift && exec "$@"`, "sh", f.Name()}, args...)
	return exec.CommandContext(ctx, "unshare", args...).CombinedOutput() //nolint:gosec // the table's
}

// The programs print a line for each name: the address or an error, and the seconds that the look-up took.
const (
	getaddrinfoSource = `#include <netdb.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <time.h>
int main(int n, char **v) {
	for (int i = 1; i < n; i++) {
		struct addrinfo *a, h = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
		struct timespec t, u;
		clock_gettime(CLOCK_MONOTONIC, &t);
		int e = getaddrinfo(v[i], 0, &h, &a);
		clock_gettime(CLOCK_MONOTONIC, &u);
		printf("%s %.3f\n", e ? "error" : inet_ntoa(((struct sockaddr_in *)a->ai_addr)->sin_addr),
			u.tv_sec - t.tv_sec + (u.tv_nsec - t.tv_nsec) / 1e9);
	}
}
`
	nodeLookups = `(async () => { for (const name of process.argv.slice(1)) {
const t = performance.now(), a = await require("dns").promises.resolve4(name).then(l => l[0], e => e.code);
console.log(a, (performance.now() - t) / 1000) } })()`

	pycaresLookups = `import pycares, select, sys, time
c = pycares.Channel()
def ask(name):
    found = []
    c.query(name, pycares.QUERY_TYPE_A, lambda list, error: found.append("error" if error else list[0].host))
    while not found:
        t = c.timeout()
        read, write, _ = select.select(*(([], []) if not any(c.getsock()) else c.getsock()), [], min(t or 1, 1))
        for fd in read: c.process_fd(fd, -1)
        for fd in write: c.process_fd(-1, fd)
        if not read and not write: c.process_fd(-1, -1)
    return found[0]
for name in sys.argv[1:]:
    t = time.monotonic(); a = ask(name); print(a, time.monotonic() - t)`
)

// goLookups is the argument with which this program looks up the names after it by Go's resolver.
const goLookups = "lookups"

// lookUp does so for names, and prints what the other programs print.
func lookUp(names []string) {
	for _, name := range names {
		start := time.Now()
		list, _ := (&net.Resolver{PreferGo: true}).LookupNetIP(context.Background(), "ip4", name)
		addr := "error"
		if len(list) > 0 {
			addr = list[0].Unmap().String()
		}
		fmt.Println(addr, time.Since(start).Seconds())
	}
}

// Resolvers returns the libraries that programs in pods use.
func Resolvers() []Client {
	return []Client{
		{Name: "glibc", Program: "gcc", Package: "libc-bin", compiled: []string{"gcc"}, Short: true},
		{Name: "musl", Program: "musl-gcc", Package: "musl-tools", compiled: []string{"musl-gcc", "-static"}, Short: true},
		{Name: "Go's resolver", args: []string{goLookups}, Short: true},
		{Name: "c-ares, by Node's dns.resolve", Program: "node", args: []string{"-e", nodeLookups}, version: []string{"-p", "process.versions.ares"}, Short: true},
		{Name: "c-ares, by Python's pycares", Program: "/usr/bin/python3", Package: "libc-ares2", args: []string{"-c", pycaresLookups}, version: []string{"-c", "import pycares"}},
	}
}

// prepareResolver returns c ready to run, with what it needs in dir.
func (c Client) prepareResolver(ctx context.Context, dir string) (Client, error) {
	switch {
	case c.Program == "":
		path, err := os.Executable()
		c.Program, c.Note = path, runtime.Version()
		return c, err
	case c.compiled == nil:
		c, err := c.prepare(ctx, dir)
		if err == nil && c.version != nil {
			out, failed := exec.CommandContext(ctx, c.Program, c.version...).Output() //nolint:gosec // the table's
			if failed != nil {
				err = errAbsent // the library
			}
			c.Note = strings.TrimSpace(string(out))
		}
		return c, err
	}
	c, err := c.found()
	if err != nil {
		return c, err
	}
	source := filepath.Join(dir, c.Name+".c")
	if err := os.WriteFile(source, []byte(getaddrinfoSource), 0o644); err != nil {
		return c, err
	}
	c.Program = filepath.Join(dir, c.Name)
	out, err := exec.CommandContext(ctx, c.compiled[0], append(c.compiled[1:], "-o", c.Program, source)...).CombinedOutput() //nolint:gosec // the table's
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", c.compiled[0], err, out)
	}
	return c, err
}

// serversTable returns a row for each installed resolver and a column for each fault.
func serversTable(ctx context.Context, dir string) (string, error) {
	var text strings.Builder
	text.WriteString("| resolver |")
	for _, f := range Faults() {
		fmt.Fprintf(&text, " %s |", f.Title)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(Faults())) + "\n")
	for _, c := range Resolvers() {
		c, err := c.prepareResolver(ctx, dir)
		if errors.Is(err, errAbsent) {
			continue
		}
		if err != nil {
			return "", err
		}
		cells, errs := make([]string, len(Faults())), make([]error, len(Faults()))
		var asking sync.WaitGroup
		for i, f := range Faults() {
			asking.Go(func() {
				var list []Lookup
				list, errs[i] = c.Lookups(ctx, dir, f)
				cells[i] = lookupsText(list)
			})
		}
		asking.Wait()
		if err := cmp.Or(errs...); err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "| %s | %s |\n", c.title(ctx), strings.Join(cells, " | "))
	}
	return text.String(), nil
}

// lookupsText says who answered and after how long, for the second look-up only what differs.
func lookupsText(list []Lookup) string {
	var texts []string
	for _, l := range list {
		text := cmp.Or(l.From, "none") + ", " + roundedTime(l.Time)
		if l.From != "second" && l.Asked > 0 {
			text += ", both asked"
		}
		texts = append(texts, text)
	}
	if len(texts) == 2 && texts[0] == texts[1] {
		texts = texts[:1]
	}
	return strings.Join(texts, "; then ")
}

// roundedTime returns d in seconds, without what a busy machine adds.
func roundedTime(d time.Duration) string {
	if d < 500*time.Millisecond {
		return "at once"
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
