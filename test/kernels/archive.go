package main

import (
	"fmt"
	"io"
	"path"
)

// archive writes a file in the form that a kernel unpacks at its start: cpio's "newc", as
// the kernel's Documentation/driver-api/early-userspace/buffer-format.rst has it. The first
// error stays.
type archive struct {
	w   io.Writer
	ino int
	// made are the folders that are there.
	made map[string]bool
	err  error
}

const (
	folderMode  = 0o040755
	programMode = 0o100755
	linkMode    = 0o120777
)

// folder makes a folder with those above it, unless it is there.
func (a *archive) folder(name string) {
	if name == "." || a.made[name] {
		return
	}
	a.folder(path.Dir(name))
	a.entry(name, folderMode, nil)
	if a.made == nil {
		a.made = make(map[string]bool)
	}
	a.made[name] = true
}

// file makes a file that can be run, with the folders above it.
func (a *archive) file(name string, body []byte) {
	a.folder(path.Dir(name))
	a.entry(name, programMode, body)
}

// link makes a symbolic link, with the folders above it.
func (a *archive) link(name, to string) {
	a.folder(path.Dir(name))
	a.entry(name, linkMode, []byte(to))
}

// end closes the archive, and reports the first error of all.
func (a *archive) end() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

// entry writes one entry: thirteen numbers of eight digits, the name, and the body, each of
// the latter filled up to four bytes.
func (a *archive) entry(name string, mode int, body []byte) {
	a.ino++
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(name)+1, 0, name)
	for _, part := range [][]byte{[]byte(head), body} {
		if a.err == nil {
			_, a.err = a.w.Write(part)
		}
		if a.err == nil {
			_, a.err = a.w.Write(make([]byte, -len(part)&3))
		}
	}
}
