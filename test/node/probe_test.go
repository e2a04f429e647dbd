package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// answers holds when dig, with args, gets an answer in the namespace.
func (l *lab) answers(ns string, args ...string) peer.Probe {
	return func(context.Context) error {
		out, err := l.dig(ns, args...)
		if err == nil && out == "" {
			err = errors.New("the answer is empty")
		}
		return err
	}
}

// logs holds when the process has written word.
func logs(p *peer.Process, word string) peer.Probe {
	return func(context.Context) error {
		if !strings.Contains(p.Tail(), word) {
			return fmt.Errorf("its log has no %q", word)
		}
		return nil
	}
}
