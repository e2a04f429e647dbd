package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// optionalModules are modules that the agent does without, where the kernel has them apart.
var optionalModules = []string{"dummy", "nft_socket", "xt_socket"}

// missingModules shows what the agent says on a kernel without them, with kube-proxy in each mode: its
// addresses are on lo, its rules do not fail open, and it answers. Then it loads them again.
func missingModules(*node) (string, error) {
	for _, name := range optionalModules {
		if err := unload(name); err != nil {
			return "", err
		}
	}
	var words []string
	for _, mode := range testbed.ProxyModes {
		said, err := inNetwork(agent, func(n *node) (string, error) { return n.withoutModules(mode) })
		if err != nil {
			return "", fmt.Errorf("%s: %w", mode, err)
		}
		if !slices.Contains(words, said) {
			words = append(words, said)
		}
	}
	return "replaced: " + strings.Join(words, "; "), modules()
}

// unload removes a module from the kernel, as soon as the networks of the features before are gone.
func unload(name string) error {
	return peer.Await(context.Background(), "module "+name+" to be unused", func(context.Context) error {
		err := unix.DeleteModule(name, unix.O_NONBLOCK)
		if errors.Is(err, unix.ENOENT) {
			return nil // part of the kernel, or not loaded
		}
		return err
	})
}

// withoutModules runs an agent with kube-proxy in a mode, removes what it leaves, and returns its words.
func (n *node) withoutModules(mode string) (string, error) {
	if err := n.KubeProxy(mode); err != nil {
		return "", err
	}
	p, err := n.start(flagsOf(mode)...)
	if err != nil {
		return "", err
	}
	if err := n.asked("without modules", testbed.FromAgent.String(), n.Pod, n.Node); err != nil {
		return "", err
	}
	if written, err := n.ourRules(mode); err != nil || written == "" {
		return "", fmt.Errorf("the agent has written no rules: %w", err)
	}
	log := p.Tail()
	p.Stop()
	if err := p.Err(); err != nil {
		return "", err
	}
	if _, err := n.In(n.Node, n.Nodens, "cleanup", "-handover-dir="+n.Dir+"/h"); err != nil {
		return "", err
	}
	if err := n.haveRules(mode, ""); err != nil {
		return "", err
	}
	return missing(log, mode)
}

// missing returns the messages of the log about what the kernel lacks, and prints them with their errors.
func missing(log, mode string) (string, error) {
	var words []string
	for _, word := range []string{"dummy driver", "rules do not fail open"} {
		parts, err := agentWords(log, word)
		if err != nil {
			return "", err
		}
		fmt.Printf("%s: %s\n", mode, oneLine(strings.Join(parts, ": ")))
		words = append(words, parts[0]) // the same in each mode
	}
	return strings.Join(words, "; "), nil
}
