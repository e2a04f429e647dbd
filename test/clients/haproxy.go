package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// haproxyConf is the configuration of HAProxy's tutorial: as many servers as the Service has endpoints.
const haproxyConf = `global
    stats socket %s
defaults
    mode tcp
    timeout connect 1s
    timeout client 1s
    timeout server 1s
resolvers cluster
    nameserver dns %s:53
    accepted_payload_size 8192
    hold valid 1s
    timeout retry 200ms
    timeout resolve 200ms
frontend f
    bind %s
    default_backend b
backend b
    server-template s %d %s resolvers cluster resolve-prefer ipv4 init-addr none
`

// haproxy returns how many servers of a backend HAProxy finds at the server at addr.
func haproxy(ctx context.Context, program, dir, addr string, s Situation) (n int, err error) {
	at, err := os.MkdirTemp(dir, "haproxy-")
	if err != nil {
		return 0, err
	}
	socket, name := filepath.Join(at, "s"), s.name
	if s.qtype == "A" {
		name += ":80"
	}
	conf := fmt.Sprintf(haproxyConf, socket, addr, "unix@"+filepath.Join(at, "f"), many, name)
	if err := os.WriteFile(filepath.Join(at, "conf"), []byte(conf), 0o644); err != nil {
		return 0, err
	}
	p, err := peer.Spawn(peer.Command{Name: "HAProxy", Path: program, Args: []string{"-db", "-f", filepath.Join(at, "conf")}, Dir: at})
	if err != nil {
		return 0, err
	}
	defer p.Stop()
	// A server that gets fewer is what the suite looks for, so the wait ends without an error, too.
	_ = p.Await(ctx, "all servers", func(ctx context.Context) error {
		if n, err = haproxyServers(ctx, socket); err == nil && n < s.want {
			err = fmt.Errorf("%d servers", n)
		}
		return err
	})
	return n, nil
}

// haproxyServers returns how many servers have an address.
func haproxyServers(ctx context.Context, socket string) (int, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "show servers state\n"); err != nil {
		return 0, err
	}
	state, err := io.ReadAll(c)
	return strings.Count(string(state), " 10.4.1."), err
}
