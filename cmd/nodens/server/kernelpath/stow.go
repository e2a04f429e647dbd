package kernelpath

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stowed is links that the process has without a descriptor of theirs: they lie in a message
// that waits in a socket. To close the socket is to close them.
//
// It is about how a process ends that is killed. The kernel lets go of its descriptors
// beginning with the last, and at each link of tcx waits until no processor is in the program
// any more: with a hundred links that takes seconds, in which the agent's own sockets would
// still take packets that nobody answers. What lies in a socket is let go of only when all
// descriptors have been.
type stowed int

// stow takes the links that fds are descriptors of; these are still open afterwards.
func stow(fds ...int) (stowed, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("making a socket to keep a link in: %w", err)
	}
	defer func() { _ = unix.Close(pair[0]) }()
	// A message has a byte at least, or its descriptors go nowhere.
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil {
		_ = unix.Close(pair[1])
		return 0, fmt.Errorf("keeping a link: %w", err)
	}
	return stowed(pair[1]), nil
}

// Close takes the program off the links, and waits until no processor is in it any more.
func (s stowed) Close() error { return os.NewSyscallError("close", unix.Close(int(s))) }
