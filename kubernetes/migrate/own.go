package migrate

import (
	"bytes"
	"errors"
	"fmt"
)

// own is what is taken from nodens' own manifest.
type own struct {
	account, role, binding object
	pod                    *pod
}

// readOwn reads nodens' own manifest. An error is a fault of the program.
func readOwn(text []byte) (*own, error) {
	all := Objects{kinds: []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}}
	if err := all.Read("nodens' own manifest", bytes.NewReader(text)); err != nil {
		return nil, err
	}
	o := new(own)
	for _, obj := range all.list {
		switch obj.text("kind") {
		case "ServiceAccount":
			o.account = obj
		case "ClusterRole":
			o.role = obj
		case "ClusterRoleBinding":
			o.binding = obj
		case "DaemonSet":
			o.pod = open(obj)
		}
	}
	if o.account == nil || o.role == nil || o.binding == nil || o.pod == nil || o.pod.box == nil {
		return nil, errors.New("nodens' own manifest lacks an object of those that are taken from it")
	}
	return o, nil
}

// named is the object of that name in a list of o's pod, such as its volumes.
func named(list []object, name string) (object, error) {
	for _, obj := range list {
		if obj.text("name") == name {
			return obj.clone(), nil
		}
	}
	return nil, fmt.Errorf("nodens' own manifest has no %q where one is taken from", name)
}
