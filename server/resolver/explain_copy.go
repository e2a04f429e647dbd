package resolver

import (
	"cmp"
	"strings"
)

// copyRefusals are what explanations say of them.
var copyRefusals = [...]string{
	copyAllowed:      "",
	refusedSource:    "only answers of kubernetes, hosts and the cache are copied",
	refusedView:      "a server block of the listener has a view",
	refusedDirective: "the server block has ",
	refusedRewrite:   "a rewrite rule changes the query or the reply",
	refusedACL:       "an acl that is about a name in the reply distinguishes too many lists of networks",
	refusedClient:    "the reply depends on the namespace of the client, which is not known",
	refusedSearch:    "an answer for another name of the search path is not copied",
	refusedRcode:     "only replies with NOERROR and NXDOMAIN are copied",
	refusedOrder:     "the order of the addresses depends on their distance",
	refusedOrigin:    "the name is in a zone of kubernetes, whose view may answer later",
	refusedMark:      "the answer does not depend on the view of the cluster alone",
	refusedLease:     "the cache has no entry of its own for the question, or will soon refresh it",
}

// text says why a reply of z is not copied, "" for [copyAllowed].
func (c copyRefusal) text(z *Zone) string {
	if c == refusedDirective {
		return copyRefusals[c] + strings.Join(z.agentOnly, ", ")
	}
	return copyRefusals[c]
}

// notCopied returns why no copy may be made of the reply of r, a dry run that was answered.
func (r *Request) notCopied() copyRefusal {
	_, refusal := r.copied()
	if refusal == refusedSource {
		return cmp.Or(r.zone.neverCopied(r.routes), refusal)
	}
	return refusal
}

// notCopiedLater returns why no copy may be made of any reply to r, a dry run that waits; [copyAllowed] if that
// depends on the reply.
func (r *Request) notCopiedLater(waits Wait) copyRefusal {
	refusal := r.zone.neverCopied(r.routes)
	switch {
	case refusal == copyAllowed && r.rewritten:
		return refusedRewrite
	case refusal != copyAllowed || waits != WaitUpstream || r.searched:
		return refusal
	case r.source == fromCluster: // an alias to a name outside of the view
		return refusedMark
	case !r.zone.caches(&r.Query):
		return refusedSource
	case r.zone.inCluster(&r.Query):
		return refusedOrigin
	}
	return copyAllowed
}
