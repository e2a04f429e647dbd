package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

const checkLong = `Print what the agent would do with a Corefile, warn of probable mistakes, and change nothing.

A Corefile, a ConfigMap, a manifest with several objects, a folder of manifests, or - for standard
input is an argument or the value of -f. It is checked as the configuration of other machines:
files that it names by absolute paths are not read. If there is a DaemonSet among the objects, its
arguments are the flags, except for those that are given, and imports are read from the ConfigMaps
that it mounts. An environment variable whose value is not known is read as something that parses
in its place; a note names it. With --conf the Corefile is read as the agent on this machine
would, with all files that it names. At the end are the SHA-256 hashes of all files that were
read.

--diff says what changes for clients from one file to another. --ask shows what the agent would do
with a query, as nodens explain does, and --expect compares queries with what a file expects of
them. Services and pods come from the files; what upstreams answer is not known without a cluster.

Exit codes: 0 the agent would start; 1 it would not, an expectation is not met, or there are
warnings and --strict is set; 2 a flag or an argument is not valid. The agent's other flags are
accepted and ignored.`

const checkExample = `  nodens check Corefile
  nodens check --strict -f manifests/
  kubectl -n kube-system get cm node-local-dns -o yaml | nodens check --cluster-dns 10.96.0.11 -
  nodens check --conf /etc/coredns/Corefile.base --localip 169.254.20.10
  nodens check --diff old.yaml new.yaml
  nodens check -f manifests/ --ask web.shop --from shop/cart
  nodens check Corefile --expect names.txt`

// checkFlags are the flags of `nodens check`.
type checkFlags struct {
	*agentFlags
	set        *pflag.FlagSet // of the command line
	files      []string
	clusterDNS netip.Addr // not valid: not given
	strict     bool
	diff       bool
	asked      []string // NAME[/TYPE]
	from       string
	expect     string        // a file
	read       []checkedFile // files of objects
}

func newCheckCommand() *cobra.Command {
	f := &checkFlags{agentFlags: newAgentFlags()}
	cmd := &cobra.Command{
		Use:     "check [FILE|DIR|-]",
		Short:   "Print what the agent would do with a Corefile, and warn of mistakes",
		Long:    checkLong,
		Example: checkExample,
		Args:    cobra.ArbitraryArgs,
	}
	f.registerOnly(cmd.Flags(), "conf", "basecorefile", "kubednscm", "upstreamsvc", "localip", "setupinterface",
		"interfacename", "setupiptables", "netfilter", "external-interfaces", "health-port", "dns.port", "handover-dir",
		"kernel-path", "kernel-path-order", "prometheus-listen-address")
	cmd.Flags().StringArrayVarP(&f.files, "filename", "f", nil, "a `file`, a folder, or - for standard input; may be repeated")
	cli.Func(cmd.Flags(), "cluster-dns", "", "IP `address` that replaces __PILLAR__CLUSTER__DNS__; without it the environment's, as in a pod", func(text string) (err error) {
		if f.clusterDNS, err = netip.ParseAddr(text); err != nil {
			return fmt.Errorf("%q is no IP address; give one, such as 10.96.0.11", text)
		}
		return nil
	})
	cmd.Flags().BoolVar(&f.strict, "strict", false, "exit with 1 if there are warnings")
	cmd.Flags().BoolVar(&f.diff, "diff", false, "print what changes for clients from the first of two configurations to the second")
	cmd.Flags().StringArrayVar(&f.asked, "ask", nil, "show what the agent would do with a query for `NAME[/TYPE]`, as explain does; may be repeated")
	cmd.Flags().StringVar(&f.from, "from", "", "the `client` of --ask: NAMESPACE/NAME of a pod, or an address")
	cmd.Flags().StringVar(&f.expect, "expect", "", "`file` of queries with what is expected of each, a line each: NAME[/TYPE] [from=CLIENT] [zone=, line=, by=, upstream=, rcode=, answer=VALUE]…")
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = interruptible(func(cmd *cobra.Command, args []string) error {
		f.files, f.set = append(f.files, args...), cmd.Flags()
		f.complete(cmd.Flags())
		return runCheck(f, cmd.InOrStdin(), func(r *checkResult) error {
			if f.diff {
				return runDiff(r, cmd.OutOrStdout(), output)
			}
			return output.Print(cmd.OutOrStdout(), r, r.printText)
		})
	})
	return cmd
}

// runCheck passes what the agent would do to print. It changes nothing.
func runCheck(f *checkFlags, stdin io.Reader, print func(*checkResult) error) error {
	defer quiet()()
	inputs, err := f.allInputs(stdin)
	if err != nil {
		return err
	}
	questions, err := f.questions()
	if err != nil {
		return err
	}
	if len(questions) > 0 {
		return f.runAsk(inputs, questions, print)
	}
	result := &checkResult{Files: f.read}
	var problems []error
	warnings := 0
	for _, in := range inputs {
		c, err := in.check()
		if err != nil {
			return err
		}
		problems = append(problems, in.error())
		warnings += len(c.Warnings)
		result.Configurations = append(result.Configurations, c)
		result.addFiles(in.filesRead()...)
	}
	if err := print(result); err != nil {
		return err
	}
	if f.strict && warnings > 0 {
		problems = append(problems, errors.New("there are warnings, and --strict is set"))
	}
	return errors.Join(problems...)
}

// checkResult is the output of `nodens check -o json`.
type checkResult struct {
	// Configurations has one for each Corefile.
	Configurations []*checkedConfig `json:"configurations"`
	// Files are all files that were read, and the keys of ConfigMaps among them.
	Files []checkedFile `json:"files"`
	// Changes are those of --diff.
	Changes []checkedChange `json:"changes,omitempty"`
	// Questions are those of --ask and --expect.
	Questions []*checkedQuestion `json:"questions,omitempty"`

	show *strings.Replacer
}

// checkedConfig is one Corefile, as the agent would use it. Lists are never null.
type checkedConfig struct {
	// Source is the path of the Corefile, or the objects that it comes from.
	Source string `json:"source"`
	// Hash is the hash of the Corefile, as in coredns_reload_version_info; "" if it comes from
	// objects.
	Hash string `json:"hash,omitempty"`
	// Errors keep the agent from starting. Blocks and Network are empty then.
	Errors []finding `json:"errors"`
	// Warnings are about valid settings that are probably mistakes.
	Warnings []finding `json:"warnings"`
	// Notes say what is not known here.
	Notes  []string       `json:"notes"`
	Blocks []checkedBlock `json:"blocks"`
	// Differences say what the blocks do otherwise than in CoreDNS.
	Differences []string `json:"differences"`
	// Network is what the agent would set up on a node; null if nothing.
	Network *report.Network `json:"network"`

	network, kernelPath, handover string // as text
}

// finding is an error or a warning. Line is 0 if it is about the whole file.
type finding struct {
	File      string   `json:"file,omitempty"`
	Line      int      `json:"line,omitempty"`
	Directive string   `json:"directive,omitempty"`
	Option    string   `json:"option,omitempty"`
	Word      string   `json:"word,omitempty"`
	Message   string   `json:"message"`
	Nearest   string   `json:"nearest,omitempty"`
	Allowed   []string `json:"allowed,omitempty"`

	text string // in one line, with the place
}

// checkedBlock is a server block.
type checkedBlock struct {
	Zones     []string `json:"zones"`
	File      string   `json:"file"`
	Line      int      `json:"line"`
	Transport string   `json:"transport"`
	Listen    []string `json:"listen"`
	// Steps are what the block does, in the order in which a query passes it.
	Steps []checkedStep `json:"steps"`

	imported string // from this file, with a comma; "" if the Corefile itself has the block
}

// checkedStep is a directive, or a property of one. Zones are those that it applies to, if it has
// some.
type checkedStep struct {
	Name  string   `json:"name"`
	Zones []string `json:"zones,omitempty"`
	Text  string   `json:"text"`
}

// checkedFile is a file that was read, or a key of a ConfigMap.
type checkedFile struct {
	Name string `json:"name"`
	// SHA256 is the hash of its bytes, as sha256sum prints it.
	SHA256 string `json:"sha256"`
}

func newCheckedFile(name string, sum [sha256.Size]byte) checkedFile {
	return checkedFile{Name: name, SHA256: hex.EncodeToString(sum[:])}
}

// addFiles adds files that r does not have yet.
func (r *checkResult) addFiles(files ...checkedFile) {
	for _, f := range files {
		if !slices.Contains(r.Files, f) {
			r.Files = append(r.Files, f)
		}
	}
}

// printFiles writes the hashes as sha256sum does.
func (r *checkResult) printFiles(w io.Writer) {
	fmt.Fprintln(w, "\nfiles read, with their SHA-256:")
	for _, f := range r.Files {
		fmt.Fprintf(w, "  %s  %s\n", f.SHA256, f.Name)
	}
}

// printText writes r as text.
func (r *checkResult) printText(w io.Writer) error {
	if len(r.Questions) > 0 {
		return r.printQuestions(w)
	}
	for i, c := range r.Configurations {
		if i > 0 {
			fmt.Fprintln(w)
		}
		c.printText(w)
	}
	r.printFiles(w)
	return nil
}

func (c *checkedConfig) printText(w io.Writer) {
	if len(c.Errors) == 0 {
		fmt.Fprintf(w, "%s: %d server blocks", c.Source, len(c.Blocks))
		if c.Hash != "" {
			fmt.Fprintf(w, ", hash %.12s", c.Hash)
		}
		fmt.Fprintln(w)
	}
	for _, f := range c.Warnings {
		fmt.Fprintf(w, "warning: %s\n", f.text)
	}
	for _, text := range c.Notes {
		fmt.Fprintf(w, "note: %s\n", text)
	}
	if len(c.Errors) > 0 {
		return // standard error has them
	}
	for _, b := range c.Blocks {
		b.printText(w)
	}
	for _, section := range []struct{ title, text string }{{"differences from CoreDNS", strings.Join(c.Differences, "\n")}, {"network", c.network}, {"kernel path", c.kernelPath}, {"handover", c.handover}} {
		if section.text != "" {
			fmt.Fprintf(w, "\n%s:\n%s", section.title, indent(section.text))
		}
	}
}

func (b *checkedBlock) printText(w io.Writer) {
	fmt.Fprintln(w)
	for _, z := range b.Zones {
		fmt.Fprintf(w, "zone %s (%sline %d)\n", z, b.imported, b.Line)
	}
	for _, s := range b.Steps {
		fmt.Fprintf(w, "  %-14s %s\n", s.Name, s.Text)
	}
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ") + "\n"
}

// quiet discards what libraries log until the function that it returns is called: the parser logs each import that no file
// matches, each time that it runs, and a note has them.
func quiet() (restore func()) {
	was := log.Writer()
	log.SetOutput(io.Discard)
	return func() { log.SetOutput(was) }
}
