package kubernetes_test

import (
	"errors"
	"log"
	"os"
	"testing"

	"k8s.io/klog/v2"

	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/test/testlog"
)

// TestRedirectKlog: what client-go logs goes where package log writes.
func TestRedirectKlog(t *testing.T) {
	var out testlog.Buffer
	flags := log.Flags()
	log.SetOutput(&out)
	log.SetFlags(0)
	t.Cleanup(func() {
		log.SetOutput(os.Stderr)
		log.SetFlags(flags)
		klog.ClearLogger()
	})
	kubernetes.RedirectKlog()
	klog.Errorf("reading %s failed", "ca.crt")
	klog.ErrorS(errors.New("refused"), "request", "url", "/api")
	klog.V(9).Info("not this")
	if got, want := out.String(), "msg=\"reading ca.crt failed\"\nmsg=request err=refused url=/api\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
