package handover

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// SocketName is what the socket is called in its directory.
	SocketName = "handover.sock"
	// tempPattern is what a socket is called until it takes the place of SocketName.
	tempPattern = "handover.*.new"
	// tempMaxAge: a fresh socket of this age is of a process that has died over it; those
	// that live need milliseconds.
	tempMaxAge = time.Minute
	// maxPath is the room for a path in struct sockaddr_un, less its final zero.
	maxPath = 107
)

// checkPath gives an error if a socket at path could not be reached.
func checkPath(dir, path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("-handover-dir %s: the path of a socket in it would have %d bytes, %d are the most; use a shorter path",
			dir, len(path), maxPath)
	}
	return nil
}

// socketDir is the directory of the socket, held open: what is made, moved and removed in it
// is so in the directory that has been checked, whatever its path leads to by then.
type socketDir struct {
	dir  string // as it was named
	file *os.File
}

// openSocketDir opens dir, and refuses one in which others could put a socket of theirs: who
// can write there is given the sockets of the next agent that starts. These errors are
// [ErrFolder]; without the directory it is one of fs.ErrNotExist. The caller closes it.
func openSocketDir(dir string) (*socketDir, error) {
	// Without a slash at the end, with which a link would be followed.
	fd, err := unix.Open(filepath.Clean(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil && isLink(dir) {
		return nil, fmt.Errorf("-handover-dir %s: %w: it is a symbolic link; name the directory it leads to", dir, ErrFolder)
	}
	if err != nil {
		return nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	f := &socketDir{dir: dir, file: os.NewFile(uintptr(fd), dir)}
	if err := f.check(); err != nil {
		f.close()
		return nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	return f, nil
}

func isLink(path string) bool {
	info, err := os.Lstat(filepath.Clean(path))
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// check is an error unless the directory is this user's, and only this user may write to it.
func (f *socketDir) check() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch me := os.Geteuid(); {
	case !ok || int64(st.Uid) != int64(me):
		return fmt.Errorf("%w: it belongs to user %d; give it to the agent's user (chown %d), or use a directory of its own",
			ErrFolder, st.Uid, me)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%w: others than its owner may write there (%v); use a directory of its own, with mode 0700",
			ErrFolder, info.Mode().Perm())
	}
	return nil
}

// at is a path of name in the directory itself, for this process.
func (f *socketDir) at(name string) string {
	fd, err := descriptor(f.file)
	if err != nil {
		return filepath.Join(f.dir, name) // it is closed, and so is this path
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)
}

func (f *socketDir) close() { _ = f.file.Close() }

// listen makes a socket in dir in place of the one that is there, and says which it is.
// The name is never without a socket meanwhile.
func listen(dir string) (*net.UnixListener, os.FileInfo, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	f, err := openSocketDir(dir)
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	removeStale(dir)
	var tag [4]byte
	_, _ = rand.Read(tag[:]) // never fails
	name := fmt.Sprintf("handover.%x.new", tag)
	if err := checkPath(dir, filepath.Join(dir, name)); err != nil {
		return nil, nil, err
	}
	l, err := listenPrivate(f.at(name))
	if err != nil {
		return nil, nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	info, err := os.Lstat(f.at(name))
	if err == nil {
		err = os.Rename(f.at(name), f.at(SocketName))
	}
	if err != nil {
		_ = l.Close()
		os.Remove(f.at(name))
		return nil, nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	return l, info, nil
}

// listenPrivate makes a socket that only this user can connect to, from its first moment on: its
// file gets the mode that the socket has when it is bound.
func listenPrivate(path string) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var fault error
		err := conn.Control(func(fd uintptr) { fault = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, fault)
	}}
	l, err := config.Listen(context.Background(), "unixpacket", path)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return nil, fmt.Errorf("listening gives a %T", l)
	}
	u.SetUnlinkOnClose(false) // by then the name may be a successor's
	return u, nil
}

// removeStale removes fresh sockets of processes that have died.
func removeStale(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, tempPattern))
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket && time.Since(info.ModTime()) > tempMaxAge {
			os.Remove(path)
		}
	}
}

// dial connects to the agent at dir. Nobody there: nil, without an error. An error that
// is errCrowded: somebody is, but has no time.
func dial(dir string) (*peerConn, error) {
	path := filepath.Join(dir, SocketName)
	if err := checkPath(dir, path); err != nil {
		return nil, err
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED):
		return nil, nil
	case errors.Is(err, unix.EAGAIN):
		return nil, errBacklogFull
	case err != nil:
		return nil, fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	return newPeerConn(conn), nil
}

// errBacklogFull: more connections wait at the agent than its backlog holds.
var errBacklogFull = errors.New("the running agent does not accept connections")
