package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestPrograms: sets become programs, and each program comes once, at its first place.
func TestPrograms(t *testing.T) {
	for _, tt := range []struct{ names, want []string }{
		{[]string{"helm"}, []string{"helm"}},
		{[]string{"test"}, sets["test"]},
		{[]string{"helm", "test", "kubelet"}, []string{"helm", "etcd", "kube-apiserver", "coredns", "kubectl", "kube-controller-manager", "kube-scheduler", "kubelet"}},
		{nil, slices.Concat(sets["test"], []string{"kubelet", "kube-proxy"})},
	} {
		if got := programs(tt.names); !slices.Equal(got, tt.want) {
			t.Errorf("programs(%q) = %q, want %q", tt.names, got, tt.want)
		}
	}
}

// TestUnknown: a program that can't be built is an error and a line.
func TestUnknown(t *testing.T) {
	t.Setenv("NODENS_CACHE", t.TempDir())
	var out bytes.Buffer
	err := prebuild(t.Context(), []string{"no-such-program"}, false, &out)
	if !errors.Is(err, peer.ErrUnknown) || !bytes.Contains(out.Bytes(), []byte("FAIL   no-such-program\n")) {
		t.Errorf("error %v, output %q", err, &out)
	}
}

// child is an environment variable. With it the test binary is the command prebuild.
const child = "NODENS_PREBUILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestStops: SIGTERM and SIGINT stop a build, also where the shell has made the command ignore
// SIGINT, as it does in the background. Nothing of the build is left, and no lock is held.
func TestStops(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, stop := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(stop.String(), func(t *testing.T) {
			cache := t.TempDir()
			p := peer.Start(t, peer.Command{
				Name: "prebuild", Path: "/bin/sh", Args: []string{"-c", `trap "" INT; exec "$0" etcd`, self},
				// Without a build cache the build can't be complete before the signal.
				Env: []string{child + "=1", "NODENS_CACHE=" + cache, "GOCACHE=" + t.TempDir()},
			})
			part := filepath.Join(cache, "v2", "etcd", "*.part")
			p.Must(t, "the build", func(context.Context) error {
				if tmp, _ := filepath.Glob(filepath.Join(part, "tmp")); len(tmp) == 0 {
					return errors.New("it has not begun")
				}
				return nil
			})
			if err := p.Signal(stop); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if !errors.As(p.Err(), &exit) || exit.ExitCode() != 1 || !strings.Contains(p.Tail(), "stopped at etcd") {
				t.Errorf("ended with %v and wrote %q", p.Err(), p.Tail())
			}
			if left, _ := filepath.Glob(part); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}
