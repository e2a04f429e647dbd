package kubernetes

import (
	"log"
	"log/slog"

	"k8s.io/klog/v2"
)

// RedirectKlog makes client-go log through package log, where it writes to standard error otherwise. It must be called
// before anything else of client-go runs.
func RedirectKlog() {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(standardLog{}, &slog.HandlerOptions{ReplaceAttr: withoutTime})))
}

// standardLog writes lines to the standard logger of package log.
type standardLog struct{}

func (standardLog) Write(line []byte) (int, error) {
	log.Print(string(line))
	return len(line), nil
}
