package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/bench/machine"
)

// dnsperf is one run of dnsperf.
type dnsperf struct {
	server Port
	// file holds the questions.
	file string
	// length ends the run after a time; zero asks every question passes times.
	length time.Duration
	passes int
	// timeout is how long it waits for an answer; zero is dnsperf's own.
	timeout time.Duration
	// tcp asks over connections that stay.
	tcp bool
	// edns asks with an OPT record, for answers over 512 bytes.
	edns bool
	// clients is the number of sockets or connections, and outstanding that of the
	// queries under way, over all of them.
	clients, outstanding int
}

// LoadResult is what dnsperf says about its run.
type LoadResult struct {
	Sent, Completed, Lost uint64
	// Rcodes counts the answers by their response code.
	Rcodes map[string]uint64
	// Request and response are the mean sizes of the messages, in bytes.
	Request, Response uint64
	Elapsed           time.Duration
}

// ErrNoDnsperf says that there is no load generator.
var ErrNoDnsperf = errors.New("dnsperf is not installed; on Debian: apt-get install dnsperf")

// Run runs dnsperf pinned to the cores and waits for its end.
func (l dnsperf) Run(ctx context.Context, on machine.Cores) (LoadResult, error) {
	args := []string{
		"-c", on.List(), "dnsperf", "-s", "127.0.0.1", "-p", l.server.String(), "-d", l.file,
		"-c", strconv.Itoa(l.clients), "-T", strconv.Itoa(min(l.clients, len(on))), "-q", strconv.Itoa(l.outstanding),
		"-O", "suppress=timeout,congestion",
	}
	if l.tcp {
		args = append(args, "-m", "tcp")
	}
	if l.edns {
		args = append(args, "-e")
	}
	if l.length > 0 {
		args = append(args, "-l", strconv.FormatFloat(l.length.Seconds(), 'f', 3, 64))
	} else {
		args = append(args, "-n", strconv.Itoa(l.passes))
	}
	if l.timeout > 0 {
		args = append(args, "-t", strconv.FormatFloat(l.timeout.Seconds(), 'f', 0, 64))
	}
	text, err := exec.CommandContext(ctx, "taskset", args...).CombinedOutput()
	if err != nil {
		return LoadResult{}, fmt.Errorf("running dnsperf: %w\n%s", err, text)
	}
	o, err := parseDnsperf(text)
	if err != nil {
		return LoadResult{}, fmt.Errorf("reading dnsperf's statistics: %w\n%s", err, text)
	}
	return o, nil
}

// tolerance is the part of the queries that may be lost or answered otherwise: a
// datagram that finds a full buffer while the machine does something else is no
// reason to throw an hour's measurements away, and does not change a price.
const tolerance = 0.001

// Check returns an error unless the queries were answered, with the rcode.
func (o LoadResult) Check(rcode string) error {
	if o.Completed == 0 || float64(o.Sent-min(o.Sent, o.Rcodes[rcode])) > tolerance*float64(o.Sent) {
		return fmt.Errorf("of %d queries %d were answered and %d lost, with the rcodes %v; want them answered with %s",
			o.Sent, o.Completed, o.Lost, o.Rcodes, rcode)
	}
	return nil
}

// parseDnsperf reads the statistics at the end of dnsperf's output.
func parseDnsperf(text []byte) (LoadResult, error) {
	o := LoadResult{Rcodes: map[string]uint64{}}
	var errs []error
	seen := 0
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(string(line)), ":")
		read := readers[key]
		if !ok || read == nil {
			continue
		}
		seen++
		if err := read(&o, strings.Fields(value)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if seen != len(readers) {
		errs = append(errs, fmt.Errorf("%d of %d lines found", seen, len(readers)))
	}
	return o, errors.Join(errs...)
}

// readers are the lines that are read, by what stands before the colon.
var readers = map[string]func(*LoadResult, []string) error{
	"Queries sent":      func(o *LoadResult, f []string) error { return number(&o.Sent, f, 0) },
	"Queries completed": func(o *LoadResult, f []string) error { return number(&o.Completed, f, 0) },
	"Queries lost":      func(o *LoadResult, f []string) error { return number(&o.Lost, f, 0) },
	// NOERROR 990 (99.00%), NXDOMAIN 10 (1.00%)
	"Response codes": func(o *LoadResult, f []string) error {
		for i := 0; i+1 < len(f); i += 3 {
			var n uint64
			if err := number(&n, f, i+1); err != nil {
				return err
			}
			o.Rcodes[f[i]] = n
		}
		return nil
	},
	// Request 38, response 54
	"Average packet size": func(o *LoadResult, f []string) error {
		return errors.Join(number(&o.Request, f, 1), number(&o.Response, f, 3))
	},
	"Run time (s)": func(o *LoadResult, f []string) error {
		if len(f) == 0 {
			return errShort
		}
		s, err := strconv.ParseFloat(f[0], 64)
		o.Elapsed = time.Duration(s * float64(time.Second))
		return err
	},
}

var errShort = errors.New("the line ends early")

// number reads the field with the index i.
func number(to *uint64, f []string, i int) error {
	if i >= len(f) {
		return errShort
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(f[i], ","), 10, 64)
	*to = n
	return err
}
