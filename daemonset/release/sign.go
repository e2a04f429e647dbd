package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonpb "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	dssepb "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	// bundleSuffix follows the name of a file whose signature a file has.
	bundleSuffix = ".sigstore.json"
	bundleType   = "application/vnd.dev.sigstore.bundle.v0.3+json"
	payloadType  = "application/vnd.in-toto+json"
)

// readKey reads an unencrypted private key from a PEM file.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not a PEM file", file)
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s has a key of type %T; make one with openssl ecparam -name prime256v1 -genkey", file, any)
	}
	return key, nil
}

// readPublicKey reads a public key from a PEM file.
func readPublicKey(file string) (*ecdsa.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not a PEM file", file)
	}
	any, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := any.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%s has a key of type %T, not an ECDSA key", file, any)
	}
	return key, nil
}

// sign returns the signature of a message, always the same for the same message (RFC 6979).
func sign(key *ecdsa.PrivateKey, message []byte) ([]byte, error) {
	sum := sha256.Sum256(message)
	return key.Sign(nil, sum[:], crypto.SHA256)
}

// newBundle returns a bundle whose signature is verified with the key that the reader has.
func newBundle(key *ecdsa.PrivateKey) (*bundlepb.Bundle, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	hint := &commonpb.PublicKeyIdentifier{Hint: base64.StdEncoding.EncodeToString(sum[:])}
	return &bundlepb.Bundle{MediaType: bundleType, VerificationMaterial: &bundlepb.VerificationMaterial{
		Content: &bundlepb.VerificationMaterial_PublicKey{PublicKey: hint},
	}}, nil
}

// signBlob returns a bundle, in Sigstore's format, with the signature of a file.
func signBlob(key *ecdsa.PrivateKey, body []byte) ([]byte, error) {
	b, err := newBundle(key)
	if err != nil {
		return nil, err
	}
	signature, err := sign(key, body)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	b.Content = &bundlepb.Bundle_MessageSignature{MessageSignature: &commonpb.MessageSignature{
		MessageDigest: &commonpb.HashOutput{Algorithm: commonpb.HashAlgorithm_SHA2_256, Digest: sum[:]}, Signature: signature,
	}}
	return marshal(b)
}

// signStatement returns a bundle with a signed in-toto statement in a DSSE envelope.
func signStatement(key *ecdsa.PrivateKey, statement []byte) ([]byte, error) {
	b, err := newBundle(key)
	if err != nil {
		return nil, err
	}
	signature, err := sign(key, preAuthentication(statement))
	if err != nil {
		return nil, err
	}
	b.Content = &bundlepb.Bundle_DsseEnvelope{DsseEnvelope: &dssepb.Envelope{
		Payload: statement, PayloadType: payloadType, Signatures: []*dssepb.Signature{{Sig: signature}},
	}}
	return marshal(b)
}

// preAuthentication is what is signed of a DSSE envelope.
func preAuthentication(payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}

// marshal returns a message as JSON, without the random spaces of protojson.
func marshal(m proto.Message) ([]byte, error) {
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", " "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// verifyBundle returns nil if the bundle has a signature of the file with this key. For a
// statement the bundle must hold the same statement.
func verifyBundle(key *ecdsa.PublicKey, bundle, body []byte) error {
	var b bundlepb.Bundle
	if err := protojson.Unmarshal(bundle, &b); err != nil {
		return fmt.Errorf("not a Sigstore bundle: %w", err)
	}
	message, signature := body, b.GetMessageSignature().GetSignature()
	if e := b.GetDsseEnvelope(); e != nil {
		if !bytes.Equal(e.GetPayload(), body) || e.GetPayloadType() != payloadType || len(e.GetSignatures()) != 1 {
			return errors.New("the bundle is about another statement")
		}
		message, signature = preAuthentication(body), e.GetSignatures()[0].GetSig()
	}
	sum := sha256.Sum256(message)
	if !ecdsa.VerifyASN1(key, sum[:], signature) {
		return errors.New("the signature is not by this key, or not of this file")
	}
	return nil
}
