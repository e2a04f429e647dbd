package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"go.yaml.in/yaml/v3"
)

// SourceFile is a file of objects.
type SourceFile struct{ Name, Text string }

// Diff returns the changes to files that give them the objects of a manifest, as a unified diff. Order, comments and layout of
// all else stay. An object that no file has is added to the file of the manifest's last object, the DaemonSet.
func Diff(files []SourceFile, manifest []byte) ([]byte, error) {
	all := Objects{kinds: append(slices.Clone(defaultKinds), "ServiceAccount", "ClusterRole", "ClusterRoleBinding")}
	if err := all.Read("the manifest", bytes.NewReader(manifest)); err != nil {
		return nil, err
	}
	edited := slices.Clone(files)
	var added []object
	last := len(files) - 1
	for _, obj := range all.list {
		at, err := editFiles(edited, obj)
		switch {
		case err != nil:
			return nil, err
		case at < 0:
			added = append(added, obj)
		default:
			last = at
		}
	}
	for _, obj := range added {
		text, err := marshalYAML(obj)
		if err != nil {
			return nil, err
		}
		edited[last].Text = strings.TrimSuffix(edited[last].Text, "\n") + "\n---\n" + string(text)
	}
	var out bytes.Buffer
	for i := range files {
		out.WriteString(udiff.Unified(files[i].Name, files[i].Name, files[i].Text, edited[i].Text))
	}
	return out.Bytes(), nil
}

// editFiles makes the object in the last file that has it what obj says, and returns the index of that file; -1 if none has it.
func editFiles(files []SourceFile, obj object) (int, error) {
	for i := range slices.Backward(files) {
		docs := splitDocuments(files[i].Text)
		for j := range slices.Backward(docs) {
			text, found, err := editDocument(docs[j], obj)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", files[i].Name, err)
			}
			if !found {
				continue
			}
			if strings.EqualFold(filepath.Ext(files[i].Name), ".json") {
				return 0, fmt.Errorf("%s: --diff changes YAML only; convert the file, or take the manifest that migrate prints without --diff", files[i].Name)
			}
			docs[j] = text
			files[i].Text = strings.Join(docs, "")
			return i, nil
		}
	}
	return -1, nil
}

// splitDocuments splits YAML before the lines that begin documents.
func splitDocuments(text string) (docs []string) {
	var doc strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "---") && doc.Len() > 0 {
			docs = append(docs, doc.String())
			doc.Reset()
		}
		doc.WriteString(line)
	}
	return append(docs, doc.String())
}

// errEdit is a list whose item can't be edited.
var errEdit = errors.New("its layout can't be kept; take the manifest that migrate prints without --diff")

// editDocument makes the object in a document what obj says. A document whose layout can't be kept is written anew.
func editDocument(doc string, obj object) (text string, found bool, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(doc), &root); err != nil || len(root.Content) == 0 {
		return doc, false, err
	}
	n, inList := findObject(root.Content[0], obj)
	if n == nil {
		return doc, false, nil
	}
	if sameValue(n, obj) {
		return doc, true, nil
	}
	e := &editor{lines: strings.Split(strings.TrimSuffix(doc, "\n"), "\n")}
	if e.mapping(n, obj) {
		if text = strings.Join(e.apply(), "\n") + "\n"; hasObject(text, obj) {
			return text, true, nil
		}
	}
	if inList {
		return "", true, fmt.Errorf("%s: %w", obj.describe(), errEdit)
	}
	anew, err := marshalYAML(obj)
	return "---\n" + string(anew), true, err
}

// hasObject reports whether a document has the object as it is.
func hasObject(doc string, obj object) bool {
	var root yaml.Node
	if yaml.Unmarshal([]byte(doc), &root) != nil || len(root.Content) == 0 {
		return false
	}
	n, _ := findObject(root.Content[0], obj)
	return n != nil && sameValue(n, obj)
}

// findObject returns the node of an object in a document, which may be a list.
func findObject(n *yaml.Node, obj object) (found *yaml.Node, inList bool) {
	var tree map[string]any // nested maps have the type of this one
	if n.Kind != yaml.MappingNode || n.Decode(&tree) != nil {
		return nil, false
	}
	is := object(tree)
	if is.describe() == obj.describe() {
		return n, false
	}
	if !strings.HasSuffix(is.text("kind"), "List") {
		return nil, false
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value != "items" {
			continue
		}
		for _, item := range n.Content[i+1].Content {
			if found, _ := findObject(item, obj); found != nil {
				return found, true
			}
		}
	}
	return nil, false
}
