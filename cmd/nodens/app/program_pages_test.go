// These tests use releaseProgramPages, adviseProgramPages and readOnlyMapping, which are not exported.

package app

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// programPages returns the resident memory of this process that is the content of files, in KiB.
func programPages(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	check.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest + " -")[0])
	check.NoError(t, err)
	return n
}

// TestReleaseProgramPages: most pages of the program are removed, and the program continues.
func TestReleaseProgramPages(t *testing.T) {
	check.NoError(t, adviseProgramPages(unix.MADV_POPULATE_READ))
	before := programPages(t)
	check.NoError(t, releaseProgramPages())
	if after := programPages(t); after > before/2 {
		t.Errorf("%d KiB before, %d KiB afterwards", before, after)
	}
}

// TestReadOnlyMapping: only the program's own mappings that cannot be written are released.
func TestReadOnlyMapping(t *testing.T) {
	const file = "/usr/bin/a b"
	for line, want := range map[string]uintptr{
		"00400000-012b6000 r-xp 00000000 fe:00 12 " + file + "\n":               0xeb6000,
		"012b6000-02250000 r--p 00eb6000 fe:00 12 " + file:                      0xf9a000,
		"02250000-022fe000 rw-p 01e50000 fe:00 12 " + file:                      0,
		"00400000-012b6000 r-xp 00000000 fe:00 12 " + file + " (deleted)":       0,
		"7f0000000000-7f0000001000 r--p 00000000 fe:00 13 /usr/lib/libc.so\n":   0,
		"c000000000-c000400000 rw-p 00000000 00:00 0":                           0,
		"7ffc8a9e0000-7ffc8a9e2000 r-xp 00000000 00:00 0                [vdso]": 0,
		"012b6000-012b6000 r--p 00000000 fe:00 12 " + file:                      0,
		"x-y r--p 00000000 fe:00 12 " + file:                                    0,
		"":                                                                      0,
	} {
		from, size, ok := readOnlyMapping(line, file)
		if size != want || ok != (want > 0) || ok && from == 0 {
			t.Errorf("%q: %#x bytes at %#x, %v, want %#x", line, size, from, ok, want)
		}
	}
}
