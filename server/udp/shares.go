package udp

import (
	"hash/maphash"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/internal/podrange"
)

// A reader that cannot keep up has a full queue, in which the kernel drops whatever comes next:
// a client that asks once loses as large a part of its packets as one that floods. Dropping a
// packet takes a reader a tenth of the time of answering it or less, so the reader can empty the
// queue if it answers only a part of it. [Shares] chooses that part.

const (
	// shareWindow is the time over which packets are divided among clients. A client that asks
	// 250 times a second asks once in a window.
	shareWindow = 4 * time.Millisecond
	// quietWindows is how many windows without a dropped packet end the division.
	quietWindows = 25
	// minShare is the least number of packets of a client that are answered in a window: the
	// two queries, for A and AAAA, of one lookup. With so many clients that this is too much,
	// the kernel drops the rest.
	minShare = 2
	// tightWindows is how many windows it may take at most to empty the queue, during which the
	// reader counts as if they were one.
	tightWindows = 8
	// overflowInterval is how long the reader remembers how many packets the kernel had dropped.
	// In it, a reader that cannot keep up reads the number many times.
	overflowInterval = time.Second
	// maxShare is the most packets of a client that are answered in a window, and can be counted.
	maxShare = 1<<16 - 1
	// longestQueue is the greatest number of windows that packets have waited for to which the
	// reader pays attention: a quarter of a second.
	longestQueue = 64
	// memoryInterval is after how many full batches the reader looks how full the queue is,
	// which takes half as long as dropping a packet.
	memoryInterval = 8
	// shareRows and shareCols are the size of the Count-Min sketch of a window. Two clients
	// among a hundred that flood share all their counters with a probability of 1 in 10,000.
	shareRows, shareCols = 4, 1024
)

// Shares divides the packets that a reader can answer among the clients: each client may
// have a number of packets answered in a window, its share, and the rest are dropped before they
// are parsed. The share is the same for all, so that a client that asks less loses nothing. It
// shrinks after a window in which the queue was never empty, and grows after others: it approaches
// the max-min fair share of what the reader can answer.
//
// When the queue is half full, [minShare] packets of each client are answered until it is empty, so
// that it does not overflow. Packets that have waited came in several windows: for each window that
// the queue was not empty, or not read from, one more of each client is answered.
//
// The division begins when the kernel drops packets although [overloadBatches] full batches in a
// row were read. Until then it costs a comparison for each batch. A Shares belongs to one
// reader. It does not allocate, and its size is fixed.
type Shares struct {
	Pods *podrange.Ranges // which tell clients apart

	full      int           // full batches in a row
	fullSince time.Duration // when the first of them came, by package clock
	emptyAt   time.Duration // when the queue was last empty, by package clock
	readAt    time.Duration // when the last batch came, by package clock
	memory    Memory        // a field because a pointer passed to an interface method escapes
	memoryAt  time.Duration // when overflows has read memory, by package clock

	active    bool
	share     int           // packets of one client in a window
	limit     int           // the same for this window
	windowEnd time.Duration // by package clock
	quiet     int           // windows in a row without a dropped packet
	drained   bool          // the queue has been empty in this window
	stalled   bool          // the reader has not read for a window, and the queue has not been empty since
	dropped   bool          // a packet was dropped in this window
	tight     bool          // this window lasts until the queue is empty
	// answered are the packets of each client in this window, as a Count-Min sketch with
	// conservative update. Each window has another seed, so that no two clients share their
	// counters for long.
	seed     maphash.Seed
	answered [shareRows][shareCols]uint16
}

// Memory is what SO_MEMINFO returns (SK_MEMINFO_VARS in linux/sock_diag.h).
type Memory [9]uint32

// The indexes in memory of used and available memory for received packets, and of the number
// of packets that the kernel has dropped.
const (
	meminfoRmemAlloc = 0
	meminfoRcvbuf    = 1
	meminfoDrops     = 8
)

// halfFull reports whether the packets in the queue take half of its memory. The kernel releases up
// to a quarter later than it could.
func (m *Memory) halfFull() bool {
	used, size := uint64(m[meminfoRmemAlloc]), uint64(m[meminfoRcvbuf])
	return size > 0 && 2*used >= size
}

// memoryReader is the part of [Socket] that Shares needs.
type memoryReader interface{ Memory(m *Memory) syscall.Errno }

// Begin is called with the number of packets in each batch, which the reader has read from q at
// the time now, by package clock. It returns true if [Shares.Admit] must be asked about
// each of them.
func (s *Shares) Begin(n int, now time.Duration, q memoryReader) bool {
	switch {
	case n < BatchSize:
		s.empty(now)
	case s.active:
		if s.full++; s.full%memoryInterval == 0 && !s.tight && q.Memory(&s.memory) == 0 && s.memory.halfFull() {
			s.tighten(now)
		}
	default:
		s.detect(now, q)
	}
	waited := windows(now - s.readAt)
	s.readAt = now
	if !s.active {
		return false
	}
	if now >= s.windowEnd {
		s.endWindow(now)
	}
	if waited > 0 {
		s.limit = min(s.limit+waited, maxShare)
		s.stalled = n == BatchSize
	}
	return s.active
}

// windows returns how many packets of each client are answered at least that have waited for so
// long, less [minShare].
func windows(waited time.Duration) int { return int(min(waited/shareWindow, longestQueue)) }

// empty notes that the queue is empty.
func (s *Shares) empty(now time.Duration) {
	s.full, s.emptyAt = 0, now
	if s.tight {
		s.windowEnd = now
	} else {
		s.drained = true
	}
}

// tighten makes the window last until the queue is empty. The packets in it have come since it was
// last empty.
func (s *Shares) tighten(now time.Duration) {
	s.tight, s.limit = true, min(s.limit, minShare+windows(now-s.emptyAt))
	s.windowEnd = now + tightWindows*shareWindow
}

// detect starts the division if the reader cannot keep up. It is called for each full batch.
func (s *Shares) detect(now time.Duration, q memoryReader) {
	if s.full == 0 {
		s.fullSince = now
	}
	if s.full++; s.full <= overloadBatches {
		return
	}
	took := max(now-s.fullSince, time.Microsecond)
	s.full = 0
	if !s.overflows(now, q) {
		return
	}
	// Half of what the reader has answered, because it must also empty the queue.
	perWindow := overloadBatches * BatchSize * shareWindow / took
	s.active, s.quiet = true, 0
	s.share = min(max(int(perWindow/2), minShare), maxShare)
	s.startWindow(now)
	s.tighten(now)
}

// overflows reports whether the kernel has dropped packets of the queue since the last call, which
// was not long ago.
func (s *Shares) overflows(now time.Duration, q memoryReader) bool {
	before, at := s.memory[meminfoDrops], s.memoryAt
	if q.Memory(&s.memory) != 0 {
		return false
	}
	s.memoryAt = now
	return at > 0 && now-at < overflowInterval && s.memory[meminfoDrops] != before
}

// startWindow starts a window without any packets.
func (s *Shares) startWindow(now time.Duration) {
	s.windowEnd = now + shareWindow
	s.drained, s.dropped, s.tight, s.limit = false, false, false, s.share
	s.seed = maphash.MakeSeed()
	clear(s.answered[:])
}

// endWindow adapts the share to the window that has ended, and starts the next one or ends the
// division.
func (s *Shares) endWindow(now time.Duration) {
	if s.quiet++; s.dropped {
		s.quiet = 0
	}
	if s.quiet >= quietWindows || now-s.windowEnd > quietWindows*shareWindow {
		s.active, s.full = false, 0
		return
	}
	switch {
	case s.drained:
		s.share = min(s.share+s.share/16+1, maxShare)
	case !s.stalled:
		s.share = max(s.share-s.share/4-1, minShare)
	}
	s.stalled = s.stalled && s.full > 0
	s.startWindow(now)
}

// Admit reports whether a packet of client is to be answered, and counts it.
func (s *Shares) Admit(client netip.Addr) bool {
	key := s.Pods.Client(client).As16()
	h := maphash.Bytes(s.seed, key[:])
	var cells [shareRows]*uint16
	least := uint16(math.MaxUint16)
	for i := range cells {
		cells[i] = &s.answered[i][h%shareCols]
		h /= shareCols
		least = min(least, *cells[i])
	}
	if int(least) >= s.limit {
		s.dropped = true
		return false
	}
	for _, c := range cells {
		*c = max(*c, least+1)
	}
	return true
}
