package app

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// collected is what a dnstap collector was sent.
type collected struct {
	mu    sync.Mutex
	bytes []byte
}

func (c *collected) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes = append(c.bytes, b...)
	return len(b), nil
}

func (c *collected) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Count(c.bytes, []byte(text))
}

// startCollector takes connections at path and what they bring.
func startCollector(t *testing.T, path string) *collected {
	t.Helper()
	ln, err := net.Listen("unix", path)
	check.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	c := new(collected)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			// An ACCEPT of anything: an escape, a length, a type.
			_, _ = conn.Write(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, 0, 4}, 1))
			go func() {
				defer conn.Close()
				buf := make([]byte, 4096)
				for {
					n, err := conn.Read(buf)
					_, _ = c.Write(buf[:n])
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	return c
}

// TestTaps: collectors are told of queries and replies, blocks that tell the same one
// the same share it, and a reload keeps it.
func TestTaps(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	full, bare := filepath.Join(dir, "full"), filepath.Join(dir, "bare")
	corefile := func(more string) string {
		text := ""
		for _, zone := range []string{"a.test", "b.test"} {
			text += fmt.Sprintf("%s:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n dnstap %s full {\n  identity me\n  extra \"<{name}>\"\n }\n dnstap %s\n hosts {\n  192.0.2.1 www.%s\n }\n %s\n}\n", zone, p[0], p[1], full, bare, zone, more)
		}
		return text
	}
	toFull, toBare := startCollector(t, full), startCollector(t, bare)
	r := startAgent(t, corefile(""))
	for _, name := range []string{"www.a.test.", "www.b.test."} {
		agenttest.Expect(t, p[0], name, "192.0.2.1")
		r.Await("both collectors to know", func() bool {
			return toFull.count("<"+name+">") == 2 && toFull.count("\x03www\x01"+name[4:5]+"\x04test") == 2
		})
	}
	r.Reload(corefile("loadbalance"), "the new configuration is in force")
	_ = agenttest.Ask(t, p[0], "www.a.test.")
	r.Await("the collector to know more", func() bool { return toFull.count("<www.a.test.>") == 4 })
	r.Await("the other to know as much", func() bool { return toBare.count("protobuf:dnstap.Dnstap") == 2 && toBare.count("nodens-dev") == 6 })
	// READY and START: one connection to each, before the reload and after.
	if n := toFull.count("protobuf:dnstap.Dnstap"); n != 2 {
		t.Errorf("%d control frames, want 2", n)
	}
	if n := toBare.count("\x03www\x01"); n != 0 {
		t.Errorf("%d packets where none were asked for", n)
	}
	agenttest.ExpectMetrics(t, p[1], fmt.Sprintf("nodens_dnstap_dropped_total{endpoint=\"unix://%s\"} 0\n", full))
}
