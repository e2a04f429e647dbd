package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/netsetup"
)

// dialTimeout bounds the search for a running agent.
const dialTimeout = time.Second

// runCleanup removes what an agent, or NodeLocal DNSCache, has left on this node. It
// refuses while an agent runs, which would restore all of it.
func runCleanup(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
	if dir := f.HandoverDir; dir != "" {
		conn, err := net.DialTimeout("unixpacket", filepath.Join(dir, handover.SocketName), dialTimeout)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("an agent listens in -handover-dir %s and would restore everything; stop it first", dir)
		}
	}
	removed, err := netsetup.Clean(ctx, f.Network(slog.New(slog.DiscardHandler)))
	files, filesErr := f.removeFiles()
	removed, err = append(removed, files...), errors.Join(err, filesErr)
	for _, what := range removed {
		fmt.Fprintf(stdout, "removed %s\n", what)
	}
	if len(removed) == 0 && err == nil {
		fmt.Fprintln(stdout, "there was nothing to remove")
	}
	return err
}

// removeFiles removes what an agent leaves in -handover-dir, and lists it.
func (f *agentFlags) removeFiles() (removed []string, err error) {
	if f.HandoverDir == "" {
		return nil, nil
	}
	for _, path := range []string{f.CachePath(), filepath.Join(f.HandoverDir, handover.SocketName)} {
		switch removeErr := os.Remove(path); {
		case removeErr == nil:
			removed = append(removed, "file "+path)
		case !errors.Is(removeErr, os.ErrNotExist):
			err = errors.Join(err, removeErr)
		}
	}
	return removed, err
}
