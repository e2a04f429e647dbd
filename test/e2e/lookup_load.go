package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// lookupLoad runs lookups at kube-dns's address in pods until it is stopped.
type lookupLoad struct {
	d      *dropInState
	s      *suite
	ctx    context.Context
	wait   sync.WaitGroup
	mu     sync.Mutex
	errs   []error
	asked  int
	failed int
}

// lookupScript asks as long as there is no file /tmp/stop, and 3,000 times at most: a few
// minutes. It prints how often it asked, and how often in vain.
const lookupScript = `rm -f /tmp/stop; n=0; f=0
while [ ! -e /tmp/stop ] && [ $n -lt 3000 ]; do
  n=$((n+1)); nslookup -type=a kubernetes.default.svc.` + cluster.Domain + ` ` + cluster.DNS + ` >/dev/null 2>&1 || f=$((f+1))
  usleep 20000
done; echo $n $f`

// startLookups starts lookups in every pod. The caller must call stop or discard.
func (d *dropInState) startLookups(ctx context.Context, s *suite) *lookupLoad {
	l := &lookupLoad{d: d, s: s, ctx: ctx}
	for _, pod := range d.pods {
		l.wait.Go(func() {
			out, err := s.cluster.Exec(ctx, askerNamespace, pod, "sh", "-c", lookupScript)
			n, f, _ := strings.Cut(strings.TrimSpace(out), " ")
			l.mu.Lock()
			defer l.mu.Unlock()
			asked, wrong := strconv.Atoi(n)
			failed, bad := strconv.Atoi(f)
			l.asked, l.failed = l.asked+asked, l.failed+failed
			l.errs = append(l.errs, err, wrong, bad)
		})
	}
	return l
}

// stop stops the lookups and returns how many failed.
func (l *lookupLoad) stop() (seen string, failed int, err error) {
	for _, pod := range l.d.pods {
		_, err := l.s.cluster.Exec(l.ctx, askerNamespace, pod, "touch", "/tmp/stop")
		l.errs = append(l.errs, err)
	}
	l.wait.Wait()
	if err := errors.Join(l.errs...); err != nil {
		return "", 0, err
	}
	if l.asked < 2*len(l.d.pods) {
		return "", 0, fmt.Errorf("only %d lookups meanwhile", l.asked)
	}
	return fmt.Sprintf("%d of %d lookups failed meanwhile", l.failed, l.asked), l.failed, nil
}

// discard stops the lookups after another error.
func (l *lookupLoad) discard() error {
	_, _, err := l.stop()
	return err
}
