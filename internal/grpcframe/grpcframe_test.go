package grpcframe_test

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/internal/wire"
)

// frame returns a frame with the DnsPacket packet.
func frame(packet []byte) []byte {
	return append([]byte{0, 0, byte(len(packet) >> 16), byte(len(packet) >> 8), byte(len(packet))}, packet...)
}

// field returns the field msg with value, as the library for protocol buffers encodes it.
func field(value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)
}

func TestAppend(t *testing.T) {
	for _, n := range []int{1, 12, 127, 128, 512, 16384, wire.MaxMessage} {
		msg := bytes.Repeat([]byte{0xa5}, n)
		got := grpcframe.Append([]byte("before"), msg)
		if want := append([]byte("before"), frame(field(msg))...); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: the frame begins %x, want %x", n, got[:min(len(got), 20)], want[:min(len(want), 20)])
		}
	}
	if got := grpcframe.Append(nil, nil); !bytes.Equal(got, frame(nil)) {
		t.Errorf("an empty message is %x, want %x", got, frame(nil))
	}
}

func TestParse(t *testing.T) {
	msg := []byte("a DNS message")
	var unknown []byte
	unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 2, protowire.VarintType), 300)
	unknown = protowire.AppendFixed32(protowire.AppendTag(unknown, 3, protowire.Fixed32Type), 7)
	unknown = protowire.AppendFixed64(protowire.AppendTag(unknown, 4, protowire.Fixed64Type), 7)
	unknown = protowire.AppendString(protowire.AppendTag(unknown, 5, protowire.BytesType), "other")
	compressed := frame(field(msg))
	compressed[0] = 1
	other := frame(field(msg))
	other[0] = 2
	long := frame(field(make([]byte, wire.MaxMessage)))
	for _, tt := range []struct {
		name string
		in   []byte
		want []byte
		err  error
	}{
		{"one field", frame(field(msg)), msg, nil},
		{"no field", frame(nil), nil, nil},
		{"unknown fields before", frame(append(bytes.Clone(unknown), field(msg)...)), msg, nil},
		{"unknown fields behind", frame(append(field(msg), unknown...)), msg, nil},
		{"the last of two", frame(append(field([]byte("first")), field(msg)...)), msg, nil},
		{"the largest", long, make([]byte, wire.MaxMessage), nil},
		{"larger", append(long, 0), nil, grpcframe.ErrTooLarge},
		{"nothing", nil, nil, grpcframe.ErrMalformed},
		{"half a prefix", []byte{0, 0, 0}, nil, grpcframe.ErrMalformed},
		{"compressed", compressed, nil, grpcframe.ErrCompressed},
		{"an unknown flag", other, nil, grpcframe.ErrMalformed},
		{"cut off", frame(field(msg))[:10], nil, grpcframe.ErrMalformed},
		{"two frames", append(frame(field(msg)), frame(field(msg))...), nil, grpcframe.ErrMalformed},
		{"the length is larger than the frame", frame([]byte{1<<3 | 2, 5, 'x'}), nil, grpcframe.ErrMalformed},
		{"an endless length", frame(append([]byte{1<<3 | 2}, bytes.Repeat([]byte{0xff}, 11)...)), nil, grpcframe.ErrMalformed},
		{"an endless number", frame(append([]byte{2 << 3}, bytes.Repeat([]byte{0xff}, 11)...)), nil, grpcframe.ErrMalformed},
		{"field 0", frame([]byte{0<<3 | 2, 0}), nil, grpcframe.ErrMalformed},
		{"a group", frame([]byte{1<<3 | 3, 1<<3 | 4}), nil, grpcframe.ErrMalformed},
		{"another type", frame([]byte{1 << 3, 1}), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := grpcframe.Parse(tt.in)
			if !bytes.Equal(got, tt.want) || !errors.Is(err, tt.err) {
				t.Errorf("%.40q, %v; want %.40q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// FuzzParse: what is accepted is what the library for protocol buffers reads, and comes back
// unchanged from a frame of its own.
func FuzzParse(f *testing.F) {
	f.Add(frame(field([]byte("a DNS message"))))
	f.Add(frame([]byte{2 << 3, 1}))
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		msg, err := grpcframe.Parse(in)
		if err != nil {
			return
		}
		var want []byte
		for b := in[5:]; len(b) > 0; {
			num, typ, n := protowire.ConsumeTag(b)
			if n < 0 {
				t.Fatalf("%x is accepted: %v", in, protowire.ParseError(n))
			}
			size := protowire.ConsumeFieldValue(num, typ, b[n:])
			if size < 0 {
				t.Fatalf("%x is accepted: %v", in, protowire.ParseError(size))
			}
			if num == 1 && typ == protowire.BytesType {
				want, _ = protowire.ConsumeBytes(b[n:])
			}
			b = b[n+size:]
		}
		if !bytes.Equal(msg, want) {
			t.Errorf("%x has the message %x, want %x", in, msg, want)
		}
		if again, err := grpcframe.Parse(grpcframe.Append(nil, msg)); err != nil || !bytes.Equal(again, msg) {
			t.Errorf("%x comes back as %x, %v", msg, again, err)
		}
	})
}
