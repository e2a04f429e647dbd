package attack

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/test/worst"
)

// openBusy starts a process that sends c's queries over n connections to the address, after everything else that wants the load
// generator's core. It returns what ends that.
func (b *run) openBusy(n int, c worst.Case, to netip.AddrPort) (closeAll func(), err error) {
	p := exec.Command("nice", "-n", "19", b.busy, "-case", c.Name, "-to", to.String(), "-connections", strconv.Itoa(n))
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err == nil {
		err = p.Start()
	}
	return func() {
		_ = in.Close()
		_ = p.Wait()
	}, err
}

// openIdle opens n connections to each address, sends the start of a request on each,
// and returns what closes them. Connections that are refused are left out: that is what
// is tried.
func openIdle(n int, to ...netip.AddrPort) (closeAll func()) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: worst.Attacker.AsSlice()}, Timeout: time.Second}
	var open []net.Conn
	for _, at := range to {
		for range n {
			conn, err := dialer.Dial("tcp", at.String())
			if err != nil {
				continue
			}
			_, _ = conn.Write([]byte{0})
			open = append(open, conn)
		}
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}
}
