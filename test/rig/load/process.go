package load

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Main serves one job on standard input and output if the program's first argument is load, and otherwise calls run. It returns the
// exit code.
func Main(run func() int) int {
	if len(os.Args) < 2 || os.Args[1] != "load" {
		return run()
	}
	if err := Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Run runs the job in this process until its Duration is over or ctx is done, and then waits for at
// most Timeout for answers.
func (j Job) Run(ctx context.Context) (*Report, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	j.Timeout = cmp.Or(j.Timeout, defaultTimeout)
	ctx, cancel := context.WithTimeout(ctx, j.Duration)
	defer cancel()
	r := &Report{}
	var wg sync.WaitGroup
	if j.Streams > 0 && j.StreamRate > 0 {
		wg.Go(func() { r.Stream = j.runStreams(ctx) })
	}
	if j.OneShots > 0 {
		wg.Go(func() { r.OneShot = j.runOneShots(ctx) })
	}
	var err error
	if j.Rate > 0 {
		err = j.runUDP(ctx, r)
	}
	if err != nil {
		cancel()
	}
	wg.Wait()
	return r, err
}

// clientResult is the output of a client process, as JSON.
type clientResult struct {
	Report *Report
	Error  string
}

// Serve is the main function of a client process: it reads a job from in, runs it until in ends, and
// writes the result to out.
func Serve(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("load: reading the job: %w", err)
	}
	var job Job
	if err := json.Unmarshal(line, &job); err != nil {
		return fmt.Errorf("load: reading the job: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, r) // wait for its end
		stop()
	}()
	var o clientResult
	if o.Report, err = job.Run(ctx); err != nil {
		o.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(o)
}

// Client is a client process.
type Client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser
}

// Start starts a process that calls [Serve] with its standard input and output, and sends it the job.
// The caller calls Stop or Wait, once.
func Start(j Job, path string, args ...string) (*Client, error) {
	return StartCommand(j, exec.Command(path, args...))
}

// StartCommand is Start with a command that is not started and has no standard input, output or
// error.
func StartCommand(j Job, cmd *exec.Cmd) (*Client, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	c := &Client{cmd: cmd}
	// If this process dies, the end of its standard input ends the client.
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.in = in
	if c.out, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a load client: %w", err)
	}
	if _, err := c.in.Write(append(text, '\n')); err != nil {
		_, waited := c.Stop()
		return nil, errors.Join(fmt.Errorf("starting a load client: %w", err), waited)
	}
	return c, nil
}

// Stop stops sending, waits for the last answers and returns the report.
func (c *Client) Stop() (*Report, error) {
	c.EndLoad()
	return c.Wait()
}

// EndLoad stops sending. The caller calls Wait.
func (c *Client) EndLoad() { c.in.Close() }

// Wait is Stop at the end of the job's Duration, or after EndLoad.
func (c *Client) Wait() (*Report, error) {
	var o clientResult
	err := json.NewDecoder(c.out).Decode(&o)
	c.in.Close()
	if err := errors.Join(err, c.cmd.Wait()); err != nil {
		return nil, fmt.Errorf("load client: %w", err)
	}
	if o.Error != "" {
		return nil, errors.New(o.Error)
	}
	return o.Report, nil
}
