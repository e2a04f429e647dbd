package reflector

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// repeatInterval is the time until the same unreadable object is logged again.
const repeatInterval = time.Minute

// repeatFilter suppresses a text that was logged a short time ago.
type repeatFilter struct {
	text string
	at   time.Time
}

// due reports whether text should be logged now: it is new, or repeatInterval is over.
func (n *repeatFilter) due(text string) bool {
	now := time.Now()
	if text == n.text && now.Sub(n.at) < repeatInterval {
		return false
	}
	n.text, n.at = text, now
	return true
}

// errorLog logs the errors of one reflector: failed requests to the shared [OutageLog],
// unreadable objects to the log. It is for one goroutine at a time.
type errorLog struct {
	log       *slog.Logger
	outages   *OutageLog
	resource  schema.GroupResource
	namespace string // "" is all

	participant OutageParticipant
	failing     bool
	listed      bool // there is data to serve
	// inStream says that the last error came out of a response that had begun, so that
	// the start of the next response is no sign of recovery.
	inStream bool
	skipped  repeatFilter
}

func newErrorLog(log *slog.Logger, outages *OutageLog, r schema.GroupResource, namespace string) errorLog {
	return errorLog{
		log: log, outages: outages, resource: r, namespace: namespace,
		participant: OutageParticipant{Resource: r.Resource},
	}
}

// report notes that a request failed. verb is the Kubernetes verb.
func (t *errorLog) report(verb string, err error) {
	var inStream streamError
	t.inStream = errors.As(err, &inStream)
	t.failing = true
	cause, texts, first := "", serverOutage, firstOutage
	args := append(t.args(), "verb", verb)
	rejects := t.outages.rejects(err)
	if rejects {
		cause, texts, first = t.resource.Resource, rejectedRequest, firstRejected
	}
	if !t.listed {
		texts = first
	}
	if fix := t.remedy(err); fix != "" && (rejects || !isRejection(err)) {
		args = append(args, "fix", fix)
	}
	t.outages.Fail(&t.participant, cause, texts, err, args...)
}

// remedy says what to do about err, "" if that is not known.
func (t *errorLog) remedy(err error) string {
	var unverified *tls.CertificateVerificationError
	var noConn *net.OpError
	switch {
	case apierrors.IsForbidden(err):
		return t.rule()
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("install the CustomResourceDefinition %s, or remove the directive's option that needs it", t.resource)
	case apierrors.IsUnauthorized(err):
		return "give the agent a valid token or certificate: that of its ServiceAccount, or in the kubeconfig"
	case errors.As(err, &unverified):
		return certificateRemedy(unverified)
	case errors.As(err, &noConn) && noConn.Op == "dial":
		return "check the network between the node and the API server, and its address: endpoint, kubeconfig or KUBERNETES_SERVICE_HOST"
	}
	return ""
}

// certificateRemedy says what to do about a certificate of the API server that can't be verified.
func certificateRemedy(err error) string {
	var invalid x509.CertificateInvalidError
	var otherHost x509.HostnameError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "set the node's clock if it is wrong, or renew the certificate of the API server"
	case errors.As(err, &otherHost):
		return "give the agent an address that the certificate of the API server names: endpoint, kubeconfig or KUBERNETES_SERVICE_HOST"
	}
	return "give the agent the CA certificate of the API server: in the kubeconfig, in tls, or that of its ServiceAccount"
}

// rule returns the RBAC rule that is missing.
func (t *errorLog) rule() string {
	role := "the ClusterRole"
	if t.namespace != "" {
		role = fmt.Sprintf("the ClusterRole (or a Role in the namespace %s)", t.namespace)
	}
	return fmt.Sprintf(`add to %s of the agent's ServiceAccount: {apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`,
		role, t.resource.Group, t.resource.Resource)
}

// skip counts and logs that one object can't be read.
func (t *errorLog) skip(err error) {
	t.outages.noteSkipped()
	if t.skipped.due(err.Error()) {
		t.log.Warn("unreadable object skipped", append(t.args(), "err", err)...)
	}
}

// recovered notes that a request succeeded or, with objects, that it has delivered
// objects.
func (t *errorLog) recovered(objects bool) {
	if !t.failing || t.inStream && !objects {
		return
	}
	t.failing, t.inStream = false, false
	t.outages.Recovered(&t.participant)
}

// close ends the reflector's part in an outage.
func (t *errorLog) close() {
	t.failing = false
	t.outages.Remove(&t.participant)
}

func (t *errorLog) args() []any {
	args := []any{"resource", t.resource.Resource}
	if t.namespace != "" {
		args = append(args, "namespace", t.namespace)
	}
	return args
}
