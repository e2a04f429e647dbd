package transfer

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// announceInterval is the least time between two versions of a zone that [Table.Announce] tells of. The attempts to tell of one
// version end before.
const announceInterval = time.Minute

// announced is the version of a zone that was told last.
type announced struct {
	serial uint32
	at     time.Time
}

// Notifies reports whether servers are told of changes of the zone with this name.
func (t *Table) Notifies(zone wire.Name) bool {
	rule, _ := t.match([]byte(zone))
	return rule != nil && len(rule.To) > 0
}

// Announce is [Table.Notify] for a zone that changes often, with its current SOA record: it tells of a version only
// once, and of one a minute at most. The caller calls it regularly, so that the newest version is told in the end.
func (t *Table) Announce(soa wire.RR) {
	if t.announces(wire.Name(soa.Owner), soa.Serial(), time.Now()) {
		t.Notify(soa)
	}
}

// announces reports whether to tell of the version with this serial now, and notes it.
func (t *Table) announces(zone wire.Name, serial uint32, now time.Time) bool {
	t.notices.mu.Lock()
	defer t.notices.mu.Unlock()
	if last, ok := t.notices.announced[zone]; ok && (last.serial == serial || now.Sub(last.at) < announceInterval) {
		return false
	}
	t.notices.announced[zone] = announced{serial, now}
	return true
}
