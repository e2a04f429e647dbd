package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
)

// startLoad starts a process that occupies n CPUs until stop is called. The process ends
// with this one, too, because its standard input does.
func startLoad(n int) (stop func(), err error) {
	if n == 0 {
		return func() {}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-occupy", "-load", strconv.Itoa(n))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the load: %w", err)
	}
	return func() {
		in.Close()
		_ = cmd.Wait()
	}, nil
}

// occupy computes on n threads until in ends.
func occupy(in io.Reader, n int) {
	var done atomic.Bool
	runtime.GOMAXPROCS(n + 1) // one to read in
	for range n {
		go func() {
			for !done.Load() {
			}
		}()
	}
	_, _ = io.Copy(io.Discard, in)
	done.Store(true)
}
