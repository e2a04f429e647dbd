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

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/netsetup"
)

// dialTimeout bounds the search for a running agent.
const dialTimeout = time.Second

// cleanupReport is the output of `nodens cleanup -o json`. The lists are never null.
type cleanupReport struct {
	// Removed is what was removed from the node.
	Removed []cleanedObject `json:"removed"`
	// Left is what was found and may be another program's. The exit code is 1 then.
	Left []cleanedObject `json:"left"`
	// Errors are what failed. The exit code is 1 then.
	Errors []string `json:"errors"`
}

// cleanedObject is an object on the node.
type cleanedObject struct {
	// Kind is "rules", "address", "interface" or "file".
	Kind string `json:"kind"`
	// Backend and Count are the rule backend and the number of rules.
	Backend string `json:"backend,omitempty"`
	Count   int    `json:"count,omitempty"`
	// Interface is the name of an interface, or the one that Address is on. Address has a
	// prefix length.
	Interface string `json:"interface,omitempty"`
	Address   string `json:"address,omitempty"`
	// Path is the path of a file.
	Path string `json:"path,omitempty"`
	// Reason says why the object is left, and what to do.
	Reason string `json:"reason,omitempty"`

	text string // the object in words
}

// runCleanup removes what an agent, or NodeLocal DNSCache, has left on this node. It
// refuses while an agent runs, which would restore all of it.
func runCleanup(ctx context.Context, f *agentFlags, output *cli.Output, stdout io.Writer) error {
	if dir := f.HandoverDir; dir != "" {
		conn, err := net.DialTimeout("unixpacket", filepath.Join(dir, handover.SocketName), dialTimeout)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("an agent listens in --handover-dir %s and would restore everything; stop it first", dir)
		}
	}
	r := cleanupReport{Removed: []cleanedObject{}, Errors: []string{}}
	notRestored := restoreLookups(ctx, f, &r) // first: the addresses that it leads to go
	result, err := netsetup.Clean(ctx, f.Network(slog.New(slog.DiscardHandler)))
	r.Removed, r.Left = append(r.Removed, cleanedObjects(result.Removed)...), cleanedObjects(result.Left)
	err = errors.Join(notRestored, err, removeFiles(f, &r))
	if err != nil {
		r.Errors = append(r.Errors, err.Error())
	}
	if writeErr := output.Print(stdout, r, r.printText); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	if len(r.Left) > 0 {
		err = errors.Join(err, fmt.Errorf("not everything was removed: %d objects are left", len(r.Left)))
	}
	return err
}

// cleanedObjects returns the objects for a report; never nil.
func cleanedObjects(objects []netsetup.CleanedObject) []cleanedObject {
	list := []cleanedObject{}
	for _, o := range objects {
		c := cleanedObject{Kind: string(o.Kind), Backend: o.Backend, Count: o.Count, Interface: o.Interface, Reason: o.Reason, text: o.String()}
		if o.Address.IsValid() {
			c.Address = o.Address.String()
		}
		list = append(list, c)
	}
	return list
}

// printText writes the report as text.
func (r *cleanupReport) printText(w io.Writer) error {
	for _, o := range r.Removed {
		fmt.Fprintf(w, "removed %s\n", o.text)
	}
	for _, o := range r.Left {
		fmt.Fprintf(w, "left %s: %s\n", o.text, o.Reason)
	}
	if len(r.Removed)+len(r.Left)+len(r.Errors) == 0 {
		fmt.Fprintln(w, "there was nothing to remove")
	}
	return nil
}

// restoreLookups removes the agent from the files that say where the node's look-ups go.
func restoreLookups(ctx context.Context, f *agentFlags, r *cleanupReport) error {
	changed, err := f.Host().Remove(ctx)
	for _, c := range changed {
		what := cleanedObject{Kind: "file", Path: c.Path, text: "the agent from " + c.Path}
		if c.Remove {
			what.text = "file " + c.Path
		}
		r.Removed = append(r.Removed, what)
	}
	return err
}

// manifestView is the saved view in --handover-dir: `save` in the manifest's Corefile.
const manifestView = "view"

// removeFiles removes what an agent leaves in --handover-dir.
func removeFiles(f *agentFlags, r *cleanupReport) (err error) {
	if f.HandoverDir == "" {
		return nil
	}
	in := func(name string) string { return filepath.Join(f.HandoverDir, name) }
	for _, path := range []string{f.CachePath(), in(manifestView), in(handover.SocketName), in(report.DefaultSocketName)} {
		switch removeErr := os.Remove(path); {
		case removeErr == nil:
			r.Removed = append(r.Removed, cleanedObject{Kind: "file", Path: path, text: "file " + path})
		case !errors.Is(removeErr, os.ErrNotExist):
			err = errors.Join(err, removeErr)
		}
	}
	return err
}
