package advice

import (
	"cmp"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

const (
	clientRemedyText  = "let it ask over TCP after a reply with TC, or offer more bytes in its queries (EDNS; in HAProxy accepted_payload_size 8192)"
	bufsizeRemedyText = "in the Corefile, the size that the client offers, such as bufsize 8192"
)

// truncated returns the clients that get truncated replies and never ask over TCP.
func truncated(clients *report.Clients) []report.TruncatedClient {
	var list []report.TruncatedClient
	for i := range clients.Clients {
		if c := &clients.Clients[i]; c.Unfollowed > 0 {
			list = append(list, report.TruncatedClient{
				Kind: c.Kind, Namespace: c.Namespace, WorkloadKind: c.WorkloadKind, Workload: c.Workload, Replies: c.Unfollowed, Capped: c.UnfollowedCapped,
			})
		}
	}
	return list
}

// completeTruncated adds up the rows of the same client, and sets the remedies.
func completeTruncated(a *report.AdviceCounts) {
	sums := []report.TruncatedClient{}
	for i := range a.Truncated {
		c := &a.Truncated[i]
		at := slices.IndexFunc(sums, func(s report.TruncatedClient) bool {
			return s.Kind == c.Kind && s.Namespace == c.Namespace && s.WorkloadKind == c.WorkloadKind && s.Workload == c.Workload
		})
		if at < 0 {
			sums = append(sums, *c)
			continue
		}
		sums[at].Replies, sums[at].Capped = sums[at].Replies+c.Replies, sums[at].Capped+c.Capped
	}
	for i := range sums {
		c := &sums[i]
		c.Remedies = nil
		if c.Replies > c.Capped {
			c.Remedies = append(c.Remedies, report.Relief{Kind: report.RemedyClient, Text: clientRemedyText, Reason: "it offers fewer bytes than the reply has"})
		}
		if c.Capped > 0 {
			c.Remedies = append(c.Remedies, report.Relief{Kind: report.RemedyBufsize, Text: bufsizeRemedyText, Reason: "it offers more bytes than the server block sends"})
		}
	}
	slices.SortFunc(sums, func(x, y report.TruncatedClient) int {
		return cmp.Or(cmp.Compare(y.Replies, x.Replies), cmp.Compare(x.Label(), y.Label()), cmp.Compare(x.WorkloadKind, y.WorkloadKind))
	})
	a.Truncated = sums
}
