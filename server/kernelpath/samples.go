package kernelpath

import (
	"net/netip"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// SampleWeight is how many answers of the kernel a sample stands for, on average.
const SampleWeight = int(programBoundSAMPLED)

// Places in a sample, whose last field is the name.
const (
	sampleWaste = unsafe.Offsetof(programSample{}.Waste)
	sampleName  = unsafe.Offsetof(programSample{}.Key) + unsafe.Offsetof(programKey{}.Name)
)

// samples is the agent's side of the buffer of samples. It is safe for concurrent use.
type samples struct {
	mu     sync.Mutex
	reader *ringbuf.Reader // nil if no samples are taken
	record ringbuf.Record
}

// read passes all samples to the reporter and removes them.
func (s *samples) read(to ClientReporter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.reader != nil && s.reader.AvailableBytes() > 0 && s.reader.ReadInto(&s.record) == nil {
		if b := s.record.RawSample; len(b) > int(sampleName) {
			to.ReportSample(netip.AddrFrom16([16]byte(b)).Unmap(), b[sampleName:], b[sampleWaste] != 0)
		}
	}
}

// close ends the reading of samples.
func (s *samples) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.reader
	if s.reader = nil; r == nil {
		return nil
	}
	return r.Close()
}
