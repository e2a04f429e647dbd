package kernel

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

//go:embed ask/ask.c
var askSource []byte

// clientReport is what the client in the pod says of its run, and of the machine meanwhile.
type clientReport struct {
	sent, answered, wrong, skipped uint64
	// length is that of an answer, in bytes.
	length uint64
	// elapsed is the duration of the run, clientCPU the client's CPU time, both in
	// nanoseconds. idle is the idle time of the machine's cores in ticks.
	elapsed, clientCPU, idle uint64
	cores                    int
	// latencies are the answers' times, in the order in which they came.
	latencies []time.Duration
}

// busy is the time that all cores had something to do, whoever it was for.
func (h clientReport) busy() time.Duration {
	return time.Duration(h.elapsed)*time.Duration(h.cores) - time.Duration(h.idle)*machine.Tick
}

// clientGrace is the time that the client has beyond what it is given, to start and for what is
// lost at the end; one that takes longer hangs.
const clientGrace = 30 * time.Second

// ask has the client ask from the pod in the workload's manner, pinned to one of the load
// generator's cores; the zero manner asks nothing for as long.
func (d *PodBench) ask(ctx context.Context, m harness.LoadShape, length time.Duration) (h clientReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, length+clientGrace)
	defer cancel()
	args := []string{
		"netns", "exec", d.lab.Pod, "taskset", "-c", d.LoadCores[:1].List(), d.client,
		testbed.Local4, "53", strconv.Itoa(m.Rate), strconv.Itoa(m.Outstanding), strconv.FormatInt(length.Milliseconds(), 10),
	}
	question := d.question
	if m.Tool == harness.MissesFromPod {
		if question, err = newNames.Last(); err != nil {
			return h, err
		}
		args = append(args, strconv.FormatUint(uint64(d.Fresh)+1, 10))
	}
	cmd := exec.CommandContext(ctx, "ip", args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(question), &out, &complaint
	if err := cmd.Run(); err != nil {
		return h, fmt.Errorf("asking from the pod: %w\n%s", err, complaint.Bytes())
	}
	if h, err = parseClientReport(out.Bytes()); err != nil {
		return h, fmt.Errorf("reading what the client in the pod says: %w", err)
	}
	if m.Tool == harness.MissesFromPod {
		d.Fresh += uint32(h.sent)
	}
	return h, nil
}

// newNames has a question whose first label the client replaces.
var newNames = harness.QuerySet{Names: []string{"00000000." + testbed.Zone + "."}, Edns: true, Qtype: dns.TypeA}

// parseClientReport reads what the client writes.
func parseClientReport(text []byte) (h clientReport, err error) {
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	if _, err := fmt.Sscan(string(line), &h.sent, &h.answered, &h.wrong, &h.skipped, &h.length, &h.elapsed, &h.clientCPU, &h.idle, &h.cores); err != nil {
		return h, err
	}
	const size = 4
	if len(rest)%size != 0 || uint64(len(rest)/size) > h.answered {
		return h, fmt.Errorf("%d bytes of times for %d answers", len(rest), h.answered)
	}
	h.latencies = make([]time.Duration, len(rest)/size)
	for i := range h.latencies {
		h.latencies[i] = time.Duration(binary.NativeEndian.Uint32(rest[size*i:]))
	}
	return h, nil
}

// outcome is what became of the queries, in the terms of dnsperf.
func (h clientReport) outcome(request int) harness.LoadResult {
	return harness.LoadResult{
		Sent: h.sent, Completed: h.answered + h.wrong, Lost: h.sent - h.answered - h.wrong,
		Rcodes:  map[string]uint64{dns.RcodeToString[dns.RcodeSuccess]: h.answered},
		Request: uint64(request), Response: h.length, Elapsed: time.Duration(h.elapsed),
	}
}
