// Package fakekubectl takes the place of kubectl in tests: a shell script at the front of PATH that lists the pods, and
// runs the commands, that the test has written to a directory.
package fakekubectl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script appends its arguments to the file asked. For get it prints the file pods, the file object for KIND/NAME, or
// else node; for patch the file patched; for exec it runs the file of that pod.
const script = `#!/bin/sh
dir=%[1]s
echo "$*" >> $dir/asked
while [ $# -gt 0 ]; do
	case $1 in
	get) [ $2 = pods ] && exec cat $dir/pods; case $2 in */*) exec cat $dir/object ;; esac; exec cat $dir/node ;;
	patch) exec cat $dir/patched ;;
	exec) . $dir/pod-$2; exit ;;
	esac
	shift
done
`

// Kubectl is a fake kubectl without pods. It is created by [New].
type Kubectl struct {
	// Dir holds its files: pods, with a line "POD NODE PHASE" for each agent; pod-POD, the script that kubectl exec
	// runs for a pod; node, the node of any other pod; object, what kubectl get prints for KIND/NAME; and patched, what
	// kubectl patch prints, which fails without that file.
	Dir string

	t *testing.T
}

// New puts a fake kubectl at the front of PATH until the test ends.
func New(t *testing.T) *Kubectl {
	t.Helper()
	k := &Kubectl{Dir: t.TempDir(), t: t}
	k.Write("kubectl", fmt.Sprintf(script, k.Dir))
	k.Write("pods", "")
	t.Setenv("PATH", k.Dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return k
}

// Write replaces a file atomically, and makes it executable.
func (k *Kubectl) Write(name, text string) {
	k.t.Helper()
	temporary := filepath.Join(k.Dir, "new")
	if err := os.WriteFile(temporary, []byte(text), 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(k.Dir, name)); err != nil {
		k.t.Fatal(err)
	}
}

// Read returns the content of a file.
func (k *Kubectl) Read(name string) string {
	k.t.Helper()
	text, err := os.ReadFile(filepath.Join(k.Dir, name))
	if err != nil {
		k.t.Fatal(err)
	}
	return string(text)
}

// Pod adds a pod for which kubectl exec runs script. node and phase are as kubectl prints them.
func (k *Kubectl) Pod(pod, node, phase, script string) {
	k.t.Helper()
	k.Write("pod-"+pod, script)
	k.Write("pods", k.Read("pods")+fmt.Sprintf("%s   %s   %s\n", pod, node, phase))
}

// Asked returns the command lines that kubectl has got.
func (k *Kubectl) Asked() []string {
	k.t.Helper()
	return strings.Split(strings.TrimSpace(k.Read("asked")), "\n")
}
