package page

import (
	"fmt"
	"time"
)

// percent returns share, which is from 0 to 1, as a percentage.
func percent(share float64) string {
	switch {
	case share == 0:
		return "0%"
	case share < 0.001:
		return "<0.1%"
	}
	return fmt.Sprintf("%.1f%%", 100*share)
}

// perSecond returns a rate without its unit.
func perSecond(rate float64) string {
	switch {
	case rate == 0:
		return "0"
	case rate < 0.1:
		return "<0.1"
	case rate >= 100:
		return fmt.Sprintf("%.0f", rate)
	}
	return fmt.Sprintf("%.1f", rate)
}

// latency returns an upper bound of a latency, "–" without one.
func latency(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case seconds == 0:
		return "–"
	case d < time.Millisecond:
		return fmt.Sprintf("≤%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("≤%d ms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("≤%.1f s", seconds)
}

// duration returns d in two units at most.
func duration(d time.Duration) string {
	const day = 24 * time.Hour
	d = max(0, d)
	switch {
	case d >= day:
		return fmt.Sprintf("%dd %dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// since returns the time from then until now, "–" if then is not set.
func since(now, then time.Time) string {
	if then.IsZero() {
		return "–"
	}
	return duration(now.Sub(then))
}
