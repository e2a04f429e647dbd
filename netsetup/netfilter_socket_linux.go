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

	// sendBuffer is the size of a socket's buffer in bytes, enough for the largest batch.
	sendBuffer = 1 << 20
)

// openNetfilter returns a netlink socket that child processes do not inherit.
func openNetfilter() (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(socket.GetFd(), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) // else the default
	return socket, socket.SetReceiveTimeout(&unix.Timeval{Sec: ackTimeout})
}

// sendBatch sends a batch, which the kernel applies as a whole or not at all. It makes the last message
// request an acknowledgement, before which the kernel reports an error of any message.
func sendBatch(socket *nl.NetlinkSocket, batch [][]byte) error {
	flags := batch[len(batch)-1][6:]
	nl.NativeEndian().PutUint16(flags, nl.NativeEndian().Uint16(flags)|unix.NLM_F_ACK)
	bytes := slices.Concat(batchMark(unix.NFNL_MSG_BATCH_BEGIN), slices.Concat(batch...), batchMark(unix.NFNL_MSG_BATCH_END))
	if err := unix.Sendto(socket.GetFd(), bytes, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		answers, _, err := socket.Receive()
		if err != nil {
			return fmt.Errorf("waiting for the kernel: %w", err)
		}
		for _, m := range answers {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if code := int32(nl.NativeEndian().Uint32(m.Data)); code != 0 {
				return unix.Errno(-code)
			}
			return nil
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
