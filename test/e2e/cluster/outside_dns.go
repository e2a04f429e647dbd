package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// The world outside of the cluster is one name server in the control plane's network,
// which the nodes' resolv.conf names.
//
//   - Below outside.test. and example. every name has the addresses Outside4 and Outside6, except for
//     nx.outside.test. and all below it, which don't exist, and fail.outside.test., which is
//     SERVFAIL.
//   - stub.test. is the same with addresses of its own, on a server of its own, Stub.
//   - No other name exists, except for those of StartOutsideDNS.
const (
	// Upstream and Stub are the servers.
	Upstream = controlAddr4
	Stub     = stubAddr4
	// Outside4 and Outside6 are the addresses of what is below outside.test. and example.
	Outside4, Outside6 = "192.0.2.1", "2001:db8::1"
	// Stub4 and Stub6 are the addresses of what is below stub.test.
	Stub4, Stub6 = "192.0.2.2", "2001:db8::2"
)

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
	text := fmt.Sprintf(outsideCorefile, binds(controlAddr4, controlAddr6), Outside4, Outside6, binds(stubAddr4, stubAddr6), Stub4, Stub6,
		strings.Join(append([]string{"outside.test", "example"}, zones...), " "))
	file := c.path("outside.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	var err error
	c.outside, err = c.Spawn("outside", c.binaries["coredns"], "-conf", file)
	return err
}

// outsideCorefile is that server's Corefile.
const outsideCorefile = `. {
    bind %[1]s
    template ANY ANY nx.outside.test {
        rcode NXDOMAIN
        authority "outside.test. 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
    template ANY ANY fail.outside.test {
        rcode SERVFAIL
    }
    template IN A %[7]s {
        answer "{{ .Name }} 30 IN A %[2]s"
    }
    template IN AAAA %[7]s {
        answer "{{ .Name }} 30 IN AAAA %[3]s"
    }
    template ANY ANY outside.test {
        authority "outside.test. 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
    template ANY ANY {
        rcode NXDOMAIN
        authority ". 30 IN SOA ns.outside.test. admin.outside.test. 1 60 60 60 30"
    }
}
stub.test {
    bind %[4]s
    template IN A {
        answer "{{ .Name }} 30 IN A %[5]s"
    }
    template IN AAAA {
        answer "{{ .Name }} 30 IN AAAA %[6]s"
    }
    template ANY ANY {
        authority "stub.test. 30 IN SOA ns.stub.test. admin.stub.test. 1 60 60 60 30"
    }
}
`

// resolvConf is the nodes' resolv.conf.
func (c *Cluster) resolvConf() string {
	text := "nameserver " + controlAddr4 + "\n"
	if c.options.DualStack {
		text += "nameserver " + controlAddr6 + "\n"
	}
	return text
}
