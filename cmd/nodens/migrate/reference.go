package migrate

import (
	"bytes"
	"errors"
	"fmt"
)

// reference is what is taken from nodens' own manifest.
type reference struct {
	account, role, binding object
	pod                    *agentPod
}

// readReference reads nodens' own manifest. An error is a bug.
func readReference(text []byte) (*reference, error) {
	all := Objects{kinds: []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}}
	if err := all.Read("nodens' own manifest", bytes.NewReader(text)); err != nil {
		return nil, err
	}
	var ofKind [4]object
	for i, kind := range all.kinds {
		for _, obj := range all.list {
			if obj.text("kind") == kind {
				ofKind[i] = obj
			}
		}
		if ofKind[i] == nil {
			return nil, fmt.Errorf("nodens' own manifest has no %s", kind)
		}
	}
	o := &reference{account: ofKind[0], role: ofKind[1], binding: ofKind[2], pod: newAgentPod(ofKind[3])}
	if o.pod.container == nil {
		return nil, errors.New("nodens' own manifest has no container with --localip")
	}
	return o, nil
}

// findNamed returns a copy of the object with that name in a list, such as the volumes of a
// pod.
func findNamed(list []object, name string) (object, error) {
	for _, obj := range list {
		if obj.text("name") == name {
			return obj.clone(), nil
		}
	}
	return nil, fmt.Errorf("nodens' own manifest has no %q where one is taken from", name)
}
