// Package config turns a Corefile into one typed, validated [Config].
//
// A Corefile is a list of server blocks, which have zones and directives. The package fills
// in the placeholders of NodeLocal DNSCache's base Corefile, and the lexer of the Caddyfile
// format finds the blocks and tokens. Each directive has one file, with its type and the
// method that reads its tokens, and one line in [Block], the table of all directives. Reading continues after an error: the error of
// [Parse] joins a [ParseError] for each mistake. At the end the blocks are checked together,
// for example for zones that two blocks serve. The package reads files (imports, resolv.conf
// files, the kube-dns ConfigMap) and changes nothing.
//
// To add a directive: a file with its type and a parse method on the pointer to it,
// a field with a `directive` tag in [Block], and a page in docs/reference/corefile.
package config

import (
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Config is the meaning of a Corefile. It is immutable.
type Config struct {
	// Path is the file it was read from, Hash the hex SHA-512 of its expanded
	// text: coredns_reload_version_info's value.
	Path string
	Hash string
	// Digest is the hash of everything that was read, including the files of name servers
	// and search domains. A reload is necessary only if it differs.
	Digest string
	// Sums are hashes of Files, by path; that of the Corefile is of its text without placeholders.
	Sums map[string][sha256.Size]byte
	// Files are all files that were read, Path first: imports, resolv.conf files and the
	// kube-dns ConfigMap's. A change to one of them is a reason for a reload.
	Files []string
	// Warnings are not errors; each has the form of a [ParseError]'s text.
	Warnings []string
	// EmptyImports are the patterns of imports that no file matches, which is no error.
	EmptyImports []string
	// Suspicious are valid settings that are probably mistakes, such as the zone "30s". The
	// agent does not log them; `nodens check` prints them.
	Suspicious []*ParseError
	// NotRead are the paths that were not read because of Options.OffNode, without duplicates.
	NotRead []string
	// Blocks are the server blocks in the order of the file, followed by one for each stub
	// domain of the kube-dns ConfigMap, and one for the node's own look-ups ([Options.HostListen]). A block whose keys name several ports is one Block
	// for each port.
	Blocks []*Block
}

// Block is a server block and the table of directives: each field with a `directive` tag is
// the directive of that name, nil if the block does not have it.
type Block struct {
	// Zones are the zones of the block's keys, without duplicates. CIDR keys are
	// expanded to their reverse zones.
	Zones []wire.Name
	// Transport is how clients reach the block.
	Transport Transport
	// Port is the port of the block's keys. By default it is the transport's port, for plain
	// DNS that of --dns.port.
	Port uint16
	// File and Line are where the block starts.
	File string
	Line int
	// Listen are the addresses on which the block listens: those of bind, or the local IPs, or
	// "[::]" for all addresses of both families.
	Listen []netip.AddrPort
	// Written are the directives as they are written, sorted by name; nil without Options.Written.
	Written []Written

	Root           *Root           `directive:"root"`
	Metadata       *Metadata       `directive:"metadata"`
	TLS            *TLSServer      `directive:"tls"`
	Timeouts       *Timeouts       `directive:"timeouts"`
	QUIC           *QUIC           `directive:"quic"`
	HTTP3          *HTTP3          `directive:"https3"`
	Reload         *Reload         `directive:"reload"`
	NSID           *NSID           `directive:"nsid"`
	Bufsize        *Bufsize        `directive:"bufsize"`
	Bind           *Bind           `directive:"bind"`
	Debug          *Switch         `directive:"debug"` // log at debug level; in any block it applies to the whole process
	Ready          *Ready          `directive:"ready"`
	Health         *Health         `directive:"health"`
	Pprof          *Pprof          `directive:"pprof"`
	Prometheus     *Prometheus     `directive:"prometheus"`
	Errors         *Errors         `directive:"errors"`
	Log            *Log            `directive:"log"`
	Dnstap         *Dnstap         `directive:"dnstap"`
	Trace          *Trace          `directive:"trace"`
	View           *View           `directive:"view"`
	ClientLimit    *ClientLimit    `directive:"client_limit"`
	ACL            *ACL            `directive:"acl"`
	RPZ            *RPZ            `directive:"rpz"`
	TSIG           *TSIG           `directive:"tsig"`
	Any            *Switch         `directive:"any"` // ANY queries are answered with a HINFO record (RFC 8482)
	Local          *Local          `directive:"local"`
	DNS64          *DNS64          `directive:"dns64"`
	AAAA           *AAAA           `directive:"aaaa"`
	Chaos          *Chaos          `directive:"chaos"`
	Header         *Header         `directive:"header"`
	Loadbalance    *Loadbalance    `directive:"loadbalance"`
	Minimal        *Switch         `directive:"minimal"` // positive answers have no authority and additional sections
	Rewrite        *Rewrite        `directive:"rewrite"`
	Autopath       *Autopath       `directive:"autopath"`
	Template       *Template       `directive:"template"`
	Transfer       *Transfer       `directive:"transfer"`
	Hosts          *Hosts          `directive:"hosts"`
	K8sExternal    *K8sExternal    `directive:"k8s_external"`
	Kubernetes     *Kubernetes     `directive:"kubernetes"`
	ZoneFile       *ZoneFile       `directive:"file"`
	Auto           *Auto           `directive:"auto"`
	Secondary      *Secondary      `directive:"secondary"`
	Loop           *Switch         `directive:"loop"` // stop forwarding while the upstreams send queries back
	Cache          *Cache          `directive:"cache"`
	Keep           *Keep           `directive:"keep"`
	PrivateAddress *PrivateAddress `directive:"private_address"`
	Tunnel         *Tunnel         `directive:"tunnel"`
	Forward        *Forward        `directive:"forward"`
	GRPC           *GRPC           `directive:"grpc"`
	Whoami         *Switch         `directive:"whoami"` // all other queries are answered with the client's address and port
	// The directives without an effect, see [NoEffect].
	Cancel      *Cancel      `directive:"cancel"`
	GRPCServer  *GRPCServer  `directive:"grpc_server"`
	HTTPS       *HTTPSLimits `directive:"https"`
	Multisocket *Multisocket `directive:"multisocket"`
	Shed        *Shed        `directive:"shed"`
}

// Options are the settings outside of a Corefile on which its meaning depends. The zero
// value suits a plain Corefile on this machine.
type Options struct {
	// Port is --dns.port: the port of keys without one. 0 is 53.
	Port uint16
	// LocalIPs are --localip's addresses: __PILLAR__LOCAL__DNS__, and the addresses on which
	// blocks without bind listen.
	LocalIPs []netip.Addr
	// HostListen are --host-listen's addresses, for the node's own look-ups. Those to which no block is bound
	// get a block of their own, which forwards to HostServers.
	HostListen []netip.Addr
	// HostServers returns the servers that the node uses without the agent; nil: they are not known here, and
	// [UnknownNameserver] stands for them. Its error says which file can't be read.
	HostServers func() ([]netip.Addr, error)
	// UpstreamService is --upstreamsvc: the Service whose ClusterIP is
	// __PILLAR__CLUSTER__DNS__. "" is kube-dns.
	UpstreamService string
	// PrometheusAddr is __PROMETHEUS__ENDPOINT__; "" is ":9253".
	PrometheusAddr string
	// KubeDNS is --kubednscm: the directory where the kube-dns ConfigMap is mounted. "", or a
	// directory that does not exist, means that there is none.
	KubeDNS string
	// WithoutKubeDNS are keys of that ConfigMap that are not read.
	WithoutKubeDNS []string
	// ResolvConf is the value of __PILLAR__UPSTREAM__SERVERS__ if the kube-dns ConfigMap has
	// no upstream name servers. "" is /etc/resolv.conf.
	ResolvConf string
	// LookupEnv looks up an environment variable; nil is [os.LookupEnv]. The lexer's
	// {$NAME} always uses the process's environment.
	LookupEnv func(name string) (string, bool)
	// Interface returns the addresses of a network interface, for `bind`; nil is
	// [InterfaceAddrs]. Its error is shown to the user after the interface's name.
	Interface func(name string) ([]netip.Addr, error)
	// ImportsBeside is the path whose directory relative imports of the Corefile start from; "" is
	// the Corefile's own path. Imports of imported files start from these files' directories.
	ImportsBeside string
	// OffNode says that this machine is not the one that the Corefile is for. Files outside of
	// the Corefile that are named by absolute paths are not read, and folders not looked at:
	// [UnknownNameserver] stands for the name servers of a resolv.conf file.
	OffNode bool
	// PodNetwork says that the agent does not have the network of its node.
	PodNetwork bool
	// Lacks are directives that this build of the program refuses, some of [Optional].
	Lacks []string
	// Written sets [Block.Written], which only `nodens check` needs.
	Written bool
}

// UnknownNameserver stands for the name servers of a resolv.conf file that is not read (RFC
// 5737).
var UnknownNameserver = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 54}), 53)

// withDefaults returns o with defaults for its zero fields.
func (o Options) withDefaults() Options {
	o.Port = cmp.Or(o.Port, 53)
	o.UpstreamService = cmp.Or(o.UpstreamService, "kube-dns")
	o.PrometheusAddr = cmp.Or(o.PrometheusAddr, ":9253")
	o.ResolvConf = cmp.Or(o.ResolvConf, "/etc/resolv.conf")
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	if o.Interface == nil {
		o.Interface = InterfaceAddrs
	}
	return o
}

// InterfaceAddrs returns the addresses of one of the machine's interfaces. Link-local IPv6
// addresses have their zone.
func InterfaceAddrs(name string) ([]netip.Addr, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := link.Addrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		addr := prefix.Addr().Unmap()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(name)
		}
		list = append(list, addr)
	}
	return list, nil
}

// Source is a Corefile before it is read.
type Source struct {
	// Path is the Corefile's path in errors. Relative imports start from its directory, unless
	// Options.ImportsBeside is set.
	Path string
	// Text is the Corefile, with or without placeholders. Parse does not change it.
	Text    []byte
	Options Options
}

// Load is [Parse] for the Corefile at path. Errors name the file.
func Load(path string, opts Options) (*Config, error) {
	text, err := ReadFile(path)
	if err != nil {
		return nil, &ParseError{File: path, Text: "can't read the Corefile: " + err.Error()}
	}
	return Parse(Source{Path: path, Text: text, Options: opts})
}

// Parse makes a Config of src: it fills in the placeholders, reads the blocks, adds those of
// the stub domains, and checks the whole. Its error joins all [ParseError]s (see
// [errors.Join]); the Config is nil then.
func Parse(src Source) (*Config, error) {
	src.Path = cmp.Or(src.Path, "Corefile")
	c, err := read(src)
	if err != nil {
		return nil, unrendered(src, err)
	}
	return c, nil
}

// read is Parse without the hint that the Corefile is a template.
func read(src Source) (*Config, error) {
	opts := src.Options.withDefaults()
	legacy, err := readKubeDNS(opts.KubeDNS, opts.WithoutKubeDNS)
	if err != nil {
		return nil, err
	}
	text, err := Render(src.Text, opts.placeholders(src.Path, legacy.upstreams))
	if err != nil {
		return nil, err
	}
	main := file{path: src.Path, text: text}
	im := imports{snippets: make(map[string][]token), main: src.Path, beside: cmp.Or(opts.ImportsBeside, src.Path)}
	abs, err := filepath.Abs(src.Path)
	if err != nil {
		return nil, im.syntaxError(err)
	}
	if err := im.walk(main, []string{abs}); err != nil {
		return nil, err
	}
	groups, err := im.groups(text)
	if err != nil {
		return nil, err
	}
	p := &parser{opts: &opts}
	c := &Config{Path: src.Path, Hash: hash(im.files, legacy.files), EmptyImports: im.empty}
	for _, f := range slices.Concat(im.files, legacy.files) {
		p.recordPath(f.path)
	}
	for _, g := range groups {
		c.Blocks = append(c.Blocks, p.blocks(g)...)
	}
	c.Blocks = append(c.Blocks, p.stubBlocks(legacy.stubs)...)
	c.Blocks = append(c.Blocks, p.hostBlock(c.Blocks)...)
	joinFamilies(c.Blocks)
	p.checkBlocks(src.Path, c.Blocks)
	p.checkPodLabels(src.Path, c.Blocks)
	p.checkTaps(c.Blocks)
	p.suspectBlocks(src.Path, c.Blocks)
	c.Suspicious, c.NotRead = p.suspicious, p.notRead
	c.Files, c.Warnings, c.Digest = p.files, p.warnings, hash(im.files, legacy.files, p.texts)
	c.Sums = make(map[string][sha256.Size]byte)
	for _, f := range slices.Concat(im.files, legacy.files, p.texts) {
		c.Sums[f.path] = sha256.Sum256(f.text)
	}
	if err := joinErrors(src.Path, p.errs); err != nil {
		return nil, err
	}
	return c, nil
}

// recordPath adds a file that the Config is made from.
func (p *parser) recordPath(path string) {
	if !slices.Contains(p.files, path) {
		p.files = append(p.files, path)
	}
}

// offNode reports whether the file or folder at path belongs to another machine, and records it
// then.
func (p *parser) offNode(path string) bool {
	if !p.opts.OffNode || !rooted(path) {
		return false
	}
	if !slices.Contains(p.notRead, path) {
		p.notRead = append(p.notRead, path)
	}
	return true
}

// anyOffNode is offNode for several files: it reports whether one of them is on another machine.
func (p *parser) anyOffNode(paths []token) (any bool) {
	for _, w := range paths {
		any = p.offNode(w.text) || any
	}
	return any
}

// recordFile adds a file that the Config is made from, and its content.
func (p *parser) recordFile(path string, text []byte) {
	p.recordPath(path)
	p.texts = append(p.texts, file{path: path, text: text})
}

// hash returns the SHA-512 of all files' names and texts.
func hash(lists ...[]file) string {
	h := sha512.New()
	for _, f := range slices.Concat(lists...) {
		h.Write([]byte(f.path))
		h.Write([]byte{0})
		h.Write(f.text)
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}
