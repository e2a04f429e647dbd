package zonefile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxTransfers bounds the zones that are transferred at once.
	maxTransfers = 2
	// maxTransferSize bounds the messages of a transfer, in bytes.
	maxTransferSize = 32 << 20
	// maxTransferTime bounds a transfer, and maxTransferIdle the wait for a connection and for each message.
	maxTransferTime, maxTransferIdle = 2 * time.Minute, 10 * time.Second
)

// serial asks a primary server for the zone's serial.
func (p *Primaries) serial(ctx context.Context, from netip.AddrPort, zone wire.Name) (uint32, error) {
	x, err := p.ask(ctx, from, zone, wire.TypeSOA, 1)
	if err != nil {
		return 0, err
	}
	defer x.close()
	msg, err := x.next()
	if err != nil {
		return 0, err
	}
	return wire.SOASerial(msg, x.id, zone)
}

// transfer gets the zone from a primary server. It waits for one of the places of maxTransfers. The bounds are scale
// times the usual ones.
func (p *Primaries) transfer(ctx context.Context, from netip.AddrPort, zone wire.Name, scale int) (*Zone, error) {
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	x, err := p.ask(ctx, from, zone, wire.TypeAXFR, scale)
	if err != nil {
		return nil, err
	}
	defer x.close()
	b := newBuilder(zone, scale)
	in := wire.TransferIn{Zone: zone, ID: x.id}
	for !in.Done() {
		msg, err := x.next()
		if err != nil {
			return nil, err
		}
		if err := in.Read(msg, b.add); err != nil {
			return nil, err
		}
	}
	return b.build()
}

// exchange is a query on a connection of its own and what the server sends.
type exchange struct {
	conn  net.Conn
	id    uint16
	end   time.Time
	left  int // bytes that the server may still send, of scale*maxTransferSize
	scale int
	buf   []byte // of the last message
	stop  func() bool
}

// ask connects to a primary server and sends a query. The caller closes the exchange.
func (p *Primaries) ask(ctx context.Context, from netip.AddrPort, zone wire.Name, qtype uint16, scale int) (*exchange, error) {
	dial := p.Dial
	if dial == nil {
		dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{Timeout: maxTransferIdle}).DialContext(ctx, "tcp", to.String())
		}
	}
	conn, err := dial(ctx, from)
	if err != nil {
		return nil, err
	}
	x := &exchange{conn: conn, id: uint16(rand.Uint32()), end: time.Now().Add(maxTransferTime), left: scale * maxTransferSize, scale: scale}
	x.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	query := wire.AppendTransferQuery([]byte{0, 0}, x.id, zone, qtype)
	binary.BigEndian.PutUint16(query, uint16(len(query)-2))
	_ = conn.SetDeadline(x.deadline())
	if _, err := conn.Write(query); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

func (x *exchange) deadline() time.Time {
	if idle := time.Now().Add(maxTransferIdle); idle.Before(x.end) {
		return idle
	}
	return x.end
}

func (x *exchange) close() {
	x.stop()
	_ = x.conn.Close()
}

// next reads the next message, which is valid until the one after it.
func (x *exchange) next() ([]byte, error) {
	_ = x.conn.SetDeadline(x.deadline())
	var size [2]byte
	if _, err := io.ReadFull(x.conn, size[:]); err != nil {
		return nil, endedEarly(err)
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if x.left -= len(size) + n; x.left < 0 {
		return nil, fmt.Errorf("the transfer has more than %d MiB", x.scale*maxTransferSize>>20)
	}
	if cap(x.buf) < n {
		x.buf = make([]byte, n)
	}
	if _, err := io.ReadFull(x.conn, x.buf[:n]); err != nil {
		return nil, endedEarly(err)
	}
	return x.buf[:n], nil
}

// endedEarly explains the end of a connection.
func endedEarly(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the server has closed the connection before the end")
	}
	return err
}
