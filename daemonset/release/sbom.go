package main

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // SPDX requires a SHA-1 of every file beside the better one
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/utils"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

const (
	home     = "https://github.com/nodens-dns/nodens"
	sbomPath = "usr/share/doc/nodens/sbom.spdx.json"
	// noAssertion is SPDX's word for a field that was not determined.
	noAssertion = "NOASSERTION"
	// Element IDs within the document.
	documentID, imageID, agentID = spdx.ElementID("DOCUMENT"), spdx.ElementID("image"), spdx.ElementID("nodens")
)

// sbom is a bill of materials in SPDX 2.3.
type sbom struct{ spdx.Document }

// newSBOM returns a document about the agent, which depends on its Go modules. The element
// described is what the document is about; name is the document's name.
func (s source) newSBOM(name string, described spdx.ElementID, p *program) *sbom {
	b := &sbom{spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: documentID,
		DocumentName: name,
		CreationInfo: &spdx.CreationInfo{
			Created:  s.now.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "nodens-release-" + s.version}},
		},
	}}
	b.relate(documentID, common.TypeRelationshipDescribe, described)
	b.addPackage(spdx.Package{PackageSPDXIdentifier: agentID, PackageName: "nodens", PackageVersion: s.version,
		PackageDownloadLocation: "git+" + home + "@" + s.revision,
		PackageLicenseDeclared:  "Apache-2.0", PrimaryPackagePurpose: "APPLICATION",
		PackageChecksums:          checksums(p.binary)[1:],
		PackageExternalReferences: purl("pkg:golang/github.com/nodens-dns/nodens@v" + url.PathEscape(strings.TrimPrefix(s.version, "v")))})
	for _, m := range p.modules {
		b.addModule(m)
	}
	return b
}

// programSBOM describes a program. The checksum of the package nodens is the program's.
func (s source) programSBOM(p *program) *sbom {
	name := "nodens-" + s.version + "-" + p.os + "-" + p.arch
	b := s.newSBOM(name, agentID, p)
	b.DocumentNamespace = home + "/sbom/" + name + "-" + b.Packages[0].PackageChecksums[0].Value
	return b
}

// imageSBOM describes an image, which contains packages (the agent, Debian packages) and files,
// except for the file with the SBOM itself. Each file is generated from a package. agent is the
// layer of the program.
func (s source) imageSBOM(base *base, p *program, agent fstest.MapFS) (*sbom, error) {
	b := s.newSBOM("nodens-"+s.version+"-"+p.arch, imageID, p)
	image := b.addPackage(spdx.Package{PackageSPDXIdentifier: imageID, PackageName: "nodens-image", PackageVersion: s.version,
		PrimaryPackagePurpose: "CONTAINER", FilesAnalyzed: true})
	b.relate(imageID, common.TypeRelationshipContains, agentID)
	origins := make(map[string]spdx.ElementID) // by path, of files whose package is not the agent
	for _, m := range p.modules {
		for name := range m.files {
			origins[m.imagePath(name)] = m.id()
		}
	}
	for _, d := range base.usedPackages() {
		b.addPackage(spdx.Package{PackageSPDXIdentifier: debianID(d), PackageName: d.Name, PackageVersion: d.Version,
			PrimaryPackagePurpose: "LIBRARY",
			PackageChecksums:      []spdx.Checksum{{Algorithm: spdx.SHA256, Value: d.Sum}},
			PackageExternalReferences: purl(fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s&upstream=%s",
				url.QueryEscape(d.Name), url.QueryEscape(d.Version), d.Arch, base.distribution(), url.QueryEscape(d.Source)))})
		b.relate(imageID, common.TypeRelationshipContains, debianID(d))
		if d.Name == certificatesPackage {
			origins[certificatesPath] = debianID(d)
		}
	}
	for name, d := range base.chosen {
		origins[name] = debianID(d)
	}
	b.addFiles(base.layer, origins, "")
	b.addFiles(agent, origins, agentID)
	code, err := utils.GetVerificationCode(b.Files, "./"+sbomPath)
	if err != nil {
		return nil, err
	}
	image.PackageVerificationCode = &code
	b.DocumentNamespace = fmt.Sprintf("%s/sbom/%s-%s", home, p.arch, code.Value)
	return b, nil
}

func debianID(d *debian.Package) spdx.ElementID {
	return spdx.ElementID("deb-" + strings.ReplaceAll(d.Name, "+", "-"))
}

// purl is a reference by package URL, which names a package in any package system.
func purl(locator string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator}}
}

// addPackage adds p with NOASSERTION for required fields that are empty.
func (b *sbom) addPackage(p spdx.Package) *spdx.Package {
	for _, field := range []*string{&p.PackageDownloadLocation, &p.PackageLicenseConcluded, &p.PackageLicenseDeclared, &p.PackageCopyrightText} {
		*field = cmp.Or(*field, noAssertion)
	}
	b.Packages = append(b.Packages, &p)
	return &p
}

func (b *sbom) relate(from spdx.ElementID, kind string, to spdx.ElementID) {
	b.Relationships = append(b.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(from)), Relationship: kind, RefB: common.MakeDocElementID("", string(to)),
	})
}

// moduleIDs are the characters that an SPDX element ID may not have.
var moduleIDs = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func (m module) id() spdx.ElementID {
	return spdx.ElementID("go-" + moduleIDs.ReplaceAllString(m.path, "-"))
}

// name is the module's name in vulnerability databases.
func (m module) name() string {
	if m.path == std {
		return "stdlib"
	}
	return m.path
}

func (b *sbom) addModule(m module) {
	b.addPackage(spdx.Package{PackageSPDXIdentifier: m.id(), PackageName: m.name(), PackageVersion: m.version,
		PackageLicenseDeclared: m.license, PrimaryPackagePurpose: "LIBRARY",
		PackageExternalReferences: purl("pkg:golang/" + m.name() + "@" + strings.ReplaceAll(strings.TrimPrefix(m.version, "go"), "+", "%2B"))})
	b.relate(agentID, common.TypeRelationshipDependsOn, m.id())
}

// addFiles adds the regular files of a layer. Each comes from the package with the ID in
// origins, or else from rest if that is not empty.
func (b *sbom) addFiles(files fstest.MapFS, origins map[string]spdx.ElementID, rest spdx.ElementID) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		if f.Mode.Type() != 0 {
			continue
		}
		id := spdx.ElementID(fmt.Sprintf("file-%d", len(b.Files)))
		b.Files = append(b.Files, &spdx.File{
			FileSPDXIdentifier: id, FileName: "./" + path, LicenseConcluded: noAssertion, FileCopyrightText: noAssertion,
			Checksums: checksums(f.Data),
		})
		b.relate(imageID, common.TypeRelationshipContains, id)
		if origin := cmp.Or(origins[path], rest); origin != "" {
			b.relate(id, common.TypeRelationshipGeneratedFrom, origin)
		}
	}
}

func checksums(body []byte) []spdx.Checksum {
	short := sha1.Sum(body) //nolint:gosec // see the import
	return []spdx.Checksum{
		{Algorithm: spdx.SHA1, Value: hex.EncodeToString(short[:])},
		{Algorithm: spdx.SHA256, Value: sha256Hex(body)},
	}
}

// sha256Hex returns the SHA-256 of body in lower-case hexadecimal digits.
func sha256Hex(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func (b *sbom) write(w io.Writer) error {
	return spdxjson.Write(b.Document, w, spdxjson.EscapeHTML(false), spdxjson.Indent(" "))
}

// summary is one line for the terminal.
func (b *sbom) summary() string {
	modules, versions := 0, []string(nil)
	for _, p := range b.Packages {
		switch {
		case strings.HasPrefix(string(p.PackageSPDXIdentifier), "go-"):
			modules++
		case p.PackageName == "iptables" || p.PackageName == "libc6":
			versions = append(versions, p.PackageName+" "+p.PackageVersion)
		}
	}
	return fmt.Sprintf("nodens %s, %d files, %d Go modules, %d Debian packages, including %s",
		b.Packages[0].PackageVersion, len(b.Files), modules, len(b.Packages)-modules-2, strings.Join(versions, ", "))
}
