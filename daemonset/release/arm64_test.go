package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
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
		out, _ := emulated(t, root, "usr/sbin/xtables-"+flavour+"-multi").CombinedOutput()
		if !strings.Contains(string(out), "iptables-restore") {
			t.Errorf("iptables-%s does not run: %q", flavour, out)
		}
	}
	if soak.Enabled() {
		checkAnswersEmulated(t, root)
	}
}

// emulated is a program of the image for arm64 whose files are in root.
func emulated(t *testing.T, root, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), emulator, append([]string{"-L", root, filepath.Join(root, program)}, args...)...)
}

// checkAnswersEmulated: the agent of the image for arm64 starts and answers.
func checkAnswersEmulated(t *testing.T, root string) {
	t.Helper()
	corefile, port := filepath.Join(root, "etc", "Corefile"), peer.Ports(t, 1)[0]
	text := fmt.Sprintf(".:%d {\n  bind 127.0.0.1\n  hosts {\n    192.0.2.7 arm64.test\n  }\n}\n", port)
	if err := os.WriteFile(corefile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := emulated(t, root, agentPath, "--conf", corefile, "--setupinterface=false", "--setupiptables=false", "--metrics-listen-address=")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var log strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "msg=serving") {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			checkAnswer(t, fmt.Sprintf("127.0.0.1:%d", port))
			return
		}
	}
	t.Errorf("the agent does not serve:\n%s", &log)
}

// checkAnswer: the agent at addr answers for the name in its Corefile.
func checkAnswer(t *testing.T, addr string) {
	t.Helper()
	c := dns.Client{Timeout: 10 * time.Second}
	m, _, err := c.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion("arm64.test.", dns.TypeA), addr)
	if err != nil || len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].String(), "192.0.2.7") {
		t.Errorf("%v: %v", err, m)
	}
}
