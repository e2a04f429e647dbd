package resolvconf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Plan returns the changes that Install would make; nil if everything is in place. The error is Install's.
func (s State) Plan() ([]Change, error) { return s.host.changes(s.view) }

// effectWait is how long Install waits until a restarted systemd-resolved names the agent.
const effectWait = 5 * time.Second

// Install points the node's look-ups to the agent and returns the files that it has changed; nil if everything was
// in place. It reads first, so that calling it again is cheap and repairs what another program has changed. Before
// the first change it fails if the node has no other server, or if another program's file is at the place of a
// drop-in. After a [*ReloadError] the files are in place, and the manager does not know of it.
func (h Host) Install(ctx context.Context) (changed []Change, err error) {
	v, err := h.view()
	if err != nil {
		return nil, err
	}
	changes, err := h.changes(v)
	if err != nil {
		return nil, err
	}
	var reloaded error
	for _, c := range changes { // the drop-in first
		if err := h.apply(c); err != nil {
			return changed, err
		}
		changed = append(changed, c)
		if m, ok := dropIns[c.Path]; ok {
			reloaded = h.bus().reload(ctx, m)
		}
	}
	if v.manager == Resolved && reloaded == nil {
		reloaded = h.awaitEffect(ctx, len(changes) == 0)
	}
	return changed, reloaded
}

// awaitEffect waits until systemd-resolved asks the agent. With again, it may have to be told first, because that
// has failed before.
func (h Host) awaitEffect(ctx context.Context, again bool) error {
	if s, err := h.Read(); err != nil || s.Points {
		return err
	}
	if again {
		if err := h.bus().reload(ctx, Resolved); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, effectWait)
	defer cancel()
	for {
		if s, err := h.Read(); err != nil || s.Points {
			return err
		}
		select {
		case <-ctx.Done():
			return &ReloadError{Manager: Resolved, Err: errors.New("it does not name the agent in " + resolvedUplink)}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// changes returns the changes that point the look-ups to the agent.
func (h Host) changes(v view) (list []Change, err error) {
	switch {
	case len(h.Addrs) == 0:
		return nil, errors.New("no address of the agent; give one with --host-listen, such as 169.254.20.11")
	case len(v.servers) == 0:
		return nil, fmt.Errorf("%s names no server but the agent, so that the agent could ask nobody; give the node a name server first", v.path)
	}
	file := Change{Path: v.path, Text: h.head(v) + string(v.source)}
	if v.path == networkManagerPath { // the link to it is replaced
		file.Path = resolvPath
	}
	switch v.manager {
	case Resolved:
		list = []Change{{Path: resolvedDropIn, Text: h.resolvedText(v)}}
	case NetworkManager: // the file has what it would write
		list = []Change{{Path: networkManagerDropIn, Text: dropInMarker + "\n[main]\nrc-manager=unmanaged\n"}, file}
	default:
		list = []Change{file}
	}
	if slices.Contains(v.foreign, list[0].Path) {
		return nil, fmt.Errorf("%s is another program's: move it away", list[0].Path)
	}
	return slices.DeleteFunc(list, func(c Change) bool {
		target, err := os.Readlink(h.at(c.Path))
		text, readErr := h.read(c.Path)
		return err != nil && target == "" && readErr == nil && string(text) == c.Text
	}), nil
}

// head returns the lines at the head of a resolv.conf.
func (h Host) head(v view) string {
	var b strings.Builder
	_, link := cut(v.text)
	if v.path == networkManagerPath {
		link = v.link
	}
	if link != "" {
		b.WriteString(linkMarker + link + "\n")
	}
	for _, a := range h.Addrs {
		fmt.Fprintf(&b, "%s\nnameserver %v\n", serverMarker, a)
	}
	return b.String()
}

// resolvedText returns systemd-resolved's drop-in. The servers of other files that are read before it come
// behind the agent, because systemd-resolved asks the first of its servers.
func (h Host) resolvedText(v view) string {
	before := v.before
	if len(before) == 0 {
		before = v.servers
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s%s\n[Resolve]\n", dropInMarker, beforeMarker, joinAddrs(before))
	global := h.globalServers()
	if len(global) > 0 {
		b.WriteString("DNS=\n")
	}
	fmt.Fprintf(&b, "DNS=%s\nDomains=~.\n", strings.Join(append([]string{joinAddrs(h.Addrs)}, global...), " "))
	return b.String()
}

func joinAddrs(list []netip.Addr) string { return strings.Trim(fmt.Sprint(list), "[]") }

// globalServers returns the servers that the files of systemd-resolved name before the agent's drop-in, as they are
// written (resolved.conf(5)); nil if there are none.
func (h Host) globalServers() (servers []string) {
	folders := []string{"/etc/systemd/", "/run/systemd/", "/usr/local/lib/systemd/", "/usr/lib/systemd/"} // the first one counts
	dropIns := make(map[string]string)                                                                    // the path of each name
	var main string
	for _, f := range slices.Backward(folders) {
		if _, err := os.Stat(h.at(f + "resolved.conf")); err == nil {
			main = f + "resolved.conf"
		}
		found, _ := filepath.Glob(h.at(f + "resolved.conf.d/*.conf"))
		for _, p := range found {
			dropIns[filepath.Base(p)] = f + "resolved.conf.d/" + filepath.Base(p)
		}
	}
	paths := []string{main}
	for name, p := range dropIns {
		if name < dropInName {
			paths = append(paths, p)
		}
	}
	slices.SortFunc(paths[1:], func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	for _, p := range paths {
		if text, err := h.read(p); p != "" && err == nil {
			servers = addServers(servers, string(text))
		}
	}
	return servers
}

// addServers adds the servers of a file of systemd-resolved. An empty assignment removes those before it.
func addServers(servers []string, text string) []string {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "["):
			section = line
		case section != "[Resolve]" || strings.TrimSpace(key) != "DNS":
		case strings.TrimSpace(value) == "":
			servers = nil
		default:
			for _, s := range strings.Fields(value) {
				if !slices.Contains(servers, s) && len(servers) < maxServers {
					servers = append(servers, s)
				}
			}
		}
	}
	return servers
}

// Remove removes all text of an agent from the node's files, whoever manages them, and returns the changed files; nil
// if there was none. It continues after errors and joins them. After a [*ReloadError] the files are as they were, and
// the manager does not know of it.
func (h Host) Remove(ctx context.Context) (changed []Change, err error) {
	changes, err := h.removal()
	problems := []error{err}
	for _, c := range changes {
		if err := h.apply(c); err != nil {
			problems = append(problems, err)
			continue
		}
		changed = append(changed, c)
		if m, ok := dropIns[c.Path]; ok {
			problems = append(problems, h.bus().reload(ctx, m))
		}
	}
	return changed, errors.Join(problems...)
}

// removal returns the changes that remove the agent's text, the resolv.conf first.
func (h Host) removal() (list []Change, err error) {
	p, _, err := h.follow(resolvPath)
	if err != nil {
		return nil, err
	}
	text, err := h.read(p)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	rest, link := cut(text)
	switch {
	case link != "":
		list = append(list, Change{Path: p, Link: link})
	case len(rest) < len(text):
		list = append(list, Change{Path: p, Text: string(rest)})
	}
	var v view
	err = errors.Join(err, h.viewDropIns(&v))
	for _, p := range v.own {
		list = append(list, Change{Path: p, Remove: true})
	}
	return list, err
}

// apply makes a change.
func (h Host) apply(c Change) (err error) {
	at := h.at(c.Path)
	switch {
	case c.Remove:
		if err = os.Remove(at); err == nil {
			_ = os.Remove(filepath.Dir(at)) // of drop-ins; fails if it has others, or is a mount point
		}
	case c.Link != "":
		err = replaceByLink(at, c.Link)
	default:
		if _, ok := dropIns[c.Path]; ok {
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return fmt.Errorf("writing %s: %w", c.Path, err)
			}
		}
		err = replace(at, []byte(c.Text))
	}
	if err != nil {
		return fmt.Errorf("changing %s of the node: %w; it needs root, and in a container a writable mount of its directory below --host-root", c.Path, err)
	}
	return nil
}
