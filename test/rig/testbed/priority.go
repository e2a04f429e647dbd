package testbed

import (
	"flag"
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

// parallelTests is how many tests run at a time. They wait for processes and time-outs more than they
// compute, so there may be more than cores.
const parallelTests = "6"

// AllowParallel lets more tests run at a time than there are processors, unless -parallel says otherwise. Call
// it before the tests.
func AllowParallel() {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if isSet {
		return
	}
	if err := flag.Set("test.parallel", parallelTests); err != nil {
		panic(err) // only tests call it, which have this flag
	}
}
