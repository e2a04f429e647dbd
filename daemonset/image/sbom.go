package main

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // SPDX requires a SHA-1 of every file beside the better one
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/utils"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

const (
	home     = "https://github.com/nodens-dns/nodens"
	sbomPath = "usr/share/doc/nodens/sbom.spdx.json"
	// noAssertion is SPDX's word for a field that was not determined.
	noAssertion = "NOASSERTION"
	// Element IDs within the document.
	documentID, imageID, agentID = spdx.ElementID("DOCUMENT"), spdx.ElementID("image"), spdx.ElementID("nodens")
)

// sbom is a bill of materials in SPDX 2.3: the document describes the image, which
// contains packages (the agent, its Go modules, Debian packages) and files. Each file is
// generated from a package.
type sbom struct{ spdx.Document }

// sbom lists what an image consists of, except for the file with the SBOM itself.
func (s *settings) sbom(a architecture, base *base, agent oci.Layer, modules []module) (*sbom, error) {
	b := &sbom{spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: documentID,
		DocumentName: "nodens-" + s.version + "-" + a.name,
		CreationInfo: &spdx.CreationInfo{
			Created:  s.now.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "nodens-image-" + s.version}},
		},
	}}
	b.relate(documentID, common.TypeRelationshipDescribe, imageID)
	image := b.addPackage(spdx.Package{PackageSPDXIdentifier: imageID, PackageName: "nodens-image", PackageVersion: s.version,
		PrimaryPackagePurpose: "CONTAINER", FilesAnalyzed: true})
	b.addPackage(spdx.Package{PackageSPDXIdentifier: agentID, PackageName: "nodens", PackageVersion: s.version,
		PackageDownloadLocation: "git+" + home + "@" + s.revision,
		PackageLicenseDeclared:  "Apache-2.0", PrimaryPackagePurpose: "APPLICATION",
		PackageExternalReferences: purl("pkg:golang/github.com/nodens-dns/nodens@v" + url.PathEscape(strings.TrimPrefix(s.version, "v")))})
	b.relate(imageID, common.TypeRelationshipContains, agentID)
	origins := make(map[string]spdx.ElementID) // by path, of files whose package is not the agent
	for _, m := range modules {
		id := b.addModule(m)
		for _, f := range m.licenseFiles {
			origins[f.Path] = id
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
	for _, f := range base.layer() {
		b.addFile(f, origins[f.Path])
	}
	for _, f := range agent {
		b.addFile(f, cmp.Or(origins[f.Path], agentID))
	}
	code, err := utils.GetVerificationCode(b.Files, "./"+sbomPath)
	if err != nil {
		return nil, err
	}
	image.PackageVerificationCode = &code
	b.DocumentNamespace = fmt.Sprintf("%s/sbom/%s-%s", home, a.name, code.Value)
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

// addModule adds a Go module and returns its ID.
func (b *sbom) addModule(m module) spdx.ElementID {
	id := spdx.ElementID(fmt.Sprintf("go-%d", len(b.Packages)))
	name := m.path
	if name == std {
		name = "stdlib" // the name in vulnerability databases
	}
	b.addPackage(spdx.Package{PackageSPDXIdentifier: id, PackageName: name, PackageVersion: m.version,
		PackageLicenseDeclared: m.license, PrimaryPackagePurpose: "LIBRARY",
		PackageExternalReferences: purl("pkg:golang/" + name + "@" + strings.ReplaceAll(strings.TrimPrefix(m.version, "go"), "+", "%2B"))})
	b.relate(agentID, common.TypeRelationshipDependsOn, id)
	return id
}

// addFile adds a regular file that comes from the package with the ID origin, if that is not empty.
func (b *sbom) addFile(f oci.File, origin spdx.ElementID) {
	if f.Mode.Type() != 0 {
		return
	}
	id := spdx.ElementID(fmt.Sprintf("file-%d", len(b.Files)))
	b.Files = append(b.Files, &spdx.File{
		FileSPDXIdentifier: id, FileName: "./" + f.Path, LicenseConcluded: noAssertion, FileCopyrightText: noAssertion,
		Checksums: checksums(f.Body),
	})
	b.relate(imageID, common.TypeRelationshipContains, id)
	if origin != "" {
		b.relate(id, common.TypeRelationshipGeneratedFrom, origin)
	}
}

func checksums(body []byte) []spdx.Checksum {
	short, long := sha1.Sum(body), sha256.Sum256(body) //nolint:gosec // see the import
	return []spdx.Checksum{
		{Algorithm: spdx.SHA1, Value: hex.EncodeToString(short[:])},
		{Algorithm: spdx.SHA256, Value: hex.EncodeToString(long[:])},
	}
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
		b.Packages[1].PackageVersion, len(b.Files), modules, len(b.Packages)-modules-2, strings.Join(versions, ", "))
}
