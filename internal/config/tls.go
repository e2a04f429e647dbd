package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
)

// TLSServer is `tls CERT KEY [CA] { client_auth KIND }`: the certificate for the block's tls://
// and https:// keys, and whether clients need one. It is comparable.
type TLSServer struct {
	// Cert, Key and CA are the paths of PEM files: the certificate with those between
	// it and a root, its key, and the roots for verifying clients'
	// certificates. An empty CA means the system's roots.
	Cert, Key, CA string
	ClientAuth    tls.ClientAuthType // none by default
}

// clientAuths are the values of `client_auth`.
var clientAuths = map[string]tls.ClientAuthType{
	"nocert": tls.NoClientCert, "request": tls.RequestClientCert, "require": tls.RequireAnyClientCert,
	"verify_if_given": tls.VerifyClientCertIfGiven, "require_and_verify": tls.RequireAndVerifyClientCert,
}

const certificateUsage = "tls CERT KEY [CA]"

func (x *TLSServer) parse(p *parser, s statement) {
	if len(s.args()) == 0 {
		p.errorf(s.name(), "this version of nodens does not request certificates; name files instead: %s", certificateUsage)
		return
	}
	if !p.count(s, certificateUsage) {
		return
	}
	p.body(s,
		opt("client_auth KIND", toChoice(p, &x.ClientAuth, "kind", clientAuths)),
		replacedBy("keylog", "it writes no keys to a file, with which all could be read; take the line out"),
	)
	x.read(p, p.paths(s.args()))
}

// read reads the paths CERT KEY [CA] and checks the files.
func (x *TLSServer) read(p *parser, args []token) {
	x.Cert, x.Key = args[0].text, args[1].text
	if len(args) == 3 {
		x.CA = args[2].text
	}
	if p.anyOffNode(args) {
		return
	}
	if _, _, err := x.Load(); err != nil {
		at := args[0]
		var f *fileError
		if errors.As(err, &f) {
			at = args[f.arg]
		}
		p.errorf(at, "%v", err)
	}
}

// fileError is an error in the file that argument arg of the directive names.
type fileError struct {
	arg  int
	text string
}

func (e *fileError) Error() string { return e.text }

// Load reads the certificate with its key and, if a CA is given, its roots. Its errors name the
// file and say what to do.
func (x *TLSServer) Load() (cert tls.Certificate, roots *x509.CertPool, err error) {
	var pem [3][]byte
	for i, path := range []string{x.Cert, x.Key, x.CA} {
		if path == "" {
			continue
		}
		if pem[i], err = ReadFile(path); err != nil {
			text := fmt.Sprintf("can't read %s: %v", path, err)
			if errors.Is(err, fs.ErrNotExist) {
				text = fmt.Sprintf("there is no file %s; mount the Secret that it is in, or name another one", path)
			}
			return cert, nil, &fileError{i, text}
		}
	}
	if cert, err = tls.X509KeyPair(pem[0], pem[1]); err != nil {
		return cert, nil, &fileError{0, fmt.Sprintf("the certificate %s and the key %s can't be used: %v; give the PEM files of one pair", x.Cert, x.Key, err)}
	}
	if x.CA != "" {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem[2]) {
			return cert, nil, &fileError{2, fmt.Sprintf("%s has no certificate; name a PEM file with the roots that verify clients' certificates", x.CA)}
		}
	}
	return cert, roots, nil
}
