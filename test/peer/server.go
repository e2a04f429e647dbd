package peer

import (
	"os"
	"path/filepath"
	"testing"
)

// ServerArgs returns the flags with which a program serves the Corefile conf: "nodens", which then leaves the machine's
// network as it is and opens no ports beside those of the Corefile, or another one, such as "coredns".
func ServerArgs(program, conf string) []string {
	args := []string{"-conf", conf}
	if program == "nodens" {
		args = append(args, "-setupinterface=false", "-setupiptables=false", "-health-port=0", "-metrics-listen-address=")
	}
	return args
}

// StartServer writes text to a Corefile and starts the program c.Name with it, until the test ends. Its flags are those of
// [ServerArgs], followed by c.Args. An empty c.Path stands for what [Build] builds, an empty c.Dir for a folder of its own.
// StartServer does not wait until the server answers.
func StartServer(tb testing.TB, text string, c Command) *Process {
	tb.Helper()
	if c.Dir == "" {
		c.Dir = tb.TempDir()
	}
	if c.Path == "" {
		c.Path = Build(tb, c.Name)
	}
	conf := filepath.Join(c.Dir, "Corefile")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	c.Args = append(ServerArgs(c.Name, conf), c.Args...)
	return Start(tb, c)
}
