package debian

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Chooser chooses files of packages, with what they need to run: the target of a symbolic link, and the loader and the
// libraries of a program. Set the exported fields before the first call of Choose.
type Chooser struct {
	// Find returns the file at a path, if a package has one.
	Find func(name string) (f File, ok bool)
	// Add is called once for each file that is chosen.
	Add func(name string, f File)
	// Triple is the folder with the libraries below usr/lib, such as x86_64-linux-gnu.
	Triple string
	// Machine is what programs have to be built for.
	Machine elf.Machine

	chosen map[string]bool
}

// Choose chooses the file at a path, in a system with merged /usr, and what it needs.
func (c *Chooser) Choose(name string) error {
	name = MergedPath(name)
	if c.chosen[name] {
		return nil
	}
	f, ok := c.Find(name)
	if !ok {
		return fmt.Errorf("no package has /%s", name)
	}
	if c.chosen == nil {
		c.chosen = make(map[string]bool)
	}
	c.chosen[name] = true
	c.Add(name, f)
	if f.Mode.Type() == fs.ModeSymlink {
		to := f.Link
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(name), to)
		}
		return c.Choose(strings.TrimPrefix(path.Clean(to), "/"))
	}
	needed, err := c.needed(f.Body)
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	for _, n := range needed {
		if err := c.Choose(n); err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
	}
	return nil
}

// needed returns the paths of the libraries and the loader of a program, and nothing
// for other files.
func (c *Chooser) needed(body []byte) (paths []string, err error) {
	if !bytes.HasPrefix(body, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	e, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if e.Machine != c.Machine {
		return nil, fmt.Errorf("built for %s, not for %s", e.Machine, c.Machine)
	}
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz)
		if _, err := p.ReadAt(loader, 0); err != nil {
			return nil, err
		}
		paths = append(paths, strings.Trim(string(loader), "/\x00"))
	}
	libraries, err := e.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, l := range libraries {
		paths = append(paths, "usr/lib/"+c.Triple+"/"+l)
	}
	return paths, nil
}
