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
	left := append(c.before.changes(now), c.processesLeft...)
	for _, find := range []func() ([]string, error){c.groupsLeft, c.mountsLeft} {
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

// inNamespaces are the processes in namespaces that were made for the cluster.
func (c *Cluster) inNamespaces() ([]string, error) {
	var left []string
	for _, kind := range []string{"net", "pid"} {
		found, err := filepath.Glob("/proc/[0-9]*/ns/" + kind)
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil {
				continue // it has ended meanwhile
			}
			if slices.ContainsFunc(c.namespaces, func(ns namespace) bool { return os.SameFile(ns.info, info) }) {
				pid := strings.Split(path, "/")[2]
				name, _ := os.ReadFile("/proc/" + pid + "/comm")
				left = append(left, fmt.Sprintf("process %s (%s) in a %s namespace", pid, bytes.TrimSpace(name), kind))
			}
		}
	}
	return left, nil
}

// forget lets go of the namespaces, after a last look at who is in them.
func (c *Cluster) forget() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.namespaces == nil {
		return nil
	}
	c.processesLeft, err = c.inNamespaces()
	for _, ns := range c.namespaces {
		ns.file.Close()
	}
	c.namespaces = nil
	return err
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

// namespace is one that was made for a cluster. As long as the file is open, no other gets
// its number.
type namespace struct {
	file *os.File
	info os.FileInfo
}

// namespaces are the room's of the two kinds that no process of a node is without, as far
// as they are not this process's too.
func (r *room) namespaces() ([]namespace, error) {
	var own []namespace
	for _, kind := range []string{"net", "pid"} {
		mine, err := os.Stat("/proc/self/ns/" + kind)
		if err != nil {
			return own, err
		}
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", r.pid(), kind))
		if err != nil {
			return own, err
		}
		info, err := file.Stat()
		if err != nil || os.SameFile(mine, info) {
			file.Close()
			continue
		}
		own = append(own, namespace{file, info})
	}
	return own, nil
}
