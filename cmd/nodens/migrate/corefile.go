package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// corefile is the agent's configuration, with what is needed to parse it here.
type corefile struct {
	// configMap is a copy of the cluster's; text is the value of key.
	configMap object
	key, text string
	file      string // its path in the container
	cfg       *config.Config

	dir          string // temporary directory with the files that it refers to
	root         string // directory in dir that stands for the container's root
	path         string // of the Corefile in root
	mounted      []MountedFile
	values       Values // of environment variables
	guessedZone  bool   // guessedZone is the value of one that is not known
	options      config.Options
	replacePaths *strings.Replacer // from paths of the container to paths in dir
	restorePairs []string          // paths in dir, each with its name for error texts
	restorePaths *strings.Replacer // of restorePairs
}

// loadCorefile finds the Corefile and parses it. Without an error, close must be called.
func (m *migration) loadCorefile() (*corefile, error) {
	c, err := m.openCorefile()
	if err != nil {
		return nil, err
	}
	err = m.replaceElsewhere(c)
	if err == nil {
		c.cfg, err = c.parse(c.text)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// openCorefile finds the Corefile and prepares to parse it. Without an error, close must be
// called.
func (m *migration) openCorefile() (c *corefile, err error) {
	s, err := m.corefileSource()
	if err != nil {
		return nil, err
	}
	namespace := m.pod.daemonSet.namespace()
	configMap := m.Objects.get("ConfigMap", namespace, s.configMap)
	if configMap == nil {
		return nil, fmt.Errorf("the ConfigMap %s with the Corefile of %s is not among the objects; add its file with -f",
			strings.TrimPrefix(namespace+"/"+s.configMap, "/"), m.pod.daemonSet.describe())
	}
	// Lines end in CRLF if the ConfigMap was made from a file on Windows.
	text := strings.ReplaceAll(configMap.text("data", s.key), "\r\n", "\n")
	c = &corefile{configMap: configMap.clone(), key: s.key, file: s.file, text: text}
	if _, ok := configMap.value("data", s.key).(string); !ok {
		if configMap.text("binaryData", s.key) != "" {
			return nil, fmt.Errorf("%s, binaryData: the Corefile has to be in data, as text in UTF-8; `kubectl create configmap` puts files in other encodings here", configMap.describe())
		}
		return nil, fmt.Errorf("%s has no key %q with the Corefile of %s", configMap.describe(), s.key, m.pod.daemonSet.describe())
	}
	if c.dir, err = os.MkdirTemp("", "nodens-migrate-"); err != nil {
		return nil, err
	}
	if err = m.writeInputs(c, s); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *corefile) close() { os.RemoveAll(c.dir) }

// corefileSource returns the file that the agent reads its Corefile from, in nodens' order.
func (m *migration) corefileSource() (*configMapFile, error) {
	paths := []string{m.flags.Conf, m.flags.Base}
	if m.flags.BaseGiven {
		paths = paths[1:]
	}
	for _, path := range paths {
		s, err := m.pod.mountedFile(path)
		if err != nil || s != nil {
			return s, err
		}
	}
	return nil, fmt.Errorf("%s, volumeMounts: %w (%s)", m.pod.daemonSet.describe(), errNoCorefile, strings.Join(paths, ", "))
}

// writeInputs writes the files that the Corefile is parsed with.
func (m *migration) writeInputs(c *corefile, s *configMapFile) error {
	legacy, resolv := filepath.Join(c.dir, "kube-dns"), filepath.Join(c.dir, "resolv.conf")
	c.root = filepath.Join(c.dir, "root")
	if err := os.WriteFile(resolv, []byte(placeholderResolvConf), 0o600); err != nil {
		return err
	}
	base := filepath.Join(c.root, filepath.FromSlash(s.dir))
	c.path = filepath.Join(base, "Corefile")
	stubs, err := m.kubeDNSFiles()
	if err != nil {
		return err
	}
	if err := writeFiles(legacy, stubs); err != nil {
		return fmt.Errorf("ConfigMap kube-dns: %w", err)
	}
	c.options = m.flags.Config
	c.options.OffNode = true
	if s.file != m.flags.Conf { // imports of the template start beside --conf
		c.options.ImportsBeside = filepath.Join(c.root, filepath.FromSlash(m.flags.Conf))
	}
	c.options.KubeDNS, c.options.ResolvConf = legacy, resolv
	c.options.LookupEnv = func(name string) (string, bool) { return m.lookupEnv(name), true }
	c.options.Interface = UnknownInterface
	volumes, err := m.emptyVolumes(c.dir)
	if err != nil {
		return err
	}
	var dirs []string
	c.mounted, dirs = m.mountedFiles()
	// Paths in a Corefile have slashes, on Windows too.
	slashResolv := filepath.ToSlash(resolv)
	pairs := append(volumes, "/etc/resolv.conf", slashResolv)
	c.replacePaths = strings.NewReplacer(append(pairs, mountPairs(append(dirs, s.dir), c.root)...)...)
	c.restorePairs = append([]string{c.path, c.configMap.describe() + ", " + c.key}, c.restoreMounted()...)
	c.restorePairs = append(c.restorePairs, c.root, "", filepath.ToSlash(c.root), "",
		legacy, m.flags.KubeDNS, resolv, "/etc/resolv.conf", slashResolv, "/etc/resolv.conf")
	for i := 0; i < len(volumes); i += 2 {
		c.restorePairs = append(c.restorePairs, volumes[i+1], volumes[i])
	}
	c.restorePaths = strings.NewReplacer(c.restorePairs...)
	return m.setValues(c)
}

// emptyVolumes makes a folder in dir for each mounted directory of the node, for options that name a file to write. It
// returns pairs of its path in the container and here.
func (m *migration) emptyVolumes(dir string) (pairs []string, err error) {
	for i, mount := range m.pod.container.children("volumeMounts") {
		volume, err := findNamed(m.pod.podSpec.children("volumes"), mount.text("name"))
		if err != nil || volume.child("hostPath") == nil && volume.child("emptyDir") == nil {
			continue
		}
		here := filepath.Join(dir, fmt.Sprintf("volume-%d", i))
		if err := os.Mkdir(here, 0o700); err != nil {
			return nil, err
		}
		pairs = append(pairs, path.Clean(mount.text("mountPath"))+"/", filepath.ToSlash(here)+"/")
	}
	return pairs, nil
}

// placeholderResolvConf stands for the nodes' resolv.conf, which is not this machine's (RFC
// 5737).
const placeholderResolvConf = "nameserver 192.0.2.54\n"

// writeFiles writes files of those names to a directory.
func writeFiles(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, text := range files {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%q is not a file name in the volume", name)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeDNSFiles returns the files of the kube-dns ConfigMap, if it is mounted and present.
func (m *migration) kubeDNSFiles() (map[string]string, error) {
	const any = "stubDomains"
	if m.flags.KubeDNS == "" {
		return nil, nil
	}
	s, err := m.pod.mountedFile(path.Join(m.flags.KubeDNS, any))
	if s == nil || err != nil {
		return nil, err
	}
	configMap := m.Objects.get("ConfigMap", m.pod.daemonSet.namespace(), s.configMap)
	if configMap == nil {
		if !m.Objects.live {
			m.noteFor(Todo, "ConfigMap "+s.configMap, "not among the objects, so its stubDomains and upstreamNameservers are not checked; add its file with -f")
		}
		return nil, nil
	}
	return m.pod.volumeFiles(s, configMap), nil
}

// lookupEnv returns the value of a variable in the container: the address of a known
// Service, or a placeholder.
func (m *migration) lookupEnv(name string) string {
	if m.ClusterDNS != "" {
		return m.ClusterDNS
	}
	for _, obj := range m.Objects.list {
		if obj.text("kind") == "Service" && obj.inNamespace(m.pod.daemonSet.namespace()) &&
			strings.ToUpper(strings.ReplaceAll(obj.name(), "-", "_"))+"_SERVICE_HOST" == name {
			if addr := obj.text("spec", "clusterIP"); addr != "" && addr != "None" {
				return addr
			}
		}
	}
	m.clusterDNSUnknown = true
	return placeholderClusterIP
}

// placeholderClusterIP stands for a Service's cluster IP (RFC 5737).
const placeholderClusterIP = "192.0.2.53"

// load parses a Corefile as the agent would. The error has paths in c.dir.
func (c *corefile) load(text string) (*config.Config, error) {
	return config.Parse(config.Source{Path: c.path, Text: []byte(c.replacePaths.Replace(c.values.Replace(text))), Options: c.options})
}

// parse parses a Corefile as the agent would. The error lists all errors.
func (c *corefile) parse(text string) (*config.Config, error) {
	cfg, err := c.load(text)
	if err != nil {
		return nil, fmt.Errorf("nodens would not start with this Corefile:\n%s", c.restorePaths.Replace(err.Error()))
	}
	return cfg, nil
}

// enableKubernetes makes the agent answer for the cluster's names, and adds the RBAC rules
// for it.
func (m *migration) enableKubernetes(c *corefile) error {
	if m.secondStep {
		if err := m.insertDirectives(c); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(c.cfg.Blocks, hasKubernetes) {
		m.addRBAC()
	}
	return nil
}

// insertDirectives adds the directive to each block with the cluster's zones. It changes
// nothing else in the Corefile, byte for byte.
func (m *migration) insertDirectives(c *corefile) error {
	blocks := m.forwardingBlocks(c)
	domain := m.clusterDomain(c, blocks)
	if domain == "" {
		return nil
	}
	options := m.dnsOptions(domain)
	if dir := m.argument("handover-dir") + "/"; c.replacePaths.Replace(dir) != dir { // a volume of the node
		options = append(options, "save "+path.Join(dir, "view"))
	}
	lines := strings.Split(c.text, "\n")
	texts := make(map[int][]string) // by the index of the line they precede
	for _, b := range blocks {
		zones := []string{domain}
		for _, z := range b.Zones {
			if isReverseZone(z) {
				zones = append(zones, zoneText(z))
			}
		}
		at := blockBodyStart(lines, b.Line)
		if at < 0 || len(zones) == 1 && !slices.Contains(b.Zones, parseZone(domain)) {
			continue
		}
		texts[at] = directiveLines(zones, options, indentation(lines, at))
		m.noteFor(Changed, c.configMap.describe()+", "+c.key+fmt.Sprintf(", line %d", b.Line),
			"kubernetes %s: the agent answers these names, instead of the cluster DNS", strings.Join(zones, " "))
	}
	var out []string
	for i, line := range lines {
		out = append(append(out, texts[i]...), line)
	}
	return m.replaceCorefile(c, strings.Join(out, "\n"), len(texts))
}

// replaceCorefile sets the text of the Corefile, unless n, the number of changes, is 0.
func (m *migration) replaceCorefile(c *corefile, text string, n int) error {
	if n == 0 {
		return nil
	}
	cfg, err := c.parse(text)
	if err != nil {
		return errors.Join(errors.New("the directive kubernetes can't be added; --minimal leaves the Corefile unchanged"), err)
	}
	c.text, c.cfg = text, cfg
	m.setCorefile(c)
	return nil
}

// setCorefile puts c's text into its ConfigMap, which is printed. An immutable ConfigMap can't be
// changed: the pods get another one.
func (m *migration) setCorefile(c *corefile) {
	c.configMap.ensure("data")[c.key] = c.text
	if slices.ContainsFunc(m.out, func(o object) bool { return o.describe() == c.configMap.describe() }) {
		return
	}
	if immutable, _ := c.configMap["immutable"].(bool); immutable {
		m.renameConfigMap(c)
	}
	m.out = append(m.out, c.configMap)
}

// renameConfigMap gives c's ConfigMap a new name, and the pods the ConfigMap of that name.
func (m *migration) renameConfigMap(c *corefile) {
	old := c.configMap.name()
	name := old + "-nodens"
	m.noteFor(Changed, c.configMap.describe()+", immutable", "its changed copy is %s, which the pods use", name)
	c.configMap.ensure("metadata")["name"] = name
	for _, v := range m.pod.podSpec.children("volumes") {
		if v.text("configMap", "name") == old {
			v.child("configMap")["name"] = name
		}
	}
}

// forwardingBlocks returns the blocks that forward to the cluster's DNS and have no
// directive kubernetes, once for each place in the Corefile's own text.
func (m *migration) forwardingBlocks(c *corefile) []*config.Block {
	servers := m.clusterDNSAddrs(c)
	var blocks []*config.Block
	seen := make(map[int]bool)
	lines := strings.Split(c.text, "\n")
	for _, b := range c.cfg.Blocks {
		if b.File != c.path || seen[b.Line] || b.Kubernetes != nil || b.Forward == nil || goesElsewhere(lines, b) {
			continue
		}
		if slices.ContainsFunc(b.Forward.To, func(t config.Target) bool { return servers[t.Addr.Addr()] }) {
			seen[b.Line] = true
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// goesElsewhere reports whether a forward in b replaces a directive that nodens does not have.
func goesElsewhere(lines []string, b *config.Block) bool {
	at := blockBodyStart(lines, b.Line)
	return at >= 0 && at < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[at]), elsewhereMark)
}

// clusterDNSAddrs returns the addresses of the cluster's DNS: those of its known Services, and
// the upstreams of reverse zones and of the cluster's domain.
func (m *migration) clusterDNSAddrs(c *corefile) map[netip.Addr]bool {
	servers := map[netip.Addr]bool{netip.MustParseAddr(placeholderClusterIP): true}
	for _, obj := range m.Objects.list {
		if !isClusterDNS(obj) {
			continue
		}
		for _, addr := range append(obj.texts("spec", "clusterIPs"), obj.text("spec", "clusterIP")) {
			if a, err := netip.ParseAddr(addr); err == nil {
				servers[a] = true
			}
		}
	}
	for _, b := range c.cfg.Blocks {
		if !m.asksCluster(b) {
			continue
		}
		for _, t := range b.Forward.To {
			servers[t.Addr.Addr()] = true
		}
	}
	delete(servers, netip.Addr{})
	return servers
}

// asksCluster reports whether b forwards the cluster's domain or reverse zones, and not all names.
func (m *migration) asksCluster(b *config.Block) bool {
	domain := parseZone(cmp.Or(m.Domain, defaultDomain))
	ofCluster := func(z wire.Name) bool { return z == domain || isReverseZone(z) }
	return b.Forward != nil && slices.ContainsFunc(b.Zones, ofCluster) && !slices.Contains(b.Zones, wire.Root)
}

// isClusterDNS reports whether obj is the Service of the cluster's DNS, by its label or by
// its usual names.
func isClusterDNS(obj object) bool {
	return obj.text("kind") == "Service" &&
		(obj.text("metadata", "labels", "k8s-app") == "kube-dns" || obj.name() == "kube-dns" || obj.name() == "coredns")
}

// clusterDomain returns the cluster's domain, "" if it can't be determined.
func (m *migration) clusterDomain(c *corefile, blocks []*config.Block) string {
	zones := forwardedZones(blocks)
	if m.Domain != "" {
		return m.givenDomain(c, zones)
	}
	if c.guessedZone { // an environment variable has it
		zones = slices.DeleteFunc(zones, func(z string) bool { return z == guessedZone })
	}
	where := c.configMap.describe() + ", " + c.key
	switch {
	case slices.Contains(zones, defaultDomain):
		return defaultDomain
	case len(zones) == 1:
		return zones[0]
	case len(zones) > 1:
		m.noteFor(Todo, where, "several zones are forwarded to the cluster's DNS (%s): set --domain to the cluster's, so that the agent answers its names", joinNames(zones))
	case !slices.ContainsFunc(c.cfg.Blocks, hasKubernetes):
		m.noteFor(Todo, where, "no block forwards the cluster's domain to the cluster's DNS, so the agent answers none of its names: add `kubernetes DOMAIN in-addr.arpa ip6.arpa`")
	}
	return ""
}

// givenDomain returns --domain, "" if it is none of the forwarded zones: reverse names would get its name otherwise.
func (m *migration) givenDomain(c *corefile, zones []string) string {
	domain := parseZone(m.Domain)
	served := func(b *config.Block) bool { return hasKubernetes(b) && slices.Contains(b.Kubernetes.Zones, domain) }
	if slices.ContainsFunc(zones, func(z string) bool { return parseZone(z) == domain }) || slices.ContainsFunc(c.cfg.Blocks, served) {
		return strings.TrimSuffix(m.Domain, ".")
	}
	m.noteFor(Todo, c.configMap.describe()+", "+c.key, "no block forwards --domain %s to the cluster's DNS, so the agent answers none of its names; zones forwarded there: %s", m.Domain, joinNames(zones))
	return ""
}

// hasKubernetes reports whether a block answers for the cluster's names.
func hasKubernetes(b *config.Block) bool { return b.Kubernetes != nil }

// forwardedZones returns the zones of the blocks that may be the cluster's domain.
func forwardedZones(blocks []*config.Block) []string {
	var zones []string
	for _, b := range blocks {
		for _, z := range b.Zones {
			if !isReverseZone(z) && z != wire.Root && !slices.Contains(zones, zoneText(z)) {
				zones = append(zones, zoneText(z))
			}
		}
	}
	return zones
}

// defaultDomain is the usual domain of a cluster.
const defaultDomain = "cluster.local"

func isReverseZone(z wire.Name) bool {
	return z.Under(parseZone("in-addr.arpa")) || z.Under(parseZone("ip6.arpa"))
}

// zoneText returns the zone without the final dot.
func zoneText(z wire.Name) string { return strings.TrimSuffix(z.String(), ".") }

// parseZone returns the zone of a name, the root if the name is invalid.
func parseZone(name string) wire.Name {
	n, err := wire.ParseName(name)
	if err != nil {
		return wire.Root
	}
	return n
}

// blockBodyStart returns the index of the line after the opening brace of the block that
// starts in line number start; -1 if there is none.
func blockBodyStart(lines []string, start int) int {
	for i := max(start-1, 0); i < len(lines); i++ {
		code, _, _ := strings.Cut(lines[i], "#")
		if strings.HasSuffix(strings.TrimSpace(code), "{") {
			return i + 1
		}
	}
	return -1
}

// indentation returns the indentation of the first line from at on that has one.
func indentation(lines []string, at int) string {
	for _, line := range lines[min(at, len(lines)):] {
		if text := strings.TrimLeft(line, " \t"); text != "" && text != "}" {
			return line[:len(line)-len(text)]
		}
	}
	return "    "
}

// directiveLines returns the lines of a `kubernetes` directive for zones, the domain first.
func directiveLines(zones, options []string, indent string) []string {
	step := "    "
	if strings.HasPrefix(indent, "\t") {
		step = "\t"
	}
	lines := []string{"kubernetes " + strings.Join(zones, " ") + " {"}
	for _, o := range options {
		lines = append(lines, step+o)
	}
	if len(zones) > 1 {
		lines = append(lines, step+"fallthrough "+strings.Join(zones[1:], " "))
	}
	lines = append(lines, "}")
	for i := range lines {
		lines[i] = indent + lines[i]
	}
	return lines
}
