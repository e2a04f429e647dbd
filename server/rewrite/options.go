package rewrite

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrOptions means that rules add more EDNS options to a query than [wire.MaxOptions].
var ErrOptions = errors.New("rewrite rules add too many bytes of EDNS options")

// Env is what rules use of a request besides its query.
type Env interface {
	// Client is the address of the client; Server is where its query arrived.
	Client() netip.AddrPort
	Server() netip.AddrPort
	// Proto is udp or tcp.
	Proto() string
	// Metadata returns the value of a name of metadata, "" for none.
	Metadata(name string) string
}

// applyOption applies r, a rule for an EDNS option, and reports whether it matches. The first rule for a code
// takes over the option of the client's query.
func (c *Change) applyOption(r *config.OptionRule, q *wire.Query, env Env) (matched bool, err error) {
	if err := c.takeOption(q, r.Code); err != nil {
		return false, err
	}
	has := wire.HasOption(c.options, r.Code)
	switch {
	case r.Action == config.OptionUnset:
		c.options = wire.RemoveOption(c.options, r.Code)
		return true, nil
	case r.Action == config.OptionAppend && has, r.Action == config.OptionReplace && !has:
		return false, nil
	}
	data, ok := c.optionData(r, env)
	if !ok {
		return false, nil
	}
	c.options = wire.SetOption(c.options, r.Code, data)
	if r.Value == config.OptionClientPort {
		c.uncached = true
	}
	return true, c.checkOptions()
}

// takeOption adds the client's option with code to those for upstream servers, the first time that a rule is about it.
func (c *Change) takeOption(q *wire.Query, code uint16) error {
	for _, seen := range c.codes {
		if seen == code {
			return nil
		}
	}
	c.codes = append(c.codes, code)
	if data, ok := q.ClientOption(code); ok {
		c.options = wire.SetOption(c.options, code, data)
	}
	return c.checkOptions()
}

func (c *Change) checkOptions() error {
	if len(c.options) > wire.MaxOptions {
		return ErrOptions
	}
	return nil
}

// optionData returns the data of the option that r makes. ok is false if the request has no such data.
func (c *Change) optionData(r *config.OptionRule, env Env) (data []byte, ok bool) {
	b := c.scratch[:0]
	ok = true
	switch r.Value {
	case config.OptionQname:
		b = append(b, c.text...)
	case config.OptionQtype:
		b = binary.BigEndian.AppendUint16(b, c.Type)
	case config.OptionClientIP:
		b = appendAddr(b, env.Client().Addr().Unmap())
	case config.OptionClientPort:
		b = binary.BigEndian.AppendUint16(b, env.Client().Port())
	case config.OptionProtocol:
		b = append(b, env.Proto()...)
	case config.OptionServerIP:
		b, ok = appendServer(b, env)
	case config.OptionServerPort:
		b = binary.BigEndian.AppendUint16(b, env.Server().Port())
	case config.OptionMetadata:
		b = append(b, env.Metadata(r.Label)...)
		ok = len(b) > 0
	case config.OptionSubnet:
		b = appendSubnet(b, env.Client().Addr().Unmap(), r)
	default:
		b = append(b, r.Data...)
	}
	c.scratch = b
	return b, ok
}

// appendAddr appends the 4 or 16 bytes of an address.
func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v4 := a.As4()
		return append(b, v4[:]...)
	}
	v6 := a.As16()
	return append(b, v6[:]...)
}

// appendServer appends the server's address in the form of the client's family. ok is false if it has none.
func appendServer(b []byte, env Env) (_ []byte, ok bool) {
	server := env.Server().Addr()
	if env.Client().Addr().Unmap().Is4() {
		return appendAddr(b, server.Unmap()), server.Unmap().Is4()
	}
	v6 := server.As16()
	return append(b, v6[:]...), true
}

// appendSubnet appends the data of the option for the client's subnet (RFC 7871, 6).
func appendSubnet(b []byte, client netip.Addr, r *config.OptionRule) []byte {
	family, bits := byte(1), r.Prefix4
	if !client.Is4() {
		family, bits = 2, r.Prefix6
	}
	b = append(b, 0, family, bits, 0)
	if prefix, err := client.WithZone("").Prefix(int(bits)); err == nil {
		head := len(b)
		b = appendAddr(b, prefix.Addr())
		b = b[:head+(int(bits)+7)/8]
	}
	return b
}

// Options returns the EDNS options for upstream servers, in wire form; it is empty for none. It is valid until the
// next Apply.
func (c *Change) Options() []byte { return c.options }

// Uncached reports whether the options make the reply useless for other queries.
func (c *Change) Uncached() bool { return c.uncached }
