package load

import (
	"os"
	"strconv"
	"strings"
)

// udpBufferDrops returns the number of UDP packets that the kernel has dropped in this network
// namespace because a receive buffer was full.
func udpBufferDrops() (sum uint64) {
	for _, file := range []string{"/proc/self/net/snmp", "/proc/self/net/snmp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // no IPv6
		}
		sum += sumBufferErrors(string(text))
	}
	return sum
}

// backlogDrops returns the number of packets of all namespaces that the kernel has dropped because a
// CPU's backlog was full.
func backlogDrops() uint64 {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	return sumDrops(string(text))
}

// sumDrops adds up the second column, hexadecimal, of /proc/net/softnet_stat.
func sumDrops(text string) (sum uint64) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 {
			n, _ := strconv.ParseUint(f[1], 16, 64) // the kernel wrote it
			sum += n
		}
	}
	return sum
}

// sumBufferErrors adds up the UDP errors of receive buffers in the text of /proc/net/snmp, where a line of names
// precedes one of numbers, or of snmp6, with a name and a number a line.
func sumBufferErrors(text string) (sum uint64) {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 2 && strings.HasPrefix(f[0], "Udp6") {
			sum += bufferErrors(f[0], f[1])
		}
		if len(f) < 2 || f[0] != "Udp:" {
			continue
		}
		for i := range min(len(f), len(names)) {
			sum += bufferErrors(names[i], f[i])
		}
		names = f
	}
	return sum
}

// bufferErrors returns the value of a counter of errors of receive buffers; 0 for other counters.
func bufferErrors(name, value string) uint64 {
	if !strings.HasSuffix(name, "RcvbufErrors") {
		return 0
	}
	n, _ := strconv.ParseUint(value, 10, 64) // the kernel wrote it
	return n
}
