package agenttest

import (
	"os"
	"strings"
	"syscall"
)

// Reload replaces the Corefile, sends SIGUSR1 to this process, which makes all of its agents
// reload, and waits until the log contains want once more.
func (a *Agent) Reload(corefile, want string) {
	a.T.Helper()
	WriteFile(a.T, a.Conf, corefile)
	before := strings.Count(a.Log.String(), want)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		a.T.Fatal(err)
	}
	a.Await("the log to say "+want, func() bool { return strings.Count(a.Log.String(), want) > before })
}
