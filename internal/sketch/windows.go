package sketch

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"
)

// Window is a time for which [Windows] answers.
type Window uint8

const (
	TenSeconds Window = iota
	Minute
	Hour
	NumWindows
)

// halves are half the lengths of the windows. Each one is a multiple of the one before.
var halves = [NumWindows]time.Duration{5 * time.Second, 30 * time.Second, 30 * time.Minute}

// Length returns the length of w.
func (w Window) Length() time.Duration { return 2 * halves[w] }

// maxListBytes bounds the keys and counts of a half that has ended: some 100 names. Those with the
// highest counts stay.
const maxListBytes = 3072

// Windows counts the keys of the last ten seconds, minute and hour. [NewWindows] makes it. It takes
// 34 KiB at most. It is not safe for concurrent use.
//
// Each window has two halves. The current half ends when the time is a multiple of half the
// window. A reader sees the current half and the one before: at least the last half of the window,
// and less than all of it. [Report] says how long that is.
//
// Only the current half of ten seconds is a [Sketch]; Add costs no more than there. When it ends, its
// counts and errors are added to the current half of a minute, and that one's to the current half of
// an hour.
//
// Times are monotonic, such as those of package clock. An earlier time than before counts as the
// latest one.
type Windows struct {
	current *Sketch
	// started is the time of NewWindows or Reset, ends when the half of ten seconds ends.
	started, ends time.Duration
	// sums are of what has ended within the current half of the window, before of the half before.
	// TenSeconds has no sum.
	sums, before [NumWindows]list
}

// Report is what a [Windows] knows of a window.
type Report struct {
	// Covered is the time that the counts are of.
	Covered time.Duration
	// Sum is the sum of all weights. It is exact.
	Sum uint64
	// MaxWeight is the highest weight.
	MaxWeight uint64
	// Floor is the highest count that a key may have which is not in Entries because the table had
	// no place for it; 0 if all keys are counted.
	Floor uint64
	// Entries have the highest counts first.
	Entries []Entry
}

// NewWindows makes an empty Windows at now.
func NewWindows(now time.Duration) *Windows {
	w := &Windows{current: New()}
	w.Reset(now)
	return w
}

// Reset removes all keys.
func (w *Windows) Reset(now time.Duration) {
	w.current.Reset()
	w.started, w.ends = now, now.Truncate(halves[TenSeconds])+halves[TenSeconds]
	w.sums, w.before = [NumWindows]list{}, [NumWindows]list{}
}

// Add counts key weight times at now, as [Sketch.Add] does. It allocates only if a half has ended, once
// in five seconds, and [Windows.Advance] was not called.
func (w *Windows) Add(now time.Duration, key []byte, weight uint64) {
	if now >= w.ends {
		w.Advance(now)
	}
	w.current.Add(key, weight)
}

// Advance ends the halves that have ended by now, which takes some 0.2 ms. Add and Top do it, too; a
// call every five seconds keeps it out of Add.
func (w *Windows) Advance(now time.Duration) {
	if now >= w.ends+Hour.Length() { // nothing that a window covers
		started := w.started
		w.Reset(now)
		w.started = started
		return
	}
	for now >= w.ends {
		w.endHalf()
		w.ends += halves[TenSeconds]
	}
}

// endHalf ends the current half of ten seconds, and those of other windows that end with it.
func (w *Windows) endHalf() {
	done := w.current.counts()
	slices.SortFunc(done.entries, compareEntries)
	w.current.Reset()
	w.before[TenSeconds] = newList(done)
	for i := Minute; i < NumWindows; i++ {
		done = sum(w.sums[i].counts(), done)
		slices.SortFunc(done.entries, compareEntries)
		if w.ends%halves[i] != 0 {
			w.sums[i] = newList(done)
			return
		}
		w.before[i], w.sums[i] = newList(done), list{}
	}
}

// Snapshot is the state of a window at one time. It does not change, and is safe for concurrent use.
type Snapshot struct {
	covered time.Duration
	current counts
	ended   []list
}

// Snapshot returns the state of window at now. It takes some 50 µs, and [Snapshot.Top] up to 0.5 ms.
func (w *Windows) Snapshot(now time.Duration, window Window) Snapshot {
	w.Advance(now)
	from := max(w.started, (w.ends-1).Truncate(halves[window])-halves[window])
	s := Snapshot{covered: max(0, now-from), current: w.current.counts()}
	s.ended = append(append(s.ended, w.sums[Minute:window+1]...), w.before[window])
	return s
}

// Top returns the n keys with the highest counts.
func (s Snapshot) Top(n int) Report {
	parts := append(make([]counts, 0, 1+len(s.ended)), s.current)
	for _, l := range s.ended {
		parts = append(parts, l.counts())
	}
	all := sum(parts...)
	slices.SortFunc(all.entries, compareEntries)
	return Report{Covered: s.covered, Sum: all.sum, MaxWeight: all.maxWeight, Floor: all.floor, Entries: all.entries[:max(0, min(n, len(all.entries)))]}
}

// Top returns the n keys of window with the highest counts.
func (w *Windows) Top(now time.Duration, window Window, n int) Report {
	return w.Snapshot(now, window).Top(n)
}

// counts are the keys of a stream, in no order.
type counts struct {
	sum, maxWeight, floor uint64
	entries               []Entry
}

func (s *Sketch) counts() counts {
	return counts{sum: s.sum, maxWeight: s.maxWeight, floor: s.floor, entries: s.list()}
}

// sum returns the sum of streams. A key that is not in all of them may have the others' floors there.
func sum(streams ...counts) (all counts) {
	size := 0
	for _, c := range streams {
		all.sum, all.maxWeight, all.floor = all.sum+c.sum, max(all.maxWeight, c.maxWeight), all.floor+c.floor
		size += len(c.entries)
	}
	all.entries = make([]Entry, 0, size)
	index := make(map[string]int, size)
	for _, c := range streams {
		for _, e := range c.entries {
			i, ok := index[e.Key]
			if !ok {
				i = len(all.entries)
				index[e.Key] = i
				all.entries = append(all.entries, Entry{Key: e.Key, Count: all.floor, Error: all.floor})
			}
			all.entries[i].Count += e.Count - c.floor // c.floor is in all.floor
			all.entries[i].Error += e.Error - c.floor // may wrap around, and back
		}
	}
	return all
}

// list is [counts] in few bytes. The zero value is empty.
type list struct {
	sum, maxWeight, floor uint64
	// data has the count, the error and the length of each key as varints, and the key.
	data []byte
}

// minEntry is a usual length of a key with its numbers, or less.
const minEntry = 24

// newList returns c, whose highest counts are first, as a list. If it takes more than maxListBytes, the last keys are dropped, and the
// floor rises to the highest count among them.
func newList(c counts) list {
	l := list{sum: c.sum, maxWeight: c.maxWeight, floor: c.floor}
	var data, one []byte
	for _, e := range c.entries {
		one = binary.AppendUvarint(one[:0], e.Count)
		one = binary.AppendUvarint(one, e.Error)
		one = binary.AppendUvarint(one, uint64(len(e.Key)))
		if len(data)+len(one)+len(e.Key) > maxListBytes {
			l.floor = max(l.floor, e.Count)
			break
		}
		data = append(append(data, one...), e.Key...)
	}
	l.data = bytes.Clone(data)
	return l
}

// counts returns what newList got, less what it dropped.
func (l list) counts() counts {
	c := counts{sum: l.sum, maxWeight: l.maxWeight, floor: l.floor, entries: make([]Entry, 0, len(l.data)/minEntry)}
	for data := l.data; len(data) > 0; {
		var numbers [3]uint64
		for i := range numbers {
			n, size := binary.Uvarint(data)
			numbers[i], data = n, data[size:]
		}
		c.entries = append(c.entries, Entry{Key: string(data[:numbers[2]]), Count: numbers[0], Error: numbers[1]})
		data = data[numbers[2]:]
	}
	return c
}
