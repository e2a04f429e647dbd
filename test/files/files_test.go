package files

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// write writes the shape to a new directory.
func (s *shape) write(t *testing.T) (conf string, port uint16) {
	t.Helper()
	dir, p := t.TempDir(), peer.Ports(t, 4)
	fill := strings.NewReplacer("@DIR@", dir, "@PORT@", fmt.Sprint(p[0]), "@WEB@", fmt.Sprint(p[1]), "@WEB2@", fmt.Sprint(p[2]), "@WEB3@", fmt.Sprint(p[3]))
	conf = filepath.Join(dir, "Corefile")
	texts := map[string]string{"Corefile": s.corefile}
	for name, text := range s.files {
		texts[name] = text
	}
	for name, text := range texts {
		path := filepath.Join(dir, name)
		check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		check.NoError(t, os.WriteFile(path, []byte(fill.Replace(text)), 0o600))
	}
	return conf, p[0]
}

// TestShapes reads each shape, and starts the agent and CoreDNS with those that need no cluster.
func TestShapes(t *testing.T) {
	nodens, coredns := peer.Build(t, "nodens"), peer.Build(t, "coredns")
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			conf, port := s.write(t)
			if s.cluster {
				if _, err := config.Load(conf, config.Options{}); err != nil {
					t.Error(err)
				}
				return
			}
			served, text := starts(t, peer.Command{Name: "nodens", Path: nodens, Args: peer.ServerArgs("nodens", conf)}, port)
			if served != (s.refused == "") || !strings.Contains(text, s.refused) {
				t.Errorf("nodens serves: %t, want %t; its log should have %q:\n%s", served, s.refused == "", s.refused, text)
			}
			theirs, text := starts(t, peer.Command{Name: "coredns", Path: coredns, Args: peer.ServerArgs("coredns", conf)}, port)
			if theirs == s.corednsRefuses {
				t.Errorf("CoreDNS serves: %t, want %t:\n%s", theirs, !s.corednsRefuses, text)
			}
			if theirs && !served && !s.onlyCoreDNS {
				t.Errorf("CoreDNS starts and nodens does not, which is no listed refusal")
			}
		})
	}
}

// starts reports whether the program answers at the port, and returns its log.
func starts(t *testing.T, c peer.Command, port uint16) (serves bool, log string) {
	t.Helper()
	c.Dir = t.TempDir()
	p, err := peer.Spawn(c)
	check.NoError(t, err)
	defer p.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = p.Await(ctx, "an answer", peer.Answers(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)))
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s neither answers nor ends:\n%s", c.Name, p.Tail())
	}
	return err == nil, p.Tail()
}
