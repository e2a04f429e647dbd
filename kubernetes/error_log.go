package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// repeatInterval is how often the same trouble is logged again while it lasts. Half
// would drown what else is logged on a node whose API server is away; double would
// be missed by who looks at the last minutes.
const repeatInterval = time.Minute

// repeatFilter remembers what was said last.
type repeatFilter struct {
	text string
	at   time.Time
}

// due reports whether text should be said now: it is new, or it was said long ago.
func (n *repeatFilter) due(text string) bool {
	now := time.Now()
	if text == n.text && now.Sub(n.at) < repeatInterval {
		return false
	}
	n.text, n.at = text, now
	return true
}

// errorLog logs what keeps one set of objects from being followed. The zero value
// with log, resource and namespace set is ready; it is its follower's own.
type errorLog struct {
	log       *slog.Logger
	resource  resource
	namespace string

	last     repeatFilter // what keeps it from being followed, "" if all is well
	inStream bool         // it came out of a stream, so that opening one is no sign of its end
	skipped  repeatFilter // what is wrong with single objects
}

// report logs why verb failed: a new reason at once, the same one every minute.
func (t *errorLog) report(verb string, err error) {
	var late streamError
	t.inStream = errors.As(err, &late)
	if !t.last.due(err.Error()) {
		return
	}
	args := append(t.args(), "verb", verb, "error", err)
	var status apierrors.APIStatus
	if errors.As(err, &status) && apierrors.IsForbidden(err) {
		args = append(args, "fix", t.rule())
	}
	t.log.Error("cluster zone: the API server can't be followed; what is known stays", args...)
}

// rule says which rule of RBAC is missing.
func (t *errorLog) rule() string {
	role := "the ClusterRole"
	if t.namespace != "" {
		role = fmt.Sprintf("the ClusterRole (or a Role in the namespace %s)", t.namespace)
	}
	return fmt.Sprintf(`add to %s of the agent's ServiceAccount: {apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`,
		role, t.resource.group(), t.resource.plural())
}

// skip logs that one object of many couldn't be read.
func (t *errorLog) skip(err error) {
	if t.skipped.due(err.Error()) {
		t.log.Warn("cluster zone: an object can't be read and is left out", append(t.args(), "error", err)...)
	}
}

// recovered notes that a request was answered well, or, with event, that objects
// arrive.
func (t *errorLog) recovered(event bool) {
	if t.last.text == "" || t.inStream && !event {
		return
	}
	t.last, t.inStream = repeatFilter{}, false
	t.log.Info("cluster zone: the API server is followed again", t.args()...)
}

func (t *errorLog) args() []any {
	args := []any{"resource", t.resource.plural()}
	if t.namespace != "" {
		args = append(args, "namespace", t.namespace)
	}
	return args
}
