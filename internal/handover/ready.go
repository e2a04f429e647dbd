package handover

import (
	"context"
	"errors"
	"fmt"
)

// errNoAgent: nothing listens at the socket.
var errNoAgent = errors.New("no agent listens there")

// Ready returns nil if the agent at dir is ready ([Config.Ready]) and runs in this process's PID
// namespace: a probe in a container asks about the agent of that container, not about its predecessor.
// It also finds an agent that [ListenForReady] has made listen. Ready takes 4 s at most, or until ctx is done.
func Ready(ctx context.Context, dir string) error {
	err := ready(ctx, dir)
	if err != nil {
		if inMemory := ready(ctx, memoryDir(dir)); !errors.Is(inMemory, errNoAgent) {
			return inMemory
		}
	}
	return err
}

// ready is Ready for the agent that listens in dir itself.
func ready(ctx context.Context, dir string) error {
	l, err := dial(dir)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("--handover-dir %s: %w", dir, errNoAgent)
	}
	defer l.close()
	who, err := l.checkPeer()
	if err != nil {
		return fmt.Errorf("--handover-dir %s: %w", dir, err)
	}
	if who.Pid <= 0 {
		return fmt.Errorf("--handover-dir %s: the agent that listens there is not in this container", dir)
	}
	hi, err := l.exchangeHello(ctx, defaultTimeouts().hello, Config{}.helloHead(purposeState))
	if err != nil {
		return fmt.Errorf("--handover-dir %s: asking the agent there: %w", dir, err)
	}
	if !hi.Ready {
		return fmt.Errorf("the agent (pid %d) is not ready: %s", who.Pid, truncate(hi.Reason))
	}
	return nil
}
