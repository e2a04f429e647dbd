package firewalls

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// view is a root folder in the node with the programs of a release. What is written stays in the view.
// Views of a node share /run, with the lock of iptables, and the folder of the bed.
type view struct {
	Release
	holder *peer.Process
	root   string
}

// enterScript makes the root folder in a mount namespace of its own, which lasts as long as its processes.
// ROOT is the release's folder, VIEW an empty one, DIR the bed's, AGENT the agent's file.
const enterScript = `
root=$0 view=$1 dir=$2 agent=$3
mount -t tmpfs nodens-view "$view"
mkdir "$view/up" "$view/work" "$view/root"
mount -t overlay -o "lowerdir=$root,upperdir=$view/up,workdir=$view/work" nodens-view "$view/root"
cd "$view/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --bind "$dir/run" run
mkdir -p ".$dir" usr/local/bin
mount --bind "$dir" ".$dir"
touch usr/local/bin/nodens
mount --bind "$agent" usr/local/bin/nodens
echo ready
exec sleep infinity
`

// openView creates a view of the release in the bed's node.
func (b *Bed) openView(ctx context.Context, r Release) (*view, error) {
	root, err := r.Root(ctx)
	if err != nil {
		return nil, err
	}
	top, err := os.MkdirTemp(b.views, "view-"+r.Number+"-")
	if err != nil {
		return nil, err
	}
	v := &view{Release: r, root: filepath.Join(top, "root")}
	v.holder, err = b.Spawn(b.Node, nil, "sh", "-euc", enterScript, root, top, b.Dir, b.Agent)
	if err != nil {
		return nil, err
	}
	return v, v.holder.Await(ctx, "the root folder of Debian "+r.Number, testbed.LogContains(v.holder, "ready"))
}

// command returns the arguments that run args in the view.
func (v *view) command(args ...string) []string {
	return append([]string{"nsenter", fmt.Sprintf("--target=%d", v.holder.PID()), "--mount", "--net", "chroot", v.root}, args...)
}

// sh runs a script in the view and returns its output.
func (v *view) sh(ctx context.Context, script string) (string, error) {
	args := v.command("/bin/sh", "-euc", script)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(fmt.Errorf("programs of Debian %s: %s: %w", v.Number, firstLine(script), err), errors.New(problems.String()))
	}
	return out.String(), nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
