// Package balance puts the addresses of an answer in the order that `loadbalance` asks for: weights from a file
// choose the first address, and addresses in preferred networks come before others.
//
// The weights are a map that never changes once it is read. [Balancer.Run] replaces the map if the file has changed,
// so that queries need no lock.
package balance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxFileSize bounds the file of weights, which is read as a whole.
const maxFileSize = 1 << 20

// Balancer orders the addresses of replies. It is created by [New] and safe for concurrent use.
type Balancer struct {
	cfg     config.Loadbalance
	log     *slog.Logger
	weights atomic.Pointer[weights] // empty without a file
	random  func(n uint32) uint32   // from 0 to n-1
	file    filewatch.File          // only New and Run use it
}

// Options holds what a Balancer needs beside its directive.
type Options struct {
	// Logger gets warnings; nil discards them.
	Logger *slog.Logger
	// Random returns a random number from 0 to n-1; nil is that of math/rand/v2. It may be called concurrently.
	Random func(n uint32) uint32
}

// New reads the file of cfg, if it names one. If the file does not exist, New logs a warning, because the file may
// appear later; unless it is never read again. If it can't be read or has an error, New returns an error.
func New(cfg *config.Loadbalance, opts Options) (*Balancer, error) {
	b := &Balancer{cfg: *cfg, log: opts.Logger, random: opts.Random, file: filewatch.File{Path: cfg.Weights}}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.random == nil {
		b.random = rand.Uint32N
	}
	b.weights.Store(new(weights))
	if cfg.Weights == "" {
		return b, nil
	}
	_, err := b.file.Changed()
	if errors.Is(err, fs.ErrNotExist) && cfg.Reload > 0 {
		b.log.Warn("weight file does not exist; waiting for it", "file", cfg.Weights)
		return b, nil
	}
	if err == nil {
		err = b.load()
	}
	if err != nil {
		return nil, fmt.Errorf("weight file: %w; correct the file, or name another one", err)
	}
	return b, nil
}

// Run checks the file every `reload` until ctx ends, and reads it again if it has changed ([filewatch.File.Changed]).
// If the file disappears or has an error, the weights stay. With `reload 0` and without a file Run only waits for ctx.
func (b *Balancer) Run(ctx context.Context) {
	interval := b.cfg.Reload
	if b.cfg.Weights == "" {
		interval = 0
	}
	filewatch.Every(ctx, interval, b.reloadIfChanged)
}

// reloadIfChanged reads the file if it has changed. It logs a failure once.
func (b *Balancer) reloadIfChanged() {
	changed, err := b.file.Changed()
	if !changed {
		return
	}
	if err != nil {
		b.log.Warn("can't check the weight file; keeping the last state", "file", b.cfg.Weights, "err", err)
		return
	}
	if err := b.load(); err != nil {
		b.log.Warn("can't read the weight file; keeping the last state", "file", b.cfg.Weights, "err", err)
		return
	}
	b.log.Info("weight file loaded", "file", b.cfg.Weights, "entries", len(*b.weights.Load()))
}

// load reads the file and puts its weights into service. Errors name the file.
func (b *Balancer) load() error {
	text, err := filewatch.Read(b.cfg.Weights, maxFileSize)
	if err != nil {
		return err
	}
	w, err := parseWeights(string(text))
	if err != nil {
		return &fs.PathError{Op: "parse", Path: b.cfg.Weights, Err: err}
	}
	b.weights.Store(&w)
	return nil
}

// Order puts the addresses in the answer section of r in order. ordered says that they are in a meaningful order
// already: then weights apply only if the file has the name. Order does not allocate.
func (b *Balancer) Order(r *wire.Reply, ordered bool) {
	var list wire.AddressList
	if list.Read(r); list.Len() < 2 {
		return
	}
	if b.cfg.Weights != "" {
		b.choose(&list, ordered)
	}
	if len(b.cfg.Prefer) > 0 {
		b.prefer(&list)
	}
}

// choose makes an address that is drawn by weight the first one.
func (b *Balancer) choose(list *wire.AddressList, ordered bool) {
	var name [wire.MaxName]byte
	weights := (*b.weights.Load())[wire.Name(list.Owner(&name))]
	if ordered && weights == nil {
		return
	}
	var upTo [wire.MaxShuffled]uint32 // the sum of the weights up to each address
	sum := uint32(0)
	for i := range list.Len() {
		sum += weights.of(list.Addr(i))
		upTo[i] = sum
	}
	at := b.random(sum)
	for i := range list.Len() {
		if at < upTo[i] {
			list.Swap(0, i)
			return
		}
	}
}

// prefer moves the addresses in preferred networks to the front.
func (b *Balancer) prefer(list *wire.AddressList) {
	var ranks [wire.MaxShuffled]uint8
	for i := range list.Len() {
		ranks[i] = b.rank(list.Addr(i))
	}
	list.Sort(ranks[:list.Len()])
}

// rank returns the number of the first preferred network that has a.
func (b *Balancer) rank(a netip.Addr) uint8 {
	for i, network := range b.cfg.Prefer {
		if network.Contains(a) {
			return uint8(i)
		}
	}
	return uint8(len(b.cfg.Prefer))
}
