package migrate

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

// Checked is an agent's configuration among objects, as [Check] reads it.
type Checked struct {
	// Source names the ConfigMap and its key, and the DaemonSet if there is one.
	Source string
	// FromDaemonSet says that a DaemonSet has the flags.
	FromDaemonSet bool
	// Config is nil if there are errors.
	Config *config.Config
	Errors []*config.ParseError
	// Notes say what is not known here, and Warnings what an API server refuses.
	Notes, Warnings []string
	// Probes are the HTTP probes of the container.
	Probes []Probe
	// Files are the Corefile and the files of ConfigMaps that it imports.
	Files []MountedFile
	// Names are arguments for [strings.NewReplacer]. They replace paths in texts of Config by names
	// of objects and paths of the container.
	Names []string
}

// Probe is an HTTP probe of a container.
type Probe struct {
	// Name is the field's name, such as livenessProbe.
	Name, Host, Path, Port string
}

// IsObjects reports whether text is YAML or JSON of Kubernetes objects, rather than a Corefile.
func IsObjects(text []byte) bool {
	for part := range strings.SplitSeq(string(text), "\n---") {
		trees, err := parseDocument([]byte(strings.TrimPrefix(part, "---")))
		if err != nil {
			return false
		}
		if m, ok := trees[0].(map[string]any); ok {
			return object(m).text("kind") != "" || object(m).text("apiVersion") != ""
		}
	}
	return false
}

// Check reads the configuration of each agent among r's objects: with the flags of a DaemonSet
// that runs NodeLocal DNSCache or nodens, or of each ConfigMap with a Corefile if there is no such
// DaemonSet.
func Check(r Request) ([]*Checked, error) {
	pods, _ := r.candidates()
	if len(pods) == 0 {
		pods = r.standIns()
	}
	if len(pods) == 0 {
		return nil, errors.New("no DaemonSet has the argument --localip, and no ConfigMap has a key Corefile; name a Corefile, or the files of the DaemonSet and its ConfigMap")
	}
	var list []*Checked
	for _, p := range pods {
		c, err := (&migration{Request: r, pod: p}).check()
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// check reads the configuration of m's pod.
func (m *migration) check() (*Checked, error) {
	result := &Checked{FromDaemonSet: m.pod.daemonSet.text("kind") == "DaemonSet"}
	if result.FromDaemonSet {
		if err := m.convertCommand(); err != nil {
			return nil, err
		}
		result.Warnings = m.oldVersion()
		result.Probes = m.pod.probes()
	}
	if err := m.convertArgs(); err != nil {
		return nil, err
	}
	c, err := m.openCorefile()
	if err != nil {
		return nil, err
	}
	defer c.close()
	c.options.Port, c.options.Written = m.flags.Config.Port, true
	c.options.PodNetwork = result.FromDaemonSet && !m.hostNetwork()
	result.Source = c.configMap.describe() + ", " + c.key
	if result.FromDaemonSet {
		result.Source += ", with the flags of " + m.pod.daemonSet.describe()
	}
	result.Names = c.restorePairs
	result.Config, err = c.load(c.text)
	result.Errors = restoreErrors(err, c.restorePaths)
	result.Files = c.filesRead(result.Config)
	if strings.Contains(c.text, "__PILLAR__CLUSTER__DNS__") && m.clusterDNSUnknown {
		result.Notes = append(result.Notes, UnknownClusterDNS)
	}
	result.Notes = append(result.Notes, m.checkNotes()...)
	return result, nil
}

// checkNotes returns the notes of the migration that matter to a check.
func (m *migration) checkNotes() (list []string) {
	for _, n := range m.sortedNotes() {
		if n.Where != m.pod.daemonSet.describe()+", command" {
			list = append(list, n.Where+": "+strings.Replace(n.Text, " removed: ", " ignored: ", 1))
		}
	}
	return list
}

// UnknownClusterDNS is the note about a placeholder whose value only a node knows.
const UnknownClusterDNS = "cluster DNS address unknown off the cluster: __PILLAR__CLUSTER__DNS__ is shown as CLUSTER-DNS; give --cluster-dns IP"

// ClusterDNSPlaceholder stands for the cluster DNS's address where that is not known.
const ClusterDNSPlaceholder = placeholderClusterIP

// restoreErrors returns the errors of a Corefile with the names that r restores.
func restoreErrors(err error, r *strings.Replacer) []*config.ParseError {
	var list []*config.ParseError
	for _, e := range config.ParseErrors(err) {
		e.File, e.Text, e.Word = r.Replace(e.File), r.Replace(e.Text), r.Replace(e.Word)
		list = append(list, e)
	}
	return list
}

// standIns returns, for each ConfigMap with a Corefile, a pod that mounts it as NodeLocal
// DNSCache's does. CoreDNS's own ConfigMap counts only if there is no other.
func (r *Request) standIns() []*agentPod {
	var pods, coredns []*agentPod
	for _, obj := range r.Objects.list {
		if obj.text("kind") != "ConfigMap" || !obj.inNamespace(r.Namespace) {
			continue
		}
		for _, key := range corefileKeys(obj) {
			p := r.standIn(obj, key)
			if obj.name() == "coredns" {
				coredns = append(coredns, p)
			} else {
				pods = append(pods, p)
			}
		}
	}
	if len(pods) == 0 {
		return coredns
	}
	return pods
}

// corefileKeys returns the keys of a ConfigMap that are Corefiles, sorted.
func corefileKeys(configMap object) (keys []string) {
	for key := range configMap.child("data") {
		if key == "Corefile" || strings.HasPrefix(key, "Corefile.") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// standIn returns a pod that reads the ConfigMap's key as its Corefile: with the mounts and the environment of the workload
// that mounts it, such as CoreDNS's Deployment, or else with the ConfigMap at /etc/coredns, key as Corefile, the kube-dns
// ConfigMap, and the custom ones where the Corefile imports them from.
func (r *Request) standIn(configMap object, key string) *agentPod {
	set := object{"kind": "ConfigMap", "metadata": map[string]any{"name": configMap.name(), "namespace": configMap.namespace()}}
	if p := r.workload(configMap, key); p != nil {
		p.daemonSet = set
		return p
	}
	var items []any
	for other := range configMap.child("data") {
		name := other
		if other == key {
			name = "Corefile"
		} else if other == "Corefile" {
			continue
		}
		items = append(items, map[string]any{"key": other, "path": name})
	}
	var mounts, volumes []any
	add := func(name, dir string, source map[string]any) {
		source["name"] = name
		mounts = append(mounts, map[string]any{"name": name, "mountPath": dir})
		volumes = append(volumes, map[string]any{"name": name, "configMap": source})
	}
	add(configMap.name(), "/etc/coredns", map[string]any{"items": items})
	if text := configMap.text("data", key); strings.Contains(text, "__PILLAR__") || r.Objects.get("ConfigMap", configMap.namespace(), "kube-dns") != nil {
		add("kube-dns", "/etc/kube-dns", map[string]any{"optional": true})
	}
	for _, m := range importCustom.FindAllStringSubmatch(configMap.text("data", key), -1) {
		dir := m[2] + "custom"
		if !path.IsAbs(dir) {
			dir = path.Join("/etc/coredns", dir)
		}
		if !slices.ContainsFunc(mounts, func(m any) bool { return m.(map[string]any)["mountPath"] == dir }) {
			add("coredns-custom", dir, map[string]any{"optional": true})
		}
	}
	return &agentPod{daemonSet: set, podSpec: object{"volumes": volumes}, container: object{"volumeMounts": mounts, "args": []any{"-conf", "/etc/coredns/Corefile"}}}
}

// workload returns the pod of a DaemonSet or Deployment that mounts key of the ConfigMap as a file, nil if there is none. Its
// arguments are those of another program, but for the name of that file.
func (r *Request) workload(configMap object, key string) *agentPod {
	for _, obj := range r.Objects.list {
		if kind := obj.text("kind"); kind != "DaemonSet" && kind != "Deployment" || !obj.inNamespace(configMap.namespace()) {
			continue
		}
		p := &agentPod{daemonSet: obj, podSpec: obj.child("spec", "template", "spec").clone()}
		for _, box := range p.podSpec.children("containers") {
			p.container = box
			if file := p.fileOf(configMap.name(), key); file != "" {
				delete(box, "command")
				box["args"] = []any{"-conf", file}
				return p
			}
		}
	}
	return nil
}

// fileOf returns where the container has a key of a ConfigMap, under the key's name or as Corefile; "" if nowhere.
func (p *agentPod) fileOf(configMap, key string) string {
	for _, mount := range p.container.children("volumeMounts") {
		for _, name := range []string{key, "Corefile"} {
			file := path.Join(mount.text("mountPath"), name)
			if s, err := p.mountedFile(file); err == nil && s != nil && s.configMap == configMap && s.key == key {
				return file
			}
		}
	}
	return ""
}

// probes returns the HTTP probes of p's container.
func (p *agentPod) probes() (list []Probe) {
	for _, name := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		if get := p.container.child(name, "httpGet"); get != nil {
			list = append(list, Probe{Name: name, Host: get.text("host"), Path: path.Clean("/" + get.text("path")), Port: fmt.Sprint(get["port"])})
		}
	}
	return list
}

// UnknownInterface stands in for the addresses of an interface of a node, for `bind`.
func UnknownInterface(string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(placeholderAddr)}, nil
}
