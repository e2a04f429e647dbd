package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const limitsPage = "docs/reference/limits.md"

// constants are the constants of the agent's packages by "folder.name". Defaults of package
// server's Limits are "server.Limits.NAME".
type constants struct {
	exprs   map[string]ast.Expr
	imports map[string]map[string]string // by constant: folder by the name of its package
}

// quantity is a number, or a time in nanoseconds.
type quantity struct {
	n    int64
	time bool
}

// internalBounds are constants that operators and clients can't meet: sizes of formats, algorithms and
// buffers, and typing errors of settings, whose error says the bound.
var internalBounds = []string{
	"cache.maxCacheName", "cache.maxChunk", "cache.maxHits", "cache.maxPooledPacket",
	"cache.maxRemaining", "cache.maxRetries", "cache.maxShardBytes",
	"cmd/nodens.maxHandoverCompare", "cmd/nodens.maxHostListen", "internal/resolvconf.maxLibcServers", "internal/resolvconf.maxLinks",
	"cmd/nodens/app.maxCacheFile", "cmd/nodens/app.maxCacheName", "cmd/nodens/app.maxFaultText", "cmd/nodens/app.maxListed", "cmd/nodens/app.maxSocketPath",
	"cmd/nodens/app.maxStatisticsZones",
	"internal/baseline.maxCount", "internal/baseline.maxName",
	"internal/baseline.maxTime", "internal/baseline.maxViews",
	"internal/ethtool.maxCounters", "internal/pollset.maxSockets", "upstream.maxShownClients",
	"internal/config.maxNesting", "internal/config.maxChaosAuthors", "internal/config.maxChaosText", "internal/config.maxRcode", "internal/config.maxSockets", "internal/config.maxTTL",
	"internal/handover.maxEvents", "internal/handover.maxHead", "internal/handover.maxKinds", "internal/handover.maxPath", "internal/handover.maxPatience",
	"internal/handover.maxRest", "internal/handover.maxSkipped", "internal/handover.maxText", "internal/handover.maxVersion",
	"kubernetes.maxSnapshotAttempts", "internal/sketch.maxChunks",
	"internal/stat.maxBuckets",
	"internal/wire.maxCompressed", "internal/wire.maxKnown", "internal/wire.maxObjects", "internal/wire.maxPointed", "internal/wire.maxPointers",
	"internal/wire.maxShifts", "internal/wire.maxText",
	"kubernetes.maxComparedAddrs", "kubernetes.maxComparisons", "kubernetes.maxDepth", "kubernetes.maxEagerEndpoints", "kubernetes.maxEndpoints",
	"kubernetes.maxExternalDepth", "kubernetes.maxObjectName", "kubernetes.maxPairs", "kubernetes.maxPointerOffset",
	"kubernetes.maxStartDelay", "kubernetes.maxTypeBytes", "kubernetes.maxUnindexedHosts", "kubernetes.maxUnindexedPorts",
	"kubernetes/reflector.maxInterned", "kubernetes/reflector.maxInternedBytes",
	"netsetup.maxCalls", "netsetup.maxDumpTries", "netsetup.maxEgressMessage", "netsetup.maxNftTries", "netsetup.maxSignalInterval",
	"netsetup.maxStackDepth",
	"server/udp.maxClockDrift", "server.maxGroups", "server.maxMaxAge",
	"server/clients.maxOwners", "server/clients.maxShift", "server/clients.maxStripes",
	"server/dnstap.maxControlLen", "server/dnstap.maxKeptBuffer",
	"server/kernelpath.maxKnownPrograms",
	"server/reply.maxStrength", "server/reply.MaxTTLs", "server/reply.maxWatches",
	"server/otlp.maxReason", "server/otlp.maxReplyHeader",
	"server/resolver.maxPlainRcode", "server/resolver.maxStripes",
	"server/rewrite.maxNameText",
	"server/template.maxRcodeWithoutEDNS", "server/transfer.maxMessage",
	"upstream.maxAttempts", "upstream.maxBeforeFirstReply", "upstream.maxCheckInterval", "upstream.maxKeptBuffer",
	"upstream.maxKeptWriteBuf", "upstream.maxOpenSockets", "upstream.maxOrphans", "upstream.maxQuotedQuery",
	"upstream.maxSendRetries", "upstream.maxTLSSessions",
}

// readConstants collects the constants of the agent's sources.
func readConstants(t *testing.T) *constants {
	t.Helper()
	c := &constants{make(map[string]ast.Expr), make(map[string]map[string]string)}
	for _, source := range agentSources(t) {
		text, _ := document(t, source)
		file, err := parser.ParseFile(token.NewFileSet(), source, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		folder := path.Dir(source)
		imports := make(map[string]string)
		for _, i := range file.Imports {
			if p, ok := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), "github.com/nodens-dns/nodens/"); ok {
				imports[path.Base(p)] = p
			}
		}
		add := func(name string, e ast.Expr) { c.exprs[folder+"."+name], c.imports[folder+"."+name] = e, imports }
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if i < len(n.Values) {
						add(name.Name, n.Values[i])
					}
				}
			case *ast.CallExpr:
				if len(n.Args) == 2 && nameOf(n.Fun) == "orDefault" {
					if field, ok := n.Args[0].(*ast.SelectorExpr); ok {
						add("Limits."+field.Sel.Name, n.Args[1])
					}
				}
			}
			return true
		})
	}
	return c
}

// agentSources are the sources of the agent and its commands.
func agentSources(t *testing.T) []string {
	t.Helper()
	return files(t, func(name string) bool {
		top, _, _ := strings.Cut(name, "/")
		return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "internal/toolcache/") &&
			slices.Contains([]string{"cmd", "internal", "server", "kubernetes", "cache", "upstream", "netsetup"}, top)
	})
}

// units are the durations of package time.
var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// value evaluates a constant.
func (c *constants) value(name string) (quantity, error) {
	e, ok := c.exprs[name]
	if !ok {
		return quantity{}, fmt.Errorf("there is no constant %s", name)
	}
	return c.eval(name, e)
}

// eval evaluates an expression of the constant name.
func (c *constants) eval(name string, e ast.Expr) (quantity, error) {
	folder, _, _ := strings.Cut(name, ".")
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(e.Value, 0, 64)
		return quantity{n: n}, err
	case *ast.ParenExpr:
		return c.eval(name, e.X)
	case *ast.Ident:
		return c.value(folder + "." + e.Name)
	case *ast.SelectorExpr:
		from, _ := e.X.(*ast.Ident)
		if from != nil && from.Name == "time" {
			return quantity{int64(units[e.Sel.Name]), true}, nil
		}
		if from != nil {
			return c.value(c.imports[name][from.Name] + "." + e.Sel.Name)
		}
	case *ast.BinaryExpr:
		x, err := c.eval(name, e.X)
		if err != nil {
			return x, err
		}
		y, err := c.eval(name, e.Y)
		if err != nil {
			return y, err
		}
		return apply(x, e.Op, y)
	}
	return quantity{}, fmt.Errorf("%s is not made of numbers and other constants", name)
}

func apply(x quantity, op token.Token, y quantity) (quantity, error) {
	is := x.time || y.time
	switch op {
	case token.ADD:
		return quantity{x.n + y.n, is}, nil
	case token.SUB:
		return quantity{x.n - y.n, is}, nil
	case token.MUL:
		return quantity{x.n * y.n, is}, nil
	case token.QUO:
		return quantity{x.n / y.n, is}, nil
	case token.SHL:
		return quantity{x.n << y.n, is}, nil
	}
	return quantity{}, fmt.Errorf("operator %s", op)
}

// spellings are the forms in which a page may write a quantity.
func (q quantity) spellings() []string {
	var list []string
	if q.time {
		for _, u := range []struct {
			of   time.Duration
			name string
		}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
			n := q.n / int64(u.of)
			switch {
			case q.n%int64(u.of) != 0 || n == 0:
			case len(u.name) > 2 && n > 1:
				list = append(list, fmt.Sprintf("%d %ss", n, u.name))
			default:
				list = append(list, fmt.Sprintf("%d %s", n, u.name))
			}
		}
		return list
	}
	for shift, unit := range map[int]string{10: "KiB", 20: "MiB", 30: "GiB"} {
		if n := q.n >> shift; n > 0 && n<<shift == q.n {
			list = append(list, fmt.Sprintf("%d %s", n, unit))
		}
	}
	text := strconv.FormatInt(q.n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return append(list, text)
}

// marked is a value of the page and the constants in the comments after it.
var marked = regexp.MustCompile(`([^|<>]*)((?:<!--[A-Za-z/0-9_.]+--> ?)+)`)

// TestLimits: the bounds of the page are the constants in the comments beside them.
func TestLimits(t *testing.T) {
	c := readConstants(t)
	text, _ := document(t, limitsPage)
	n := 0
	for _, m := range marked.FindAllStringSubmatch(text, -1) {
		for _, name := range regexp.MustCompile(`[A-Za-z/0-9_.]+[A-Za-z0-9]`).FindAllString(m[2], -1) {
			n++
			q, err := c.value(name)
			if err != nil {
				t.Errorf("%s: %s: %v", limitsPage, name, err)
				continue
			}
			if !slices.ContainsFunc(q.spellings(), func(s string) bool { return isWritten(m[1], s) }) {
				t.Errorf("%s: %s is %q, but the page says %q", limitsPage, name, q.spellings(), strings.TrimSpace(m[1]))
			}
		}
	}
	if n < 60 {
		t.Errorf("%s names only %d constants", limitsPage, n)
	}
}

// TestLimitsComplete: every constant that begins with max is on the page, or is known to bound
// something that only the code is about.
func TestLimitsComplete(t *testing.T) {
	text, _ := document(t, limitsPage)
	begins := regexp.MustCompile(`\.max[A-Z]`)
	c := readConstants(t)
	for name := range c.exprs {
		if _, err := c.value(name); err != nil || !begins.MatchString(name) || strings.Contains(text, "<!--"+name+"-->") {
			continue
		}
		if !slices.Contains(internalBounds, name) {
			t.Errorf("%s is not in %s; add a row, or add it to internalBounds if operators can't meet it", name, limitsPage)
		}
	}
	for _, name := range internalBounds {
		if _, err := c.value(name); err != nil {
			t.Errorf("internalBounds: %v", err)
		}
	}
}

// isWritten reports whether a text has a quantity that is no part of a longer one.
func isWritten(text, s string) bool {
	return regexp.MustCompile(`(^|[^0-9,])` + regexp.QuoteMeta(s) + `($|[^0-9,]|,[^0-9]|,$)`).MatchString(text)
}

func TestQuantities(t *testing.T) {
	tests := []struct {
		q    quantity
		text string
		want bool
	}{
		{quantity{n: 4096}, "4,096 bytes", true},
		{quantity{n: 4096}, "4 KiB", true},
		{quantity{n: 4096}, "14,096", false},
		{quantity{n: 4096}, "4,0961", false},
		{quantity{n: 16 << 20}, "all 16 MiB, and more", true},
		{quantity{n: 8}, "8,", true},
		{quantity{int64(time.Minute), true}, "1 minute", true},
		{quantity{int64(2 * time.Hour), true}, "2 hours", true},
		{quantity{int64(2 * time.Second), true}, "12 s", false},
	}
	for _, tt := range tests {
		if got := slices.ContainsFunc(tt.q.spellings(), func(s string) bool { return isWritten(tt.text, s) }); got != tt.want {
			t.Errorf("%v in %q: %v", tt.q, tt.text, got)
		}
	}
}
