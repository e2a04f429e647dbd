package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// stopCluster ends the cluster that is up, and looks for what it leaves behind.
func (s *suite) stopCluster() error {
	if s.cluster == nil {
		return nil
	}
	c := s.cluster
	s.cluster, s.agent = nil, false
	if err := c.Down(); err != nil {
		return err
	}
	left, err := c.Leftovers()
	s.leftovers = append(s.leftovers, left...)
	return err
}

// checkLeftovers stops the clusters of s and of the parts beside it, and fails if a cluster or a check
// left anything behind.
func (s *suite) checkLeftovers(beside *suite) (string, error) {
	if err := errors.Join(s.stopCluster(), beside.stopCluster()); err != nil {
		return "", err
	}
	children, err := childProcesses()
	if err != nil {
		return "", err
	}
	if left := slices.Concat(s.leftovers, beside.leftovers, children); len(left) > 0 {
		return "", errors.New(strings.Join(left, "; "))
	}
	return "no process, mount, cgroup, interface, rule or sysctl", nil
}

// childProcesses returns this process's remaining children.
func childProcesses() ([]string, error) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(text)) {
			line, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			found = append(found, fmt.Sprintf("process %s (%s)", pid, strings.ReplaceAll(string(line), "\x00", " ")))
		}
	}
	return found, nil
}

// diagnoseTimeout bounds how long looking at a cluster that is in trouble takes: what it has to say
// it says at once, or not at all.
const diagnoseTimeout = 10 * time.Second

// lastMessages is the JSONPath template of what containers that have ended wrote last.
const lastMessages = `{range .items[*]}{.metadata.name}: {.status.containerStatuses[0].lastState.terminated.message}{"\n"}{end}`

// diagnose returns the state of the cluster for a failed check; "" without a cluster.
func (s *suite) diagnose(ctx context.Context) string {
	if s.cluster == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnoseTimeout)
	defer cancel()
	var b strings.Builder
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output=wide"},
		{"logs", "--namespace=kube-system", "--selector=k8s-app=node-local-dns", "--prefix", "--tail=15"},
		{"get", "pods", "--namespace=kube-system", "--selector=k8s-app=node-local-dns", "--output=jsonpath=" + lastMessages},
		{"get", "events", "--all-namespaces", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"},
	} {
		fmt.Fprintf(&b, "--- kubectl %s\n", strings.Join(args, " "))
		out, err := s.cluster.Kubectl(ctx, "", args...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		// Of what comes in the order of time the end is what matters.
		b.WriteString(strings.Join(lines[max(0, len(lines)-40):], "\n") + "\n")
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	return b.String()
}
