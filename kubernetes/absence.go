package kubernetes

import (
	"fmt"

	"github.com/nodens-dns/nodens/internal/wire"
)

// WhyAbsent says why name, in lower case and wire form, does not exist in z, as far as a namespace or a Service is the
// reason, else "". The caller knows that the name does not exist. It is no use of the view. It is for explanations,
// and allocates.
func (z *Zone) WhyAbsent(name []byte) string {
	o := z.origin(name)
	if o == nil || o.lacksServices() {
		return ""
	}
	labels := labelsOf(name[:len(name)-len(o.name)])
	n := len(labels)
	if n < 2 || string(labels[n-1]) != "\x03svc" {
		return ""
	}
	ns := labels[n-2]
	switch {
	case !z.selectsNamespace(ns):
		return fmt.Sprintf("the kubernetes directive does not list the namespace %s", ns[1:])
	case !z.exposes(ns):
		return fmt.Sprintf("there is no namespace %s with the labels of the kubernetes directive", ns[1:])
	case !z.view.hasNamespace(ns):
		return fmt.Sprintf("there is no namespace %s, or nothing in it", ns[1:])
	case n < 3:
		return ""
	}
	key := string(labels[n-3]) + string(ns)
	return z.whyUnnamed(z.view.service([]byte(key), false), labels[n-3], ns, n > 3)
}

// whyUnnamed says why the Service s, nil for none, has no name, or with below no such name below its own.
func (z *Zone) whyUnnamed(s *service, name, ns []byte, below bool) string {
	switch {
	case s == nil || s.kind == orphan:
		return fmt.Sprintf("there is no Service %s in the namespace %s", name[1:], ns[1:])
	case s.kind == headless && !s.ready:
		return fmt.Sprintf("the headless Service %s in the namespace %s has no ready endpoints", name[1:], ns[1:])
	case s.kind == externalName && s.target == "":
		return fmt.Sprintf("the external name of the Service %s in the namespace %s is not a name", name[1:], ns[1:])
	case !z.hasName(s):
		return fmt.Sprintf("the Service %s in the namespace %s has no ready endpoints", name[1:], ns[1:])
	case below:
		return fmt.Sprintf("the Service %s in the namespace %s has no such endpoint or port", name[1:], ns[1:])
	}
	return ""
}

// labelsOf returns the labels of the first part of a name, each in wire form.
func labelsOf(part []byte) (labels [][]byte) {
	for len(part) > 0 && part[0] != 0 && len(labels) < wire.MaxName {
		end := 1 + int(part[0])
		labels = append(labels, part[:end])
		part = part[end:]
	}
	return labels
}
