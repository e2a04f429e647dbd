package handover

import (
	"context"
	"fmt"
)

// Ready asks the agent at dir whether it is ready, and gives nil if it is and runs in
// this process's pid namespace: a probe inside of a container asks for the agent of that
// container, not for the one that it takes over from. Without ctx's it takes 2 s at most.
func Ready(ctx context.Context, dir string) error {
	l, err := dial(dir)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("-handover-dir %s: no agent waits there", dir)
	}
	defer l.close()
	who, err := l.checkPeer()
	if err != nil {
		return fmt.Errorf("-handover-dir %s: %w", dir, err)
	}
	if who.Pid <= 0 {
		return fmt.Errorf("-handover-dir %s: the agent that waits there is not this container's", dir)
	}
	hi, err := l.exchangeHello(ctx, defaultTimeouts().hello, Config{}.helloHead(purposeState))
	if err != nil {
		return fmt.Errorf("-handover-dir %s: asking the agent there: %w", dir, err)
	}
	if !hi.Ready {
		return fmt.Errorf("the agent (pid %d) is not ready: %s", who.Pid, truncate(hi.Reason))
	}
	return nil
}
