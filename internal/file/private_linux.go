package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens the file at path for reading if only this process's user can have written it:
// a regular file of that user, not writable for group or others, of at most limit bytes. It
// doesn't follow a symbolic link in the last element of path, and it doesn't block on a
// pipe. Errors say what is wrong with the file; if it doesn't exist, they wrap
// [fs.ErrNotExist].
func Open(path string, limit int64) (*os.File, error) {
	f, err := open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := checkPrivate(f, limit); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Overwrite replaces the content of the regular file at path with text; if the file doesn't
// exist, it creates it with mode. It refuses symbolic links, hard links and anything that is
// not a regular file: with these, a user who can write to the directory could make the
// agent overwrite another file.
func Overwrite(path, text string, mode os.FileMode) error {
	f, err := open(path, unix.O_WRONLY|unix.O_CREAT, uint32(mode.Perm()))
	if err != nil {
		return err
	}
	st, err := statRegular(f)
	if err == nil && st.Nlink > 1 {
		err = errors.New("it has more than one hard link")
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteString(text)
	}
	return errors.Join(err, f.Close())
}

// open opens path. It doesn't follow a symbolic link and doesn't block on a pipe.
func open(path string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, mode)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ELOOP):
			return nil, errors.New("it is a symbolic link")
		case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR): // a pipe without a reader, a socket, a directory
			return nil, errIrregular
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

var errIrregular = errors.New("it is not a regular file")

// statRegular returns f's status. It fails if f is not a regular file.
func statRegular(f *os.File) (st unix.Stat_t, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return st, err
	}
	var statErr error
	err = conn.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &st) })
	if err = errors.Join(err, statErr); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errIrregular
	}
	return st, err
}

// checkPrivate checks the conditions of [Open].
func checkPrivate(f *os.File, limit int64) error {
	st, err := statRegular(f)
	switch {
	case err != nil:
		return err
	case int64(st.Uid) != int64(os.Geteuid()):
		return fmt.Errorf("it belongs to another user (%d), the agent runs as %d", st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to it (mode %v)", os.FileMode(st.Mode).Perm())
	case st.Size > limit:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", st.Size, limit)
	}
	return nil
}
