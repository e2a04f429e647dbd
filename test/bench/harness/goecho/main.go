// Command goecho is echo.c in Go: the least that a Go program pays for a query. Its reader waits in
// recvfrom(2) without the scheduler's knowledge, on a thread of its own, as the agent's readers do.
//
//	goecho ADDRESS PORT LENGTH RCODE
//
// It listens on an IPv4 address and returns every datagram to its sender as a DNS answer without
// records, with zeros up to LENGTH bytes. It runs until it is killed.
package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "goecho:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: goecho ADDRESS PORT LENGTH RCODE")
	}
	addr, err := netip.ParseAddrPort(args[0] + ":" + args[1])
	if err != nil {
		return err
	}
	length, err := strconv.ParseUint(args[2], 10, 16)
	if err != nil {
		return fmt.Errorf("LENGTH: %w", err)
	}
	rcode, err := strconv.ParseUint(args[3], 10, 4)
	if err != nil {
		return fmt.Errorf("RCODE: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	runtime.LockOSThread()
	return echo(fd, int(length), byte(rcode))
}

// echo answers datagrams until receiving fails.
func echo(fd, length int, rcode byte) error {
	packet := make([]byte, 65536)
	from := new([unix.SizeofSockaddrInet4]byte)
	fromLen := new(uint32)
	for {
		*fromLen = uint32(len(from))
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&packet[0])), uintptr(len(packet)), 0,
			uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(fromLen)))
		if errno == unix.EINTR { // the runtime's signal
			continue
		}
		if errno != 0 {
			return os.NewSyscallError("recvfrom", errno)
		}
		if n < 12 { // no DNS header
			continue
		}
		packet[2] |= 0x80                              // QR
		packet[3] = 0x80 | rcode                       // RA
		copy(packet[6:12], "\x00\x00\x00\x00\x00\x00") // no records
		size := int(n)
		if size < length {
			clear(packet[size:length])
			size = length
		}
		_, _, _ = syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&packet[0])), uintptr(size), 0,
			uintptr(unsafe.Pointer(from)), uintptr(*fromLen)) // what cannot be sent is lost
	}
}
