package load

import (
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memInfoDrops is the place of the dropped packets in the values of SO_MEMINFO (linux/sock_diag.h, SK_MEMINFO_DROPS).
const memInfoDrops = 8

// socketDrops returns the number of packets that the kernel has dropped because the receive buffer of a socket was full. Other
// sockets of the network namespace may belong to others.
func socketDrops(fd int) uint64 {
	var info [memInfoDrops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || uintptr(size) < unsafe.Sizeof(info) {
		return 0
	}
	return uint64(info[memInfoDrops])
}

// backlogDrops returns the number of packets of all namespaces that the kernel has dropped because a
// CPU's backlog was full.
func backlogDrops() uint64 {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	return sumDrops(string(text))
}

// sumDrops adds up the second column, hexadecimal, of /proc/net/softnet_stat.
func sumDrops(text string) (sum uint64) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 {
			n, _ := strconv.ParseUint(f[1], 16, 64) // the kernel wrote it
			sum += n
		}
	}
	return sum
}
