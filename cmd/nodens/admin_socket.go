package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// The admin sockets to look for without a flag: the one in the hand-over directory of the shipped
// manifests, and the one of earlier manuals.
const (
	manifestSocket = "/var/lib/nodens/" + report.DefaultSocketName
	runSocket      = "/run/nodens/admin.sock"
)

// adminSocket are the flags that say where the agent's admin socket is.
type adminSocket struct{ path, handoverDir string }

func (s *adminSocket) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.path, "admin-socket", "", "`path` of the agent's admin socket; without it admin.sock in --handover-dir, else "+manifestSocket+", else "+runSocket)
	flags.StringVar(&s.handoverDir, "handover-dir", "", "hand-over `directory` of the agent, which has the admin socket")
}

// find returns the path of the socket.
func (s *adminSocket) find() string {
	if s.path != "" {
		return s.path
	}
	if s.handoverDir != "" {
		return filepath.Join(s.handoverDir, report.DefaultSocketName)
	}
	if _, err := os.Lstat(manifestSocket); err != nil {
		if _, err := os.Lstat(runSocket); err == nil {
			return runSocket
		}
	}
	return manifestSocket
}

// ask is [report.Ask] at the agent's socket.
func (s *adminSocket) ask(ctx context.Context, method, target string, query url.Values, reply any) error {
	path := s.find()
	return s.explain(path, report.Ask(ctx, path, method, target, query, reply))
}

// post is [report.Post] at the agent's socket.
func (s *adminSocket) post(ctx context.Context, target string, body []byte, reply any) error {
	path := s.find()
	return s.explain(path, report.Post(ctx, path, target, body, reply))
}

// show asks for the reply to GET path and prints it, as text with print.
func show[T any](cmd *cobra.Command, s *adminSocket, output *cli.Output, path string, query url.Values, print func(w io.Writer, reply *T, wide bool) error) error {
	reply := new(T)
	if err := s.ask(cmd.Context(), http.MethodGet, path, query, reply); err != nil {
		return err
	}
	return output.Print(cmd.OutOrStdout(), reply, func(w io.Writer) error { return print(w, reply, output.Wide()) })
}

// follow is [report.Follow] at the agent's socket.
func (s *adminSocket) follow(ctx context.Context, target string, query url.Values, each func(line []byte) error) error {
	path := s.find()
	return s.explain(path, report.Follow(ctx, path, target, query, each))
}

// explain adds to err, of asking the agent at path, what to do; nil stays nil.
func (s *adminSocket) explain(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("asking the agent at %s: %w; run the command as the agent's user", path, err)
	case errors.Is(err, report.ErrHangs):
		return fmt.Errorf("asking the agent at %s: %w; it may answer no queries either, and the rules still lead them to it. The kubelet restarts it when the liveness probe fails; "+
			"kill -QUIT PID ends it at once and writes to its log where it hangs", path, err)
	case errors.Is(err, report.ErrNoAgent):
		return fmt.Errorf("asking the agent at %s: %w; give the agent --handover-dir %s or --admin-socket %[1]s, and this command the same flag", path, err, cmp.Or(s.handoverDir, filepath.Dir(path)))
	}
	return fmt.Errorf("asking the agent at %s: %w", path, err)
}
