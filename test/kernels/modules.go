package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// wantedModules are the modules that a node with pods loads for the agent and for kube-proxy. The
// machine has no program that loads one when the kernel asks for it, so all are loaded at the start.
func wantedModules() []string {
	names := []string{"veth", "dummy", "nf_conntrack", "nf_conntrack_netlink", "ip_tables", "ip6_tables"}
	for _, table := range []string{"raw", "mangle", "filter", "nat"} {
		names = append(names, "iptable_"+table, "ip6table_"+table)
	}
	for _, name := range []string{"socket", "CT", "comment", "multiport", "conntrack", "nat", "MASQUERADE", "mark", "addrtype", "statistic", "tcpudp", "REJECT"} {
		names = append(names, "xt_"+name)
	}
	names = append(names, "ipt_REJECT", "ip6t_REJECT", "nf_tables", "nfnetlink")
	for _, name := range []string{"socket", "ct", "nat", "masq", "chain_nat", "compat", "reject", "reject_inet", "reject_ipv4", "reject_ipv6", "numgen", "counter", "objref"} {
		names = append(names, "nft_"+name)
	}
	return append(names, "sch_ingress", "cls_bpf", "cls_matchall", "act_gact", "act_bpf")
}

// module is one module of a kernel, unpacked.
type module struct {
	name string
	body []byte
}

// findModules returns the modules with those names below dir, each after the ones that it depends
// on. It leaves out names that have no file: the module is part of the kernel, or missing, which the
// features show.
func findModules(ctx context.Context, all map[string]debian.File, dir string, names []string) ([]module, error) {
	paths := make(map[string]string)
	for name := range all {
		base, suffix, _ := strings.Cut(path.Base(name), ".")
		if strings.HasPrefix(name, dir+"/") && (suffix == "ko" || suffix == "ko.xz") {
			paths[strings.ReplaceAll(base, "-", "_")] = name
		}
	}
	bodies := make(map[string][]byte)
	read := func(name string) ([]string, error) {
		body, err := moduleBody(ctx, all[paths[name]])
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", name, err)
		}
		bodies[name] = body
		needed, err := moduleDepends(body)
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", name, err)
		}
		return needed, nil
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return paths[name] == "" })
	order, err := moduleOrder(names, read)
	if err != nil {
		return nil, err
	}
	var modules []module
	for _, name := range order {
		modules = append(modules, module{name, bodies[name]})
	}
	return modules, nil
}

// moduleOrder returns the names with all names that they depend on, each after its dependencies.
// It calls depends once for each.
func moduleOrder(names []string, depends func(name string) ([]string, error)) (order []string, err error) {
	seen := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		needed, err := depends(name)
		if err != nil {
			return err
		}
		for _, n := range needed {
			if err := visit(n); err != nil {
				return err
			}
		}
		order = append(order, name)
		return nil
	}
	for _, name := range names {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleBody returns the file of a module, unpacked.
func moduleBody(ctx context.Context, f debian.File) ([]byte, error) {
	if !strings.HasSuffix(f.Path, ".xz") {
		return f.Body, nil
	}
	cmd := exec.CommandContext(ctx, "xz", "--decompress", "--stdout")
	cmd.Stdin = bytes.NewReader(f.Body)
	return cmd.Output()
}

// moduleDepends returns the names that a module's section .modinfo has in depends=.
func moduleDepends(body []byte) ([]string, error) {
	e, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	section := e.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	text, err := section.Data()
	if err != nil {
		return nil, err
	}
	return parseDepends(string(text)), nil
}

// parseDepends returns the names in the field depends of a section .modinfo, whose fields end with
// a zero byte.
func parseDepends(text string) []string {
	for field := range strings.SplitSeq(text, "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ",")
		}
	}
	return nil
}
