package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
)

// AgentAddrs returns the addresses at which an agent answers.
func AgentAddrs() []string { return []string{Local4, Local6, Service4, Service6} }

// AgentArgs writes the Corefile and the manifests of an agent at the addresses, and returns its flags
// followed by more.
func (l *Network) AgentArgs(locals []string, more ...string) ([]string, error) {
	shop, err := l.File("cluster.yaml", Manifests())
	if err != nil {
		return nil, err
	}
	conf, err := l.File("Corefile", `.:53 {
    bind `+strings.Join(locals, " ")+`
    errors
    health `+locals[0]+`:8080 {
        lameduck 0s
    }
    ready `+locals[0]+`:8181
    prometheus 127.0.0.1:9253
    kubernetes cluster.local {
        manifests `+shop+`
    }
    cache 3600
    forward . `+UpstreamIP+":"+UpstreamPort+`
}
`)
	return append([]string{"-conf", conf, "-localip", strings.Join(locals, ","), "-metrics-listen-address="}, more...), err
}

// KernelPathFlag makes an agent answer inside the kernel.
const KernelPathFlag = "-kernel-path=on"

// KernelPathUsable returns an error if an agent on this machine can't answer inside the kernel.
func KernelPathUsable() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("%w: kernel %s: %w", errUnusable, release, err)
	}
	if major < 6 || major == 6 && minor < 6 {
		return fmt.Errorf("%w: kernel %s has no tcx, which came with 6.6", errUnusable, release)
	}
	return nil
}

// StartAgent starts an agent in the node and waits until it is ready. With an error the process may be
// nil, or one that is not ready.
func (l *Network) StartAgent(args ...string) (*peer.Process, error) {
	p, err := l.Spawn(l.Node, nil, append([]string{l.Nodens}, args...)...)
	if err != nil {
		return nil, err
	}
	return p, p.Await(context.Background(), "the agent to log that it serves", LogContains(p, "msg=serving"))
}

// StartCoreDNS starts a CoreDNS in the node at the addresses, which the node must have, with the plugins
// of an agent's Corefile.
func (l *Network) StartCoreDNS(coredns string, locals ...string) (*peer.Process, error) {
	conf, err := l.File("Corefile.coredns", ".:53 {\n    bind "+strings.Join(locals, " ")+`
    errors
    prometheus 127.0.0.1:9253
    cache 3600
    forward . `+UpstreamIP+":"+UpstreamPort+"\n}\n")
	if err != nil {
		return nil, err
	}
	p, err := l.Spawn(l.Node, nil, coredns, "-conf", conf)
	if err != nil {
		return nil, err
	}
	return p, p.Await(context.Background(), "CoreDNS to answer", l.Answers(l.Node, FromAgent, "udp", net.JoinHostPort(locals[0], "53")))
}

// SetNodeLocalInterface adds NodeLocal DNSCache's interface with the addresses, or deletes it.
func (l *Network) SetNodeLocalInterface(add bool, addrs ...string) error {
	if !add {
		_, err := l.In(l.Node, "ip", "link", "delete", "nodelocaldns")
		return err
	}
	if _, err := l.In(l.Node, "ip", "link", "add", "nodelocaldns", "type", "bridge"); err != nil {
		return err
	}
	for _, a := range addrs {
		if _, err := l.In(l.Node, "ip", "addr", "add", a, "dev", "nodelocaldns"); err != nil {
			return err
		}
	}
	return nil
}

// LogContains returns a probe that succeeds when the process has logged word.
func LogContains(p *peer.Process, word string) peer.Probe {
	return func(context.Context) error {
		if !strings.Contains(p.Tail(), word) {
			return fmt.Errorf("its log has no %q", word)
		}
		return nil
	}
}

// Tmpfs mounts a file system of size bytes in a folder below Dir, and returns the folder.
func (l *Network) Tmpfs(name string, size int) (string, error) {
	dir := filepath.Join(l.Dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	_, err := Run("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=700", size), "nodens-lab", dir)
	if err == nil {
		l.Cleanup(func() { _, _ = Run("umount", "--lazy", dir) })
	}
	return dir, err
}

// fillerFile is the file that takes up a full file system.
const fillerFile = "full"

// EmptyFilesystem deletes the file that FillFilesystem has written to dir.
func EmptyFilesystem(dir string) error { return os.Remove(filepath.Join(dir, fillerFile)) }

// FillFilesystem writes a file to dir until its file system is full.
func FillFilesystem(dir string) error {
	f, err := os.Create(filepath.Join(dir, fillerFile))
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if info, statErr := f.Stat(); statErr != nil || info.Size() == 0 {
		return errors.Join(errors.New("nothing could be written"), err, statErr)
	}
	return nil
}
