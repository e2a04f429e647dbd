package netsetup

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/coreos/go-iptables/iptables"
)

// openIptables returns what lists chains by the program of that name. It runs the program to get its
// version. ErrNoTool if it is not installed.
func openIptables(f Family, name string) (chainLister, error) {
	family := iptables.IPFamily(iptables.Protocol(f)) // numbered alike
	tool, err := iptables.New(family, iptables.Path(name), iptables.Timeout(int(lockWait.Seconds())))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, programError(err))
	}
	return func(table, chain string) ([]string, error) {
		lines, err := tool.List(table, chain)
		return lines, programError(err)
	}, nil
}

// programError adds this package's sentinels to an error of go-iptables. Its message is on one line.
func programError(err error) error {
	if isAny(err, exec.ErrNotFound, fs.ErrNotExist) { // fs: the program was removed
		return fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	var failed *iptables.Error
	if !errors.As(err, &failed) {
		return err
	}
	text := oneLine(failed.Error())
	causes := append([]error{failed}, knownCauses(text)...)
	// A lock file that can't be opened is "No such file or directory", too, with status 4 (RESOURCE_PROBLEM).
	if failed.IsNotExist() && failed.ExitStatus() != 4 {
		causes = append(causes, errNoChain)
	}
	return &commandError{text: text, causes: causes}
}
