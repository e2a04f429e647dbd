// These tests use arg and fileError, which are not exported.

package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/ca"
)

// serverPair writes a certificate and its key, and gives their paths.
func serverPair(t testing.TB) (cert, key string) {
	t.Helper()
	return ca.ForTest(t).ServerFiles(t, t.TempDir(), "a server", time.Now().Add(time.Hour))
}

// TestTransports: what a key's scheme makes of its block.
func TestTransports(t *testing.T) {
	cert, key := serverPair(t)
	files := "tls " + cert + " " + key + "\n"
	for _, tt := range []struct{ name, text, want string }{
		{"plain", ". {\n}\n", "dns . 1053"},
		{"plain, said so", "dns://. {\n}\n", "dns . 1053"},
		{"TLS", "tls://. {\n" + files + "}\n", "tls . 853"},
		{"HTTPS", "https://a.test {\n" + files + "}\n", "https a.test. 443"},
		{"a port", "tls://.:5553 {\n" + files + "}\n", "tls . 5553"},
		{"a CIDR", "tls://10.0.0.0/8:5553 {\n" + files + "}\n", "tls 10.in-addr.arpa. 5553"},
		{"all of them", ". tls://. https://. tls://a.test {\n" + files + "}\n", "dns . 1053, tls . a.test. 853, https . 443"},
		{"one port on two addresses", ". {\nbind 192.0.2.1\n}\ntls://.:1053 {\nbind 192.0.2.2\n" + files + "}\n", "dns . 1053, tls . 1053"},
		{"one zone on one address", "tls://a.test {\n" + files + "}\ntls://b.test {\n" + files + "}\n", "tls a.test. 853, tls b.test. 853"},
		{"a certificate that nobody is shown", ". {\n" + files + "}\n", "dns . 1053"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := node(t)
			opts.Port = 1053
			c, err := Parse(Source{Path: "Corefile", Text: []byte(tt.text), Options: opts})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range c.Blocks {
				text := b.Transport.String()
				for _, z := range b.Zones {
					text += " " + z.String()
				}
				got = append(got, fmt.Sprintf("%s %d", text, b.Port))
				for _, a := range b.Listen {
					if a.Port() != b.Port {
						t.Errorf("listens on %s", a)
					}
				}
			}
			if s := strings.Join(got, ", "); s != tt.want {
				t.Errorf("blocks %s, want %s", s, tt.want)
			}
		})
	}
}

// TestTLSAndTimeouts: what tls and timeouts say.
func TestTLSAndTimeouts(t *testing.T) {
	a, folder := ca.ForTest(t), t.TempDir()
	cert, key := a.ServerFiles(t, folder, "a server", time.Now().Add(-time.Hour)) // expired: clients say so
	caFile := a.RootFile(t, folder)
	files := "tls " + cert + " " + key
	for _, tt := range []struct {
		name, directive, text string
		want                  any
	}{
		{"files", "tls", files, &TLSServer{Cert: cert, Key: key}},
		{"roots", "tls", files + " " + caFile, &TLSServer{Cert: cert, Key: key, CA: caFile}},
		{"nocert", "tls", files + " {\nclient_auth nocert\n}", &TLSServer{Cert: cert, Key: key}},
		{"request", "tls", files + " {\nclient_auth request\n}", &TLSServer{Cert: cert, Key: key, ClientAuth: tls.RequestClientCert}},
		{"require", "tls", files + " {\nclient_auth require\n}", &TLSServer{Cert: cert, Key: key, ClientAuth: tls.RequireAnyClientCert}},
		{"given", "tls", files + " {\nclient_auth verify_if_given\n}", &TLSServer{Cert: cert, Key: key, ClientAuth: tls.VerifyClientCertIfGiven}},
		{"verify", "tls", files + " " + caFile + " {\nclient_auth require_and_verify\n}", &TLSServer{Cert: cert, Key: key, CA: caFile, ClientAuth: tls.RequireAndVerifyClientCert}},

		{"all", "timeouts", "timeouts {\nread 1s\nwrite 1m30s\nidle 24h\nmaxtcpqueries 128\n}", &Timeouts{time.Second, 90 * time.Second, 24 * time.Hour, 128}},
		{"seconds", "timeouts", "timeouts {\nidle 20\n}", &Timeouts{Idle: 20 * time.Second}},
		{"any number", "timeouts", "timeouts {\nmaxtcpqueries -1\n}", &Timeouts{MaxTCPQueries: -1}},
	} {
		t.Run(tt.directive+" "+tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, one(t, tt.directive, tt.text)); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTLSErrors: each error names the place and says what to do.
func TestTLSErrors(t *testing.T) {
	cert, key := serverPair(t)
	_, other := serverPair(t)
	broken := write(t, t.TempDir(), "broken.pem", "no PEM")
	files := "tls " + cert + " " + key
	for _, tt := range []struct{ name, text, want string }{
		{"no certificate", "tls://. {\n}\n", `Corefile:1: tls:// needs a certificate; add ` + "`tls CERT KEY [CA]`" + ` to the block, or write its zones without tls://`},
		{"no certificate", "\nhttps://. {\n}\n", `Corefile:2: https:// needs a certificate; add ` + "`tls CERT KEY [CA]`" + ` to the block, or write its zones without https://`},
		{"ACME", "tls://. {\ntls {\nacme a.test\n}\n}\n", `Corefile:2: tls: this version of nodens does not request certificates; name files instead: tls CERT KEY [CA]`},
		{"no key", "tls://. {\ntls " + cert + "\n}\n", `Corefile:2: tls: an argument is missing after "tls"; write: tls CERT KEY [CA]`},
		{"too much", "tls://. {\n" + files + " a b\n}\n", `Corefile:2: tls: "b" is one argument too many after "tls"; write: tls CERT KEY [CA]`},
		{"no such file", "tls://. {\ntls " + cert + " /nosuch\n}\n", `Corefile:2: tls: there is no file /nosuch; mount the Secret that it is in, or name another one`},
		{"a folder", "tls://. {\ntls / " + key + "\n}\n", `Corefile:2: tls: can't read /: / is a folder`},
		{"not a pair", "tls://. {\ntls " + cert + " " + other + "\n}\n", `Corefile:2: tls: the certificate ` + cert + ` and the key ` + other + ` can't be used: tls: private key does not match public key; give the PEM files of one pair`},
		{"the wrong way round", "tls://. {\ntls " + key + " " + cert + "\n}\n", `Corefile:2: tls: the certificate ` + key + ` and the key ` + cert + ` can't be used: tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched; give the PEM files of one pair`},
		{"no roots", "tls://. {\n" + files + " " + broken + "\n}\n", `Corefile:2: tls: ` + broken + ` has no certificate; name a PEM file with the roots that verify clients' certificates`},
		{"kind", "tls://. {\n" + files + " {\nclient_auth verify\n}\n}\n", `Corefile:3: tls client_auth: unknown kind "verify"; allowed: nocert, request, require, require_and_verify, verify_if_given`},
		{"keylog", "tls://. {\n" + files + " {\nkeylog /tmp/x\n}\n}\n", `Corefile:3: tls: CoreDNS has the option "keylog", this version of nodens doesn't: it writes no keys to a file, with which all could be read; take the line out; allowed: client_auth`},
		{"twice", "tls://. {\n" + files + "\n" + files + " {\nclient_auth request\n}\n}\n", `Corefile:3: tls: "tls" is in the block twice, first at Corefile:2; keep one`},

		{"two transports", "a.test:853 {\n}\ntls://b.test {\n" + files + "\n}\n", `Corefile:3: the block at Corefile:1 already serves dns:// on 169.254.20.10:853, so this one can't serve tls:// there; give one of them another port`},
		{"two transports of one zone", "a.test:853 {\n}\ntls://a.test {\n" + files + "\n}\n", `Corefile:3: the block at Corefile:1 already serves dns:// on 169.254.20.10:853, so this one can't serve tls:// there; give one of them another port`},
		{"two transports in one block", "tls://a.test:443 https://a.test {\n" + files + "\n}\n", `Corefile:1: the block at Corefile:1 already serves tls:// on 169.254.20.10:443, so this one can't serve https:// there; give one of them another port`},
		{"two transports over UDP", "quic://a.test:443 https3://a.test {\n" + files + "\n}\n", `Corefile:1: the block at Corefile:1 already serves quic:// on 169.254.20.10:443, so this one can't serve https3:// there; give one of them another port`},
		{"QUIC on the port of DNS", "a.test quic://a.test:53 {\n" + files + "\n}\n", `Corefile:1: the block at Corefile:1 already serves dns:// on 169.254.20.10:53, so this one can't serve quic:// there; give one of them another port`},
		{"no certificate", "https3://. {\n}\n", `Corefile:1: https3:// needs a certificate; add ` + "`tls CERT KEY [CA]`" + ` to the block, or write its zones without https3://`},
		{"two certificates", "tls://a.test {\n" + files + "\n}\ntls://b.test {\n" + files + " {\nclient_auth request\n}\n}\n", `Corefile:4: the block at Corefile:1 listens on 169.254.20.10:853 with another certificate or client_auth; write the same ` + "`tls`" + ` in both, or bind them to different addresses`},
		{"a zone twice", "tls://a.test {\n" + files + "\n}\ntls://a.test {\n" + files + "\n}\n", `Corefile:4: the zone a.test. on port 853 is already served by the block at Corefile:1; merge the two blocks, or bind them to different addresses`},

		{"no timeout", ". {\ntimeouts\n}\n", "Corefile:2: timeouts: no timeout is set; add a line such as `read 5s`, or take the directive out"},
		{"argument", ". {\ntimeouts 5s\n}\n", `Corefile:2: timeouts: "5s" is one argument too many after "timeouts"; write: timeouts { read|write|idle DURATION }`},
		{"too short", ". {\ntimeouts {\nread 999ms\n}\n}\n", `Corefile:3: timeouts read: 999ms is out of range; allowed: 1s to 24h0m0s`},
		{"too long", ". {\ntimeouts {\nidle 86401\n}\n}\n", `Corefile:3: timeouts idle: 86401s is out of range; allowed: 1s to 24h0m0s`},
		{"no duration", ". {\ntimeouts {\nwrite soon\n}\n}\n", `Corefile:3: timeouts write: "soon" is not a duration such as 500ms, 30s or 1m30s`},
		{"unknown", ". {\ntimeouts {\nwrit 1s\n}\n}\n", `Corefile:3: timeouts: unknown option "writ" (did you mean "write"?); allowed: idle, maxtcpqueries, read, write`},
		{"no query", ". {\ntimeouts {\nmaxtcpqueries 0\n}\n}\n", `Corefile:3: timeouts maxtcpqueries: 0 queries make no connection; allowed: -1 for any number, or 1 and more`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parse(t, tt.text); err == nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
}

// TestLoadTLS: files that break later are named just as well.
func TestLoadTLS(t *testing.T) {
	cert, key := serverPair(t)
	x := TLSServer{Cert: cert, Key: key}
	if _, roots, err := x.Load(); err != nil || roots != nil {
		t.Fatalf("roots %v, error %v", roots, err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	var f *fileError
	if _, _, err := x.Load(); !errors.As(err, &f) || f.arg != 1 || !strings.Contains(err.Error(), filepath.Base(key)) {
		t.Errorf("error %v", err)
	}
}

// TestTimeoutsOfSharedAddress: blocks on one address have one set of time-outs, of which the last
// word counts.
func TestTimeoutsOfSharedAddress(t *testing.T) {
	one, two := &Timeouts{Read: 1, Write: 2, MaxTCPQueries: 3}, &Timeouts{Write: 4, Idle: 5}
	if got, want := one.WithDefaults(two), (Timeouts{1, 4, 5, 3}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := one.WithDefaults(nil); got != *one {
		t.Errorf("%v, want %v", got, *one)
	}
}
