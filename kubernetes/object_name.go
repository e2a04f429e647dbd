package kubernetes

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// What the API server itself checks of an object is as long as it says. What an object says of others, such as an
// owner reference, it does not check: these functions decide what of that is a name. Names that pass have no
// character that needs an escape in a metric, a log or a terminal.

// isObjectName reports whether objects may have that name: a DNS subdomain (RFC 1123, section 2.1), 253 bytes at most.
func isObjectName(name string) bool {
	return len(name) <= validation.DNS1123SubdomainMaxLength && len(validation.IsDNS1123Subdomain(name)) == 0
}

// isKind reports whether a kind of objects may have that name, such as ReplicaSet: in lower case, a label of RFC 1035, 63
// bytes at most.
func isKind(name string) bool {
	return len(name) <= validation.DNS1035LabelMaxLength && len(validation.IsDNS1035Label(strings.ToLower(name))) == 0
}

// isUID reports whether the API server may have given an object that UID: a UUID (RFC 9562, section 4), or the like.
func isUID(uid string) bool {
	return len(uid) <= validation.DNS1123LabelMaxLength && len(validation.IsDNS1123Label(strings.ToLower(uid))) == 0
}
