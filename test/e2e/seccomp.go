package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// The change of daemonset/components/seccomp, and back to the base.
const (
	localhostProfile = `{"type": "Localhost", "localhostProfile": "nodens.json"}`
	baseProfile      = `{"type": "RuntimeDefault"}`
)

// restrict gives the nodes the seccomp profile of daemonset/seccomp, and the agents the overlay that names it: all that follows runs
// with it.
func (h *chaosTest) restrict(ctx context.Context, s *suite) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	profile := filepath.Join(s.root, "daemonset/seccomp/nodens.json")
	for _, n := range h.nodes {
		if out, err := n.Command(ctx, "install", "-D", "-m", "0644", profile, "/var/lib/kubelet/seccomp/nodens.json").CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	if err := h.setProfile(ctx, localhostProfile); err != nil {
		return "", err
	}
	if err := h.checkFilters(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d agents with a filter", len(h.nodes)), nil
}

// release gives the agents the profile of the base. Other parts apply its manifest, which kubectl can't merge with a profile that
// it has not set.
func (h *chaosTest) release(ctx context.Context, _ *suite) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	return "", h.setProfile(ctx, baseProfile)
}

// setProfile gives the agents another seccomp profile, and waits until all have it.
func (h *chaosTest) setProfile(ctx context.Context, profile string) error {
	const patch = `[{"op": "replace", "path": "/spec/template/spec/securityContext/seccompProfile", "value": %s}]`
	if err := h.kubectl(ctx, "patch", "daemonset", agentDaemonSet, "--type=json", "--patch="+fmt.Sprintf(patch, profile)); err != nil {
		return err
	}
	if err := h.awaitRollout(ctx); err != nil {
		return err
	}
	return h.waitAgentsReady(ctx)
}

// checkFilters checks that each node's agent has one filter of system calls.
func (h *chaosTest) checkFilters(ctx context.Context) error {
	const script = `for p in /proc/[0-9]*; do
	read -r name 2>/dev/null <$p/comm && [ "$name" = nodens ] || continue
	grep -h ^Seccomp: $p/status
done`
	for _, n := range h.nodes {
		out, err := n.Command(ctx, "/bin/sh", "-c", script).Output()
		if err != nil {
			return err
		}
		if modes := strings.Fields(string(out)); len(modes) != 2 || modes[1] != "2" {
			return fmt.Errorf("the agent of %s has the modes %q, want one filter", n.Name, out)
		}
	}
	return nil
}
