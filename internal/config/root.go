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
	if r.Directory = s.word().text; r.Directory == "" {
		p.errorf(s.name(), "the directory's name is empty; is an environment variable unset?")
		return
	}
	p.checkDirectory(s.word(), r.Directory)
}

// checkDirectory looks at a directory on this machine. One that is not there is not an error: it may come later.
func (p *parser) checkDirectory(at token, dir string) {
	if p.offNode(dir) {
		return
	}
	info, err := os.Stat(dir)
	switch {
	case os.IsNotExist(err):
		p.warn(at, "there is no directory %s; mount it, or name another one", dir)
	case err != nil:
		p.errorf(at, "%v", err)
	case !info.IsDir():
		p.errorf(at, "%s is a file; name the directory that it is in", dir)
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

// filePath is path for w, which must not be empty; an error is about at.
func (p *parser) filePath(at, w token) string {
	if w.text == "" {
		p.errorf(at, "the file's name is empty; is an environment variable unset?")
	}
	return p.path(w.text)
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
