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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// SocketName is the file name of the socket in the handover directory.
	SocketName = "handover.sock"
	// tempPattern matches a socket's file before it is renamed to SocketName.
	tempPattern = "handover.*.new"
	// tempMaxAge is the age at which such a file is left over from a process that has died.
	tempMaxAge = time.Minute
	// maxPath is the longest path in struct sockaddr_un, without the final zero, in bytes.
	maxPath = 107
)

// memoryDir returns the directory of [ListenForReady] in place of dir. It is in the shared memory of the pod, which
// is writable if the container's root is not, and which other pods don't see.
func memoryDir(dir string) string {
	return "/dev/shm/nodens" + strings.ReplaceAll(filepath.Clean(dir), "/", "-")
}

// checkPath returns an error if path is too long for a socket.
func checkPath(dir, path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("--handover-dir %s: the path of a socket in it would have %d bytes, %d are the most; use a shorter path",
			dir, len(path), maxPath)
	}
	return nil
}

// socketDir is the directory of the socket, held open, so that files are created, renamed and
// removed in the directory that was checked, even if its path is replaced.
type socketDir struct {
	dir  string // as it was named
	file *os.File
}

// openSocketDir opens dir; the caller closes it. The error is [ErrFolder] if other users can
// write there: they could place a socket of their own and receive the next agent's sockets.
// It is fs.ErrNotExist if there is no dir.
func openSocketDir(dir string) (*socketDir, error) {
	// Clean removes a final slash, with which the kernel would follow a symbolic link.
	fd, err := unix.Open(filepath.Clean(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil && isLink(dir) {
		return nil, fmt.Errorf("--handover-dir %s: %w: it is a symbolic link; name the directory it leads to", dir, ErrFolder)
	}
	if err != nil {
		return nil, fmt.Errorf("--handover-dir %s: %w", dir, err)
	}
	f := &socketDir{dir: dir, file: os.NewFile(uintptr(fd), dir)}
	if err := f.check(); err != nil {
		f.close()
		return nil, fmt.Errorf("--handover-dir %s: %w", dir, err)
	}
	return f, nil
}

func isLink(path string) bool {
	info, err := os.Lstat(filepath.Clean(path))
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// check returns an error unless the directory belongs to this user, and only this user may
// write to it.
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

// at returns the path of name in the open directory, for this process.
func (f *socketDir) at(name string) string {
	fd, err := descriptor(f.file)
	if err != nil {
		return filepath.Join(f.dir, name) // f is closed; the path is only for an error
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)
}

func (f *socketDir) close() { _ = f.file.Close() }

// listen creates the socket in dir, replaces an existing one by a rename, and returns its file
// info.
func listen(dir string) (*net.UnixListener, os.FileInfo, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("--handover-dir %s: %w", dir, err)
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
		return nil, nil, fmt.Errorf("--handover-dir %s: %w", dir, err)
	}
	info, err := os.Lstat(f.at(name))
	if err == nil {
		err = os.Rename(f.at(name), f.at(SocketName))
	}
	if err != nil {
		_ = l.Close()
		os.Remove(f.at(name))
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%s is in the way, remove it: %w", SocketName, err)
		}
		return nil, nil, fmt.Errorf("--handover-dir %s: %w", dir, err)
	}
	return l, info, nil
}

// listenPrivate creates a socket that only this user can connect to, from the first moment:
// its file takes the mode that the socket has when it is bound.
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
	u.SetUnlinkOnClose(false) // the file may be a successor's by then
	return u, nil
}

// removeStale removes temporary sockets of processes that have died.
func removeStale(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, tempPattern))
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket && time.Since(info.ModTime()) > tempMaxAge {
			os.Remove(path)
		}
	}
}

// dial connects to the agent at dir. It returns nil if no agent listens there, and
// errBacklogFull if one does, but does not accept connections.
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
		return nil, fmt.Errorf("--handover-dir %s: %w", dir, err)
	}
	return newPeerConn(conn), nil
}

// errBacklogFull: more connections wait at the agent than its backlog holds.
var errBacklogFull = errors.New("the running agent does not accept connections")
