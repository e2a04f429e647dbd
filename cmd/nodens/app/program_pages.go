package app

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgramPages removes the program's code and constants from the memory of this process. The start maps
// 25 MiB of them, the first lists 16 to 18, and serving a third of the start's. The pages stay in the page cache, where the kernel can
// reclaim them, and what is used again is mapped again, 64 KiB at a time. Pages that can be written are not
// touched. It may be called at any time.
func releaseProgramPages() error { return adviseProgramPages(unix.MADV_DONTNEED) }

// adviseProgramPages calls madvise(2) for the mappings of the program that cannot be written.
func adviseProgramPages(advice uintptr) error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	var errs []error
	for line := range bytes.Lines(maps) {
		if from, size, ok := readOnlyMapping(string(line), program); ok {
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, size, advice); errno != 0 {
				errs = append(errs, fmt.Errorf("madvise: %w", errno))
			}
		}
	}
	return errors.Join(errs...)
}

// readOnlyMapping returns the address and the size of the mapping in a line of /proc/self/maps, if it is of file and
// cannot be written.
func readOnlyMapping(line, file string) (from, size uintptr, ok bool) {
	const permissions, path = 1, 5 // fields; see proc(5)
	f := strings.Fields(line)
	if len(f) <= path || strings.Join(f[path:], " ") != file || strings.Contains(f[permissions], "w") {
		return 0, 0, false
	}
	var to uintptr
	if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil || to <= from {
		return 0, 0, false
	}
	return from, to - from, true
}
