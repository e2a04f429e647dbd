package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// elsewhereMark begins the comment above a forward that replaces a directive. The directive
// kubernetes is not added to a block with it, which would answer in place of the forward.
const elsewhereMark = "# nodens has no "

// dataDirectives are the directives with answers. A directive that replaces or changes all answers of
// a block takes them with it.
var dataDirectives = []string{"auto", "erratic", "file", "forward", "grpc", "kubernetes", "secondary", "whoami"}

// changingDirectives are the refused directives that change the answers of others, or the zone files
// that these read.
var changingDirectives = []string{"dnssec", "dynupdate", "sign", "transfer", "tsig"}

// corefileBlock is a server block in the text of a Corefile.
type corefileBlock struct {
	zones      []string // without schemes and ports
	open       int      // the index of the line with its opening brace
	directives []corefileDirective
}

// corefileDirective is a directive: the indices of its first and last line.
type corefileDirective struct {
	words       []string // of the first line
	first, last int
	fallsOn     bool // it has the option fallthrough
}

func (d *corefileDirective) name() string { return d.words[0] }

// replaceElsewhere replaces directives that only another CoreDNS has by a forward to the cluster's DNS. If the result is no
// valid Corefile either, it changes nothing.
func (m *migration) replaceElsewhere(c *corefile) error {
	_, err := c.load(c.text)
	refused := make(map[int]bool) // indices of lines
	for _, e := range config.ParseErrors(err) {
		if e.File == c.path && config.ServedElsewhere(e.Word) {
			refused[e.Line-1] = true
		}
	}
	if len(refused) == 0 {
		return nil
	}
	e := elsewhere{lines: strings.Split(c.text, "\n"), refused: refused}
	e.address, e.known = m.elsewhereAddress(c.text)
	for _, b := range readBlocks(e.lines) {
		e.replace(&b)
	}
	text := e.text()
	cfg, err := c.parse(text)
	if err != nil {
		return nil //nolint:nilerr // the errors of the unchanged text are better
	}
	for _, n := range e.notes {
		m.noteFor(n.Kind, c.configMap.describe()+", "+c.key+", "+n.Where, "%s", n.Text)
	}
	c.text, c.cfg = text, cfg
	m.setCorefile(c)
	return nil
}

// elsewhereAddress returns the address of the cluster's DNS as the Corefile is to name it. It is not
// known if no object has it.
func (m *migration) elsewhereAddress(text string) (address string, known bool) {
	const placeholder = "__PILLAR__CLUSTER__DNS__"
	if strings.Contains(text, placeholder) {
		return placeholder, true
	}
	for _, obj := range m.Objects.list {
		addr := obj.text("spec", "clusterIP")
		if (isClusterDNS(obj) || obj.name() == "kube-dns-upstream") && addr != "" && addr != "None" && !m.isLocalIP(addr) {
			return addr, true
		}
	}
	return placeholder, false
}

// elsewhere is the replacement of directives in one Corefile.
type elsewhere struct {
	lines   []string
	refused map[int]bool // indices of the lines of refused directives
	address string
	known   bool

	removed  []corefileDirective
	inserted map[int][]string // by the index of the line that they precede
	notes    []Note
}

// replace replaces the refused directives of b.
func (e *elsewhere) replace(b *corefileBlock) {
	refused, others := e.partition(b)
	if len(refused) == 0 || strings.HasPrefix(strings.Join(b.zones, ""), "(") {
		return
	}
	zones, whole, fallsOn, changing := b.replaced(refused)
	fallsOn = fallsOn && slices.ContainsFunc(others, func(d corefileDirective) bool { return d.name() == "forward" })
	var options []string
	if fallsOn {
		options = []string{"next NXDOMAIN"}
	}
	e.removed = append(e.removed, refused...)
	var dropped []string
	for _, d := range others {
		if changing && d.name() != "forward" || whole && !fallsOn {
			e.removed = append(e.removed, d)
			dropped = append(dropped, d.name())
		}
	}
	e.insert(b, names(refused), zones, options)
	e.note(b, names(refused), zones, dropped)
}

// partition returns the refused directives of b, and those of its others that have answers.
func (e *elsewhere) partition(b *corefileBlock) (refused, others []corefileDirective) {
	for _, d := range b.directives {
		if e.refused[d.first] {
			refused = append(refused, d)
		} else if slices.Contains(dataDirectives, d.name()) {
			others = append(others, d)
		}
	}
	return refused, others
}

// replaced returns the zones for which the refused directives are replaced, or "." for all of b's. whole
// says that these are all; fallsOn, that the directives pass on names that they don't have; changing,
// that they change the answers of others.
func (b *corefileBlock) replaced(refused []corefileDirective) (zones []string, whole, fallsOn, changing bool) {
	for _, d := range refused {
		list := directiveZones(d.words)
		if len(list) == 0 || !slices.ContainsFunc(b.zones, func(z string) bool { return !slices.ContainsFunc(list, func(l string) bool { return sameZone(l, z) }) }) {
			whole = true
		}
		fallsOn = fallsOn || d.fallsOn
		changing = changing || slices.Contains(changingDirectives, d.name())
		for _, zone := range list {
			if b.contains(zone) && !slices.Contains(zones, zone) {
				zones = append(zones, zone)
			}
		}
	}
	if whole {
		zones = []string{"."}
	}
	return zones, whole, fallsOn, changing
}

// directiveZones returns the zones that a refused directive names.
func directiveZones(words []string) (zones []string) {
	name, args := words[0], words[1:]
	if name == "sign" && len(args) > 0 {
		args = args[1:] // the zone file
	}
	for _, arg := range args {
		before, after, found := strings.Cut(arg, ":")
		switch {
		case arg == "{":
		case name == "azure" && found:
			zones = append(zones, after)
		case found:
			zones = append(zones, before)
		default:
			zones = append(zones, arg)
		}
	}
	return zones
}

// contains reports whether zone, a name or a range of addresses, is in b.
func (b *corefileBlock) contains(zone string) bool {
	for _, z := range b.zones {
		switch {
		case z == ".", sameZone(z, zone):
			return true
		case strings.Contains(zone, "/"):
		case parseZone(z) != wire.Root && parseZone(zone).Under(parseZone(z)):
			return true
		}
	}
	return false
}

func sameZone(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// insert adds a forward for each zone to the beginning of b.
func (e *elsewhere) insert(b *corefileBlock, what string, zones, options []string) {
	indent := indentation(e.lines, b.open+1)
	text := []string{indent + elsewhereMark + what + ": its names go to the cluster DNS"}
	for _, zone := range zones {
		line := indent + "forward " + zone + " " + e.address
		if len(options) == 0 {
			text = append(text, line)
			continue
		}
		text = append(text, line+" {")
		for _, o := range options {
			text = append(text, indent+indent+o)
		}
		text = append(text, indent+"}")
	}
	if e.inserted == nil {
		e.inserted = make(map[int][]string)
	}
	e.inserted[b.open+1] = text
}

// note notes what was done with b, and what is left to do.
func (e *elsewhere) note(b *corefileBlock, what string, zones, dropped []string) {
	where := fmt.Sprintf("line %d", b.open+1)
	if slices.Equal(zones, []string{"."}) {
		zones = b.zones
	}
	text := fmt.Sprintf("%s is replaced by a forward of %s to the cluster DNS at %s", what, joinNames(zones), e.address)
	if len(dropped) > 0 {
		text += ", and " + joinNames(slices.Compact(dropped)) + " of the block is removed"
	}
	e.notes = append(e.notes, Note{Changed, where, text})
	todo := fmt.Sprintf("nodens has no %s: give %s to the CoreDNS of the cluster, or write the address of the CoreDNS that has it in the `forward`", what, joinNames(zones))
	if !e.known {
		todo += "; " + e.address + " works only if there is a Service kube-dns-upstream"
	}
	e.notes = append(e.notes, Note{Todo, where, todo})
}

// names joins the names of directives.
func names(list []corefileDirective) string {
	var out []string
	for _, d := range list {
		out = append(out, d.name())
	}
	return joinNames(slices.Compact(out))
}

// text returns the Corefile with the replacements.
func (e *elsewhere) text() string {
	var out []string
	for i, line := range e.lines {
		out = append(out, e.inserted[i]...)
		if !slices.ContainsFunc(e.removed, func(d corefileDirective) bool { return d.first <= i && i <= d.last }) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// decoration is a scheme or a port of a zone.
var decoration = regexp.MustCompile(`^[a-z0-9]+://|:\d*$|,$`)

// readBlocks reads the server blocks of a Corefile. What is not written as CoreDNS formats it is left out.
func readBlocks(lines []string) (blocks []corefileBlock) {
	var b corefileBlock
	depth := 0
	for i, line := range lines {
		words := lineWords(line)
		if len(words) == 0 {
			continue
		}
		b.add(words, i, depth)
		if words[len(words)-1] == "{" {
			depth++
		} else if words[0] == "}" {
			depth--
		}
		if depth <= 0 && words[0] == "}" {
			blocks, b, depth = append(blocks, b), corefileBlock{}, 0
		}
	}
	return blocks
}

// add adds a line with these words, which is in depth braces.
func (b *corefileBlock) add(words []string, i, depth int) {
	switch {
	case depth == 0:
		b.open = i
		for _, w := range words {
			if w = decoration.ReplaceAllString(decoration.ReplaceAllString(w, ""), ""); w != "{" && w != "" {
				b.zones = append(b.zones, w)
			}
		}
	case depth == 1 && words[0] != "}":
		b.directives = append(b.directives, corefileDirective{words: words, first: i, last: i})
	case depth > 1:
		d := &b.directives[len(b.directives)-1]
		d.last = i
		d.fallsOn = d.fallsOn || depth == 2 && words[0] == "fallthrough"
	}
}

// lineWords returns the words of a line before its comment.
func lineWords(line string) []string {
	words := strings.Fields(line)
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "#") }); i >= 0 {
		words = words[:i]
	}
	return words
}
