package kernelpath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// keptLink is a link for which the process holds no descriptor: the descriptor is inside a
// message that waits in a socket. Closing the socket closes the link. A keptLink is the
// descriptor of that socket.
//
// It speeds up the end of a killed process. The kernel closes a process's descriptors one
// after the other, and at each tcx link it waits until no CPU runs the program any more.
// With a hundred links that takes seconds, during which the agent's own sockets would
// still accept packets that nobody answers. Descriptors inside socket messages are closed
// only after all others.
type keptLink int

// noLink is the absence of a link.
const noLink keptLink = -1

// keepLink returns a keptLink for the link with descriptor fd, which stays open.
func keepLink(fd int) (keptLink, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return noLink, fmt.Errorf("creating a socket for a link's descriptor: %w", err)
	}
	defer func() { _ = unix.Close(pair[0]) }()
	// Without at least one byte the descriptor is not sent.
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		_ = unix.Close(pair[1])
		return noLink, fmt.Errorf("storing a link's descriptor: %w", err)
	}
	return keptLink(pair[1]), nil
}

// update makes the link run another program, without a gap.
func (s keptLink) update(program *ebpf.Program) error {
	rights := make([]byte, unix.CmsgSpace(4))
	// Peeking at the message creates another descriptor of the link.
	_, n, _, _, err := unix.Recvmsg(int(s), make([]byte, 1), rights, unix.MSG_PEEK|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fmt.Errorf("reading a stored link: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("reading a stored link: %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("reading a stored link: %d descriptors: %w", len(fds), err)
	}
	l, err := link.NewFromFD(fds[0])
	if err != nil {
		return err
	}
	return errors.Join(l.Update(program), l.Close())
}

// Close detaches the program and waits until no CPU runs it any more. It does nothing for
// noLink.
func (s keptLink) Close() error {
	if s == noLink {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(int(s)))
}
