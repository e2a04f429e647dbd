//go:build unix

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// allowSequences reports true: terminals take control sequences.
func allowSequences(*os.File) bool { return true }

// unread reports whether w is a pipe or a terminal whose other end is closed. Writing shows it only when
// there is something to write.
func unread(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(file.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
