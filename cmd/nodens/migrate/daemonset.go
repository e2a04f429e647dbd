package migrate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// agentPod is the DaemonSet to change, and the parts of it that matter.
type agentPod struct {
	// daemonSet is a copy of its own; spec is its pod's, and box the container.
	daemonSet, podSpec, container object
}

// findDaemonSet finds the DaemonSet that runs NodeLocal DNSCache, or nodens. What tells it is the
// argument -localip, which no other program has: images have the names that mirrors give
// them.
func (r *Request) findDaemonSet() (*agentPod, error) {
	if len(r.Objects.list) == 0 {
		return nil, errNoObjects
	}
	found, others := r.candidates()
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, r.notFoundError(others)
	}
	names := make([]string, len(found))
	for i, p := range found {
		names[i] = p.daemonSet.describe()
	}
	return nil, fmt.Errorf("several DaemonSets run NodeLocal DNSCache: %s; -daemonset names one, and -n its namespace", strings.Join(names, ", "))
}

// candidates are the DaemonSets that it may be, and the names of the others.
func (r *Request) candidates() (found []*agentPod, others []string) {
	for _, obj := range r.Objects.list {
		if obj.text("kind") != "DaemonSet" || !obj.inNamespace(r.Namespace) {
			continue
		}
		if p := newAgentPod(obj.clone()); p.container != nil && (r.Name == "" || r.Name == obj.name()) {
			found = append(found, p)
		} else {
			others = append(others, obj.name())
		}
	}
	return found, others
}

// notFoundError says what was looked for in vain.
func (r *Request) notFoundError(others []string) error {
	where := "among the objects"
	if r.Namespace != "" {
		where = "in namespace " + r.Namespace
	}
	if r.Name != "" {
		return fmt.Errorf("there is no DaemonSet %s %s whose container has the argument -localip; DaemonSets there: %s", r.Name, where, joinNames(others))
	}
	return fmt.Errorf("no DaemonSet %s has a container with the argument -localip, as node-local-dns and nodelocaldns have it; "+
		"DaemonSets there: %s; -n names another namespace, -f gives files", where, joinNames(others))
}

// joinNames is at most ten of the names.
func joinNames(names []string) string {
	const most = 10 // a line of text; twice as many would hide the rest of the error
	if len(names) == 0 {
		return "none"
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// newAgentPod finds the parts of a DaemonSet. box is nil if it is another program's.
func newAgentPod(set object) *agentPod {
	p := &agentPod{daemonSet: set, podSpec: set.child("spec", "template", "spec")}
	for _, box := range p.podSpec.children("containers") {
		words := append(box.texts("command"), box.texts("args")...)
		if slices.ContainsFunc(words, func(w string) bool { return flagName(w) == "localip" }) {
			p.container = box
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

// expandedArgs are the container's arguments with what the kubelet fills in, as far as it is
// known here; unknown are the variables that are not.
func (p *agentPod) expandedArgs() (args, unknown []string) {
	for _, arg := range p.container.texts("args") {
		for _, e := range p.container.children("env") {
			name := "$(" + e.text("name") + ")"
			if !strings.Contains(arg, name) {
				continue
			}
			value := e.text("value")
			if e.value("valueFrom") != nil {
				value = placeholderAddr
				unknown = append(unknown, e.text("name"))
			}
			arg = strings.ReplaceAll(arg, name, value)
		}
		args = append(args, arg)
	}
	return args, unknown
}

// placeholderAddr stands for addresses that are known on a node only (RFC 5737).
const placeholderAddr = "192.0.2.1"

// configMapFile is a file of the container that a ConfigMap holds.
type configMapFile struct {
	configMap, key string
	// dir is where the volume is mounted.
	dir string
	// optional says that the ConfigMap need not be there.
	optional bool
}

// mountedFile finds the ConfigMap that file is from. A nil source is that no volume is
// mounted there.
func (p *agentPod) mountedFile(file string) (*configMapFile, error) {
	var best object
	for _, m := range p.container.children("volumeMounts") {
		dir := path.Clean(m.text("mountPath"))
		if (file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")) &&
			(best == nil || len(dir) > len(path.Clean(best.text("mountPath")))) {
			best = m
		}
	}
	if best == nil {
		return nil, nil
	}
	for _, v := range p.podSpec.children("volumes") {
		if v.text("name") != best.text("name") {
			continue
		}
		if v.text("configMap", "name") == "" {
			return nil, fmt.Errorf("%s, volume %s: %s is from it, and it is no ConfigMap; migrate knows only files of ConfigMaps", p.daemonSet.describe(), v.text("name"), file)
		}
		return newConfigMapFile(v.child("configMap"), best, file), nil
	}
	return nil, fmt.Errorf("%s, volumeMounts: there is no volume %s", p.daemonSet.describe(), best.text("name"))
}

// newConfigMapFile is what file is by a volume and its mount.
func newConfigMapFile(volume, mount object, file string) *configMapFile {
	s := &configMapFile{configMap: volume.text("name"), dir: path.Clean(mount.text("mountPath"))}
	s.optional, _ = volume["optional"].(bool)
	s.key = strings.TrimPrefix(strings.TrimPrefix(file, s.dir), "/")
	if part := mount.text("subPath"); part != "" {
		s.key = path.Join(part, s.key)
		s.dir = path.Dir(s.dir)
	}
	for _, item := range volume.children("items") {
		if item.text("path") == s.key {
			s.key = item.text("key")
			return s
		}
	}
	return s
}

// volumeFiles are the ConfigMap's keys by the names that the volume of s gives them.
func (p *agentPod) volumeFiles(s *configMapFile, configMap object) map[string]string {
	names := make(map[string]string)
	for _, v := range p.podSpec.children("volumes") {
		if v.text("configMap", "name") != s.configMap {
			continue
		}
		for _, item := range v.children("configMap", "items") {
			names[item.text("path")] = configMap.text("data", item.text("key"))
		}
	}
	if len(names) == 0 {
		for key := range configMap.child("data") {
			names[key] = configMap.text("data", key)
		}
	}
	return names
}

// errNoCorefile is a DaemonSet that shows no Corefile to its container.
var errNoCorefile = errors.New("no volume of a ConfigMap is mounted where -conf and -basecorefile look for the Corefile")
