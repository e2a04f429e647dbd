package config

import (
	"os"
	"path/filepath"
)

// Root is `root DIRECTORY`: relative paths of the block's files start there.
type Root struct {
	// Directory may be relative to the working directory.
	Directory string
}

func (r *Root) parse(p *parser, s statement) {
	p.body(s)
	if !p.count(s, "root DIRECTORY") {
		return
	}
	w := s.args()[0]
	r.Directory = w.text
	if w.text == "" {
		p.errorf(s.name(), "the directory's name is empty; is an environment variable unset?")
		return
	}
	if p.offNode(w.text) {
		return
	}
	info, err := os.Stat(w.text)
	switch {
	case os.IsNotExist(err):
		p.warn(w, "there is no directory %s; mount it, or name another one", w.text)
	case err != nil:
		p.errorf(w, "%v", err)
	case !info.IsDir():
		p.errorf(w, "%s is a file; name the directory that it is in", w.text)
	}
}

// setRoot sets the directory of the block's relative paths from its `root`, wherever that is in the
// block.
func (p *parser) setRoot(list []statement) {
	p.root = ""
	for _, s := range list {
		if s.name().text == "root" && len(s.args()) > 0 {
			p.root = s.args()[0].text
			return
		}
	}
}

// path returns the path of a file that a directive names: with the block's `root` if it is relative.
func (p *parser) path(name string) string {
	if name == "" || p.root == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.root, name)
}

// paths replaces the texts of words by their paths.
func (p *parser) paths(words []token) []token {
	list := make([]token, len(words))
	for i, w := range words {
		list[i] = w
		list[i].text = p.path(w.text)
	}
	return list
}
