package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// The world outside of the cluster is one name server in the control plane's network,
// which the nodes' resolv.conf names.
//
//   - Below outside.test. and example. every name has the addresses Outside4 and Outside6, except for
//     nx.outside.test. and all below it, which don't exist, and fail.outside.test., which is
//     SERVFAIL.
//   - stub.test. is the same with addresses of its own, on a server of its own, Stub.
//   - Below registry.test. every name has the address of StartRegistry's registry.
//   - X-Y.addr.test. and X-Y.WORD.addr.test. have the address 198.18.X.Y, and all else below addr.test. has
//     OtherAddr.
//   - No other name exists, except for those of StartOutsideDNS.
const (
	// Upstream and Stub are the servers.
	Upstream = controlAddr4
	Stub     = stubAddr4
	// Outside4 and Outside6 are the addresses of what is below outside.test. and example.
	Outside4, Outside6 = "192.0.2.1", "2001:db8::1"
	// Stub4 and Stub6 are the addresses of what is below stub.test.
	Stub4, Stub6 = "192.0.2.2", "2001:db8::2"
	// OtherAddr is the address of what is below addr.test. and has no numbers.
	OtherAddr = "198.19.0.1"
)

// More are addresses of more servers of the same world: see StartNameServer.
var More = []string{"172.30.0.3", "172.30.0.4", "172.30.0.5"}

// startOutsideDNS starts the name server of the world outside.
func (c *Cluster) startOutsideDNS(context.Context) error { return c.StartOutsideDNS() }

// StopOutsideDNS kills the name server of the world outside, until StartOutsideDNS.
func (c *Cluster) StopOutsideDNS() { c.outside.Kill() }

// StartOutsideDNS undoes StopOutsideDNS. The zones then have the addresses of outside.test., too.
func (c *Cluster) StartOutsideDNS(zones ...string) error {
	binds := func(addresses ...string) string {
		if !c.options.DualStack {
			addresses = addresses[:1]
		}
		return strings.Join(addresses, " ")
	}
	stub := fmt.Sprintf(stubCorefile, binds(stubAddr4, stubAddr6), Stub4, Stub6)
	var err error
	c.outside, err = c.spawnNameServer("outside", outsideConfig(binds(controlAddr4, controlAddr6), zones)+stub)
	return err
}

// StartNameServer starts a name server at an address of More. It ends with the cluster.
func (c *Cluster) StartNameServer(ctx context.Context, addr string) (*peer.Process, error) {
	p, err := c.spawnNameServer("outside-"+addr, outsideConfig(addr, nil))
	if err != nil {
		return nil, err
	}
	return p, p.Await(ctx, "the name server "+addr, func(ctx context.Context) error {
		conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(addr, "53"))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (c *Cluster) spawnNameServer(name, corefile string) (*peer.Process, error) {
	file := c.path(name + ".conf")
	if err := os.WriteFile(file, []byte(corefile), 0o644); err != nil {
		return nil, err
	}
	return c.Spawn(name, c.binaries["coredns"], "-conf", file)
}

// outsideConfig is the Corefile of a server of the world outside.
func outsideConfig(binds string, zones []string) string {
	return fmt.Sprintf(outsideCorefile, binds, Outside4, Outside6, strings.Join(append([]string{"outside.test", "example"}, zones...), " "), controlAddr4, OtherAddr)
}

const outsideCorefile = `. {
    bind %[1]s
    template ANY ANY nx.outside.test {
        rcode NXDOMAIN
        authority "outside.test. 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
    template ANY ANY fail.outside.test {
        rcode SERVFAIL
    }
    template IN A %[4]s {
        answer "{{ .Name }} 30 IN A %[2]s"
    }
    template IN AAAA %[4]s {
        answer "{{ .Name }} 30 IN AAAA %[3]s"
    }
    template ANY ANY outside.test {
        authority "outside.test. 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
    template IN A registry.test {
        answer "{{ .Name }} 30 IN A %[5]s"
    }
    template ANY ANY registry.test {
        authority "registry.test. 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
    template IN A addr.test {
        match "(^|[.])(?P<x>[0-9]+)-(?P<y>[0-9]+)[.]([a-z]+[.])?addr[.]test[.]$"
        answer "{{ .Name }} 5 IN A 198.18.{{ .Group.x }}.{{ .Group.y }}"
        fallthrough
    }
    template IN A addr.test {
        answer "{{ .Name }} 5 IN A %[6]s"
    }
    template ANY ANY addr.test {
        authority "addr.test. 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
    template ANY ANY {
        rcode NXDOMAIN
        authority ". 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
}
`

const stubCorefile = `stub.test {
    bind %[1]s
    template IN A {
        answer "{{ .Name }} 30 IN A %[2]s"
    }
    template IN AAAA {
        answer "{{ .Name }} 30 IN AAAA %[3]s"
    }
    template ANY ANY {
        authority "stub.test. 30 IN SOA ns.stub.test. admin.stub.test. 1 60 60 60 30"
    }
}
`

// ResolvConf is the nodes' resolv.conf.
func (c *Cluster) ResolvConf() string {
	text := "nameserver " + controlAddr4 + "\n"
	if c.options.DualStack {
		text += "nameserver " + controlAddr6 + "\n"
	}
	return text
}
