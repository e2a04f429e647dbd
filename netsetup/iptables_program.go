package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
)

// ruleProgram is one family's pair of iptables programs in one mode: iptables, which lists and
// deletes, and iptables-restore, which writes. Every method blocks while the programs run,
// but not after ctx is done, and waits for the xtables lock (see [retryLocked]). Errors wrap
// ErrLocked, ErrNoTool, fs.ErrPermission, errNoChain or errNotXtables where that is the cause.
type ruleProgram interface {
	// list returns the chain as `iptables -S` prints it: a line with its name and policy,
	// then a line that begins with "-A " for each rule. errNoChain if there is no such chain or table; never nil without an error.
	list(ctx context.Context, table, chain string) (lines []string, err error)
	// deleteRule deletes one rule, given as the line that list returned. A rule that does
	// not exist is no error.
	deleteRule(ctx context.Context, table, line string) error
	// deleteChain empties and deletes a chain to which no rule jumps. A chain that does not
	// exist is no error.
	deleteChain(ctx context.Context, table, chain string) error
	// restore applies the input of iptables-restore --noflush, each table in one
	// transaction.
	restore(ctx context.Context, script string) error
}

// exitResource is the exit status of iptables for a lack of resources, which include the
// xtables lock (RESOURCE_PROBLEM).
const exitResource = 4

// ruleTool is what iptablesProgram uses of go-iptables. Errors of the programs are a
// ruleToolError.
type ruleTool interface {
	List(table, chain string) ([]string, error)
	Delete(table, chain string, rule ...string) error
	ClearAndDeleteChain(table, chain string) error
}

// ruleToolError is go-iptables' Error.
type ruleToolError interface {
	error
	ExitStatus() int
	IsNotExist() bool
}

// iptablesProgram implements ruleProgram by go-iptables, and by iptables-restore for what that
// library does not have. It is safe for concurrent use.
type iptablesProgram struct {
	name   string // such as ip6tables-nft
	family Family
	tool   ruleTool
	calls  *callRunner
}

// programSet opens programs and keeps them. It belongs to one goroutine at a time.
type programSet struct {
	calls  *callRunner
	opened map[string]*iptablesProgram // by name
}

func newProgramSet() *programSet {
	return &programSet{calls: newCallRunner(), opened: make(map[string]*iptablesProgram)}
}

// open returns the program of a family by its name; the first time it asks the program for its
// version. ErrNoTool if it is not installed together with its iptables-restore.
func (s *programSet) open(ctx context.Context, f Family, name string) (*iptablesProgram, error) {
	if p := s.opened[name]; p != nil {
		return p, nil
	}
	if _, err := exec.LookPath(name + "-restore"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	tool, err := boundedCall(ctx, s.calls, name, func() (ruleTool, error) { return openRuleTool(f, name) })
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.opened[name] = &iptablesProgram{name: name, family: f, tool: tool, calls: s.calls}
	return s.opened[name], nil
}

// callTool runs f, a call of go-iptables, as often as the xtables lock requires.
func callTool[T any](ctx context.Context, p *iptablesProgram, f func() (T, error)) (value T, err error) {
	err = retryLocked(ctx, func() error {
		value, err = boundedCall(ctx, p.calls, p.name, f)
		err = programError(err)
		return err
	})
	return value, err
}

// list implements ruleProgram.
func (p *iptablesProgram) list(ctx context.Context, table, chain string) ([]string, error) {
	return callTool(ctx, p, func() ([]string, error) { return p.tool.List(table, chain) })
}

// deleteRule implements ruleProgram.
func (p *iptablesProgram) deleteRule(ctx context.Context, table, line string) error {
	words := splitRule(line)
	if len(words) < 2 {
		return fmt.Errorf("%q is not a rule", line)
	}
	chain, rule := words[1], words[2:]
	_, err := callTool(ctx, p, func() (struct{}, error) { return struct{}{}, p.tool.Delete(table, chain, rule...) })
	if errors.Is(err, errNoChain) {
		return nil
	}
	return err
}

// deleteChain implements ruleProgram.
func (p *iptablesProgram) deleteChain(ctx context.Context, table, chain string) error {
	_, err := callTool(ctx, p, func() (struct{}, error) { return struct{}{}, p.tool.ClearAndDeleteChain(table, chain) })
	if errors.Is(err, errNoChain) {
		return nil
	}
	return err
}

// restore implements ruleProgram.
func (p *iptablesProgram) restore(ctx context.Context, script string) error {
	return retryLocked(ctx, func() error {
		_, err := execute(ctx, script, p.name+"-restore", "-w", strconv.Itoa(int(lockWait.Seconds())), "--noflush")
		return err
	})
}

// programError adds this package's sentinels to an error of go-iptables. Its message is on
// one line.
func programError(err error) error {
	var failed ruleToolError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist): // the program was removed
		return fmt.Errorf("%w: %w", ErrNoTool, err)
	case !errors.As(err, &failed):
		return err
	}
	text := oneLine(failed.Error())
	causes := []error{failed}
	// A lock file that can't be opened is "No such file or directory", too.
	if failed.IsNotExist() && failed.ExitStatus() != exitResource {
		causes = append(causes, errNoChain)
	}
	return &commandError{text: text, causes: append(causes, knownCauses(text)...)}
}

// ruleAddrs returns the single addresses that a line of `iptables -S` matches as source or
// destination.
func ruleAddrs(line string) (addrs []netip.Addr) {
	words := strings.Fields(line)
	for i, w := range words[:max(len(words)-1, 0)] {
		if w != "-s" && w != "-d" {
			continue
		}
		if p, err := netip.ParsePrefix(words[i+1]); err == nil && p.IsSingleIP() {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// splitRule splits a rule, as iptables prints it, into the arguments that it stands for.
// iptables puts double quotes around comments with spaces in them, and a backslash before
// quotes and backslashes.
func splitRule(line string) (words []string) {
	var word strings.Builder
	quoted, escaped, begun := false, false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\':
			escaped, begun = true, true
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}
