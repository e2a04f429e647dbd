package migrate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
)

// convertCommand removes the container's command: nodens' image has no program called
// node-cache.
func (m *migration) convertCommand() error {
	words := m.pod.container.texts("command")
	if len(words) == 0 || path.Base(words[0]) == "nodens" {
		return nil
	}
	if path.Base(words[0]) != "node-cache" {
		return fmt.Errorf("%s, command: the container runs %q, and migrate only knows node-cache; move its arguments to args and remove command",
			m.pod.daemonSet.describe(), words[0])
	}
	m.pod.container["args"] = append(toAny(words[1:]), m.pod.container.list("args")...)
	m.removeField(m.pod.container, "command")
	m.note(Changed, "command", "removed: the image runs nodens")
	return nil
}

// oldVersion returns a warning about an API version of the DaemonSet that API servers no longer have.
func (m *migration) oldVersion() []string {
	version := m.pod.daemonSet.text("apiVersion")
	if !slices.Contains([]string{"extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"}, version) {
		return nil
	}
	return []string{fmt.Sprintf("%s: API servers since Kubernetes 1.16 refuse apiVersion %s: write apps/v1, and the labels of the template as spec.selector.matchLabels; `nodens migrate` does", m.pod.daemonSet.describe(), version)}
}

// renewVersion gives the DaemonSet the API version of today, and the selector that this version needs.
func (m *migration) renewVersion() {
	if m.oldVersion() == nil {
		return
	}
	set := m.pod.daemonSet
	m.note(Changed, "apiVersion", "apps/v1 instead of %s, which API servers since Kubernetes 1.16 refuse", set.text("apiVersion"))
	set["apiVersion"] = "apps/v1"
	if set.child("spec", "selector") == nil {
		labels := set.child("spec", "template", "metadata", "labels").clone()
		set.ensure("spec")["selector"] = map[string]any{"matchLabels": map[string]any(labels)}
		m.note(Changed, "spec.selector", "the labels of the template, as the old version had by default")
	}
	delete(set.child("spec"), "templateGeneration")
}

// toAny returns texts as an object has them.
func toAny(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return list
}

// removeField removes a field of the DaemonSet. Unless the object says that kubectl apply made
// it, the field is set to null: applying an object without the field would keep it, and a file
// does not tell how the cluster's object was made.
func (m *migration) removeField(from object, field string) {
	if m.pod.daemonSet.text("metadata", "annotations", lastApplied) == "" {
		from[field] = nil
		return
	}
	delete(from, field)
}

// setImage sets nodens' image.
func (m *migration) setImage() error {
	was := m.pod.container.text("image")
	if m.Image == "" {
		if !m.handsOver() && !m.hasEnv(nodeNameVar) {
			return errors.New("--image is not set: name nodens' image in a registry that the nodes pull from, such as --image YOUR-REGISTRY/nodens:0.1.0")
		}
		return nil
	}
	if strings.ContainsFunc(m.Image, unicode.IsSpace) || strings.Contains(m.Image, "://") {
		return fmt.Errorf("--image %q is no image: write it as in a pod, such as YOUR-REGISTRY/nodens:0.1.0", m.Image)
	}
	if was != m.Image {
		m.pod.container["image"] = m.Image
		m.note(Changed, "image", "%s instead of %s", m.Image, was)
	}
	return nil
}

// handsOver reports whether the DaemonSet runs an agent that hands over.
func (m *migration) handsOver() bool {
	_, ok := argument(m.pod.container.texts("args"), "handover-dir")
	return ok
}

// convertArgs removes the arguments that nodens doesn't know, and parses the others.
func (m *migration) convertArgs() (err error) {
	args := m.pod.container.texts("args")
	var kept []string
	for i := 0; i < len(args); {
		n, known := m.splitFlag(args[i:])
		if known {
			kept = append(kept, args[i:i+n]...)
		} else {
			m.note(Changed, "args", "%s removed: nodens has no such flag", strings.Join(args[i:i+n], " "))
		}
		i += n
	}
	m.pod.container["args"] = toAny(kept)
	expanded, unknown := m.pod.expandedArgs()
	for _, name := range unknown {
		m.note(Todo, "args", "the value of $(%s) is only known on a node and is not checked", name)
	}
	if m.flags, err = m.Flags(expanded); err != nil {
		return fmt.Errorf("%s, args: %w", m.pod.daemonSet.describe(), err)
	}
	return nil
}

// splitFlag returns how many of the arguments are the first flag with its value, and
// whether nodens knows the flag. The argument after an unknown flag is its value, unless it
// is a flag.
func (m *migration) splitFlag(args []string) (n int, known bool) {
	name := flagName(args[0])
	if name == "" {
		return 1, true // left to the agent's parser
	}
	known, value := m.Known(name)
	if !known {
		value = len(args) > 1 && flagName(args[1]) == ""
	}
	if value && len(args) > 1 && !strings.Contains(args[0], "=") {
		return 2, known
	}
	return 1, known
}

// setArgs adds arguments, unless the first one's flag is set. It reports whether it did.
func (m *migration) setArgs(args ...string) bool {
	if _, ok := argument(m.pod.container.texts("args"), flagName(args[0])); ok {
		return false
	}
	m.pod.container["args"] = append(m.pod.container.list("args"), toAny(args)...)
	return true
}

// hasEnv reports whether the container has an environment variable of that name.
func (m *migration) hasEnv(name string) bool {
	return slices.ContainsFunc(m.pod.container.children("env"), func(e object) bool { return e.text("name") == name })
}

// addEnv adds an environment variable, unless one of that name is set. It reports whether
// it did.
func (m *migration) addEnv(variable object) bool {
	if m.hasEnv(variable.text("name")) {
		return false
	}
	m.pod.container["env"] = append(m.pod.container.list("env"), map[string]any(variable))
	return true
}
