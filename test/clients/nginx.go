package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodens-dns/nodens/test/peer"
)

// nginxConf looks up the name for each request and tries one address after the other. Connections from a loopback address to
// others fail at once, before a packet is sent.
const nginxConf = `daemon off;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
    resolver %[2]s ipv6=off valid=1s;
    log_format tried "$upstream_addr";
    access_log %[1]s/tried.log tried;
    map "" $to { default %[3]s; }
    server {
        listen unix:%[1]s/s;
        location / {
            proxy_bind 127.0.0.1;
            proxy_pass http://$to:80;
        }
    }
}
`

// nginx returns how many addresses nginx tries of a name that the server at addr answers.
func nginx(ctx context.Context, program, dir, addr string, s Situation) (int, error) {
	at, err := os.MkdirTemp(dir, "nginx-")
	if err != nil {
		return 0, err
	}
	conf := filepath.Join(at, "conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, at, addr, s.name), 0o644); err != nil {
		return 0, err
	}
	p, err := peer.Spawn(peer.Command{Name: "nginx", Path: program, Args: []string{"-c", conf, "-e", filepath.Join(at, "error.log")}, Dir: at})
	if err != nil {
		return 0, err
	}
	defer p.Stop()
	var tried []byte
	err = p.Await(ctx, "the tried addresses", func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(at, "s"))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // until nginx closes it
		if tried, err = os.ReadFile(filepath.Join(at, "tried.log")); err == nil && len(tried) == 0 {
			err = fmt.Errorf("nothing is logged")
		}
		return err
	})
	found := s.found.FindAllString(string(tried), -1)
	slices.Sort(found)
	return len(slices.Compact(found)), err
}
