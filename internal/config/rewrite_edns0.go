package config

import (
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// OptionRule is `edns0 local|nsid|subnet ACTION …`: what a rule does to an EDNS option of the query
// that upstream servers get.
type OptionRule struct {
	Action OptionAction
	Code   uint16
	Value  OptionValue
	// Data is the option's data if Value is OptionConstant.
	Data []byte
	// Label is the name of metadata if Value is OptionMetadata.
	Label string
	// Prefix4 and Prefix6 are the lengths of the client's prefix, in bits, if Value is OptionSubnet.
	Prefix4, Prefix6 uint8
}

// OptionAction is what a rule does with an option.
type OptionAction uint8

// The actions. A rule that has nothing to replace, or finds the option that it would append, does not match.
const (
	OptionSet     OptionAction = iota // replace or append
	OptionAppend                      // unless the query has it
	OptionReplace                     // if the query has it
	OptionUnset
)

// OptionValue is where an option's data come from.
type OptionValue uint8

// The values.
const (
	OptionConstant OptionValue = iota
	OptionQname
	OptionQtype
	OptionClientIP
	OptionClientPort
	OptionProtocol
	OptionServerIP
	OptionServerPort
	OptionMetadata
	OptionSubnet
)

var optionActions = map[string]OptionAction{
	"set": OptionSet, "append": OptionAppend, "replace": OptionReplace, "unset": OptionUnset,
}

// optionValues are the variables by name.
var optionValues = map[string]OptionValue{
	"{qname}": OptionQname, "{qtype}": OptionQtype, "{client_ip}": OptionClientIP, "{client_port}": OptionClientPort,
	"{protocol}": OptionProtocol, "{server_ip}": OptionServerIP, "{server_port}": OptionServerPort,
}

// NamePart is a part of the new name that a rule with `metadata` makes: a text, a group of the
// pattern, or the value of a name of metadata.
type NamePart struct {
	Text  string // in lower case
	Group int    // -1: none
	Label string // "": none
}

const (
	// maxOptionData bounds the data of an option in the Corefile, in bytes.
	maxOptionData = 512
	edns0Usage    = "rewrite [continue|stop] edns0 local|nsid|subnet set|append|replace|unset …"
)

// optionForm is the form of a rule for one kind of option.
type optionForm struct {
	// values and unsetValues are the number of words after the action.
	values, unsetValues int
	usage, unsetUsage   string
	parse               func(*rewriteParser, *OptionRule)
}

// optionForms are the forms by the kind of option.
var optionForms = map[string]optionForm{
	"local": {
		values: 2, usage: "rewrite [continue|stop] edns0 local set|append|replace CODE DATA|{VARIABLE} [revert]",
		unsetValues: 1, unsetUsage: "rewrite [continue|stop] edns0 local unset CODE", parse: (*rewriteParser).localOption,
	},
	"nsid": {
		usage:      "rewrite [continue|stop] edns0 nsid set|append|replace [revert]",
		unsetUsage: "rewrite [continue|stop] edns0 nsid unset", parse: (*rewriteParser).nsidOption,
	},
	"subnet": {
		values: 2, usage: "rewrite [continue|stop] edns0 subnet set|append|replace BITS4 BITS6 [revert]",
		unsetUsage: "rewrite [continue|stop] edns0 subnet unset", parse: (*rewriteParser).subnetOption,
	},
}

// edns0 parses `edns0 local|nsid|subnet set|append|replace|unset …`.
func (r *rewriteParser) edns0() {
	if !r.has(2, math.MaxInt, edns0Usage) {
		return
	}
	kind, action := r.args[0], r.args[1]
	r.args = r.args[2:]
	form, ok := optionForms[strings.ToLower(kind.text)]
	if !ok {
		r.p.unknown(kind, "option", slices.Collect(maps.Keys(optionForms)))
		return
	}
	o := &r.rule.Option
	action.text = strings.ToLower(action.text)
	if o.Action, ok = choice(r.p, action, "action", optionActions); !ok {
		return
	}
	r.rule.Field = RewriteEDNS0
	if form.accepts(r, o.Action) {
		form.parse(r, o)
	}
}

// accepts reports whether the rule has the words that an action needs, and records an error if not. It removes
// `revert`, which changes nothing: replies never have the options of the query.
func (f *optionForm) accepts(r *rewriteParser, action OptionAction) bool {
	if action == OptionUnset {
		return r.has(f.unsetValues, f.unsetValues, f.unsetUsage)
	}
	if n := len(r.args); n > 0 && r.args[n-1].text == "revert" {
		r.args = r.args[:n-1]
	}
	return r.has(f.values, f.values, f.usage)
}

func (r *rewriteParser) nsidOption(o *OptionRule) { o.Code = wire.OptionNSID }

// localOption parses `CODE [DATA]`.
func (r *rewriteParser) localOption(o *OptionRule) {
	code, err := strconv.ParseUint(r.args[0].text, 0, 16)
	if err != nil {
		r.p.errorf(r.args[0], "%q is no code of an EDNS option such as 0xffee", r.args[0].text)
	}
	o.Code = uint16(code)
	if o.Action == OptionUnset {
		return
	}
	w := r.args[1]
	if strings.HasPrefix(w.text, "{") && strings.HasSuffix(w.text, "}") {
		r.variable(o, w)
		return
	}
	o.Data = []byte(w.text)
	if digits, ok := strings.CutPrefix(w.text, "0x"); ok {
		if o.Data, err = hex.DecodeString(digits); err != nil {
			r.p.errorf(w, "%q is no text in hexadecimal; write two digits for each byte, such as 0x0a0b", w.text)
		}
	}
	if len(o.Data) > maxOptionData {
		r.p.errorf(token{file: w.file, line: w.line}, "the data have %d bytes; allowed: up to %d", len(o.Data), maxOptionData)
	}
}

// variable parses `{VARIABLE}`, or `{PLUGIN/NAME}` for metadata.
func (r *rewriteParser) variable(o *OptionRule, w token) {
	value, ok := optionValues[w.text]
	if label := w.text[1 : len(w.text)-1]; !ok && isMetadataName(label) {
		o.Value, o.Label = OptionMetadata, label
		return
	}
	if !ok {
		r.p.unknown(w, "variable", slices.Collect(maps.Keys(optionValues)))
		return
	}
	o.Value = value
}

// isMetadataName reports whether name has the form PLUGIN/NAME.
func isMetadataName(name string) bool {
	at := strings.IndexByte(name, '/')
	return at > 0 && at < len(name)-1 && !strings.ContainsAny(name, "{}")
}

// subnetOption parses `BITS4 BITS6`.
func (r *rewriteParser) subnetOption(o *OptionRule) {
	o.Code, o.Value = wire.OptionSubnet, OptionSubnet
	if o.Action == OptionUnset {
		return
	}
	bits4, _ := r.p.number(r.args[0], 0, 32)
	bits6, _ := r.p.number(r.args[1], 0, 128)
	o.Prefix4, o.Prefix6 = uint8(bits4), uint8(bits6)
}

// expands parses the new name of a rule with `metadata`, which is at keyword.
func (r *rewriteParser) expands(to, keyword token) {
	pattern := r.rule.Match.Pattern
	if pattern == nil {
		r.p.errorf(keyword, "metadata goes with a pattern; write: rewrite [continue|stop] name regex FROM TO metadata")
		return
	}
	for rest := wire.FullyQualified(to.text); rest != ""; {
		text, after, found := strings.Cut(rest, "{")
		name, next, closed := strings.Cut(after, "}")
		if strings.Contains(text, "}") || found && !closed {
			r.p.errorf(to, "the braces of %q do not match", to.text)
			return
		}
		if text != "" {
			r.rule.Expand = append(r.rule.Expand, NamePart{Text: strings.ToLower(text), Group: -1})
		}
		if !found {
			return
		}
		part, ok := r.placeholder(to, name)
		if !ok {
			return
		}
		r.rule.Expand = append(r.rule.Expand, part)
		rest = next
	}
}

// placeholder parses the text between braces: a group of the rule's pattern, or a name of metadata.
func (r *rewriteParser) placeholder(to token, name string) (part NamePart, ok bool) {
	pattern := r.rule.Match.Pattern
	switch n, err := strconv.ParseUint(name, 10, 16); {
	case err == nil && int(n) > pattern.NumSubexp():
		r.p.errorf(to, "{%s} names a group that the pattern %q, which has %d, doesn't have", name, pattern, pattern.NumSubexp())
		return part, false
	case err == nil:
		return NamePart{Group: int(n)}, true
	case isMetadataName(name):
		return NamePart{Group: -1, Label: name}, true
	}
	r.p.errorf(to, "{%s} is neither a group of the pattern such as {1} nor a name of metadata such as {kubernetes/client-namespace}", name)
	return part, false
}

// metadataNames returns the names of metadata that the rules use, in braces.
func (x *Rewrite) metadataNames() (texts []string) {
	if x == nil {
		return nil
	}
	for i := range x.Rules {
		rule := &x.Rules[i]
		if rule.Option.Label != "" {
			texts = append(texts, "{/"+rule.Option.Label+"}")
		}
		for _, part := range rule.Expand {
			if part.Label != "" {
				texts = append(texts, "{/"+part.Label+"}")
			}
		}
	}
	return texts
}
