// These tests use objects and samples, which are not exported.

package kernelpath

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"
)

// sampleNext makes the next answer, on whatever processor, a sample.
func (s *countTest) sampleNext() {
	s.t.Helper()
	works := make([]programWork, runtime.NumCPU())
	for i := range works {
		works[i].Skip = 1
	}
	if err := s.objects.Works.Put(uint32(0), works); err != nil {
		s.t.Fatal(err)
	}
}

// TestSamples checks that one answer in 64 becomes a sample, whatever the pattern of names is, with its
// client, its name, and whether it is waste.
func TestSamples(t *testing.T) {
	s := newCountTest(t)
	clients := []netip.AddrPort{client4, client6}
	for _, c := range clients {
		s.admit(c.Addr(), time.Hour)
	}
	const rounds = 400
	missing := sampled{client4.Addr(), "nosuch.default.svc.cluster.local.", false}
	wasted := sampled{client6.Addr(), "www.example.com.svc.cluster.local.", true}
	for range rounds {
		for range SampleWeight / 2 { // a period in which every second answer is of the same name
			s.Heartbeat()
			s.runAnswer(frame(client4, listener4, s.missing))
			s.runAnswer(frame(client6, listener6, s.wasted))
		}
		s.Sweep()
	}
	if n := s.Counters(); n.Results["answered"] != rounds*uint64(SampleWeight) || n.SamplesDropped != 0 {
		t.Fatal(n)
	}
	count := make(map[sampled]int)
	for _, x := range s.reported.sampled {
		count[x]++
	}
	// The distances are even from 1 to 127, so the standard deviations are 11 and 13.
	half, all := count[missing], count[missing]+count[wasted]
	if all != len(s.reported.sampled) || all < rounds-90 || all > rounds+90 || half < all/2-90 || half > all/2+90 {
		t.Errorf("%d samples: %v", len(s.reported.sampled), count)
	}
}

// TestSamplesFull checks that samples that find the buffer full are counted, and that those in it are
// reported once.
func TestSamplesFull(t *testing.T) {
	s := newCountTest(t)
	s.admit(client4.Addr(), time.Hour)
	in, answers := frame(client4, listener4, s.query), 0
	for s.Counters().SamplesDropped < 3 {
		if answers++; answers > int(programBoundSAMPLE_BYTES) {
			t.Fatal("the buffer does not become full")
		}
		s.Heartbeat()
		s.sampleNext()
		s.runAnswer(in)
	}
	s.Sweep()
	if len(s.reported.sampled) != answers-3 {
		t.Errorf("%d samples of %d answers, three of which were dropped", len(s.reported.sampled), answers)
	}
	s.sampleNext()
	s.runAnswer(in)
	s.Sweep()
	if len(s.reported.sampled) != answers-2 || s.Counters().SamplesDropped != 3 {
		t.Errorf("%d samples of %d answers; %v", len(s.reported.sampled), answers+1, s.Counters())
	}
}

// TestSampleOfOldClient checks that a sample is of the client that has asked, though its number belongs to
// another one when the sample is read, and that ReportClient reads the samples first.
func TestSampleOfOldClient(t *testing.T) {
	s := newCountTest(t)
	s.sampleNext()
	s.askTimes(client4, s.query, 1)
	number := s.client(client4.Addr()).Number
	s.forget()
	for range len(s.clients.states) {
		s.isAnswered(client6, portB)
		if s.client(client6.Addr()).Number == number {
			break
		}
		s.forget()
	}
	s.ReportClient(client6.Addr())
	if want := []sampled{{client4.Addr(), "web.default.svc.cluster.local.", false}}; !slices.Equal(s.reported.sampled, want) {
		t.Errorf("samples: %v, want %v", s.reported.sampled, want)
	}
}

// TestNoSamples checks that there are no samples and no counts by client while nobody wants them.
func TestNoSamples(t *testing.T) {
	s := &countTest{admissionTest: newAdmissionTest(t)}
	s.sampleNext()
	s.askTimes(client4, s.query, 1)
	r := &reports{counted: make(clientCounts)}
	s.clients.reporter = r
	if s.Sweep(); len(r.counted) > 0 {
		t.Errorf("counted: %v", r.counted)
	}
	if err := s.openSamples(); err != nil {
		t.Fatal(err)
	}
	if n := s.samples.reader.AvailableBytes(); n != 0 {
		t.Errorf("%d bytes", n)
	}
	if err := s.samples.close(); err != nil {
		t.Fatal(err)
	}
	s.Sweep() // after the end, as a late Sweep does
}
