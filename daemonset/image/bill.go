package main

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // SPDX wants it of every file, beside a better one
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/daemonset/image/debian"
	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

const (
	home     = "https://github.com/nodens-dns/nodens"
	billPath = "usr/share/doc/nodens/sbom.spdx.json"
	// unsaid is SPDX's word for what nobody has looked into.
	unsaid = "NOASSERTION"
	// Names of elements within a bill.
	documentID, imageID, agentID = "SPDXRef-DOCUMENT", "SPDXRef-image", "SPDXRef-nodens"
)

// bill is a bill of materials in the form of SPDX 2.3: the image, which is what is
// described, contains packages (the agent, its Go modules, Debian's) and files. A file
// is generated from a package.
type bill struct {
	Version   string         `json:"spdxVersion"`
	License   string         `json:"dataLicense"`
	ID        string         `json:"SPDXID"`
	Name      string         `json:"name"`
	Namespace string         `json:"documentNamespace"`
	Creation  creation       `json:"creationInfo"`
	Packages  []spdxPackage  `json:"packages"`
	Files     []spdxFile     `json:"files"`
	Relations []relationship `json:"relationships"`
}

type creation struct {
	Created  time.Time `json:"created"`
	Creators []string  `json:"creators"`
}

type spdxPackage struct {
	ID        string     `json:"SPDXID"`
	Name      string     `json:"name"`
	Version   string     `json:"versionInfo"`
	Location  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	Code      *code      `json:"packageVerificationCode,omitempty"`
	Checksums []checksum `json:"checksums,omitempty"`
	Concluded string     `json:"licenseConcluded"`
	Declared  string     `json:"licenseDeclared"`
	Copyright string     `json:"copyrightText"`
	Purpose   string     `json:"primaryPackagePurpose"`
	Refs      []external `json:"externalRefs,omitempty"`
}

type code struct {
	Value    string   `json:"packageVerificationCodeValue"`
	Excluded []string `json:"packageVerificationCodeExcludedFiles"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxFile struct {
	ID        string     `json:"SPDXID"`
	Name      string     `json:"fileName"`
	Checksums []checksum `json:"checksums"`
	Concluded string     `json:"licenseConcluded"`
	Copyright string     `json:"copyrightText"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// bill lists what an image is made of. The file with the bill itself can't be in it.
func (s *settings) bill(a architecture, base *base, agent oci.Layer, modules []module) *bill {
	b := &bill{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: documentID, Name: "nodens-" + s.version + "-" + a.name,
		Creation: creation{Created: s.now, Creators: []string{"Tool: nodens-image-" + s.version}},
	}
	b.relate(documentID, "DESCRIBES", imageID)
	b.add(spdxPackage{ID: imageID, Name: "nodens-image", Version: s.version, Purpose: "CONTAINER", Analyzed: true})
	b.add(spdxPackage{ID: agentID, Name: "nodens", Version: s.version, Location: "git+" + home + "@" + s.revision,
		Declared: "Apache-2.0", Purpose: "APPLICATION",
		Refs: purl("pkg:golang/github.com/nodens-dns/nodens@v" + url.PathEscape(strings.TrimPrefix(s.version, "v")))})
	b.relate(imageID, "CONTAINS", agentID)
	from := make(map[string]string) // files with packages of their own
	for _, m := range modules {
		id := b.module(m)
		for _, f := range m.terms {
			from[f.Path] = id
		}
	}
	for _, d := range base.used() {
		b.add(spdxPackage{ID: debID(d), Name: d.Name, Version: d.Version, Purpose: "LIBRARY",
			Checksums: []checksum{{"SHA256", d.Sum}},
			Refs: purl(fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s&upstream=%s",
				url.QueryEscape(d.Name), url.QueryEscape(d.Version), d.Arch, base.distribution(), url.QueryEscape(d.Source)))})
		b.relate(imageID, "CONTAINS", debID(d))
		if d.Name == certificatesPackage {
			from[certificatesPath] = debID(d)
		}
	}
	for name, d := range base.chosen {
		from[name] = debID(d)
	}
	for _, f := range base.layer() {
		b.file(f, from[f.Path])
	}
	for _, f := range agent {
		b.file(f, cmp.Or(from[f.Path], agentID))
	}
	b.close(a)
	return b
}

func debID(d *debian.Package) string { return "SPDXRef-deb-" + strings.ReplaceAll(d.Name, "+", "-") }

// purl is a package's name across all kinds of packages.
func purl(locator string) []external { return []external{{"PACKAGE-MANAGER", "purl", locator}} }

// add fills in what nobody has looked into.
func (b *bill) add(p spdxPackage) {
	for _, field := range []*string{&p.Location, &p.Concluded, &p.Declared, &p.Copyright} {
		if *field == "" {
			*field = unsaid
		}
	}
	b.Packages = append(b.Packages, p)
}

func (b *bill) relate(element, kind, related string) {
	b.Relations = append(b.Relations, relationship{element, kind, related})
}

// module adds a Go module, and returns its name in the bill.
func (b *bill) module(m module) (id string) {
	id = fmt.Sprintf("SPDXRef-go-%d", len(b.Packages))
	name := m.path
	if name == std {
		name = "stdlib" // as scanners for known faults look for it
	}
	b.add(spdxPackage{ID: id, Name: name, Version: m.version, Declared: m.declared, Purpose: "LIBRARY",
		Refs: purl("pkg:golang/" + name + "@" + strings.ReplaceAll(strings.TrimPrefix(m.version, "go"), "+", "%2B"))})
	b.relate(agentID, "DEPENDS_ON", id)
	return id
}

// file adds a plain file that is generated from a package, "" for none.
func (b *bill) file(f oci.File, from string) {
	if f.Mode.Type() != 0 {
		return
	}
	id := fmt.Sprintf("SPDXRef-file-%d", len(b.Files))
	short, long := sha1.Sum(f.Body), sha256.Sum256(f.Body) //nolint:gosec // see its import
	b.Files = append(b.Files, spdxFile{
		ID: id, Name: "./" + f.Path, Concluded: unsaid, Copyright: unsaid,
		Checksums: []checksum{{"SHA1", hex.EncodeToString(short[:])}, {"SHA256", hex.EncodeToString(long[:])}},
	})
	b.relate(imageID, "CONTAINS", id)
	if from != "" {
		b.relate(id, "GENERATED_FROM", from)
	}
}

// close seals the bill: the sum of all its files stands for them, and is its name.
func (b *bill) close(a architecture) {
	var sums []string
	for _, f := range b.Files {
		sums = append(sums, f.Checksums[0].Value)
	}
	slices.Sort(sums)
	all := sha1.Sum([]byte(strings.Join(sums, ""))) //nolint:gosec // SPDX 2.3, 7.9
	value := hex.EncodeToString(all[:])
	b.Packages[0].Code = &code{Value: value, Excluded: []string{"./" + billPath}}
	b.Namespace = fmt.Sprintf("%s/sbom/%s-%s", home, a.name, value)
}

func (b *bill) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(b)
}

// summary is a line for people.
func (b *bill) summary() string {
	modules, versions := 0, []string(nil)
	for _, p := range b.Packages {
		switch {
		case strings.HasPrefix(p.ID, "SPDXRef-go-"):
			modules++
		case p.Name == "iptables" || p.Name == "nftables" || p.Name == "libc6":
			versions = append(versions, p.Name+" "+p.Version)
		}
	}
	return fmt.Sprintf("%s, %d files, %d Go modules, %d other packages, among them %s",
		b.Packages[1].Name+" "+b.Packages[1].Version, len(b.Files), modules, len(b.Packages)-modules-2, strings.Join(versions, ", "))
}
