package handover

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// SocketName is what the socket is called in its directory.
	SocketName = "handover.sock"
	// fresh is what a socket is called until it takes the place of SocketName.
	fresh = "handover.*.new"
	// leftover: a fresh socket of this age is of a process that has died over it; those
	// that live need milliseconds.
	leftover = time.Minute
	// maxPath is the room for a path in struct sockaddr_un, less its final zero.
	maxPath = 107
)

// fits gives an error if a socket at path could not be reached.
func fits(dir, path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("-handover-dir %s: the path of a socket in it would have %d bytes, %d are the most; use a shorter path",
			dir, len(path), maxPath)
	}
	return nil
}

// folder makes dir if need be, and refuses one in which others could put a socket of theirs.
func folder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("-handover-dir %s: others than its owner may write there (%v); use a directory of its own, with mode 0700",
			dir, info.Mode().Perm())
	}
	return nil
}

// place makes a socket in dir in place of the one that is there, and says which it is.
// The name is never without a socket meanwhile.
func place(dir string) (*net.UnixListener, os.FileInfo, error) {
	if err := folder(dir); err != nil {
		return nil, nil, err
	}
	sweep(dir)
	var tag [4]byte
	_, _ = rand.Read(tag[:]) // never fails
	path := filepath.Join(dir, fmt.Sprintf("handover.%x.new", tag))
	if err := fits(dir, path); err != nil {
		return nil, nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // by then the name may be a successor's
	var info os.FileInfo
	err = os.Chmod(path, 0o600)
	if err == nil {
		info, err = os.Lstat(path)
	}
	if err == nil {
		err = os.Rename(path, filepath.Join(dir, SocketName))
	}
	if err != nil {
		_ = l.Close()
		os.Remove(path)
		return nil, nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	return l, info, nil
}

// sweep removes fresh sockets of processes that have died.
func sweep(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, fresh))
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket && time.Since(info.ModTime()) > leftover {
			os.Remove(path)
		}
	}
}

// dial connects to the agent at dir. Nobody there: nil, without an error. An error that
// is errCrowded: somebody is, but has no time.
func dial(dir string) (*line, error) {
	path := filepath.Join(dir, SocketName)
	if err := fits(dir, path); err != nil {
		return nil, err
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED):
		return nil, nil
	case errors.Is(err, unix.EAGAIN):
		return nil, errCrowded
	case err != nil:
		return nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	return newLine(conn), nil
}

// errCrowded: more connections wait at the agent than its backlog holds.
var errCrowded = errors.New("the running agent does not accept connections")
