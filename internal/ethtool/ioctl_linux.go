package ethtool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// statsStrings is ETH_SS_STATS of linux/ethtool.h.
	statsStrings = 1
	// nameLen is ETH_GSTRING_LEN: each name is padded to it with zeros.
	nameLen = 32
	// spare is the room for counters that the driver adds between two calls: it writes as many
	// as it has, whatever the caller asked for.
	spare = 1024
	// maxCounters bounds what a driver is believed to have. Drivers with a hundred queues have some
	// thousand.
	maxCounters = 1 << 16
)

// ifreq is struct ifreq of net/if.h with ifr_data.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16 - unsafe.Sizeof(uintptr(0))]byte
}

// Counter reads one counter of the driver of the interface with this name. The error is
// [ErrNoCounter] if the driver has no counter of this name.
func Counter(interfaceName, counter string) (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := count(fd, interfaceName)
	if err != nil {
		return 0, err
	}
	i, err := index(fd, interfaceName, counter, n)
	if err != nil {
		return 0, err
	}
	b := make([]byte, 8+8*(n+spare)) // struct ethtool_stats
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GSTATS)
	binary.NativeEndian.PutUint32(b[4:], uint32(n)) //nolint:gosec // at most maxCounters
	if err := ioctl(fd, interfaceName, b); err != nil {
		return 0, fmt.Errorf("reading the counters of %s: %w", interfaceName, err)
	}
	return binary.NativeEndian.Uint64(b[8+8*i:]), nil
}

// count returns the number of counters.
func count(fd int, name string) (int, error) {
	b := make([]byte, 4+4+8+4) // struct ethtool_sset_info with one set
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GSSET_INFO)
	binary.NativeEndian.PutUint64(b[8:], 1<<statsStrings)
	if err := ioctl(fd, name, b); err != nil {
		return 0, fmt.Errorf("asking the driver of %s: %w", name, err)
	}
	n := binary.NativeEndian.Uint32(b[16:])
	if binary.NativeEndian.Uint64(b[8:]) == 0 || n == 0 || n > maxCounters {
		return 0, ErrNoCounter
	}
	return int(n), nil
}

// index returns the position of a counter among n.
func index(fd int, name, counter string, n int) (int, error) {
	b := make([]byte, 12+nameLen*(n+spare)) // struct ethtool_gstrings
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(b[4:], statsStrings)
	binary.NativeEndian.PutUint32(b[8:], uint32(n)) //nolint:gosec // at most maxCounters
	if err := ioctl(fd, name, b); err != nil {
		return 0, fmt.Errorf("reading the names of the counters of %s: %w", name, err)
	}
	for i := range n {
		text, _, _ := bytes.Cut(b[12+nameLen*i:12+nameLen*(i+1)], []byte{0})
		if string(text) == counter {
			return i, nil
		}
	}
	return 0, ErrNoCounter
}

// ioctl sends request to the driver, which replies in place.
func ioctl(fd int, name string, request []byte) error {
	r := ifreq{data: unsafe.Pointer(&request[0])}
	if len(name) >= len(r.name) {
		return unix.EINVAL
	}
	copy(r.name[:], name)
	if _, _, code := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); code != 0 {
		return code
	}
	return nil
}
