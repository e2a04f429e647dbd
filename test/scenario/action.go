package scenario

import (
	"encoding/hex"
	"slices"
)

// strayKinds are messages that a server may send before its answer: with another ID,
// about another name or type, with the name in another case, what is no message, less
// than a header, or the query itself.
var strayKinds = []string{"id", "question", "type", "case", "garbage", "short", "query"}

// actions adds what may stand below ON.
func (p *parser) actions(table map[string]keyword) {
	add := func(name, usage string, set func(w *tokens, r *rule)) {
		table[name] = keyword{usage, func(w *tokens) {
			if p.rule == nil {
				w.fail("it stands below an ON")
				return
			}
			set(w, p.rule)
		}}
	}
	add("DELAY", "DURATION", func(w *tokens, r *rule) { r.delay = w.duration("delay", maxDuration) })
	add("SILENT", "", func(_ *tokens, r *rule) { r.silent = true })
	add("HOLD", "", func(_ *tokens, r *rule) { r.held = true })
	add("RESET", "", func(_ *tokens, r *rule) { r.reset = true })
	add("CLOSE", "[after N bytes]", func(w *tokens, r *rule) {
		r.closes = true
		if w.accept("after") {
			r.sent = w.number("number", 1, 65535)
			w.accept("bytes")
		}
	})
	add("STRAY", "id|question|type|case|garbage|short|query…", func(w *tokens, r *rule) {
		for r.strays = append(r.strays, w.choice("stray", strayKinds...)); w.more(); {
			r.strays = append(r.strays, w.choice("stray", strayKinds...))
		}
	})
	add("RCODE", "RCODE", func(w *tokens, r *rule) { r.rcode = w.rcode() })
	add("FLAGS", "[-]aa|tc|rd|ra|ad|cd…", func(w *tokens, r *rule) { w.flags(&r.set, &r.unset, headerFlags...) })
	add("TC", "", func(_ *tokens, r *rule) { r.set = append(r.set, "tc") })
	add("MANY", "N", func(w *tokens, r *rule) { r.many = w.number("number of records", 1, maxMany) })
	add("CHAIN", "N", func(w *tokens, r *rule) { r.chain = w.number("number of records", 1, maxChain) })
	add("CUT", "N bytes", func(w *tokens, r *rule) { r.cut = w.number("number", 1, 65535); w.accept("bytes") })
	add("EXTRA", "N bytes", func(w *tokens, r *rule) { r.extra = w.number("number", 1, 4096); w.accept("bytes") })
	add("BARE", "", func(_ *tokens, r *rule) { r.bare = true })
	add("NO-EDNS", "", func(_ *tokens, r *rule) { r.noEDNS = true })
	add("EDE", "N", func(w *tokens, r *rule) { r.ede = w.number("code", 0, 65535) })
	add("RAW", "HEX of what follows the ID", func(w *tokens, r *rule) {
		raw, err := hex.DecodeString(w.next("hex"))
		if err != nil {
			w.fail("%v", err)
		}
		r.raw = slices.Clip(raw)
	})
}
