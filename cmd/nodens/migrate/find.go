package migrate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// pod is the DaemonSet to change, and the parts of it that matter.
type pod struct {
	// set is a copy of its own; spec is its pod's, and box the container.
	set, spec, box object
}

// find finds the DaemonSet that runs NodeLocal DNSCache, or nodens. What tells it is the
// argument -localip, which no other program has: images have the names that mirrors give
// them.
func (r *Request) find() (*pod, error) {
	if len(r.Objects.list) == 0 {
		return nil, errNothing
	}
	found, others := r.candidates()
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, r.missing(others)
	}
	names := make([]string, len(found))
	for i, p := range found {
		names[i] = p.set.where()
	}
	return nil, fmt.Errorf("several DaemonSets run NodeLocal DNSCache: %s; -daemonset names one, and -n its namespace", strings.Join(names, ", "))
}

// candidates are the DaemonSets that it may be, and the names of the others.
func (r *Request) candidates() (found []*pod, others []string) {
	for _, obj := range r.Objects.list {
		if obj.text("kind") != "DaemonSet" || !obj.in(r.Namespace) {
			continue
		}
		if p := open(obj.clone()); p.box != nil && (r.Name == "" || r.Name == obj.name()) {
			found = append(found, p)
		} else {
			others = append(others, obj.name())
		}
	}
	return found, others
}

// missing says what was looked for in vain.
func (r *Request) missing(others []string) error {
	where := "among the objects"
	if r.Namespace != "" {
		where = "in namespace " + r.Namespace
	}
	if r.Name != "" {
		return fmt.Errorf("there is no DaemonSet %s %s whose container has the argument -localip; DaemonSets there: %s", r.Name, where, enumerate(others))
	}
	return fmt.Errorf("no DaemonSet %s has a container with the argument -localip, as node-local-dns and nodelocaldns have it; "+
		"DaemonSets there: %s; -n names another namespace, -f gives files", where, enumerate(others))
}

// enumerate is at most ten of the names.
func enumerate(names []string) string {
	const most = 10 // a line of text; twice as many would hide the rest of the error
	if len(names) == 0 {
		return "none"
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// open finds the parts of a DaemonSet. box is nil if it is another program's.
func open(set object) *pod {
	p := &pod{set: set, spec: set.sub("spec", "template", "spec")}
	for _, box := range p.spec.subs("containers") {
		words := append(box.texts("command"), box.texts("args")...)
		if slices.ContainsFunc(words, func(w string) bool { return flagName(w) == "localip" }) {
			p.box = box
			return p
		}
	}
	return p
}

// flagName is the name of the flag that an argument is, "" if it is none.
func flagName(arg string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
	if name == arg {
		return ""
	}
	name, _, _ = strings.Cut(name, "=")
	return name
}

// expanded are the container's arguments with what the kubelet fills in, as far as it is
// known here; unknown are the variables that are not.
func (p *pod) expanded() (args, unknown []string) {
	for _, arg := range p.box.texts("args") {
		for _, e := range p.box.subs("env") {
			name := "$(" + e.text("name") + ")"
			if !strings.Contains(arg, name) {
				continue
			}
			value := e.text("value")
			if e.at("valueFrom") != nil {
				value = someAddress
				unknown = append(unknown, e.text("name"))
			}
			arg = strings.ReplaceAll(arg, name, value)
		}
		args = append(args, arg)
	}
	return args, unknown
}

// someAddress stands for addresses that are known on a node only (RFC 5737).
const someAddress = "192.0.2.1"

// source is a file of the container that a ConfigMap holds.
type source struct {
	configMap, key string
	// dir is where the volume is mounted.
	dir string
	// optional says that the ConfigMap need not be there.
	optional bool
}

// mounted finds the ConfigMap that file is from. A nil source is that no volume is
// mounted there.
func (p *pod) mounted(file string) (*source, error) {
	var best object
	for _, m := range p.box.subs("volumeMounts") {
		dir := path.Clean(m.text("mountPath"))
		if (file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")) &&
			(best == nil || len(dir) > len(path.Clean(best.text("mountPath")))) {
			best = m
		}
	}
	if best == nil {
		return nil, nil
	}
	for _, v := range p.spec.subs("volumes") {
		if v.text("name") != best.text("name") {
			continue
		}
		if v.text("configMap", "name") == "" {
			return nil, fmt.Errorf("%s, volume %s: %s is from it, and it is no ConfigMap; migrate knows only files of ConfigMaps", p.set.where(), v.text("name"), file)
		}
		return sourceOf(v.sub("configMap"), best, file), nil
	}
	return nil, fmt.Errorf("%s, volumeMounts: there is no volume %s", p.set.where(), best.text("name"))
}

// sourceOf is what file is by a volume and its mount.
func sourceOf(volume, mount object, file string) *source {
	s := &source{configMap: volume.text("name"), dir: path.Clean(mount.text("mountPath"))}
	s.optional, _ = volume["optional"].(bool)
	s.key = strings.TrimPrefix(strings.TrimPrefix(file, s.dir), "/")
	if part := mount.text("subPath"); part != "" {
		s.key = path.Join(part, s.key)
		s.dir = path.Dir(s.dir)
	}
	for _, item := range volume.subs("items") {
		if item.text("path") == s.key {
			s.key = item.text("key")
			return s
		}
	}
	return s
}

// files are the ConfigMap's keys by the names that the volume of s gives them.
func (p *pod) files(s *source, configMap object) map[string]string {
	names := make(map[string]string)
	for _, v := range p.spec.subs("volumes") {
		if v.text("configMap", "name") != s.configMap {
			continue
		}
		for _, item := range v.subs("configMap", "items") {
			names[item.text("path")] = configMap.text("data", item.text("key"))
		}
	}
	if len(names) == 0 {
		for key := range configMap.sub("data") {
			names[key] = configMap.text("data", key)
		}
	}
	return names
}

// errNoCorefile is a DaemonSet that shows no Corefile to its container.
var errNoCorefile = errors.New("no volume of a ConfigMap is mounted where -conf and -basecorefile look for the Corefile")
