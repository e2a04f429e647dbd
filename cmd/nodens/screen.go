package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/nodens-dns/nodens/internal/report"
)

// Control sequences of terminals (ECMA-48; the alternate screen is xterm's). The alternate screen leaves the lines above
// and the scrollback as they are.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // and hide the cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// screen is a terminal on which a text is redrawn.
type screen struct {
	out  io.Writer
	size func() (width, height int, err error)
}

// newScreen returns the screen of w, nil if w is none.
func newScreen(w io.Writer) *screen {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || os.Getenv("TERM") == "dumb" || !allowSequences(file) {
		return nil
	}
	return &screen{file, func() (int, int, error) { return term.GetSize(int(file.Fd())) }}
}

// redraw shows what print writes, again after each interval, until ctx ends. Then the last text stays. If print fails, the
// error is shown above the text before, or returned if there is none.
func (s *screen) redraw(ctx context.Context, interval time.Duration, print func(io.Writer) error) error {
	var last string // nothing is on the screen yet
	defer func() {
		if last != "" {
			fmt.Fprint(s.out, leaveScreen, last)
		}
	}()
	for {
		var text bytes.Buffer
		err := print(&text)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && last == "" {
			_, _ = text.WriteTo(s.out)
			return err
		}
		if last, err = s.show(last, text.String(), err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// show shows text, or last with why there is no text. It returns what is shown without that.
func (s *screen) show(last, text string, problem error) (string, error) {
	enter := ""
	if last == "" {
		enter = enterScreen
	}
	if problem == nil {
		last, text = text, ""
	} else {
		text = fmt.Sprintf("%s: %s; trying again\n\n", time.Now().Format(time.TimeOnly), problem)
	}
	_, err := io.WriteString(s.out, enter+s.frame(text+last))
	return last, err
}

// frame returns the sequences that replace what is on the screen by text. Lines and columns beyond the window are left
// out.
func (s *screen) frame(text string) string {
	width, height, err := s.size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if err == nil && height > 1 && len(lines) > height {
		more := len(lines) - height + 1
		lines = append(lines[:height-1:height-1], fmt.Sprintf("and %d more lines", more))
	}
	for i, line := range lines {
		line = report.Printable(line)
		if runes := []rune(line); err == nil && width > 0 && len(runes) > width {
			line = string(runes[:width])
		}
		clearing := clearLine
		if i == len(lines)-1 {
			clearing = clearBelow
		}
		lines[i] = clearing + line // in this order: after the last column the cursor is still on it
	}
	return homeCursor + strings.Join(lines, "\n")
}
