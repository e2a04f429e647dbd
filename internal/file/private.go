package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens the file at path for reading if only this process's user may have written
// it: a regular file of that user, to which no group and nobody else may write, of at
// most the given number of bytes. It neither follows a symbolic link in the last part of
// path nor waits for the writer of a pipe. Errors say what is wrong with the file; one for
// a file that is not there wraps [fs.ErrNotExist].
func Open(path string, most int64) (*os.File, error) {
	f, err := open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := checkPrivate(f, most); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Overwrite writes text to the regular file at path, in place of what it holds, and makes
// it with that mode if it is not there. What is no regular file, a symbolic link and a
// file with a second name are refused, unchanged: through them a user who can write to
// the folder would choose which file of this user loses its content.
func Overwrite(path, text string, mode os.FileMode) error {
	f, err := open(path, unix.O_WRONLY|unix.O_CREAT, uint32(mode.Perm()))
	if err != nil {
		return err
	}
	st, err := statRegular(f)
	if err == nil && st.Nlink > 1 {
		err = errors.New("it is a file that has another name, too (a hard link)")
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteString(text)
	}
	return errors.Join(err, f.Close())
}

// open opens path, which is not followed if it is a symbolic link and not waited for if
// it is a pipe.
func open(path string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, mode)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ELOOP):
			return nil, errors.New("it is a symbolic link")
		case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR): // a pipe without a reader, a socket, a folder
			return nil, errIrregular
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

var errIrregular = errors.New("it is not a regular file")

// statRegular gives what the kernel knows of f, which must be a regular file.
func statRegular(f *os.File) (st unix.Stat_t, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return st, err
	}
	var fault error
	err = conn.Control(func(fd uintptr) { fault = unix.Fstat(int(fd), &st) })
	if err = errors.Join(err, fault); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errIrregular
	}
	return st, err
}

// checkPrivate is an error unless f is as [Open] says.
func checkPrivate(f *os.File, most int64) error {
	st, err := statRegular(f)
	switch {
	case err != nil:
		return err
	case int64(st.Uid) != int64(os.Geteuid()):
		return fmt.Errorf("it belongs to another user (%d) than the agent's, %d", st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to it (mode %v)", os.FileMode(st.Mode).Perm())
	case st.Size > most:
		return fmt.Errorf("it has %d bytes, the most is %d", st.Size, most)
	}
	return nil
}
