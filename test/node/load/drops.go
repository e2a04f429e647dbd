package load

import (
	"os"
	"strconv"
	"strings"
)

// dropped is how many UDP packets the kernel has dropped in this network namespace
// because a socket's buffer was full.
func dropped() (sum uint64) {
	for _, file := range []string{"/proc/self/net/snmp", "/proc/self/net/snmp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // no IPv6
		}
		sum += full(string(text))
	}
	return sum
}

// full adds up the counters of full buffers in the text of /proc/net/snmp, where a line
// of names precedes one of numbers, or of snmp6, with one of each a line.
func full(text string) (sum uint64) {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && strings.HasPrefix(f[0], "Udp6") && strings.HasSuffix(f[0], "bufErrors"):
			sum += number(f[1])
		case len(f) < 2 || f[0] != "Udp:":
		case names == nil:
			names = f
		default:
			for i, n := range f {
				if i < len(names) && strings.HasSuffix(names[i], "bufErrors") {
					sum += number(n)
				}
			}
			names = nil
		}
	}
	return sum
}

func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64) // the kernel wrote it
	return n
}
