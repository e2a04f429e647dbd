package app

import (
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/kubernetes"
)

const (
	// libraryInterval is the time in which a library's message is logged once.
	libraryInterval = time.Minute
	// maxLibraryTexts bounds the messages that are remembered.
	maxLibraryTexts = 64
)

// libraryLog is a writer for the loggers of package log that libraries use. It passes each line to the agent's log, in
// its format. Lines that differ only in numbers, such as addresses and times, are logged once a minute. It is safe for
// concurrent use.
type libraryLog struct {
	log *slog.Logger

	mu    sync.Mutex
	texts map[string]*libraryText // without digits
}

// libraryText is a message that has been logged.
type libraryText struct {
	logged   time.Time
	repeated int // since then
}

func newLibraryLog(log *slog.Logger) *libraryLog {
	return &libraryLog{log: log, texts: make(map[string]*libraryText)}
}

// logger returns a logger of package log that writes to l.
func (l *libraryLog) logger() *log.Logger { return log.New(l, "", 0) }

// globMessage begins what the lexer of the Corefile says at each look at a pattern without files. The agent logs such
// patterns once for each configuration ([config.Config.EmptyImports]).
const globMessage = "[WARNING] No files matching import glob pattern"

// Write logs a line of a library.
func (l *libraryLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.HasPrefix(text, globMessage) {
		return len(line), nil
	}
	if repeated, ok := l.count(text, time.Now()); ok {
		l.log.Warn("a library reports", "text", text, "repeated", repeated)
	}
	return len(line), nil
}

// count counts text and reports whether it is to be logged, and how many like it were not logged before.
func (l *libraryLog) count(text string, now time.Time) (repeated int, ok bool) {
	key := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.texts[key]
	switch {
	case t == nil && len(l.texts) == maxLibraryTexts:
		clear(l.texts)
		fallthrough
	case t == nil:
		t = new(libraryText)
		l.texts[key] = t
	case now.Sub(t.logged) < libraryInterval:
		t.repeated++
		return 0, false
	}
	repeated, t.repeated, t.logged = t.repeated, 0, now
	return repeated, true
}

// redirectLibraries makes package log write to l, and returns a function that ends this.
func redirectLibraries(l *libraryLog) (restore func()) {
	flags := log.Flags()
	log.SetFlags(0)
	log.SetOutput(l)
	return func() {
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
	}
}

// RedirectKlog makes client-go log as the agent does. It must be called before the agent starts.
func RedirectKlog() { kubernetes.RedirectKlog() }
