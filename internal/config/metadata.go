package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Metadata is `metadata [ZONES…]`: names such as kubernetes/client-namespace have values.
type Metadata struct {
	// Zones are the zones whose queries have metadata, by default the block's.
	Zones []wire.Name
}

// maxPodLabels bounds the labels that are kept of each pod.
const maxPodLabels = 32

func (m *Metadata) parse(p *parser, s statement) {
	m.Zones = p.zonesOr(s.args())
	p.body(s, replacedBy("map", "take it out; a view can compare the fields of a query itself"))
}

// clientLabel finds the labels of pods in the text of a log format or an expression.
var clientLabel = regexp.MustCompile(`kubernetes/client-label/([A-Za-z0-9._/-]+)`)

// metadataTexts returns the texts of b that may have names of metadata.
func metadataTexts(b *Block) (texts []string) {
	for l := b.Log; l != nil; l = l.Next {
		texts = append(texts, l.Format)
	}
	for d := range b.Dnstap.All {
		texts = append(texts, d.Extra)
	}
	if b.View != nil {
		for _, e := range b.View.When {
			texts = append(texts, e.String())
		}
	}
	return append(texts, b.Rewrite.metadataNames()...)
}

// PodLabels returns the labels of pods that blocks with metadata name, sorted.
func PodLabels(blocks []*Block) (keys []string) {
	for _, b := range blocks {
		if b.Metadata == nil {
			continue
		}
		for _, text := range metadataTexts(b) {
			for _, m := range clientLabel.FindAllStringSubmatch(text, -1) {
				keys = append(keys, m[1])
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// checkPodLabels reports labels beyond the bound.
func (p *parser) checkPodLabels(path string, blocks []*Block) {
	if n := len(PodLabels(blocks)); n > maxPodLabels {
		p.errorf(token{file: path}, "metadata names %d labels of pods; allowed: up to %d", n, maxPodLabels)
	}
}

// suspectMetadata reports names of metadata in a block that has none.
func (p *parser) suspectMetadata() {
	b := p.block
	if b.Metadata != nil {
		return
	}
	for _, text := range metadataTexts(b) {
		text = strings.NewReplacer("{/log/class}", "", "{/log/type}", "").Replace(text)
		if strings.Contains(text, "{/") || strings.Contains(text, "metadata(") {
			p.suspect(token{file: b.File, line: b.Line}, "the block uses metadata, which has no values without the directive `metadata`; add it")
			return
		}
	}
}
