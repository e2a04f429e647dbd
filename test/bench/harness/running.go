package harness

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
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// portSet has the ports of a run's processes: one that is free may be another process's that has not
// bound it yet. It is safe for concurrent use.
type portSet struct {
	mu    sync.Mutex
	taken map[Port]bool
}

// next returns a free port that it has not returned before.
func (s *portSet) next() (Port, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == nil {
		s.taken = map[Port]bool{}
	}
	for {
		p, err := peer.Port()
		if at := Port(p); err != nil || !s.taken[at] {
			s.taken[at] = true
			return at, err
		}
	}
}

// Process is a server's process, which listens on the port and, if its
// configuration says so, tells on others whether it is ready, its metrics and its profiles.
type Process struct {
	*peer.Process
	Port, ready, Metrics, Pprof Port
	Conf                        string // the path of its configuration
}

// RunningServer is a server that has been started.
type RunningServer struct {
	Server
	// procs are its processes by the name of the set they answer. A program
	// without each has the same one for all.
	procs map[string]Process
}

// Any is one of its processes.
func (r *RunningServer) Any() Process {
	for _, p := range r.procs {
		return p
	}
	return Process{}
}

// asked is the process that answers the workload.
func (r *RunningServer) asked(w Workload) Process { return r.procs[w.QuerySet.Name] }

// Explain adds to an error that one of the processes has ended, and its last words.
func (r *RunningServer) Explain(err error) error {
	for _, p := range r.procs {
		select {
		case <-p.Done():
			return fmt.Errorf("%w; %s has ended (%v) and wrote:\n%s", err, r.Name, p.Err(), p.Tail()) //nolint:errorlint // nil for exit code 0
		default:
		}
	}
	return err
}

func (r *RunningServer) Stop() {
	for _, p := range r.procs {
		p.Stop() // again for a process of several workloads, which is no error
	}
}

// Start starts the server for all sets of questions that it answers and waits
// until it does; large is that of settings.
func (b *Run) Start(ctx context.Context, s Server, large bool) (*RunningServer, error) {
	r := &RunningServer{Server: s, procs: map[string]Process{}}
	var shared *Process
	for _, q := range b.sets() {
		if q.Cluster && !Programs[s.Program].cluster {
			continue
		}
		if shared == nil || Programs[s.Program].PerSet {
			p, err := b.Spawn(s, Settings{Length: b.Lengths[q.Name], rcode: q.Rcode, LargeCache: large})
			if err != nil {
				r.Stop()
				return nil, fmt.Errorf("starting %s: %w", s.Name, err)
			}
			shared = &p
		}
		r.procs[q.Name] = *shared
		if err := b.await(ctx, r, q); err != nil {
			r.Stop()
			return nil, err
		}
	}
	return r, nil
}

// Spawn starts one process on the server's core.
func (b *Run) Spawn(s Server, with Settings) (Process, error) {
	for _, to := range []*Port{&with.Port, &with.Metrics, &with.Ready, &with.Pprof} {
		var err error
		if *to, err = b.ports.next(); err != nil {
			return Process{}, err
		}
	}
	with.Upstream = b.Loop.Addr()
	with.Kubeconfig, with.Scope = b.Kubeconfig, s.Scope
	conf, args, err := b.WriteConfig(s, with)
	if err != nil {
		return Process{}, err
	}
	proc, err := peer.Spawn(peer.Command{Name: s.Program, Path: args[0], Args: args[1:], Env: s.Env, Dir: b.Dir})
	if err != nil {
		return Process{}, err
	}
	return Process{Process: proc, Port: with.Port, ready: with.Ready, Metrics: with.Metrics, Pprof: with.Pprof, Conf: conf}, nil
}

// WriteConfig writes the server's configuration, with the settings, into a folder of its own, and
// returns its path and the command that starts the server on the server's core.
func (b *Run) WriteConfig(s Server, with Settings) (path string, command []string, err error) {
	if with.Dir, err = os.MkdirTemp(b.Dir, "server-"); err != nil {
		return "", nil, err
	}
	p := Programs[s.Program]
	with.Conf = filepath.Join(with.Dir, cmp.Or(p.file, "conf"))
	if err := os.WriteFile(with.Conf, []byte(with.Fill(ConfigText(s.Conf))), 0o644); err != nil {
		return "", nil, err
	}
	// taskset becomes the program and keeps the pid; a Go program then sees one
	// core and sets GOMAXPROCS to it.
	command = []string{"taskset", "-c", b.ServerCores.List(), b.BinaryOf(s)}
	for _, a := range p.Args {
		command = append(command, with.Fill(a))
	}
	return with.Conf, append(command, s.Flags...), nil
}

// await waits until the server answers the set's last question as it
// should, and notes the answer's length if it is the first to be asked.
func (b *Run) await(ctx context.Context, r *RunningServer, q QuerySet) error {
	p := r.procs[q.Name]
	return p.Await(ctx, r.Name+" to answer "+q.Name, func(context.Context) error {
		answer, err := Exchange(p.Port, q)
		if err != nil {
			return err
		}
		h := ParseHeader(answer)
		// An echo has no records.
		if h.Rcode != q.Rcode || (h.Rcode == dns.RcodeSuccess && h.Answers == 0 && !Programs[r.Program].PerSet) {
			return fmt.Errorf("%s has rcode %d and %d answers", q.Question(q.Count()-1), h.Rcode, h.Answers)
		}
		if b.Lengths[q.Name] == 0 {
			b.Lengths[q.Name] = len(answer)
		}
		return nil
	})
}

// Exchange asks the set's last question over UDP and returns the answer packed.
func Exchange(at Port, w QuerySet) ([]byte, error) {
	packed, err := w.Last()
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
type head struct{ Rcode, Answers int }

func ParseHeader(msg []byte) head {
	return head{Rcode: int(msg[3] & 15), Answers: int(binary.BigEndian.Uint16(msg[6:]))}
}

func LoopbackAddr(p Port) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(p))
}

// Ready waits until the process says that it is.
func Ready(ctx context.Context, p Process) error {
	return p.Await(ctx, "readiness", peer.Get(nil, fmt.Sprintf("http://127.0.0.1:%d/ready", p.ready), 200))
}
