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
	"time"
)

// hostState is what a cluster must not change of the machine it runs on, as text by name.
type hostState map[string]string

// readHostState reads the machine's state.
func readHostState() (hostState, error) {
	m := make(hostState)
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		m["link "+l.Name] = l.Flags.String()
	}
	for name := range sysctls {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return nil, err
		}
		m["setting "+name] = string(text)
	}
	if err := m.readRouting(); err != nil {
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

// readRouting reads rules, routes, the names of routing tables, and sets of addresses.
func (m hostState) readRouting() (err error) {
	for name, command := range map[string][]string{
		"rules":         {"nft", "--stateless", "list", "ruleset"},
		"routes":        {"ip", "route", "show", "table", "all"},
		"routing rules": {"ip", "rule"},
		"IP sets":       {"ipset", "list", "-name"},
	} {
		if _, err := exec.LookPath(command[0]); errors.Is(err, exec.ErrNotFound) {
			continue // without ipset nothing here can make a set
		}
		if m[name], err = runOutput(exec.Command(command[0], command[1:]...)); err != nil {
			return err
		}
	}
	text, err := os.ReadFile("/etc/iproute2/rt_tables")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	m["names of routing tables"] = string(text)
	return nil
}

// Leftovers says what is left of the cluster after Down: processes in its namespaces, control
// groups, mounts, and what is different about the machine's links, rules, settings and
// named namespaces. Something else that changes those meanwhile is taken for the cluster.
func (c *Cluster) Leftovers() ([]string, error) {
	now, err := readHostState()
	if err != nil {
		return nil, err
	}
	left := append(c.initialState.diff(now), c.leftProcesses...)
	for _, find := range []func() ([]string, error){c.leftCgroups, c.leftMounts} {
		more, err := find()
		if err != nil {
			return nil, err
		}
		left = append(left, more...)
	}
	return left, nil
}

// diff are the names of what is different now.
func (m hostState) diff(now hostState) []string {
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

// remainingProcesses are the processes in namespaces that were made for the cluster.
func (c *Cluster) remainingProcesses() ([]string, error) {
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

// endTime is how long the parents of processes that have been killed may take to end, too.
const endTime = time.Second

// closeNamespaces lets go of the namespaces, after a last look at who is in them.
func (c *Cluster) closeNamespaces() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.namespaces == nil {
		return nil
	}
	for until := time.Now().Add(endTime); ; time.Sleep(endTime / 50) {
		c.leftProcesses, err = c.remainingProcesses()
		if err != nil || len(c.leftProcesses) == 0 || time.Now().After(until) {
			break
		}
	}
	for _, ns := range c.namespaces {
		ns.file.Close()
	}
	c.namespaces = nil
	return err
}

func (c *Cluster) leftCgroups() ([]string, error) {
	roots, err := cgroupHierarchies()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, root := range roots {
		dir := filepath.Join(root, c.cgroup)
		if _, err := os.Stat(dir); err == nil {
			left = append(left, "control group "+dir)
		}
	}
	return left, nil
}

func (c *Cluster) leftMounts() ([]string, error) {
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

// namespaces are the sandbox's of the two kinds that no process of a node is without, as far
// as they are not this process's too.
func (r *sandbox) namespaces() ([]namespace, error) {
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
