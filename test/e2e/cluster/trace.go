package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// machine is what a cluster must not change of the machine it runs on, as text by name.
type machine map[string]string

// look looks at the machine.
func look() (machine, error) {
	m := make(machine)
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		m["link "+l.Name] = l.Flags.String()
	}
	for name := range settings {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return nil, err
		}
		m["setting "+name] = string(text)
	}
	if m["rules"], err = output(exec.Command("nft", "--stateless", "list", "ruleset")); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		// Pods' have such names; others may come and go as they like.
		if strings.HasPrefix(e.Name(), "cni-") {
			m["namespace "+e.Name()] = "there"
		}
	}
	return m, nil
}

// Left says what is left of the cluster after Down: processes in its namespaces, control
// groups, mounts, and what is different about the machine's links, rules, settings and
// named namespaces. Something else that changes those meanwhile is taken for the cluster.
func (c *Cluster) Left() ([]string, error) {
	now, err := look()
	if err != nil {
		return nil, err
	}
	left := c.before.changes(now)
	for _, find := range []func() ([]string, error){c.processesLeft, c.groupsLeft, c.mountsLeft} {
		more, err := find()
		if err != nil {
			return nil, err
		}
		left = append(left, more...)
	}
	return left, nil
}

// changes are the names of what is different now.
func (m machine) changes(now machine) []string {
	var changed []string
	for name, text := range now {
		if was, ok := m[name]; !ok || was != text {
			changed = append(changed, name)
		}
	}
	for name := range m {
		if _, ok := now[name]; !ok {
			changed = append(changed, name+" is gone")
		}
	}
	slices.Sort(changed)
	return changed
}

// processesLeft are those in a namespace that the cluster has made.
func (c *Cluster) processesLeft() ([]string, error) {
	found, err := filepath.Glob("/proc/[0-9]*/ns/*")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, path := range found {
		// What has ended meanwhile is not left.
		if id, err := os.Readlink(path); err == nil && slices.Contains(c.namespaces, id) {
			pid := strings.Split(path, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			left = append(left, fmt.Sprintf("process %s (%s) in %s", pid, bytes.TrimSpace(name), id))
		}
	}
	return left, nil
}

func (c *Cluster) groupsLeft() ([]string, error) {
	roots, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, root := range roots {
		dir := filepath.Join(root, c.group)
		if _, err := os.Stat(dir); err == nil {
			left = append(left, "control group "+dir)
		}
	}
	return left, nil
}

func (c *Cluster) mountsLeft() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var left []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, c.options.Dir) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left, nil
}

// namespaces are the ids of those that the room has and this process has not.
func (r *room) namespaces() ([]string, error) {
	entries, err := os.ReadDir("/proc/self/ns")
	if err != nil {
		return nil, err
	}
	var own []string
	for _, e := range entries {
		mine, err := os.Readlink(filepath.Join("/proc/self/ns", e.Name()))
		if err != nil {
			return nil, err
		}
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", r.pid(), e.Name()))
		if err != nil {
			return nil, err
		}
		if mine != theirs {
			own = append(own, theirs)
		}
	}
	return own, nil
}
