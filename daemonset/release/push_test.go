package main

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// checkPush pushes a release to the registry at host, which then has the image under its tag and
// digest, a signature that refers to it and that the key verifies, and the chart as helm expects
// it.
func checkPush(t *testing.T, m *maker, host, dir, public string) {
	var out bytes.Buffer
	if err := runPush(t.Context(), []string{"-key", public, "-charts", "oci://" + host + "/charts", dir}, &out, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	tag, err := name.NewTag(m.image + ":0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Get(tag)
	if err != nil || image.Digest.String() != m.digest {
		t.Fatalf("the tag leads to %v, want %s (%v)", image, m.digest, err)
	}
	claim, err := imageStatement(m.image, m.digest)
	if err != nil {
		t.Fatal(err)
	}
	referrers, err := remote.Referrers(tag.Digest(m.digest))
	if err != nil {
		t.Fatal(err)
	}
	list, err := referrers.IndexManifest()
	if err != nil || len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != bundleType {
		t.Fatalf("%+v refers to the image, want one bundle (%v)", list, err)
	}
	if err := verifyBundle(&m.key.PublicKey, layerOf(t, tag.Digest(list.Manifests[0].Digest.String())), claim); err != nil {
		t.Error(err)
	}
	chart, err := name.NewTag(host + "/charts/nodens:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if got := layerOf(t, chart); !bytes.Equal(got, content(t, filepath.Join(dir, chartName("0.1.0")))) {
		t.Error("the chart in the registry is not that of the release")
	}
}

// layerOf returns the only layer of an artifact.
func layerOf(t *testing.T, ref name.Reference) []byte {
	t.Helper()
	got, err := remote.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(got.Manifest, &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("%s: %s (%v)", ref, got.Manifest, err)
	}
	layer, err := remote.Layer(ref.Context().Digest(manifest.Layers[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
