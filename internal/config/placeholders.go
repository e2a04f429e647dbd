package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/nodens-dns/nodens/internal/spelling"
)

// The placeholders of NodeLocal DNSCache's base Corefile.
const (
	placeholderCluster    = "__PILLAR__CLUSTER__DNS__"
	placeholderUpstream   = "__PILLAR__UPSTREAM__SERVERS__"
	placeholderLocal      = "__PILLAR__LOCAL__DNS__"
	placeholderServer     = "__PILLAR__DNS__SERVER__"
	placeholderPrometheus = "__PROMETHEUS__ENDPOINT__"
)

// placeholderDomain is in the manifest; installers replace it.
const placeholderDomain = "__PILLAR__DNS__DOMAIN__"

// placeholderNames are the placeholders that [Render] replaces.
var placeholderNames = []string{placeholderCluster, placeholderUpstream, placeholderLocal, placeholderServer, placeholderPrometheus}

// Placeholders are the values of a base Corefile's placeholders. A missing value is an error
// only if its placeholder is used.
type Placeholders struct {
	// Path is the path of the base Corefile in errors.
	Path string
	// ClusterDNS is the ClusterIP of the cluster's DNS behind the agent, the value of
	// the environment variable ServiceEnv. "" is not set.
	ClusterDNS string
	ServiceEnv string
	// UpstreamServers are addresses or resolv.conf files. None is empty or has spaces.
	UpstreamServers []string
	// LocalDNS are the local IPs. If a port follows the placeholder, as in
	// `health __PILLAR__LOCAL__DNS__:8080`, only the first one is used, because only one
	// address is allowed there. __PILLAR__DNS__SERVER__ is replaced by nothing: the cluster's
	// DNS address is one of the local IPs if the agent serves it.
	LocalDNS []netip.Addr
	// PrometheusEndpoint is an address with a port.
	PrometheusEndpoint string
}

// placeholders returns the values from the options.
func (o Options) placeholders(path string, upstreams []string) Placeholders {
	env := ServiceEnv(o.UpstreamService)
	cluster, _ := o.LookupEnv(env)
	if len(upstreams) == 0 {
		upstreams = []string{o.ResolvConf}
	}
	return Placeholders{
		Path:               path,
		ClusterDNS:         cluster,
		ServiceEnv:         env,
		UpstreamServers:    upstreams,
		LocalDNS:           o.LocalIPs,
		PrometheusEndpoint: o.PrometheusAddr,
	}
}

// ServiceEnv returns the environment variable in which the kubelet hands a pod the
// ClusterIP of a Service of its namespace (kubernetes.io/docs/concepts/services-networking/service/).
func ServiceEnv(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}

// Render returns base with its placeholders replaced, except in comments. Line numbers don't
// change. base is not changed. The error joins a [ParseError] for each placeholder that is
// unknown or has no value, such as one that the installer has not replaced.
func Render(base []byte, v Placeholders) ([]byte, error) {
	v.Path = cmp.Or(v.Path, "Corefile")
	if len(base) > maxFile {
		return nil, &ParseError{File: v.Path, Text: fmt.Sprintf("the file is larger than %d bytes; a Corefile is not", maxFile)}
	}
	var faults []*ParseError
	var out strings.Builder
	var s scanner
	number := 0
	for line := range strings.Lines(string(base)) {
		number++
		code, comment := s.split(line)
		text, err := v.line(code, number)
		faults = append(faults, err...)
		out.WriteString(text)
		out.WriteString(comment)
	}
	if err := joinErrors(v.Path, faults); err != nil {
		return nil, err
	}
	return []byte(out.String()), nil
}

// line replaces the placeholders of one line.
func (v Placeholders) line(code string, number int) (string, []*ParseError) {
	var out strings.Builder
	var faults []*ParseError
	for {
		start, name := findPlaceholder(code)
		if start < 0 {
			out.WriteString(code)
			return out.String(), faults
		}
		rest := code[start+len(name):]
		value, problem := v.value(name, strings.HasPrefix(rest, ":"))
		if problem != "" {
			faults = append(faults, v.fault(name, number, problem))
		}
		out.WriteString(code[:start] + value)
		code = rest
	}
}

// fault returns the error of the placeholder name.
func (v Placeholders) fault(name string, number int, problem string) *ParseError {
	f := &ParseError{File: v.Path, Line: number, Word: name, Text: problem}
	if slices.Contains(placeholderNames, name) {
		return f
	}
	f.Allowed = placeholderNames
	if name != placeholderDomain {
		f.Nearest = nearestPlaceholder(name)
	}
	return f
}

// nearestPlaceholder is [spelling.Closest] for words in upper case.
func nearestPlaceholder(name string) string {
	var lower []string
	for _, n := range placeholderNames {
		lower = append(lower, strings.ToLower(n))
	}
	return strings.ToUpper(spelling.Closest(name, lower))
}

// findPlaceholder finds the first placeholder of code, known or not; start is -1 if there
// is none.
func findPlaceholder(code string) (start int, name string) {
	start = strings.Index(code, "__PILLAR__")
	if i := strings.Index(code, placeholderPrometheus); i >= 0 && (start < 0 || i < start) {
		return i, placeholderPrometheus
	}
	if start < 0 {
		return -1, ""
	}
	for _, known := range placeholderNames {
		if strings.HasPrefix(code[start:], known) {
			return start, known
		}
	}
	rest := strings.TrimLeft(code[start:], "_ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	return start, strings.TrimSuffix(code[start:], rest)
}

// value returns the value of the placeholder name, or its problem. ported says whether a port
// follows it.
func (v Placeholders) value(name string, ported bool) (value, problem string) {
	switch name {
	case placeholderServer:
		return "", ""
	case placeholderPrometheus:
		return v.PrometheusEndpoint, ""
	case placeholderUpstream:
		return strings.Join(v.UpstreamServers, " "), ""
	case placeholderLocal:
		return v.local(ported)
	case placeholderCluster:
		return v.cluster()
	case placeholderDomain:
		return "", name + " must be replaced by the installer: write the cluster's domain, such as cluster.local"
	}
	return "", fmt.Sprintf("unknown placeholder %s: an installer replaces it before the Corefile is used; write its value", name)
}

func (v Placeholders) cluster() (value, problem string) {
	if v.ClusterDNS == "" {
		return "", fmt.Sprintf("%s is the value of the environment variable %s, which is not set: create the Service that --upstreamsvc names before this pod, or name another one with --upstreamsvc", placeholderCluster, v.ServiceEnv)
	}
	if _, err := netip.ParseAddr(v.ClusterDNS); err != nil {
		return "", fmt.Sprintf("%s is the value of the environment variable %s, and %q is not an IP address: the Service that --upstreamsvc names needs a ClusterIP", placeholderCluster, v.ServiceEnv, v.ClusterDNS)
	}
	return v.ClusterDNS, ""
}

func (v Placeholders) local(ported bool) (value, problem string) {
	if len(v.LocalDNS) == 0 {
		return "", fmt.Sprintf("%s is the addresses of --localip, which is not set; set it to 169.254.20.10, for example", placeholderLocal)
	}
	if ported {
		host := net.JoinHostPort(v.LocalDNS[0].String(), "")
		return strings.TrimSuffix(host, ":"), ""
	}
	return strings.Join(allTexts(v.LocalDNS), " "), ""
}

// scanner separates comments from code by the lexer's rules: a # outside of quotes begins a
// comment, and a quote begins only at the start of a word.
type scanner struct {
	quoted, escaped, word bool
}

// split splits line before its comment.
func (s *scanner) split(line string) (code, comment string) {
	for i, c := range line {
		switch {
		case s.quoted:
			s.inside(c)
		case c == '#':
			s.word = false
			return line[:i], line[i:]
		case c == '\r': // the lexer drops it
		case unicode.IsSpace(c):
			s.word = false
		case c == '"' && !s.word:
			s.quoted = true
		default:
			s.word = true
		}
	}
	return line, ""
}

// inside reads one character of a quoted word.
func (s *scanner) inside(c rune) {
	s.quoted = c != '"' || s.escaped
	s.escaped = c == '\\' && !s.escaped
}
