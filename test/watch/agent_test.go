package watch

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// agent is a running agent.
type agent struct {
	process *peer.Process
	server  netip.AddrPort
	ready   string
	client  dns.Client
	conn    *dns.Conn
}

// start starts the agent on the API server. It returns as soon as the process
// runs; forward is a directive for the Corefile or empty.
func start(t *testing.T, binary string, api *apiserver.Server, forward string) *agent {
	t.Helper()
	return startWith(t, binary, api, "", forward)
}

// startWith is start with options of the kubernetes directive, and additional environment variables.
func startWith(t *testing.T, binary string, api *apiserver.Server, options, forward string, env ...string) *agent {
	t.Helper()
	ports := peer.Ports(t, 2)
	text := fmt.Sprintf(`.:%d {
    bind 127.0.0.1
    errors
    ready 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa {
        kubeconfig %s
        startup_timeout 1s
        %s
    }
    %s
}
`, ports[0], ports[1], api.Kubeconfig(apiserver.Agent), options, forward)
	a := &agent{
		process: peer.StartServer(t, text, peer.Command{Name: "nodens", Path: binary, Env: env}),
		server:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ports[0]),
		ready:   fmt.Sprintf("http://127.0.0.1:%d/ready", ports[1]),
	}
	// One socket for all queries: a poll then costs a packet each way.
	conn, err := a.client.Dial(a.server.String())
	check.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	a.conn = conn
	return a
}

// answer is what a query says: the response code and the data of the answer
// section in order, such as "NOERROR 10.96.0.1".
func (a *agent) answer(name string, kind uint16) (string, error) {
	q := new(dns.Msg)
	q.SetQuestion(name, kind)
	m, _, err := a.client.ExchangeWithConn(q, a.conn)
	if err != nil {
		return "", err
	}
	var data []string
	for _, rr := range m.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(data)
	return strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, data...), " "), nil
}

// says holds when the query's answer is the wanted one.
func (a *agent) says(name string, kind uint16, want string) peer.Probe {
	return func(context.Context) error {
		got, err := a.answer(name, kind)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s %s is %q, want %q", name, dns.Type(kind), got, want)
		}
		return nil
	}
}

// elsewhere starts an upstream that answers queries for the type of addr with it.
func elsewhere(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 30, addr) })).Addr()
}
