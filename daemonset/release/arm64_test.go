package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/daemonset/release/oci"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// emulator is qemu's user-mode emulation of arm64.
const emulator = "qemu-aarch64"

// TestArm64: what the agent stands on is whole on arm64 too, and runs in emulation. The long form compiles the agent, too, and
// asks it.
func TestArm64(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes Debian's packages: skipped under -short")
	}
	if _, err := debian.Sources(); err != nil {
		t.Skip(err)
	}
	a := architectures["arm64"]
	debs, err := a.packages(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	b, err := a.base(debs)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := oci.WriteTar(&text, b.layer, time.Time{}); err != nil {
		t.Fatal(err)
	}
	checkPrograms(t, entries(t, text.Bytes()), elf.EM_AARCH64)

	if _, err := exec.LookPath(emulator); err != nil {
		t.Skip(err)
	}
	root := filepath.Join(t.TempDir(), "root")
	if soak.Enabled() {
		var said bytes.Buffer
		err = runImage(t.Context(), []string{"-root", root, "-arch", "arm64", "-revision", "abc123"}, &said, &said)
	} else {
		err = writeRoot(root, []fs.FS{b.layer})
	}
	if err != nil {
		t.Fatal(err)
	}
	// Without a command they list those that they have. With one, they take a netfilter, which is not emulated.
	for _, flavour := range []string{"nft", "legacy"} {
		out, _ := exec.CommandContext(t.Context(), emulator, emulated(root, "usr/sbin/xtables-"+flavour+"-multi")...).CombinedOutput()
		if !strings.Contains(string(out), "iptables-restore") {
			t.Errorf("iptables-%s does not run: %q", flavour, out)
		}
	}
	if soak.Enabled() {
		checkAnswersEmulated(t, root)
	}
}

// emulated returns the arguments of the emulator for a program of the image for arm64 whose files are in root.
func emulated(root, program string, args ...string) []string {
	return append([]string{"-L", root, filepath.Join(root, program)}, args...)
}

// checkAnswersEmulated: the agent of the image for arm64 starts and answers.
func checkAnswersEmulated(t *testing.T, root string) {
	t.Helper()
	corefile, port := filepath.Join(root, "etc", "Corefile"), peer.Ports(t, 1)[0]
	text := fmt.Sprintf(".:%d {\n  bind 127.0.0.1\n  hosts {\n    192.0.2.7 arm64.test\n  }\n}\n", port)
	if err := os.WriteFile(corefile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	agent := peer.Start(t, peer.Command{
		Name: "agent", Path: emulator,
		Args: emulated(root, agentPath, "--conf", corefile, "--setupinterface=false", "--setupiptables=false", "--metrics-listen-address="),
	})
	var m *dns.Msg
	err := agent.Await(t.Context(), "an answer", func(ctx context.Context) (err error) {
		m, err = dns.ExchangeContext(ctx, new(dns.Msg).SetQuestion("arm64.test.", dns.TypeA), fmt.Sprintf("127.0.0.1:%d", port))
		return err
	})
	if err != nil || len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].String(), "192.0.2.7") {
		t.Errorf("%v: %v", err, m)
	}
}
