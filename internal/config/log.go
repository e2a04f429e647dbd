package config

import (
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Log is `log [NAMES…] [FORMAT] { class …; sample N; slow DURATION; aggregate DURATION }`. A block may have
// several: the first whose Names contain the qname applies, whatever its classes.
type Log struct {
	// Names are the zones logged; empty means all.
	Names []wire.Name
	// Classes are "success", "denial", "error", in this order; empty means all.
	Classes []string
	// Slow is the least time of queries that are logged in any case; 0 is none.
	Slow time.Duration
	// Sample says that one in so many of the other queries is chosen; 0 is not given.
	Sample int
	// Aggregate is the interval in which the chosen queries are counted, instead of having a line each; 0
	// is none.
	Aggregate time.Duration
	// Format is the line to write, with placeholders such as {name}; "" is none
	// given. {common} and {combined} are what they stand for.
	Format string
	// Next is the next log of the same block, nil for the last.
	Next *Log
}

// CommonLogFormat is the line of the common log format, with CoreDNS's placeholders.
const CommonLogFormat = `{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}`

// namedFormats are the formats that others may be made of.
var namedFormats = strings.NewReplacer("{common}", CommonLogFormat, "{combined}", CommonLogFormat+` "{>opcode}"`)

// classes are the values of `class`.
var classes = []string{"success", "denial", "error"}

// maxLogs bounds a block's chain, which is walked for each query; the names of one
// line may be many.
const maxLogs = 100

const (
	maxSample = 1_000_000
	maxSlow   = time.Minute
	// minAggregate bounds the lines: a log writes at most 501 in an interval.
	minAggregate = time.Second
	maxAggregate = time.Hour
)

// needsAgent reports whether one of l and those after it has to see every query.
func (l *Log) needsAgent() bool {
	return l != nil && (l.EveryQuery() || l.Next.needsAgent())
}

// EveryQuery reports whether the log has to see every query, also those that the kernel could answer: it knows
// nothing of these, but they are not slow and have no errors.
func (l *Log) EveryQuery() bool {
	if l.Sample > 1 || l.Slow > 0 && l.Sample == 0 && l.Aggregate == 0 {
		return false
	}
	return len(l.Classes) == 0 || l.Classes[0] != "error"
}

func (l *Log) parse(p *parser, s statement) {
	args := s.args()
	if n := len(args); n > 0 && strings.Contains(args[n-1].text, "{") {
		l.Format = namedFormats.Replace(args[n-1].text)
		args = args[:n-1]
	}
	l.Names = p.zones(args)
	if slices.Contains(l.Names, wire.Root) {
		l.Names = nil
	}
	given := make(map[string]bool)
	p.body(s,
		opt("class CLASSES…", func(args []token) {
			for _, w := range args {
				if given[w.text] = true; w.text != "all" && !slices.Contains(classes, w.text) {
					p.unknown(w, "class", append([]string{"all"}, classes...))
				}
			}
		}),
		opt("sample N", toNumber(p, &l.Sample, 1, maxSample)),
		opt("slow DURATION", p.toDuration(&l.Slow, time.Millisecond, maxSlow)),
		opt("aggregate DURATION", p.toDuration(&l.Aggregate, minAggregate, maxAggregate)),
	)
	for _, class := range classes {
		if given[class] && !given["all"] {
			l.Classes = append(l.Classes, class)
		}
	}
}

func (l *Log) next() **Log { return &l.Next }

// join appends a further log to the chain.
func (l *Log) join(p *parser, s statement, more directive) {
	added := more.(*Log)
	for prev := range chain(l) {
		if prev.Names == nil || added.Names != nil && covered(prev.Names, added.Names) {
			p.suspect(s.name(), "it logs nothing: a log before it takes all of its names; write this one first")
			break
		}
	}
	extend(p, s, l, added, maxLogs, "logs; put names of the same classes and format on one line")
}
