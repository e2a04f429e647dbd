package netsetup

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// lockWait is how long one call waits for the xtables lock (iptables -w). One
// second is the shortest that iptables takes besides not at all; more would let
// a call outlive Teardown. Setup calls again where more patience is due.
const lockWait = time.Second

// tables is the half of kernel that runs iptables and ip6tables. Each program is
// looked for when its family is first used, so a node with IPv4 addresses only
// never needs ip6tables.
type tables struct {
	tools [2]*iptables.IPTables // by Family; nil until found
}

// HasRule implements Node.
func (t *tables) HasRule(r Rule) (bool, error) {
	tool, err := t.tool(r.Family)
	if err != nil {
		return false, err
	}
	there, err := tool.Exists(r.Table, r.Chain, r.Spec...)
	return there, ruleError(err)
}

// InsertRule implements Node.
func (t *tables) InsertRule(r Rule) error {
	tool, err := t.tool(r.Family)
	if err != nil {
		return err
	}
	return ruleError(tool.Insert(r.Table, r.Chain, 1, r.Spec...))
}

// DeleteRule implements Node.
func (t *tables) DeleteRule(r Rule) (bool, error) {
	tool, err := t.tool(r.Family)
	if err != nil {
		return false, err
	}
	err = tool.Delete(r.Table, r.Chain, r.Spec...)
	if missing(err) {
		return false, nil
	}
	return err == nil, ruleError(err)
}

// ListRules implements Node.
func (t *tables) ListRules(f Family, table, chain string) ([]string, error) {
	tool, err := t.tool(f)
	if err != nil {
		return nil, err
	}
	lines, err := tool.List(table, chain)
	if missing(err) {
		return nil, nil
	}
	return lines, ruleError(err)
}

func (t *tables) tool(f Family) (*iptables.IPTables, error) {
	if t.tools[f] != nil {
		return t.tools[f], nil
	}
	proto := iptables.ProtocolIPv4
	if f == IPv6 {
		proto = iptables.ProtocolIPv6
	}
	tool, err := iptables.New(iptables.IPFamily(proto), iptables.Timeout(int(lockWait/time.Second)))
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%v: %w: %w", f, ErrNoTool, err)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %v for its version: %w", f, err)
	}
	t.tools[f] = tool
	return tool, nil
}

// missing reports whether iptables says that the rule or chain is not there.
func missing(err error) bool {
	var e *iptables.Error
	return errors.As(err, &e) && e.ExitStatus() == 1 && e.IsNotExist()
}

// ruleError adds this package's sentinel to what iptables prints: its exit
// statuses don't tell the causes apart (4 is the lock in one build and lack of
// permission in the other), but its texts, which it never translates, do.
func ruleError(err error) error {
	var e *iptables.Error
	if !errors.As(err, &e) {
		return err
	}
	for _, c := range causes() {
		if strings.Contains(e.Error(), c.text) {
			return fmt.Errorf("%w: %w", c.sentinel, err)
		}
	}
	return err
}

type cause struct {
	text     string
	sentinel error
}

// causes lists the texts in the order of looking for them: the message of a lock
// file that cannot be opened names the lock and the permission, and the
// permission is the cause.
func causes() []cause {
	return []cause{
		{"Permission denied", fs.ErrPermission},
		{"Operation not permitted", fs.ErrPermission},
		{"holding the xtables lock", ErrLocked},
		{"Can't lock", ErrLocked},
		// iptables-nft has no lock; the kernel refuses a change that crosses another.
		{"Resource temporarily unavailable", ErrLocked},
		{"Device or resource busy", ErrLocked},
	}
}
