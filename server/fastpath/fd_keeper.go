package fastpath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// keptLink is a link that the process has without a descriptor of it: it lies in a message
// that waits in a socket. To close the socket is to close the link.
//
// It is about how a process ends that is killed. The kernel lets go of its descriptors
// beginning with the last, and at each link of tcx waits until no processor is in the program
// any more: with a hundred links that takes seconds, in which the agent's own sockets would
// still take packets that nobody answers. What lies in a socket is let go of only when all
// descriptors have been.
type keptLink int

// noLink is no link.
const noLink keptLink = -1

// keepLink takes the link that fd is a descriptor of, which is still open afterwards.
func keepLink(fd int) (keptLink, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return noLink, fmt.Errorf("making a socket to keep a link in: %w", err)
	}
	defer func() { _ = unix.Close(pair[0]) }()
	// A message has a byte at least, or its descriptors go nowhere.
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		_ = unix.Close(pair[1])
		return noLink, fmt.Errorf("keeping a link: %w", err)
	}
	return keptLink(pair[1]), nil
}

// update has the link run another program, from one packet to the next.
func (s keptLink) update(program *ebpf.Program) error {
	rights := make([]byte, unix.CmsgSpace(4))
	// To peek at the message is to have one more descriptor of what is in it.
	_, n, _, _, err := unix.Recvmsg(int(s), make([]byte, 1), rights, unix.MSG_PEEK|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fmt.Errorf("finding a link that is kept: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("finding a link that is kept: %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("finding a link that is kept: %d descriptors: %w", len(fds), err)
	}
	l, err := link.NewFromFD(fds[0])
	if err != nil {
		return err
	}
	return errors.Join(l.Update(program), l.Close())
}

// Close takes the program off the link, and waits until no processor is in it any more. Of none
// it does nothing.
func (s keptLink) Close() error {
	if s == noLink {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(int(s)))
}
