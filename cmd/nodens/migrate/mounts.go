package migrate

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

// MountedFile is a file that a ConfigMap gives the container.
type MountedFile struct {
	// Name names the ConfigMap and its key. Text is the key's value.
	Name, Text string

	path string // in the container
}

// mountedFiles returns the files that ConfigMaps give the container. dirs are the directories and files at which they are
// mounted. A ConfigMap that is neither among the objects nor optional is noted.
func (m *migration) mountedFiles() (files []MountedFile, dirs []string) {
	for _, mount := range m.pod.container.children("volumeMounts") {
		for _, volume := range m.pod.podSpec.children("volumes") {
			sources := configMapSources(volume)
			if volume.text("name") != mount.text("name") || len(sources) == 0 {
				continue
			}
			dirs = append(dirs, path.Clean(mount.text("mountPath")))
			for _, source := range sources {
				files = append(files, m.sourceFiles(source, mount)...)
			}
		}
	}
	return files, dirs
}

// configMapSources returns the ConfigMaps of a volume.
func configMapSources(volume object) (list []object) {
	if source := volume.child("configMap"); source != nil {
		return []object{source}
	}
	for _, part := range volume.children("projected", "sources") {
		if source := part.child("configMap"); source != nil {
			list = append(list, source)
		}
	}
	return list
}

// sourceFiles returns the files of one ConfigMap of a volume with that mount.
func (m *migration) sourceFiles(source, mount object) (files []MountedFile) {
	name, dir := source.text("name"), strings.TrimSuffix(mount.text("mountPath"), "/")
	if dir == path.Clean(m.flags.KubeDNS) {
		return nil // kubeDNSFiles reads it
	}
	configMap := m.Objects.get("ConfigMap", m.pod.daemonSet.namespace(), name)
	if configMap == nil {
		if optional, _ := source["optional"].(bool); !optional || !m.Objects.live { // files may just leave it out
			m.noteFor(Todo, "ConfigMap "+name, "not among the objects, so the files in %s are not checked; add its file with -f", dir)
		}
		return nil
	}
	add := func(file, key string) {
		file, ok := belowSubPath(file, mount.text("subPath"))
		if !ok {
			return
		}
		files = append(files, MountedFile{
			Name: configMap.describe() + ", " + key, Text: configMap.text("data", key), path: strings.TrimSuffix(dir+"/"+strings.TrimPrefix(file, "/"), "/"),
		})
	}
	items := source.children("items")
	for _, item := range items {
		add(item.text("path"), item.text("key"))
	}
	for key := range configMap.child("data") {
		if len(items) == 0 {
			add(key, key)
		}
	}
	slices.SortFunc(files, func(a, b MountedFile) int { return strings.Compare(a.path, b.path) })
	return files
}

// belowSubPath returns the path of a volume's file below a mount's subPath, "" if it is the file itself.
func belowSubPath(file, part string) (rest string, ok bool) {
	if part == "" {
		return file, true
	}
	rest, ok = strings.CutPrefix("/"+file, path.Clean("/"+part))
	return rest, ok && (rest == "" || rest[0] == '/')
}

// writeMounted writes the mounted files, with their variables and paths replaced.
func (c *corefile) writeMounted() error {
	files := make(map[string]string)
	for _, f := range c.mounted {
		files[strings.TrimPrefix(f.path, "/")] = c.replacePaths.Replace(c.values.Replace(f.Text))
	}
	return writeFiles(c.root, files)
}

// mountPairs returns pairs of a path in the container and its path here.
func mountPairs(dirs []string, root string) (pairs []string) {
	dirs = slices.Clone(dirs)
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, dir := range slices.Compact(dirs) {
		pairs = append(pairs, dir+"/", filepath.ToSlash(root)+dir+"/", dir+" ", filepath.ToSlash(root)+dir+" ", dir+"\n", filepath.ToSlash(root)+dir+"\n")
	}
	return pairs
}

// restoreMounted returns pairs of a path here and its name for error texts.
func (c *corefile) restoreMounted() (pairs []string) {
	files := slices.Clone(c.mounted)
	slices.SortFunc(files, func(a, b MountedFile) int { return cmp.Or(len(b.path)-len(a.path), strings.Compare(a.path, b.path)) })
	for _, f := range files {
		if here := filepath.Join(c.root, filepath.FromSlash(f.path)); here != c.path {
			pairs = append(pairs, here, f.Name)
		}
	}
	return pairs
}

// filesRead returns the Corefile, and the mounted files that cfg, nil for none, is made from.
func (c *corefile) filesRead(cfg *config.Config) []MountedFile {
	list := []MountedFile{{Name: c.configMap.describe() + ", " + c.key, Text: c.configMap.text("data", c.key)}}
	for _, f := range c.mounted {
		if cfg != nil && f.path != c.file && slices.Contains(cfg.Files, filepath.Join(c.root, filepath.FromSlash(f.path))) {
			list = append(list, f)
		}
	}
	return list
}
