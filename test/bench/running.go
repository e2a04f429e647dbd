package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// process is a server's process, which listens on the port and, if its
// configuration says so, tells on another one whether it is ready.
type process struct {
	*peer.Process
	port, ready, metrics port
	conf                 string // the path of its configuration
}

// runningServer is a server that has been started.
type runningServer struct {
	server
	// procs are its processes by the name of the set they answer. A program
	// without each has the same one for all.
	procs map[string]process
}

// any is one of its processes.
func (r *runningServer) any() process {
	for _, p := range r.procs {
		return p
	}
	return process{}
}

// asked is the process that answers the workload.
func (r *runningServer) asked(w workload) process { return r.procs[w.querySet.name] }

// explain adds to an error that one of the processes has ended, and its last words.
func (r *runningServer) explain(err error) error {
	for _, p := range r.procs {
		select {
		case <-p.Done():
			return fmt.Errorf("%w; %s has ended (%v) and wrote:\n%s", err, r.name, p.Err(), p.Tail()) //nolint:errorlint // nil for exit code 0
		default:
		}
	}
	return err
}

func (r *runningServer) stop() {
	for _, p := range r.procs {
		p.Stop() // again for a process of several workloads, which is no error
	}
}

// start starts the server for all sets of questions that it answers and waits
// until it does; large is that of settings.
func (b *Run) start(ctx context.Context, s server, large bool) (*runningServer, error) {
	r := &runningServer{server: s, procs: map[string]process{}}
	var shared *process
	for _, q := range b.sets() {
		if q.cluster && !programs[s.program].cluster {
			continue
		}
		if shared == nil || programs[s.program].perSet {
			p, err := b.spawn(s, settings{length: b.lengths[q.name], rcode: q.rcode, largeCache: large})
			if err != nil {
				r.stop()
				return nil, fmt.Errorf("starting %s: %w", s.name, err)
			}
			shared = &p
		}
		r.procs[q.name] = *shared
		if err := b.await(ctx, r, q); err != nil {
			r.stop()
			return nil, err
		}
	}
	return r, nil
}

// spawn starts one process on the server's core.
func (b *Run) spawn(s server, with settings) (process, error) {
	for _, to := range []*port{&with.port, &with.metrics, &with.ready} {
		at, err := peer.Port()
		if err != nil {
			return process{}, err
		}
		*to = port(at)
	}
	with.upstream = b.loop.Addr()
	with.kubeconfig, with.scope = b.kubeconfig, s.scope
	conf, args, err := b.writeConfig(s, with)
	if err != nil {
		return process{}, err
	}
	proc, err := peer.Spawn(peer.Command{Name: s.program, Path: args[0], Args: args[1:], Env: s.env, Dir: b.dir})
	if err != nil {
		return process{}, err
	}
	return process{Process: proc, port: with.port, ready: with.ready, metrics: with.metrics, conf: conf}, nil
}

// writeConfig writes the server's configuration, with the settings, into a folder of its own, and
// returns its path and the command that starts the server on the server's core.
func (b *Run) writeConfig(s server, with settings) (path string, command []string, err error) {
	if with.dir, err = os.MkdirTemp(b.dir, "server-"); err != nil {
		return "", nil, err
	}
	p := programs[s.program]
	with.conf = filepath.Join(with.dir, cmp.Or(p.file, "conf"))
	if err := os.WriteFile(with.conf, []byte(with.fill(configText(s.conf))), 0o644); err != nil {
		return "", nil, err
	}
	// taskset becomes the program and keeps the pid; a Go program then sees one
	// core and sets GOMAXPROCS to it.
	command = []string{"taskset", "-c", b.serverCores.list(), b.binaries[s.binary()]}
	for _, a := range p.args {
		command = append(command, with.fill(a))
	}
	return with.conf, append(command, s.flags...), nil
}

// await waits until the server answers the set's last question as it
// should, and notes the answer's length if it is the first to be asked.
func (b *Run) await(ctx context.Context, r *runningServer, q querySet) error {
	p := r.procs[q.name]
	return p.Await(ctx, r.name+" to answer "+q.name, func(context.Context) error {
		answer, err := exchange(p.port, q)
		if err != nil {
			return err
		}
		h := parseHeader(answer)
		// An echo has no records.
		if h.rcode != q.rcode || (h.rcode == dns.RcodeSuccess && h.answers == 0 && !programs[r.program].perSet) {
			return fmt.Errorf("%s has rcode %d and %d answers", q.question(q.count()-1), h.rcode, h.answers)
		}
		if b.lengths[q.name] == 0 {
			b.lengths[q.name] = len(answer)
		}
		return nil
	})
}

// exchange asks the set's last question over UDP and returns the answer packed.
func exchange(at port, w querySet) ([]byte, error) {
	packed, err := w.last()
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", at.String()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(packed); err != nil {
		return nil, err
	}
	buf := make([]byte, dns.MaxMsgSize)
	n, err := conn.Read(buf)
	if err != nil {
		return nil, err
	}
	if n < 12 || !bytes.Equal(buf[:2], packed[:2]) {
		return nil, fmt.Errorf("%d bytes that are no answer", n)
	}
	return buf[:n], nil
}

// head is what matters of an answer's header (RFC 1035, 4.1.1).
type head struct{ rcode, answers int }

func parseHeader(msg []byte) head {
	return head{rcode: int(msg[3] & 15), answers: int(binary.BigEndian.Uint16(msg[6:]))}
}

func loopbackAddr(p port) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(p))
}

// ready waits until the process says that it is.
func ready(ctx context.Context, p process) error {
	return p.Await(ctx, "readiness", peer.Get(nil, fmt.Sprintf("http://127.0.0.1:%d/ready", p.ready), 200))
}
