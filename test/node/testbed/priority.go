package testbed

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is the nice value of tests with agents that have little time for some things: 1.8 seconds
// to remove their rules, two until the kernel no longer answers for them.
const priority = -15

// RaisePriority runs this process and those that it starts before others. Other tests that run at the
// same time keep a machine busier than a node is. Without the right to do so it has no effect.
func RaisePriority() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	// A thread inherits the value from the one that starts it, as a process does.
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, priority)
		}
	}
}
