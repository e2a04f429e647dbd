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
	// daemonSet is a copy of the cluster's; podSpec and container are parts of it.
	daemonSet, podSpec, container object
}

// findDaemonSet finds the DaemonSet that runs NodeLocal DNSCache, or nodens. It goes by the
// argument --localip, which no other program has; image names depend on the mirror.
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
	return nil, fmt.Errorf("several DaemonSets run NodeLocal DNSCache: %s; choose one with --daemonset, and its namespace with -n", strings.Join(names, ", "))
}

// candidates returns the DaemonSets that match, and the names of the others.
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

// notFoundError says what was not found.
func (r *Request) notFoundError(others []string) error {
	where := "among the objects"
	if r.Namespace != "" {
		where = "in namespace " + r.Namespace
	}
	if r.Name != "" {
		return fmt.Errorf("no DaemonSet %s %s with the argument --localip; DaemonSets there: %s", r.Name, where, joinNames(others))
	}
	return fmt.Errorf("no DaemonSet %s has the argument --localip, like node-local-dns and nodelocaldns; "+
		"DaemonSets there: %s; -n selects another namespace, -f reads files", where, joinNames(others))
}

// joinNames returns at most ten of the names as a text.
func joinNames(names []string) string {
	const most = 10 // keep the error readable
	if len(names) == 0 {
		return "none"
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// newAgentPod finds the parts of a DaemonSet. container is nil if it runs another program.
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

// flagName returns the name of the flag that an argument is, "" if it is none.
func flagName(arg string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
	if name == arg {
		return ""
	}
	name, _, _ = strings.Cut(name, "=")
	return name
}

// expandedArgs returns the container's arguments with variables replaced as the kubelet
// does. Variables that are only known on a node get a placeholder and are listed in
// unknown.
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

// placeholderAddr stands for an address that is only known on a node (RFC 5737).
const placeholderAddr = "192.0.2.1"

// configMapFile is a file of the container that comes from a ConfigMap.
type configMapFile struct {
	configMap, key, file string
	// file is its path in the container, and dir the mount path of the volume.
	dir string
	// optional says that the ConfigMap may be missing.
	optional bool
}

// mountedFile returns the ConfigMap that file comes from, nil if no volume is mounted
// there.
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
			return nil, fmt.Errorf("%s, volume %s: it contains %s and is not a ConfigMap; migrate only supports ConfigMaps", p.daemonSet.describe(), v.text("name"), file)
		}
		return newConfigMapFile(v.child("configMap"), best, file), nil
	}
	return nil, fmt.Errorf("%s, volumeMounts: there is no volume %s", p.daemonSet.describe(), best.text("name"))
}

// newConfigMapFile returns what file is in a volume with that mount.
func newConfigMapFile(volume, mount object, file string) *configMapFile {
	s := &configMapFile{file: file, configMap: volume.text("name"), dir: path.Clean(mount.text("mountPath"))}
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

// volumeFiles returns the texts of the ConfigMap by their file names in the volume of s.
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

// errNoCorefile is a container without a Corefile.
var errNoCorefile = errors.New("no ConfigMap is mounted at the paths of --conf and --basecorefile")
