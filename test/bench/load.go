package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// dnsperf is one run of dnsperf.
type dnsperf struct {
	server port
	// file holds the questions.
	file string
	// length ends the run after a time; zero asks every question once.
	length time.Duration
	// tcp asks over connections that stay.
	tcp bool
	// edns asks with an OPT record, for answers over 512 bytes.
	edns bool
	// clients is the number of sockets or connections, and outstanding that of the
	// queries under way, over all of them.
	clients, outstanding int
}

// loadResult is what dnsperf says about its run.
type loadResult struct {
	sent, completed, lost uint64
	// rcodes counts the answers by their response code.
	rcodes map[string]uint64
	// request and response are the mean sizes of the messages, in bytes.
	request, response uint64
	elapsed           time.Duration
}

// errNoDnsperf says that there is no load generator.
var errNoDnsperf = errors.New("dnsperf is not installed; on Debian: apt-get install dnsperf")

// run runs dnsperf pinned to the cores and waits for its end.
func (l dnsperf) run(ctx context.Context, on cores) (loadResult, error) {
	args := []string{
		"-c", on.list(), "dnsperf", "-s", "127.0.0.1", "-p", l.server.String(), "-d", l.file,
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
		args = append(args, "-n", "1")
	}
	text, err := exec.CommandContext(ctx, "taskset", args...).CombinedOutput()
	if err != nil {
		return loadResult{}, fmt.Errorf("running dnsperf: %w\n%s", err, text)
	}
	o, err := parseDnsperf(text)
	if err != nil {
		return loadResult{}, fmt.Errorf("reading dnsperf's statistics: %w\n%s", err, text)
	}
	return o, nil
}

// tolerance is the part of the queries that may be lost or answered otherwise: a
// datagram that finds a full buffer while the machine does something else is no
// reason to throw an hour's measurements away, and does not change a price.
const tolerance = 0.001

// check returns an error unless the queries were answered, with the rcode.
func (o loadResult) check(rcode string) error {
	if o.completed == 0 || float64(o.sent-min(o.sent, o.rcodes[rcode])) > tolerance*float64(o.sent) {
		return fmt.Errorf("of %d queries %d were answered and %d lost, with the rcodes %v; want them answered with %s",
			o.sent, o.completed, o.lost, o.rcodes, rcode)
	}
	return nil
}

// parseDnsperf reads the statistics at the end of dnsperf's output.
func parseDnsperf(text []byte) (loadResult, error) {
	o := loadResult{rcodes: map[string]uint64{}}
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
var readers = map[string]func(*loadResult, []string) error{
	"Queries sent":      func(o *loadResult, f []string) error { return number(&o.sent, f, 0) },
	"Queries completed": func(o *loadResult, f []string) error { return number(&o.completed, f, 0) },
	"Queries lost":      func(o *loadResult, f []string) error { return number(&o.lost, f, 0) },
	// NOERROR 990 (99.00%), NXDOMAIN 10 (1.00%)
	"Response codes": func(o *loadResult, f []string) error {
		for i := 0; i+1 < len(f); i += 3 {
			var n uint64
			if err := number(&n, f, i+1); err != nil {
				return err
			}
			o.rcodes[f[i]] = n
		}
		return nil
	},
	// request 38, response 54
	"Average packet size": func(o *loadResult, f []string) error {
		return errors.Join(number(&o.request, f, 1), number(&o.response, f, 3))
	},
	"Run time (s)": func(o *loadResult, f []string) error {
		if len(f) == 0 {
			return errShort
		}
		s, err := strconv.ParseFloat(f[0], 64)
		o.elapsed = time.Duration(s * float64(time.Second))
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
