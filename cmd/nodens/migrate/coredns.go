package migrate

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

// dnsOptions returns the options with which the agent answers as the cluster's DNS does. If
// that is not CoreDNS, or its Corefile is not among the objects, these are the usual ones.
func (m *migration) dnsOptions(domain string) []string {
	usual := []string{"pods insecure", "ttl 30"}
	b, where := m.corednsBlock(domain)
	if b == nil {
		return usual
	}
	for _, name := range []string{"acl", "autopath", "dns64", "hosts", "k8s_external", "rewrite", "template"} {
		if b.Has(name) {
			m.noteFor(Todo, where, "it has `%s` beside `kubernetes`: the agent answers names below %s without it, unless its block has the directive, too", name, domain)
		}
	}
	return directiveOptions(b.Kubernetes)
}

// directiveOptions returns the options of a `kubernetes` directive, except its source and
// `fallthrough`.
func directiveOptions(k *config.Kubernetes) []string {
	mode := map[config.PodMode]string{config.PodsDisabled: "disabled", config.PodsInsecure: "insecure", config.PodsVerified: "verified"}
	list := []string{"pods " + mode[k.Pods], fmt.Sprintf("ttl %d", k.TTL)}
	for _, o := range []struct {
		text string
		has  bool
	}{
		{"endpoint_pod_names", k.EndpointPodNames},
		{"noendpoints", k.NoEndpoints},
		{"ignore empty_service", k.IgnoreEmptyService},
		{"namespaces " + strings.Join(k.Namespaces, " "), len(k.Namespaces) > 0},
		{"namespace_labels " + k.NamespaceLabels, k.NamespaceLabels != ""},
		{"labels " + k.Labels, k.Labels != ""},
	} {
		if o.has {
			list = append(list, o.text)
		}
	}
	return list
}

// corednsBlock returns the block of CoreDNS's Corefile that answers for the domain, nil if
// it can't be determined.
func (m *migration) corednsBlock(domain string) (b *config.Block, where string) {
	const key = "Corefile"
	obj := m.Objects.get("ConfigMap", m.pod.daemonSet.namespace(), "coredns")
	text := obj.text("data", key)
	if text == "" {
		return nil, ""
	}
	where = obj.describe() + ", " + key
	custom := m.Objects.get("ConfigMap", m.pod.daemonSet.namespace(), "coredns-custom")
	cfg, err := readCoreDNSCorefile(text, dataTexts(custom.child("data")))
	if err != nil {
		m.noteFor(Todo, where, "nodens can't parse it; check that the added `kubernetes` directives have the same options: %v", err)
		return nil, where
	}
	zone := parseZone(domain)
	for _, b := range cfg.Blocks {
		if b.Kubernetes != nil && slices.Contains(b.Kubernetes.Zones, zone) {
			return b, fmt.Sprintf("%s, line %d", where, b.Line)
		}
	}
	return nil, where
}

// importCustom is an import of the files of the ConfigMap coredns-custom, which managed clusters
// mount as the folder custom.
var importCustom = regexp.MustCompile(`(?m)^(\s*import\s+)(\S*)\bcustom/`)

// readCoreDNSCorefile parses CoreDNS's Corefile with placeholders for the files and
// addresses of its pod. custom are the files that it imports, by name.
func readCoreDNSCorefile(text string, custom map[string]string) (*config.Config, error) {
	dir, err := os.MkdirTemp("", "nodens-migrate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	resolv := filepath.ToSlash(dir) + "/resolv.conf"
	if err := os.WriteFile(resolv, []byte(placeholderResolvConf), 0o600); err != nil {
		return nil, err
	}
	if err := writeFiles(filepath.Join(dir, "custom"), custom); err != nil {
		return nil, fmt.Errorf("ConfigMap coredns-custom: %w", err)
	}
	text = importCustom.ReplaceAllString(text, "${1}"+filepath.ToSlash(dir)+"/custom/")
	return config.Parse(config.Source{
		Path: "Corefile", Text: []byte(strings.ReplaceAll(text, "/etc/resolv.conf", resolv)),
		Options: config.Options{ResolvConf: resolv, Interface: UnknownInterface},
	})
}
