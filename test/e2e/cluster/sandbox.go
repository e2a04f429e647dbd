package cluster

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// sandbox is a set of namespaces and the process that holds them open: this program once
// more, in Pause. They have no names and end with it, and it ends with this process,
// however that does.
type sandbox struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// openSandbox makes a sandbox of the namespaces in flags and returns when Pause has set it up.
func (c *Cluster) openSandbox(flags uintptr, h pauseConfig) (*sandbox, error) {
	log := c.path("logs/" + cmp.Or(h.name, "control") + ".log")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(self, append([]string{PauseArg}, h.args()...)...)
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: flags,
		Pdeathsig:  syscall.SIGKILL,
		// An interrupt from the terminal is for the program, which then takes down what
		// there is in order.
		Setpgid: true,
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("making namespaces, which takes root: %w", err)
	}
	r := &sandbox{cmd: cmd, stdin: stdin}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != readyLine {
		text, _ := os.ReadFile(log)
		return nil, errors.Join(fmt.Errorf("namespaces: %s", text), r.close())
	}
	own, err := r.namespaces()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespaces = append(c.namespaces, own...)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// close ends the sandbox with all processes in its process namespace, if it has one of its
// own, and returns when they are gone.
func (r *sandbox) close() error {
	r.stdin.Close()
	_ = r.cmd.Process.Kill() // it has ended then
	var exit *exec.ExitError
	if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// pid is the process that holds the sandbox.
func (r *sandbox) pid() int { return r.cmd.Process.Pid }

// nsenterArgs is the command line that runs a program in the sandbox. kinds are nsenter's names
// of the namespaces.
func (r *sandbox) nsenterArgs(kinds []string, path string, args ...string) []string {
	argv := []string{"nsenter", "--target=" + strconv.Itoa(r.pid())}
	for _, k := range kinds {
		argv = append(argv, "--"+k)
	}
	return append(append(argv, "--", path), args...)
}

// onlyChild is the only child of a process: nsenter stays outside of a process namespace
// when it starts a program inside, and passes on no signals.
func onlyChild(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
