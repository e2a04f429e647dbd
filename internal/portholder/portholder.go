// Package portholder finds the other processes that listen at an address of this one.
//
// With SO_REUSEPORT two processes of one user can listen at the same address and port. Neither gets an error, and each
// receives a part of the packets and connections. Only the kernel's tables of sockets (proc_net(5)) show it: a
// socket that is bound there and is not open in this process, such as one that a predecessor has handed over and
// still holds, is another process's. Whose it is, /proc/PID/fd says of the processes in this PID namespace that this
// user may inspect.
package portholder

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Port is where a socket listens.
type Port struct {
	UDP bool
	netip.AddrPort
}

// String returns p as in "udp 192.0.2.1:53".
func (p Port) String() string {
	if p.UDP {
		return "udp " + p.AddrPort.String()
	}
	return "tcp " + p.AddrPort.String()
}

// Holder is another process that listens at ports of this one.
type Holder struct {
	// PID and Name are the process; 0 and "" if it is in another PID namespace, or this user may not inspect it.
	PID  int
	Name string
	// UID is the user of its sockets.
	UID   int
	Ports []Port // in the order of the argument, each once
}

// String returns the process for a message.
func (h *Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("a process of user %d that is not visible from here (its pod or its PID namespace is another one; `ss -lntup` on the node names it)", h.UID)
	}
	return fmt.Sprintf("%s (pid %d)", h.Name, h.PID)
}

// Finder finds holders. The zero value is ready. It is safe for concurrent use.
type Finder struct {
	mu sync.Mutex
	// own are the inodes of sockets that were found in this process. An inode is used again only after its socket is
	// closed, so what is in the tables and in own is checked again only if it is in neither.
	own map[uint64]struct{}
}

// Find returns the other processes that listen at one of the ports, by PID. An unspecified address is the same as the
// one of the other family. Port 0 is nobody's.
func (f *Finder) Find(ports []Port) ([]Holder, error) {
	found, err := f.foreign(ports)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return holders(ports, found), nil
}

// Count returns the number of sockets of other processes at p.
func (f *Finder) Count(p Port) (int, error) {
	found, err := f.foreign([]Port{p})
	return len(found), err
}

// foreign returns the sockets of other processes at the ports.
func (f *Finder) foreign(ports []Port) ([]socket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, err := bound(ports)
	if err != nil {
		return nil, err
	}
	isOwn := func(s socket) bool { _, own := f.own[s.inode]; return own }
	if slices.ContainsFunc(found, func(s socket) bool { return !isOwn(s) }) {
		f.own = make(map[uint64]struct{})
		for _, inode := range openSockets("self") {
			f.own[inode] = struct{}{}
		}
	}
	return slices.DeleteFunc(found, isOwn), nil
}

// owner is the process of a socket.
type owner struct{ pid, uid int }

// holders returns the processes that have the sockets open. A socket that several have is the first one's.
func holders(ports []Port, found []socket) (list []Holder) {
	pids := pidsOf(found)
	held := make(map[owner][]Port)
	for _, s := range found {
		o := owner{pids[s.inode], s.uid}
		held[o] = append(held[o], s.port)
	}
	for o, at := range held {
		h := Holder{PID: o.pid, UID: o.uid}
		if o.pid != 0 {
			h.Name = nameOf(o.pid)
		}
		for _, p := range ports {
			if slices.Contains(at, p) && !slices.Contains(h.Ports, p) {
				h.Ports = append(h.Ports, p)
			}
		}
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b Holder) int { return a.PID - b.PID })
	return list
}

// nameOf returns the name of a process, which it can choose: at most 15 bytes, of which those that are not printable
// ASCII are replaced.
func nameOf(pid int) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return "a process"
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.TrimSuffix(string(b), "\n"))
}

// pidsOf returns the processes, but this one, that have the sockets open, by inode.
func pidsOf(found []socket) map[uint64]int {
	pids := make(map[uint64]int)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return pids
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, inode := range openSockets(filepath.Base(dir)) {
			if pids[inode] == 0 && slices.ContainsFunc(found, func(s socket) bool { return s.inode == inode }) {
				pids[inode] = pid
			}
		}
	}
	return pids
}

// openSockets returns the inodes of the sockets that a process has open, none if it can't be inspected.
func openSockets(process string) (inodes []uint64) {
	dir, err := os.Open(filepath.Join("/proc", process, "fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // some are better than none
	for _, name := range names {
		to, err := os.Readlink(filepath.Join("/proc", process, "fd", name))
		if err != nil {
			continue
		}
		text, isSocket := strings.CutPrefix(to, "socket:[")
		if inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64); isSocket && err == nil {
			inodes = append(inodes, inode)
		}
	}
	return inodes
}
