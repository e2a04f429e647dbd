package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/migrate"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/config"
)

// checkInput is one Corefile with the agent's flags.
type checkInput struct {
	source string
	flags  *agentFlags
	cfg    *config.Config // nil if there are errors
	faults []*config.ParseError
	notes  []string
	texts  []migrate.MountedFile // the Corefile, and files of ConfigMaps that it imports
	probes []migrate.Probe
	// refused are warnings about the DaemonSet itself. assumed says that --localip is not known.
	refused []string
	assumed bool
	// show restores the names in texts, such as those of placeholders.
	show *strings.Replacer
	// objects says that the Corefile comes from a ConfigMap, daemonSet that the flags come from
	// a DaemonSet.
	objects, daemonSet bool
	// local says that the Corefile is this machine's, whose files are read.
	local bool
	// zoneWarnings are about zone files; skipped are those of another machine.
	zoneWarnings []*config.ParseError
	skipped      []string
}

// error returns what keeps the agent from starting, nil for nothing.
func (in *checkInput) error() error {
	list := make([]error, len(in.faults))
	for i, e := range in.faults {
		list[i] = e
	}
	return errors.Join(list...)
}

// hash records a file of objects.
func (f *checkFlags) hash(name string, text []byte) {
	f.read = append(f.read, newCheckedFile(name, sha256.Sum256(text)))
}

// allInputs reads all Corefiles. With --diff each file is read by itself, without the objects in the others.
func (f *checkFlags) allInputs(stdin io.Reader) (list []*checkInput, err error) {
	if !f.diff {
		return f.inputs(stdin)
	}
	for _, path := range f.files {
		one := *f
		one.files = []string{path}
		inputs, err := one.inputs(stdin)
		if err != nil {
			return nil, err
		}
		for _, in := range inputs {
			if in.objects {
				in.source = path + ": " + in.source
			}
		}
		f.read, list = one.read, append(list, inputs...)
	}
	return list, nil
}

// inputs reads all Corefiles.
func (f *checkFlags) inputs(stdin io.Reader) ([]*checkInput, error) {
	if len(f.files) == 0 {
		in, err := f.localInput()
		return []*checkInput{in}, err
	}
	var corefiles []*checkInput
	objects := &migrate.Objects{OnRead: f.hash}
	found := false
	for _, path := range f.files {
		in, err := f.readFile(path, stdin, objects)
		if err != nil {
			return nil, err
		}
		if in == nil {
			found = true
			continue
		}
		corefiles = append(corefiles, in)
	}
	if len(corefiles) > 0 && (f.given["conf"] || f.given["basecorefile"]) {
		return nil, cli.Usagef("--conf and %s are two Corefiles; give one", corefiles[0].source)
	}
	if !found {
		return corefiles, nil
	}
	list, err := f.objectInputs(objects, "", "")
	return append(corefiles, list...), err
}

// readFile reads a Corefile, or adds the objects of a file or a folder to objects and returns nil.
func (f *checkFlags) readFile(path string, stdin io.Reader, objects *migrate.Objects) (*checkInput, error) {
	name, text, err := readInput(path, stdin)
	switch {
	case err != nil:
		return nil, err
	case text == nil:
		return nil, objects.Files([]string{path}, nil)
	case mayHaveObjects(name) || migrate.IsObjects(text):
		return nil, objects.Read(name, bytes.NewReader(text))
	}
	return f.corefileInput(name, text), nil
}

// mayHaveObjects reports whether the file's name is that of a manifest.
func mayHaveObjects(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name)))
}

// maxInput bounds a file: the Objects have the same limit.
const maxInput = 32 << 20

// readInput reads a file, or standard input for "-". text is nil for a folder.
func readInput(path string, stdin io.Reader) (name string, text []byte, err error) {
	if name = "standard input"; path != "-" {
		name = path
		info, err := os.Stat(path)
		if err != nil {
			return name, nil, fmt.Errorf("%w; give a Corefile, a manifest, a folder of manifests, or - for standard input", err)
		}
		if info.IsDir() {
			return name, nil, nil
		}
	}
	from, err := openInput(path, stdin)
	if err != nil {
		return name, nil, err
	}
	defer from.Close()
	text, err = io.ReadAll(io.LimitReader(from, maxInput+1))
	switch {
	case err != nil:
		return name, nil, fmt.Errorf("%s: %w", name, err)
	case len(text) > maxInput:
		return name, nil, fmt.Errorf("%s: more than %d MiB; pass only the objects of the agent", name, maxInput>>20)
	case strings.TrimSpace(string(text)) == "":
		return name, nil, fmt.Errorf("%s is empty; give a Corefile, or objects as kubectl get -o yaml prints them", name)
	}
	return name, text, nil
}

// openInput opens a file, or returns standard input for "-".
func openInput(path string, stdin io.Reader) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(stdin), nil
	}
	return os.Open(path)
}

// localInput reads the Corefile of --conf or --basecorefile, as the agent on this machine would.
func (f *checkFlags) localInput() (*checkInput, error) {
	if f.given["conf"] && !f.given["basecorefile"] {
		f.BaseConf = "" // without a fallback: a missing --conf is an error
	}
	path, err := f.Corefile()
	if err != nil {
		return nil, err
	}
	opts := f.ConfigOptions(path)
	opts.Written = true
	unknown := f.lookupClusterDNS(&opts)
	text, err := config.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the Corefile: %w", err)
	}
	in := &checkInput{source: path, flags: f.agentFlags, local: true, texts: []migrate.MountedFile{{Name: path, Text: string(text)}}}
	in.finish(text, unknown, func(text []byte) (*config.Config, error) {
		return config.Parse(config.Source{Path: path, Text: text, Options: opts})
	})
	return in, nil
}

// corefileInput reads a Corefile of other machines.
func (f *checkFlags) corefileInput(name string, text []byte) *checkInput {
	in := &checkInput{source: name, flags: f.agentFlags, texts: []migrate.MountedFile{{Name: name, Text: string(text)}}}
	if strings.Contains(string(text), "__PILLAR__LOCAL__DNS__") && len(in.flags.LocalIPs) == 0 {
		with := *in.flags
		with.LocalIPs = assumedLocalIPs()
		in.flags, in.notes = &with, append(in.notes, assumedNote)
	}
	opts := in.flags.ConfigOptions("")
	opts.OffNode, opts.Interface, opts.Written = true, migrate.UnknownInterface, true
	if !f.given["kubednscm"] {
		opts.KubeDNS = ""
	}
	unknown := f.lookupClusterDNS(&opts)
	parse := func(text []byte) (*config.Config, error) {
		return config.Parse(config.Source{Path: name, Text: text, Options: opts})
	}
	in.finish(text, unknown, func(text []byte) (*config.Config, error) { return parse(in.guessVariables(text, parse)) })
	return in
}

// clusterDNSPlaceholder is replaced by the address of the cluster DNS.
const clusterDNSPlaceholder = "__PILLAR__CLUSTER__DNS__"

// assumedLocalIP is the address of NodeLocal DNSCache's manifest and of the agent's, for a Corefile without --localip.
const (
	assumedLocalIP = "169.254.20.10"
	assumedNote    = "--localip is not given: checked with " + assumedLocalIP
)

func assumedLocalIPs() []netip.Addr { return []netip.Addr{netip.MustParseAddr(assumedLocalIP)} }

// lookupClusterDNS makes opts take the cluster DNS's address from --cluster-dns or else from the
// environment. If it is in neither, a placeholder is used and unknown becomes true.
func (f *checkFlags) lookupClusterDNS(opts *config.Options) (unknown *bool) {
	unknown = new(bool)
	opts.LookupEnv = func(name string) (string, bool) {
		if f.clusterDNS.IsValid() {
			return f.clusterDNS.String(), true
		}
		if value, ok := os.LookupEnv(name); ok {
			return value, true
		}
		*unknown = true
		return migrate.ClusterDNSPlaceholder, true
	}
	return unknown
}

// finish parses text. unknownClusterDNS says afterwards that the cluster DNS's address was asked for.
func (in *checkInput) finish(text []byte, unknownClusterDNS *bool, parse func(text []byte) (*config.Config, error)) {
	cfg, err := parse(text)
	in.cfg, in.faults = cfg, config.ParseErrors(err)
	in.checkZoneFiles()
	if *unknownClusterDNS && strings.Contains(string(text), clusterDNSPlaceholder) {
		in.notes = append(in.notes, migrate.UnknownClusterDNS)
	}
	in.note(nil)
}

// note adds notes about what is not known, and makes show from pairs of names as they are read and as they are shown.
func (in *checkInput) note(pairs []string) {
	names := strings.NewReplacer(pairs...)
	if slices.Contains(in.notes, migrate.UnknownClusterDNS) {
		pairs = append([]string{migrate.ClusterDNSPlaceholder, "CLUSTER-DNS"}, pairs...)
	}
	if in.cfg != nil {
		if paths := slices.Concat(in.cfg.NotRead, in.skipped); len(paths) > 0 {
			in.notes = append(in.notes, names.Replace("files of the node, not read here: "+strings.Join(paths, ", ")))
		}
		if patterns := in.cfg.EmptyImports; len(patterns) > 0 {
			in.notes = append(in.notes, names.Replace("imports that no file matches: "+strings.Join(patterns, ", ")))
		}
		if pair := resolvNames(in.cfg); pair != nil {
			pairs = append([]string{pair[0], names.Replace(pair[1])}, pairs...)
		}
	}
	in.show = strings.NewReplacer(pairs...)
}

// resolvNames returns the pair that shows name servers of a resolv.conf that was not read.
func resolvNames(cfg *config.Config) []string {
	path := ""
	for _, b := range cfg.Blocks {
		for f := b.Forward; f != nil; f = f.Next {
			if len(f.Files) > 0 && slices.Contains(cfg.NotRead, f.Files[0]) {
				path = cmp.Or(path, f.Files[0])
			}
		}
	}
	if path == "" {
		return nil
	}
	return []string{config.UnknownNameserver.String(), "the name servers in " + path}
}

// objectInputs reads the Corefiles among objects. If namespace and name are not "", it reads only the DaemonSet that has them.
func (f *checkFlags) objectInputs(objects *migrate.Objects, namespace, name string) ([]*checkInput, error) {
	var flags []*agentFlags
	request := migrate.Request{
		Objects: objects, Namespace: namespace, Name: name, Known: lookupFlag,
		Flags: func(args []string) (*migrate.Flags, error) {
			with, err := f.withArgs(args)
			if err != nil {
				return nil, err
			}
			if len(with.LocalIPs) == 0 {
				with.LocalIPs = assumedLocalIPs()
			}
			flags = append(flags, with)
			return with.migrateFlags(), nil
		},
	}
	if f.clusterDNS.IsValid() {
		request.ClusterDNS = f.clusterDNS.String()
	}
	list, err := migrate.Check(request)
	if err != nil {
		return nil, err
	}
	var inputs []*checkInput
	for i, c := range list {
		inputs = append(inputs, f.objectInput(c, flags[i]))
	}
	return inputs, nil
}

// objectInput returns a Corefile among objects, with the flags that it was read with.
func (f *checkFlags) objectInput(c *migrate.Checked, flags *agentFlags) *checkInput {
	in := &checkInput{
		source: c.Source, flags: flags, cfg: c.Config, faults: c.Errors, notes: c.Notes, probes: c.Probes, texts: c.Files, refused: c.Warnings,
		objects: true, daemonSet: c.FromDaemonSet,
	}
	if in.assumed = !c.FromDaemonSet && !f.given["localip"]; in.assumed {
		in.notes = append(in.notes, assumedNote)
	}
	in.note(c.Names)
	return in
}

// withArgs returns the flags of a container with these arguments, replaced by those that are
// given on the command line.
func (f *checkFlags) withArgs(args []string) (*agentFlags, error) {
	with := newAgentFlags()
	flags, err := with.parse(args)
	if err != nil {
		return nil, err
	}
	f.set.Visit(func(given *pflag.Flag) {
		if flags.Lookup(given.Name) != nil && err == nil {
			err = flags.Set(given.Name, given.Value.String())
		}
	})
	with.complete(flags)
	return with, err
}

// filesRead returns the files that in is made from, in the order in which they are read.
func (in *checkInput) filesRead() (list []checkedFile) {
	for _, f := range in.texts {
		list = append(list, newCheckedFile(f.Name, sha256.Sum256([]byte(f.Text))))
	}
	if in.cfg == nil || in.objects {
		return list
	}
	for _, path := range in.cfg.Files {
		if sum, ok := in.cfg.Sums[path]; ok && path != in.source {
			list = append(list, newCheckedFile(path, sum))
		}
	}
	return list
}

// guessVariables finds values for the environment variables of a Corefile of other machines, and returns its text with
// them.
func (in *checkInput) guessVariables(text []byte, parse func(text []byte) (*config.Config, error)) []byte {
	values := make(migrate.Values)
	guessed := values.Guess(migrate.Variables(string(text)), func(v migrate.Values) (*config.Config, error) {
		return parse([]byte(v.Replace(string(text))))
	})
	if note := values.Note(guessed); note != "" {
		in.notes = append(in.notes, note)
	}
	return []byte(values.Replace(string(text)))
}

// checkZoneFiles reads the zone files that are on this machine.
func (in *checkInput) checkZoneFiles() {
	if in.cfg == nil || in.objects {
		return
	}
	files := config.FileCheck{Readable: in.readable}
	for _, b := range in.cfg.Blocks {
		checkFiles(b, &files)
	}
	in.faults, in.zoneWarnings, in.skipped = append(in.faults, files.Faults...), files.Warnings, files.Skipped
	if len(in.faults) > 0 {
		in.cfg = nil
	}
}

// readable reports whether the file or directory is one of this machine's.
func (in *checkInput) readable(name string) bool {
	return in.local || !path.IsAbs(name) && !filepath.IsAbs(name)
}
