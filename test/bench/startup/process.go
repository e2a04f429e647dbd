package startup

import (
	"bytes"
	_ "embed"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
)

// process is a server that has been started.
type process struct {
	*peer.Process
	// began is when the process was about to be started.
	began time.Time
	// at is where it answers, at some time.
	at netip.AddrPort
}

//go:embed Corefile.tmpl
var corefileText string

// corefile is the template of all Corefiles.
var corefile = template.Must(template.New("Corefile").Parse(corefileText))

// values are what the template takes.
type values struct {
	Bare, Cluster                bool
	Port, Health, Ready, Metrics harness.Port
	Lameduck                     time.Duration
	Upstream, Kubeconfig         string
	Scope, View                  string
}

// start starts a process of the row on the cores. It does not wait for anything.
func (r *run) start(w row, on machine.Cores) (p process, err error) {
	dir, err := os.MkdirTemp(r.Dir, "server-")
	if err != nil {
		return p, err
	}
	free, err := ports(5)
	if err != nil {
		return p, err
	}
	v := values{
		Bare: w.bare, Cluster: w.setting.cluster, Port: free[0], Health: free[1], Ready: free[2], Metrics: free[3],
		Lameduck: w.lameduck, Upstream: r.upstream.Addr().String(), Kubeconfig: r.cluster.Kubeconfig, Scope: w.scope, View: w.view,
	}
	var text bytes.Buffer
	if err := corefile.Execute(&text, v); err != nil {
		return p, err
	}
	conf := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(conf, text.Bytes(), 0o644); err != nil {
		return p, err
	}
	args := []string{"-c", on.List(), r.BinaryOf(w.Server)}
	for _, a := range harness.Programs[w.Program].Args {
		args = append(args, strings.ReplaceAll(a, "@CONF@", conf))
	}
	if w.Program == "nodens" && !w.bare {
		args = append(args, "-handover-dir", dir, "-page", harness.LoopbackAddr(free[4]).String())
	}
	p.at = harness.LoopbackAddr(v.Port)
	p.began = time.Now()
	p.Process, err = peer.Spawn(peer.Command{Name: w.Program, Path: "taskset", Args: args, Env: w.Env, Dir: dir})
	return p, err
}
