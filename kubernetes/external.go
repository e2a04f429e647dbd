package kubernetes

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// External answers the names of one `k8s_external` directive from a view. It is
// immutable and safe for concurrent use.
type External struct {
	view *View
}

// NewExternal gives the answers of cfg from v, which must be the view of the same
// block's `kubernetes` directive k.
func NewExternal(v *View, cfg *config.K8sExternal, k *config.Kubernetes) *External {
	return &External{view: v}
}

// Answer writes the answer to q, which must be of class IN, into r, which must have
// been started for q and hold nothing yet. It does not block. Its outcomes are
// [NotMine], [Answered], [NotSynced], [Refused] and [Elsewhere].
func (e *External) Answer(q *wire.Query, r *wire.Reply) Outcome { return NotMine }
