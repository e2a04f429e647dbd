package handover

import (
	"context"
	"fmt"
)

// Ready returns nil if the agent at dir is ready ([Config.Ready]) and runs in this process's PID
// namespace: a probe in a container asks about the agent of that container, not about its predecessor.
// Ready takes 2 s at most, or until ctx is done.
func Ready(ctx context.Context, dir string) error {
	l, err := dial(dir)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("--handover-dir %s: no agent listens there", dir)
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
