package netsetup

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// ackTimeout is how long to wait for the kernel, in seconds. It writes an acknowledgement
	// before the send returns; zero would mean no limit.
	ackTimeout = 1

	// socketBuffer is the size of a socket's buffers in bytes, enough for the largest batch.
	socketBuffer = 1 << 20
)

// openNetfilter returns a bound netlink socket that child processes do not inherit. Its file descriptor
// is at least minFD, where the limit of open files allows that.
func openNetfilter(minFD int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, minFD); err == nil {
		closeSocket(fd)
		fd = high
	}
	for _, buffer := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} { // else the default
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer, socketBuffer)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: ackTimeout})
	}
	if err != nil {
		closeSocket(fd)
		return -1, err
	}
	return fd, nil
}

// closeSocket closes a socket. Nothing can be done if that fails.
func closeSocket(fd int) { _ = unix.Close(fd) }

// receive reads one datagram of the kernel into b.
func receive(fd int, b []byte) (n int, err error) {
	for {
		var from unix.Sockaddr
		err := retryEINTR(func() (err error) {
			n, from, err = unix.Recvfrom(fd, b, 0)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("waiting for the kernel: %w", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
			return n, nil
		}
	}
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ackError returns the error in the body of an NLMSG_ERROR; nil for an acknowledgement.
func ackError(body []byte) error {
	if len(body) < 4 {
		return unix.EBADMSG
	}
	if code := int32(nl.NativeEndian().Uint32(body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// sendBatch sends a batch, which the kernel applies as a whole or not at all. It makes the last message
// request an acknowledgement, before which the kernel reports an error of any message.
func sendBatch(fd int, batch [][]byte) error {
	flags := batch[len(batch)-1][6:]
	nl.NativeEndian().PutUint16(flags, nl.NativeEndian().Uint16(flags)|unix.NLM_F_ACK)
	bytes := slices.Concat(batchMark(unix.NFNL_MSG_BATCH_BEGIN), slices.Concat(batch...), batchMark(unix.NFNL_MSG_BATCH_END))
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := retryEINTR(func() error { return unix.Sendto(fd, bytes, 0, kernel) }); err != nil {
		return err
	}
	var answer [4096]byte // an error repeats the message that it is about
	for {
		n, err := receive(fd, answer[:])
		if err != nil {
			return err
		}
		for kind, body := range eachMessage(answer[:n]) {
			if kind == unix.NLMSG_ERROR {
				return ackError(body)
			}
		}
		if n >= 6 && nl.NativeEndian().Uint16(answer[4:]) == unix.NLMSG_ERROR { // cut off
			return ackError(answer[unix.NLMSG_HDRLEN:n])
		}
	}
}

// request returns what decode makes of each object in the kernel's answer to a request about nf_tables, which
// attrs may restrict. flags is NLM_F_DUMP for all objects, and else NLM_F_ACK. It asks again if a
// change has interrupted the kernel.
func request[T any](kind, flags int, family byte, decode func(family byte, body []byte) (T, bool), attrs ...*nl.RtAttr) (list []T, err error) {
	for range maxDumpTries {
		list = nil
		err = nftRequest(family, kind, flags, attrs...).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(body []byte) bool {
			if len(body) >= nl.SizeofNfgenmsg {
				if object, ok := decode(body[0], body[nl.SizeofNfgenmsg:]); ok {
					list = append(list, object)
				}
			}
			return true
		})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// batchMark returns the message at either end of a batch, which names the subsystem.
func batchMark(kind int) []byte {
	m := nl.NewNetlinkRequest(kind, 0)
	m.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0, ResId: nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)})
	return m.Serialize()
}
