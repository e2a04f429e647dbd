package resolver

import (
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// AnswerUnsupported answers r, which Parse has found [wire.Unsupported]: a NOTIFY for a zone that is transferred from a primary server
// (RFC 1996) triggers a check of the zone and is confirmed, everything else is NOTIMP. It appends the reply to buf; nil is none: a
// NOTIFY of another sender is ignored (RFC 1996, 3.10). The query is not counted.
func (rt *Routes) AnswerUnsupported(r *Request, buf []byte) []byte {
	if r.Query.ParseNotify() {
		if z := rt.match(r); z != nil && z.Secondary != nil {
			switch z.Secondary.Notify(r.Query.Name(), r.Client.Addr()) {
			case zonefile.Notified:
				return wire.AppendNotified(buf, r.Query.Packet)
			case zonefile.Ignored:
				return nil
			case zonefile.NotSecondary:
			}
		}
	}
	return wire.AppendError(buf, r.Query.Packet, wire.NotImp)
}
