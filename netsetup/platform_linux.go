package netsetup

import (
	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"
)

// thisNode returns the Node of this machine.
func thisNode() (Node, error) { return &kernelNode{}, nil }

// openRuleTool returns the iptables program of that name for a family. It runs the program to
// get its version. exec.ErrNotFound if it is not installed.
func openRuleTool(f Family, name string) (ruleTool, error) {
	protocol := iptables.ProtocolIPv4
	if f == IPv6 {
		protocol = iptables.ProtocolIPv6
	}
	return iptables.New(iptables.Path(name), iptables.IPFamily(protocol), iptables.Timeout(int(lockWait.Seconds())))
}

// currentThread returns the id of the calling operating-system thread.
func currentThread() int { return unix.Gettid() }
