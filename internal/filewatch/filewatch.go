// Package filewatch reads files that an administrator edits while the agent runs, such as a hosts file or a
// file of weights.
//
// A file is polled: [Every] calls a function at an interval, [File.Changed] compares the file's status with
// that of the call before, and [Read] reads a regular file up to a size. Polling also works where inotify
// does not: across the symbolic links of a mounted ConfigMap, on network file systems, and for a file that
// does not exist yet.
package filewatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// ErrNotRegular is the error, in an [fs.PathError], of a directory, a pipe, a socket or a device other than [os.DevNull].
var ErrNotRegular = errors.New("it is not a regular file")

// Every calls f once per interval until ctx ends. The first call comes after one interval, and there is at
// most one call at a time; ticks that a slow call misses are dropped. If interval is zero or less, Every only
// waits for ctx.
func Every(ctx context.Context, interval time.Duration, f func()) {
	if interval <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// File detects changes of the file at a path. The zero value with a Path is ready for use, and stands for a file that
// did not exist at the last call of [File.Changed]. It is not safe for concurrent use.
type File struct {
	// Path is the file's path. Symbolic links are followed, so that replacing the target of one is a change.
	Path string

	last fs.FileInfo // as of the last call of Changed; nil if that failed
}

// Changed reports whether the file has changed since the last call: it is another file, or has another
// modification time or size.
//
// err says why the file's status is not available; it wraps [fs.ErrNotExist] if there is no such file. Each
// call returns it while the failure lasts, but changed is true only for the first one after a success. To log a
// failure once, log err if changed is true.
//
// Call Changed before reading the file, so that a change during the reading is reported by the next call.
func (f *File) Changed() (changed bool, err error) {
	last := f.last
	f.last, err = os.Stat(f.Path)
	if err != nil {
		f.last = nil
		return last != nil, err
	}
	same := last != nil && os.SameFile(f.last, last) && f.last.ModTime().Equal(last.ModTime()) && f.last.Size() == last.Size()
	return !same, nil
}

// ModTime returns the modification time as of the last call of [File.Changed]; the zero time if that failed.
func (f *File) ModTime() time.Time {
	if f.last == nil {
		return time.Time{}
	}
	return f.last.ModTime()
}

// Open opens the regular file at path for reading. It follows symbolic links. Anything else than a regular
// file is [ErrNotRegular]: opening a pipe would wait for its writer. The exception is [os.DevNull], which stands for
// an empty file. Every error is an [fs.PathError].
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !isNull(info) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	return os.Open(path)
}

// isNull reports whether info is that of [os.DevNull], under any name.
func isNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}

// Check returns an error unless there is a regular file at path with at most limit bytes, a whole number of MiB. It is for
// files that a library reads without a bound. Every error is an [fs.PathError].
func Check(path string, limit int64) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() > limit {
		err = tooLarge(path, limit)
	}
	return err
}

func tooLarge(path string, limit int64) error {
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is larger than %d MiB", limit>>20)}
}

// Read returns the content of the regular file at path if it has at most limit bytes, a whole number of MiB.
// It opens the file as [Open] does, and reads no more than limit bytes and one. Every error is an [fs.PathError];
// that of a larger file names the limit.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, tooLarge(path, limit)
	}
	return text, nil
}
