package config

import (
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Header is `header { query|response set|clear aa|ra|rd… }`: flags of the query before it is
// resolved, and of its reply.
type Header struct {
	Query, Response HeaderFlags
}

func (*Header) needsAgent() bool { return true }

// HeaderFlags are the flags that are set and those that are cleared. No flag is in both.
type HeaderFlags struct{ Set, Clear wire.Flags }

const headerUsage = "header { query|response set|clear aa|ra|rd… }"

// headerFlags are the flags by name.
var headerFlags = map[string]wire.Flags{"aa": wire.FlagAA, "ra": wire.FlagRA, "rd": wire.FlagRD}

func (h *Header) parse(p *parser, s statement) {
	if !p.count(s, headerUsage) {
		return
	}
	if len(s.body) == 0 {
		p.errorf(s.name(), "no flag is named; write: %s", headerUsage)
		return
	}
	p.body(s,
		opt("query set|clear aa|ra|rd…", func(args []token) { h.Query.read(p, args) }),
		opt("response set|clear aa|ra|rd…", func(args []token) { h.Response.read(p, args) }),
	)
}

// read reads ACTION FLAGS…. The last action for a flag counts.
func (h *HeaderFlags) read(p *parser, args []token) {
	action := args[0]
	action.text = strings.ToLower(action.text)
	set, ok := choice(p, action, "action", map[string]bool{"set": true, "clear": false})
	if !ok {
		return
	}
	for _, w := range args[1:] {
		w.text = strings.ToLower(w.text)
		flag, _ := choice(p, w, "flag", headerFlags)
		h.Set, h.Clear = h.Set&^flag, h.Clear&^flag
		if set {
			h.Set |= flag
		} else {
			h.Clear |= flag
		}
	}
}
