package app

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxShownCaches bounds the caches in one reply. A kube-dns ConfigMap may have hundreds of stub domains.
const maxShownCaches = 256

// showCaches answers with the caches in numbers.
func (a *agent) showCaches(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.cacheStats()) }

// cacheStats returns what /cache shows.
func (a *agent) cacheStats() *report.CacheStats {
	s := &report.CacheStats{Header: a.header(), Bytes: a.builder.store.Bytes(), BudgetBytes: a.builder.store.Budget(), Caches: []report.CacheCounts{}}
	for _, p := range a.current.Load().blocks {
		switch {
		case p.cache() == nil:
		case len(s.Caches) == maxShownCaches:
			s.More++
		default:
			s.Caches = append(s.Caches, newCacheCounts(p))
		}
	}
	return s
}

func newCacheCounts(p *blockParts) report.CacheCounts {
	st, most := p.cache().Stats(), p.cache().Capacity()
	return report.CacheCounts{
		Cache: cacheID(p), Bytes: p.cache().Bytes(), Misses: st.Misses, Stale: st.Stale, Cuts: st.Cuts, Prefetches: st.Prefetches,
		Success: report.KindCount{Entries: st.Entries.Success, Capacity: most.Success, Hits: st.Hits.Success, Evictions: st.Evictions.Success},
		Denial:  report.KindCount{Entries: st.Entries.Denial, Capacity: most.Denial, Hits: st.Hits.Denial, Evictions: st.Evictions.Denial},
	}
}

// cacheID returns what identifies p's cache.
func cacheID(p *blockParts) report.Cache {
	id := report.Cache{Zones: []string{}, Line: p.block.Line}
	if view := p.block.ViewName(); view != noView {
		id.View = view
	}
	for _, z := range p.block.Zones {
		id.Zones = append(id.Zones, z.String())
	}
	return id
}

// showCacheEntries answers with what the caches have for a name.
func (a *agent) showCacheEntries(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	name, err := wire.ParseName(values.Get("name"))
	if err != nil || values.Get("name") == "" {
		http.Error(w, fmt.Sprintf("name is %q; give a domain name", values.Get("name")), http.StatusBadRequest)
		return
	}
	var qtype uint16 // 0 is all
	if text := values.Get("type"); text != "" {
		if qtype, err = parseType(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	writeJSON(w, a.cacheEntries(name, qtype))
}

// cacheEntries returns what /cache/entries shows, with the copies in the kernel. Caches whose zones do not have the name are left out unless they
// have entries.
func (a *agent) cacheEntries(name wire.Name, qtype uint16) *report.CacheEntries {
	copies := a.kernelPath.copiesOf(name, qtype)
	shown := min(len(copies), maxShownEntries)
	out := &report.CacheEntries{
		Header: a.header(), Name: name.String(), Caches: []report.CachedName{}, KernelCopies: copies[:shown], MoreKernelCopies: len(copies) - shown,
	}
	for _, p := range a.current.Load().blocks {
		if p.cache() == nil {
			continue
		}
		var list []cache.EntryInfo
		for _, e := range p.cache().Entries([]byte(name)) {
			if qtype == 0 || e.Type == qtype {
				list = append(list, e)
			}
		}
		switch {
		case len(list) == 0 && !mayCache(p, name):
		case len(out.Caches) == maxShownCaches:
			out.More++
		default:
			out.Caches = append(out.Caches, report.CachedName{
				Cache: cacheID(p), Entries: newCacheEntries(list), MoreEntries: max(0, len(list)-maxShownEntries), DeniedBy: deniedBy(p, name, qtype),
			})
		}
	}
	return out
}

// deniedBy returns the denial of a name above that answers for name and qtype, 0 for any, in p's cache; nil for none.
func deniedBy(p *blockParts, name wire.Name, qtype uint16) *report.CacheEntry {
	var q wire.Query
	if q.Parse(wire.AppendClientQuery(nil, 0, []byte(name), cmp.Or(qtype, wire.TypeA), false, false)) != wire.Serve {
		return nil
	}
	i, ok := p.cache().DeniedBy(&q, clock.Now())
	if !ok {
		return nil
	}
	e := newCacheEntry(&i)
	return &e
}

// mayCache reports whether answers for name may be in p's cache.
func mayCache(p *blockParts, name wire.Name) bool {
	for _, z := range p.block.Zones {
		if name.Under(z) {
			return p.cache().Covers([]byte(name))
		}
	}
	return false
}
