package server

// Inside the package: it shares helpers with the tests of listeners.

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
)

// TestKdig checks that Knot's client gets answers over every encrypted transport that it has, which
// it implements with other libraries.
func TestKdig(t *testing.T) {
	if out, err := exec.Command("sh", "../test/install.sh", "kdig").CombinedOutput(); err != nil {
		t.Skipf("kdig can't be installed: %v: %s", err, out)
	}
	cert := mustCertificate(t, writeCertificate(t, ca.ForTest(t), t.TempDir(), "a server", time.Now().Add(time.Hour)))
	for option, via := range map[string]config.Transport{"+tls": config.DNSOverTLS, "+https": config.DNSOverHTTPS, "+quic": config.DNSOverQUIC} {
		t.Run(option, func(t *testing.T) {
			_, addr, _ := startListener(t, patientLimits(), ListenerConfig{Transport: via, Certificate: cert}, byHand(t))
			out, err := exec.Command("kdig", "@"+addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port())), option, "+short", "by.hand.", "A").CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != "192.0.2.9" {
				t.Errorf("kdig %s: %s, error %v", option, got, err)
			}
		})
	}
}
