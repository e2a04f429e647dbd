// The fuzzer uses cut, head and addServers, which are not exported.

package resolvconf

// Inside the package: the functions are pure, and a file for each input would be slow.

import (
	"bytes"
	"net/netip"
	"testing"
)

// FuzzFile holds for any bytes in a file: taking an agent's text out leaves none, and the text that Install puts before
// the rest is what Remove takes out, byte for byte.
func FuzzFile(f *testing.F) {
	f.Add([]byte("search lan\nnameserver 192.0.2.1\n"))
	f.Add([]byte(serverMarker + "\nnameserver 169.254.20.11\nnameserver 192.0.2.1"))
	f.Add([]byte(serverMarker + "\r\n" + serverMarker + "\nnameserver\t169.254.20.11\r\n\xff"))
	f.Add([]byte(linkMarker + networkManagerPath + "\n# " + networkManagerMark + "\n"))
	f.Add([]byte("[Resolve]\nDNS=192.0.2.1 192.0.2.2#a.test\nDNS=\n"))
	h := Host{Addrs: []netip.Addr{netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00::11")}}
	f.Fuzz(func(t *testing.T, text []byte) {
		rest, link := cut(text)
		if again, more := cut(rest); !bytes.Equal(again, rest) || more != "" {
			t.Fatalf("text of an agent is left:\n%q", rest)
		}
		installed := h.head(view{text: text}) + string(rest)
		back, linked := cut([]byte(installed))
		if !bytes.Equal(back, rest) || linked != link {
			t.Fatalf("the file was\n%q, link %q\nand is\n%q, link %q", rest, link, back, linked)
		}
		if first := nameservers([]byte(installed)); first[0] != h.Addrs[0] || first[1] != h.Addrs[1] {
			t.Fatalf("the servers are %v", first)
		}
		if n := len(h.Others(nameservers(rest))); n > maxServers {
			t.Fatalf("%d servers", n)
		}
		if n := len(addServers(nil, string(text))); n > maxServers {
			t.Fatalf("%d servers of systemd-resolved", n)
		}
	})
}
