package config

import (
	"regexp"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Auto is `auto [ZONES…] { directory DIR [REGEXP ORIGIN_TEMPLATE]; reload DURATION; fallthrough [ZONES…] }`.
type Auto struct {
	// Zones are those that queries may be for; the block's zones by default. The directory may have files of
	// others.
	Zones []wire.Name
	// Directory is searched for zone files with all directories below it. It may be relative to the working directory.
	Directory string
	// Pattern is the regular expression that the names of zone files match, `db\.(.*)` by default. Template is the
	// zone's name, with $ before the numbers of groups in braces as for [regexp.Regexp.Expand]; `${1}` by default.
	Pattern, Template string
	// Reload is the time between two searches, 1m by default; 0 is never.
	Reload      time.Duration
	Fallthrough *Fallthrough
}

// needsAgent: a name may become one of a new zone; see [ZoneFile.needsAgent].
func (a *Auto) needsAgent() bool { return a.Fallthrough != nil || a.Reload > 0 }

const (
	directoryUsage = "directory DIR [REGEXP ORIGIN_TEMPLATE]"
	// maxFilePattern bounds the regular expression of a directory, in bytes: as in CoreDNS.
	maxFilePattern = 10_000
)

func (a *Auto) parse(p *parser, s statement) {
	*a = Auto{Zones: p.zonesOr(s.args()), Pattern: `db\.(.*)`, Template: "${1}", Reload: time.Minute}
	before := len(p.errs)
	p.body(s,
		opt(directoryUsage, func(args []token) { a.setDirectory(p, args) }),
		opt("reload DURATION", p.toDuration(&a.Reload, 0, longest)),
		p.fallthroughs(&a.Fallthrough),
		ignoredUpstream(),
	)
	if a.Directory == "" && len(p.errs) == before {
		p.errorf(s.name(), "no directory; write in its block: %s", directoryUsage)
	}
}

// setDirectory reads the arguments of `directory`.
func (a *Auto) setDirectory(p *parser, args []token) {
	dir := args[0]
	if a.Directory = p.path(dir.text); a.Directory == "" {
		p.errorf(dir, "the directory's name is empty; is an environment variable unset?")
		return
	}
	p.checkDirectory(dir, a.Directory)
	switch {
	case len(args) == 1:
		return
	case len(args) == 2:
		p.errorf(args[1], "the zone's name is missing after the regular expression %q, such as {1}; write: %s", args[1].text, directoryUsage)
		return
	case len(args[1].text) > maxFilePattern:
		p.errorf(dir, "the regular expression has more than %d bytes", maxFilePattern)
		return
	}
	re, err := regexp.Compile(args[1].text)
	switch {
	case err != nil:
		p.errorf(args[1], "%v", err)
	case re.NumSubexp() == 0:
		p.errorf(args[1], "the regular expression %q has no group in parentheses, which the zone's name is made of, such as db\\.(.*)", args[1].text)
	}
	a.Pattern, a.Template = args[1].text, strings.ReplaceAll(args[2].text, "{", "${")
}
