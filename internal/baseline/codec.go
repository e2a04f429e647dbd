package baseline

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The bounds of encoded statistics.
const (
	// MaxEncoded is the maximum length of encoded statistics in bytes.
	MaxEncoded = 32 << 10
	// MaxZones is the maximum number of zones, and maxViews of views.
	MaxZones = 64
	maxViews = 16
	// maxName is the maximum length of the names of a zone or view in bytes.
	maxName = 300
	// maxCount is the maximum of each counter: integers up to this value are exact in floating
	// point.
	maxCount = 1 << 53
	// maxTime is the maximum interval and age. Older is as bad as this old.
	maxTime = 365 * 24 * time.Hour
)

// Encode returns s as JSON that [Decode] accepts. If s exceeds a bound, it leaves out the
// zones with the fewest queries, and names that are too long. It sorts s.Zones.
func Encode(s Statistics) []byte {
	s = s.bounded()
	for {
		text, err := json.Marshal(s)
		if err == nil && len(text) <= MaxEncoded {
			return text
		}
		if len(s.Zones) == 0 {
			s.Views = nil // long names with many escapes
		}
		s.Zones, s.More = s.Zones[:max(0, len(s.Zones)-1)], true
	}
}

// bounded returns the part of s that is within the bounds.
func (s Statistics) bounded() Statistics {
	s.Sort()
	out := Statistics{Interval: clamp(s.Interval), More: s.More}
	for _, z := range s.Zones {
		if len(z.Name)+len(z.Group) > maxName || len(out.Zones) == MaxZones {
			out.More = true
			continue
		}
		out.Zones = append(out.Zones, z)
	}
	for _, v := range s.Views {
		if len(v.Zone) <= maxName && len(out.Views) < maxViews {
			v.Age = clamp(v.Age)
			out.Views = append(out.Views, v)
		}
	}
	return out
}

// clamp returns d, or the next valid time.
func clamp(d time.Duration) time.Duration { return min(max(0, d), maxTime) }

// Decode returns the statistics that [Encode] wrote. It refuses what exceeds a bound, and
// counters that contradict each other. The error names the reason.
func Decode(text []byte) (Statistics, error) {
	var s Statistics
	if len(text) > MaxEncoded {
		return s, fmt.Errorf("statistics of %d bytes; the limit is %d", len(text), MaxEncoded)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return Statistics{}, fmt.Errorf("reading statistics: %w", err)
	}
	if err := s.check(); err != nil {
		return Statistics{}, fmt.Errorf("reading statistics: %w", err)
	}
	return s, nil
}

// check returns an error if s exceeds a bound.
func (s Statistics) check() error {
	switch {
	case len(s.Zones) > MaxZones:
		return fmt.Errorf("%d zones; the limit is %d", len(s.Zones), MaxZones)
	case len(s.Views) > maxViews:
		return fmt.Errorf("%d views; the limit is %d", len(s.Views), maxViews)
	case s.Interval < 0 || s.Interval > maxTime:
		return errors.New("the interval is out of range")
	}
	return errors.Join(s.checkZones(), s.checkViews())
}

func (s Statistics) checkZones() error {
	names := make(map[[2]string]bool, len(s.Zones))
	for _, z := range s.Zones {
		if names[[2]string{z.Name, z.Group}] {
			return fmt.Errorf("zone %q occurs twice", z.Name)
		}
		names[[2]string{z.Name, z.Group}] = true
		if err := z.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s Statistics) checkViews() error {
	names := make(map[string]bool, len(s.Views))
	for _, v := range s.Views {
		if len(v.Zone) > maxName || v.Objects < 0 || v.Age < 0 || v.Age > maxTime {
			return errors.New("a view is out of range")
		}
		if names[v.Zone] {
			return fmt.Errorf("the view of %q occurs twice", v.Zone)
		}
		names[v.Zone] = true
	}
	return nil
}

func (z Zone) check() error {
	if n := len(z.Name) + len(z.Group); n > maxName {
		return fmt.Errorf("a zone name of %d bytes; the limit is %d", n, maxName)
	}
	if z.ServFail > z.Queries || z.Lookups > z.Queries || z.Hits > z.Lookups || z.Queries > maxCount {
		return fmt.Errorf("zone %q: the counters contradict each other", z.Name)
	}
	for _, n := range z.Duration {
		if n > maxCount {
			return fmt.Errorf("zone %q: the durations are out of range", z.Name)
		}
	}
	return z.Peak.check(z.Name)
}

func (p Peak) check(zone string) error {
	if p.ServFail < 0 || p.ServFail > 1 || p.Misses < 0 || p.Misses > 1 || p.Bucket < 0 || p.Bucket >= numBuckets {
		return fmt.Errorf("zone %q: the peak is out of range", zone)
	}
	return nil
}
