package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// process is a server's process, which listens on the port.
type process struct {
	*peer.Process
	port port
}

// running is a server that has been started.
type running struct {
	server
	// procs are its processes by the name of the workload they answer. A
	// program without each has the same one for all.
	procs map[string]process
}

func (r *running) stop() {
	for _, p := range r.procs {
		p.Stop() // again for a process of several workloads, which is no error
	}
}

// start starts the server for the workloads and waits until it answers them.
func (b *bench) start(ctx context.Context, s server) (*running, error) {
	r := &running{server: s, procs: map[string]process{}}
	var shared *process
	for _, w := range b.workloads {
		if shared == nil || programs[s.program].each {
			p, err := b.spawn(s, settings{length: b.lengths[w.name], rcode: w.rcode})
			if err != nil {
				r.stop()
				return nil, fmt.Errorf("starting %s: %w", s.name, err)
			}
			shared = &p
		}
		r.procs[w.name] = *shared
		if err := b.await(ctx, r, w); err != nil {
			r.stop()
			return nil, err
		}
	}
	return r, nil
}

// spawn starts one process on the server's core.
func (b *bench) spawn(s server, with settings) (process, error) {
	at, err := peer.Port()
	if err != nil {
		return process{}, err
	}
	metrics, err := peer.Port()
	if err != nil {
		return process{}, err
	}
	with.port, with.metrics = port(at), port(metrics)
	with.conf = filepath.Join(b.dir, fmt.Sprintf("conf-%d", at))
	with.upstream = b.upstream.addr.String()
	with.kubeconfig = b.kubeconfig
	if err := os.WriteFile(with.conf, []byte(with.fill(s.conf)), 0o644); err != nil {
		return process{}, err
	}
	// taskset becomes the program and keeps the pid; a Go program then sees one
	// core and sets GOMAXPROCS to it.
	args := []string{"-c", b.server.list(), b.binaries[s.program]}
	for _, a := range programs[s.program].args {
		args = append(args, with.fill(a))
	}
	p, err := peer.Spawn(peer.Command{Name: s.program, Path: "taskset", Args: args, Dir: b.dir})
	if err != nil {
		return process{}, err
	}
	return process{Process: p, port: with.port}, nil
}

// await waits until the server answers the workload's last question as it
// should, and notes the answer's length if it is the first to be asked.
func (b *bench) await(ctx context.Context, r *running, w workload) error {
	p := r.procs[w.name]
	return p.Await(ctx, r.name+" to answer "+w.name, func(context.Context) error {
		answer, err := ask(p.port, w)
		if err != nil {
			return err
		}
		h := header(answer)
		// An echo has no records.
		if h.rcode != w.rcode || (h.rcode == dns.RcodeSuccess && h.answers == 0 && !programs[r.program].each) {
			return fmt.Errorf("%s has rcode %d and %d answers", w.question(nameCount-1), h.rcode, h.answers)
		}
		if b.lengths[w.name] == 0 {
			b.lengths[w.name] = len(answer)
		}
		return nil
	})
}

// ask asks the workload's last question over UDP and returns the answer packed.
func ask(at port, w workload) ([]byte, error) {
	q := new(dns.Msg)
	q.SetQuestion(w.question(nameCount-1), w.qtype)
	packed, err := q.Pack()
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
	if n < 12 || binary.BigEndian.Uint16(buf) != q.Id {
		return nil, fmt.Errorf("%d bytes that are no answer", n)
	}
	return buf[:n], nil
}

// head is what matters of an answer's header (RFC 1035, 4.1.1).
type head struct{ rcode, answers int }

func header(msg []byte) head {
	return head{rcode: int(msg[3] & 15), answers: int(binary.BigEndian.Uint16(msg[6:]))}
}
