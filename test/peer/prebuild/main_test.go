package main

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestPrograms: sets become programs, and each program comes once, at its first place.
func TestPrograms(t *testing.T) {
	for _, tt := range []struct{ names, want []string }{
		{[]string{"helm"}, []string{"helm"}},
		{[]string{"test"}, sets["test"]},
		{[]string{"helm", "test", "kubelet"}, []string{"helm", "etcd", "kube-apiserver", "coredns", "kubectl", "kubelet"}},
		{nil, slices.Concat(sets["test"], []string{"kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"})},
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
