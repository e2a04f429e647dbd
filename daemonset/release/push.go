package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// The media types of a Helm chart in a registry.
const (
	chartConfigType  = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartContentType = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
)

// runPush checks a release and copies it to registries: the image to the name that the release was
// made with, with its signature beside it, where cosign finds it; and the chart below -charts.
// Credentials are those of docker login.
func runPush(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fset := flag.NewFlagSet("push", flag.ContinueOnError)
	fset.SetOutput(stderr)
	charts := fset.String("charts", "", "`repository` above that of the chart, such as registry.example/charts")
	key := fset.String("key", "", "as for verify")
	if err := fset.Parse(args); err != nil {
		return err
	}
	if fset.NArg() != 1 || *charts == "" {
		return errors.New("give -charts REPOSITORY and the directory of a release")
	}
	v, err := verifyRelease(fset.Arg(0), *key, stdout)
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	digest, err := pushImage(v, options)
	if err != nil {
		return fmt.Errorf("the image: %w", err)
	}
	fmt.Fprintf(stdout, "image %s\n", digest)
	if digest, err = pushChart(v, *charts, options); err != nil {
		return fmt.Errorf("the chart: %w", err)
	}
	fmt.Fprintf(stdout, "chart %s\n", digest)
	return nil
}

// pushImage copies the image, with its version as tag, and the signature if the release has one.
func pushImage(v *verifier, options []remote.Option) (name.Digest, error) {
	tag, err := name.NewTag(v.image + ":" + v.version)
	if err != nil {
		return name.Digest{}, err
	}
	digest := tag.Digest(v.digest)
	index, done, err := v.openImage()
	if err != nil {
		return digest, err
	}
	defer done()
	if err := remote.WriteIndex(tag, index, options...); err != nil {
		return digest, err
	}
	bundle, err := v.read(imageName(v.version) + bundleSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return digest, nil
	}
	if err != nil {
		return digest, err
	}
	subject, err := remote.Head(digest, options...)
	if err != nil {
		return digest, err
	}
	_, err = pushArtifact(nil, tag.Repository, artifact{
		ArtifactType: bundleType,
		Manifest: v1.Manifest{Subject: subject, Annotations: map[string]string{
			"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": signType,
		}},
	}, static.NewLayer([]byte("{}"), emptyConfigType), static.NewLayer(bundle, bundleType), options)
	return digest, err
}

const emptyConfigType = types.MediaType("application/vnd.oci.empty.v1+json")

// artifact is the manifest of something in a registry that is no container image.
type artifact struct {
	v1.Manifest
	ArtifactType string `json:"artifactType,omitempty"`
}

func (a artifact) RawManifest() ([]byte, error)        { return json.Marshal(a) }
func (a artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// pushArtifact copies an artifact of a configuration and a layer, under its digest, or under
// the tag if that is not nil.
func pushArtifact(tag *name.Tag, to name.Repository, a artifact, config, body v1.Layer, options []remote.Option) (name.Digest, error) {
	described := make([]v1.Descriptor, 0, 2)
	for _, l := range []v1.Layer{config, body} {
		if err := remote.WriteLayer(to, l, options...); err != nil {
			return name.Digest{}, err
		}
		d, err := partial.Descriptor(l)
		if err != nil {
			return name.Digest{}, err
		}
		described = append(described, *d)
	}
	a.SchemaVersion, a.Manifest.MediaType, a.Config, a.Layers = 2, types.OCIManifestSchema1, described[0], described[1:]
	raw, err := a.RawManifest()
	if err != nil {
		return name.Digest{}, err
	}
	digest := to.Digest("sha256:" + sha256Hex(raw))
	if tag != nil {
		return digest, remote.Put(*tag, a, options...)
	}
	return digest, remote.Put(digest, a, options...)
}

// pushChart copies the chart to a repository below charts, as helm push does.
func pushChart(v *verifier, charts string, options []remote.Option) (name.Digest, error) {
	tag, err := name.NewTag(strings.TrimPrefix(charts, "oci://") + "/nodens:" + v.version)
	if err != nil {
		return name.Digest{}, err
	}
	body, err := v.read(chartName(v.version))
	if err != nil {
		return name.Digest{}, err
	}
	text, _, err := readAbout(chartName(v.version), body)
	if err != nil {
		return name.Digest{}, err
	}
	config, err := yaml.YAMLToJSON(text)
	if err != nil {
		return name.Digest{}, err
	}
	return pushArtifact(&tag, tag.Repository, artifact{},
		static.NewLayer(config, chartConfigType), static.NewLayer(body, chartContentType), options)
}

// runServe is a registry in memory, for tests, until it is interrupted.
func runServe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fset := flag.NewFlagSet("serve", flag.ContinueOnError)
	fset.SetOutput(stderr)
	listen := fset.String("listen", "127.0.0.1:5000", "`address` to listen at")
	if err := fset.Parse(args); err != nil {
		return err
	}
	server := &http.Server{Addr: *listen, Handler: registry.New(), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Fprintf(stdout, "a registry at %s\n", *listen)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
