#!/usr/bin/env bash
# A TCP listener of Go refuses the program that distributes connections over the listeners of a port, as it is one of MPTCP.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
if [ "$(cat /proc/sys/net/mptcp/enabled 2>/dev/null)" != 1 ]; then
	echo "the kernel has no MPTCP, or it is off" >&2
	exit 2
fi
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command listen opens two TCP listeners of one port, with SO_REUSEPORT and a program that chooses the second one, and counts where
// connections arrive.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const connections = 20

// open opens a listener whose connections are counted.
func open(multipath bool, address string) *net.TCPListener {
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { check(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)) })
	}}
	if !multipath {
		c.SetMultipathTCP(false)
	}
	l, err := c.Listen(context.Background(), "tcp", address)
	check(err)
	return l.(*net.TCPListener)
}

// attach attaches the program to the listeners of l's port.
func attach(l *net.TCPListener) (err error) {
	program := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	raw, rawErr := l.SyscallConn()
	check(rawErr)
	check(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &program})
	}))
	return err
}

func main() {
	multipath := os.Args[1] == "default"
	first := open(multipath, "127.0.0.1:0")
	second := open(multipath, first.Addr().String())
	if err := attach(second); err != nil {
		fmt.Println(err)
		return
	}
	for range connections {
		_, err := net.Dial("tcp", first.Addr().String())
		check(err)
	}
	check(second.SetDeadline(time.Now().Add(10 * time.Second)))
	for range connections {
		_, err := second.Accept()
		check(err)
	}
	fmt.Println("all connections")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
GO
GOTOOLCHAIN=go1.26.8 build listen golang.org/x/sys 0.38.0
python3 - <<'PYTHON'
from loopback import *

default, plain = (subprocess.run(["listen", kind], capture_output=True, text=True, check=True).stdout.strip() for kind in ("default", "plain"))
conclude("SO_ATTACH_REUSEPORT_CBPF works for listeners of net.ListenConfig with SO_REUSEPORT, as for a C program's (socket(7))",
         "Go 1.26.8, golang.org/x/sys 0.38.0, Linux " + ".".join(os.uname().release.split(".")[:2]) + " with net.mptcp.enabled=1",
         f"with the default: {default}; after SetMultipathTCP(false), the listener that the program chooses gets {plain}",
         (default, plain) == ("operation not supported", "all connections"))
PYTHON
