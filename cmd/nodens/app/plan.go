package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/netsetup"
)

// answering is how long cleanup looks for an agent: one that has not accepted the
// connection by then has a queue of others.
const answering = time.Second

// leftAlone says that there is nothing to set up.
const leftAlone = "the node's network is left alone: there is no -localip, or both parts are turned off\n"

// plan prints what the agent would make of the node's network, with the rules as this node
// asks for them, and touches nothing.
func plan(ctx context.Context, opts *options, stdout io.Writer) error {
	text := leftAlone
	if opts.setsUpNetwork() {
		var err error
		if text, err = netsetup.Preview(ctx, opts.network(slog.New(slog.DiscardHandler))); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(stdout, strings.TrimRight(text, "\n"))
	return err
}

// plan is the node's network as text; the node is not looked at.
func (o *options) plan() (string, error) {
	if !o.setsUpNetwork() {
		return leftAlone, nil
	}
	p, err := netsetup.NewPlan(o.network(slog.New(slog.DiscardHandler)))
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

// cleanup removes what an agent, or NodeLocal DNSCache, has left on this node. One that
// runs would put all of it back.
func cleanup(ctx context.Context, opts *options, stdout io.Writer) error {
	if dir := opts.handoverDir; dir != "" {
		conn, err := net.DialTimeout("unixpacket", filepath.Join(dir, handover.SocketName), answering)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("an agent listens in -handover-dir %s, and would put back all that is removed; stop it first", dir)
		}
	}
	removed, err := netsetup.Clean(ctx, opts.network(slog.New(slog.DiscardHandler)))
	if path := opts.cachePath(); path != "" {
		for _, left := range []string{path, filepath.Join(opts.handoverDir, handover.SocketName)} {
			switch fault := os.Remove(left); {
			case fault == nil:
				removed = append(removed, "file "+left)
			case !errors.Is(fault, os.ErrNotExist):
				err = errors.Join(err, fault)
			}
		}
	}
	for _, what := range removed {
		fmt.Fprintf(stdout, "removed %s\n", what)
	}
	if len(removed) == 0 && err == nil {
		fmt.Fprintln(stdout, "there was nothing to remove")
	}
	return err
}

// ready is nil if the agent of this container can take queries. Its health and readiness
// endpoints can't tell: on the node's network, another agent may answer there.
func ready(ctx context.Context, opts *options) error {
	if opts.handoverDir == "" {
		return errors.New("ready asks the agent through its -handover-dir; give the one that the agent has")
	}
	return handover.Ready(ctx, opts.handoverDir)
}
