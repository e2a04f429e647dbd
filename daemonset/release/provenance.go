package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	provenancepb "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

const (
	provenanceType = "https://slsa.dev/provenance/v1"
	// signType is the predicate of cosign's signatures of images.
	signType = "https://sigstore.dev/cosign/sign/v1"
	// buildType is where the parameters are described.
	buildType = home + "/blob/main/docs/reference/release.md#provenance"
)

func provenanceName(version string) string { return "nodens-" + version + ".provenance.json" }

// provenance is a statement about all files so far and the image, in SLSA's form: what they were made
// from. It has no times, so that it is the same in each build.
func provenance(m *maker) ([]byte, error) {
	var subjects []*intoto.ResourceDescriptor
	for _, name := range slices.Sorted(maps.Keys(m.sums)) {
		subjects = append(subjects, &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"sha256": m.sums[name]}})
	}
	subjects = append(subjects, imageSubject(m.image, m.digest))
	var names []string
	for _, p := range m.platforms {
		names = append(names, p.String())
	}
	parameters, err := structpb.NewStruct(map[string]any{"version": m.version, "image": m.image, "platforms": strings.Join(names, ",")})
	if err != nil {
		return nil, err
	}
	made := []*intoto.ResourceDescriptor{
		{Uri: "git+" + home + "@refs/tags/v" + m.version, Digest: map[string]string{"gitCommit": m.revision}},
		{Uri: "pkg:golang/stdlib@" + strings.TrimPrefix(m.linux[0].info.GoVersion, "go"), Name: "go"},
	}
	slices.SortFunc(m.debs, func(a, b *debian.Package) int {
		return cmp.Or(cmp.Compare(a.Arch, b.Arch), cmp.Compare(a.Name, b.Name))
	})
	for _, d := range m.debs {
		made = append(made, &intoto.ResourceDescriptor{
			Uri: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", d.Name, d.Version, d.Arch), Digest: map[string]string{"sha256": d.Sum},
		})
	}
	predicate := &provenancepb.Provenance{
		BuildDefinition: &provenancepb.BuildDefinition{BuildType: buildType, ExternalParameters: parameters, ResolvedDependencies: made},
		RunDetails:      &provenancepb.RunDetails{Builder: &provenancepb.Builder{Id: m.builder}},
	}
	if err := predicate.Validate(); err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(predicate)
	if err != nil {
		return nil, err
	}
	content := &structpb.Struct{}
	if err := protojson.Unmarshal(text, content); err != nil {
		return nil, err
	}
	return marshalStatement(&intoto.Statement{Subject: subjects, PredicateType: provenanceType, Predicate: content})
}

func marshalStatement(s *intoto.Statement) ([]byte, error) {
	s.Type = intoto.StatementTypeUri
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return marshal(s)
}

// imageSubject is an image with a digest as sha256:HEX.
func imageSubject(repository, digest string) *intoto.ResourceDescriptor {
	algorithm, hex, _ := strings.Cut(digest, ":")
	return &intoto.ResourceDescriptor{Name: repository, Digest: map[string]string{algorithm: hex}}
}

// imageStatement is what cosign signs of an image.
func imageStatement(repository, digest string) ([]byte, error) {
	return marshalStatement(&intoto.Statement{
		Subject: []*intoto.ResourceDescriptor{imageSubject(repository, digest)}, PredicateType: signType, Predicate: &structpb.Struct{},
	})
}
