package netsetup

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxCalls bounds the calls of go-iptables under way, abandoned ones included. [Setup]
	// makes one at a time.
	maxCalls = 4

	// outputCheckInterval is how often the output of a running program is measured. Most
	// programs end before the first measurement.
	outputCheckInterval = 20 * time.Millisecond

	// killGrace is how long a call may take to return after its program was killed.
	killGrace = 500 * time.Millisecond
)

// callRunner bounds calls of go-iptables, which starts programs without a context and buffers
// all they print. When the context of a call is done, after execTimeout, or after some
// maxOutput bytes of output, the runner kills the program. A call that does not return even
// then, because a child of the program (such as modprobe) holds the pipe open, is abandoned:
// its goroutine ends when the call returns, and counts against maxCalls until then.
//
// The runner finds the program as the child of the operating-system thread that the call is
// locked to, and measures its output by /proc/PID/io. On a kernel without these files
// (CONFIG_PROC_CHILDREN, CONFIG_TASK_IO_ACCOUNTING) it kills nothing and only abandons calls.
//
// All methods are safe for concurrent use.
type callRunner struct {
	// slots has an element for each call under way.
	slots chan struct{}
	// maxOutput is in bytes.
	maxOutput int64
}

func newCallRunner() *callRunner {
	return &callRunner{slots: make(chan struct{}, maxCalls), maxOutput: maxOutput}
}

// boundedCall calls f on a thread of its own and returns what f returns. f starts one program at a
// time. The error is f's, ctx's, or says which bound was exceeded; program names the program
// in it. f may outlive boundedCall, so it must not write to variables of the caller.
func boundedCall[T any](ctx context.Context, r *callRunner, program string, f func() (T, error)) (T, error) {
	var none T
	limited, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	select {
	case r.slots <- struct{}{}:
	case <-limited.Done():
		return none, fmt.Errorf("%s: %d earlier calls have not returned: %w", program, maxCalls, limited.Err())
	}
	t, done := startCall(r, f)
	tick := time.NewTicker(outputCheckInterval)
	defer tick.Stop()
	var exceeded error
	for exceeded == nil {
		select {
		case got := <-done:
			return got.value, got.err
		case <-tick.C:
			if t.bytesWritten() > r.maxOutput {
				exceeded = fmt.Errorf("%s: more than %d bytes of output", program, r.maxOutput)
			}
		case <-limited.Done():
			exceeded = timeoutError(ctx, program)
		}
	}
	t.killChildren()
	grace := time.NewTimer(killGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	return none, exceeded
}

// timeoutError returns the error of a program that was stopped: ctx's, or the one of execTimeout.
func timeoutError(ctx context.Context, program string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return fmt.Errorf("%s is not done after %v", program, execTimeout)
}

// callResult is what a call returned.
type callResult[T any] struct {
	value T
	err   error
}

// startCall calls f on a thread of its own, and frees a slot when f returns.
func startCall[T any](r *callRunner, f func() (T, error)) (*callThread, <-chan callResult[T]) {
	started := make(chan *callThread, 1)
	done := make(chan callResult[T], 1) // buffered: nobody reads an abandoned call's result
	go func() {
		defer func() { <-r.slots }()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		t := newCallThread()
		defer t.end()
		started <- t
		value, err := f()
		done <- callResult[T]{value, err}
	}()
	return <-started, done
}

// callThread is the operating-system thread that makes a call.
type callThread struct {
	id int
	// before are the children that the thread had started before the call.
	before []int

	mu    sync.Mutex
	ended bool // the thread may start children of others
}

// newCallThread returns the calling thread, to which the caller is locked.
func newCallThread() *callThread {
	t := &callThread{id: currentThread()}
	t.before = t.children()
	return t
}

// end marks the end of the call. The caller unlocks itself from the thread afterwards.
func (t *callThread) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

// children returns the process ids of the children that the call has started; nil if the kernel
// does not tell.
func (t *callThread) children() (pids []int) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", t.id))
	if err != nil {
		return nil
	}
	for word := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(word); err == nil && !slices.Contains(t.before, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// bytesWritten returns how many bytes the children have written; 0 if the kernel does not tell.
func (t *callThread) bytesWritten() (n int64) {
	for _, pid := range t.children() {
		counters, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(counters)) {
			if value, found := strings.CutPrefix(line, "wchar: "); found {
				written, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				n += written
			}
		}
	}
	return n
}

// killChildren kills the children, unless the call has ended.
func (t *callThread) killChildren() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	for _, pid := range t.children() {
		// Where the kernel has process file descriptors, the handle stays with the process
		// it was opened for. If that is still a child, its id was not reused in between.
		process, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if slices.Contains(t.children(), pid) {
			_ = process.Kill()
		}
		_ = process.Release()
	}
}
